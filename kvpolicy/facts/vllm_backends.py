"""vLLM 0.26 to 0.33: what each attention backend can serve, as data.

Read from ``v1/attention/backends`` of 0.26.0, 0.28.0, 0.30.0, 0.32.0 and 0.33.0 (of each class the methods
``get_supported_kernel_block_sizes``, ``supports_*`` and ``supports_combination``) and compared with the classes of 0.32
by ``tests/facts/test_against_vllm.py``. A backend may have several rows: of those for the release, the first whose
device, heads and dtype fit is the one that answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvpolicy.facts.engines import Version

__all__ = ["BACKENDS", "Backend", "engine_dtype_name", "rows_of", "since_when"]

_HALF = ("auto", "fp16", "bf16")
_E4M3 = (*_HALF, "fp8_e4m3")
_FP8 = (*_E4M3, "fp8_e5m2")
_PER_TOKEN_HEAD = ("int4_per_token_head", "int8_per_token_head", "fp8_per_token_head")
_TURBOQUANT = ("turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc")
_OCTAVE = ("octave_k3v4", "octave_k3v3", "octave_k3v3_compact")
_CPU_HEADS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
_ROCM_HEADS = (32, 64, 80, 96, 128, 160, 192, 224, 256)
_V30, _V32, _V33 = (0, 30, 0), (0, 31, 0), (0, 33, 0)  # 0.31 was not read; what 0.32 has over 0.30 is given to it
_TO_V28, _TO_V30, _TO_V32 = (0, 29, 99), (0, 30, 99), (0, 32, 99)
_EVER: Version = (999, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One row. ``blocks``: sizes the kernel reads, in tokens; with ``multiples`` every multiple of the one listed."""

    name: str  # the engine's own, in lower case
    source: str  # file below v1/attention/backends
    gpu: tuple[str, ...]  # any of these traits
    blocks: tuple[int, ...]
    kv_dtypes: tuple[str, ...]
    multiples: bool = True
    exact: bool = False  # the cache manager's block must be one of `blocks` itself, no multiple of one
    prefers: int = 0  # block size taken where none was asked for; 0: 16 if it fits, else the smallest
    since: Version = (0, 0, 0)
    until: Version = _EVER  # inclusive
    only_heads: tuple[int, ...] = ()  # the row is about these head sizes
    only_kv: tuple[str, ...] = ()  # the row is about these KV dtypes
    grouped_query: bool | None = None  # the row is about models with, or without, several query heads a KV head
    softcap: bool | None = None  # the row is about models with, or without, capped logits
    head_sizes: tuple[int, ...] = ()  # empty: any from min_head to max_head
    min_head: int = 1
    max_head: int = 1 << 20
    mla: bool = False
    sparse: bool = False
    sinks: bool = False
    window: bool = True
    compute: tuple[str, ...] = ("fp16", "bf16")
    needs: str = ""  # a package that vLLM does not install itself

    def takes_block(self, size: int) -> bool:
        """Whether the cache manager's blocks may have this size: the worker splits them into kernel blocks."""
        return size in self.blocks if self.exact else any(size % block == 0 for block in self.blocks)

    def preferred_block(self, default: int) -> int:
        """Block size chosen where the user gives none."""
        if self.prefers:
            return max(self.prefers, default) if self.takes_block(max(self.prefers, default)) else self.prefers
        return default if self.takes_block(default) else min(self.blocks)

    def kernel_block(self, size: int) -> int:
        """Tokens the kernel reads of a manager's block at once (v1/worker/utils.py select_common_block_size)."""
        if self.multiples or size in self.blocks:
            return size
        return max(block for block in self.blocks if size % block == 0)


_MLA_HEADS = (320, 512, 576)
_CUDA = ("cuda",)
_MODERN = ("sm80", "sm90", "sm100", "sm120")

BACKENDS: tuple[Backend, ...] = (
    # FlashAttention: version 3 on Hopper, 4 on SM100 (and on Hopper for heads above 256), else 2 (fa_utils.py).
    Backend(
        name="flash_attn", source="flash_attn.py", gpu=("sm80", "sm120"), blocks=(16,), kv_dtypes=_HALF, max_head=256,
    ),
    Backend(
        name="flash_attn", source="flash_attn.py", gpu=("sm90",), blocks=(64,), multiples=False, prefers=64, since=_V32,
        only_heads=(512,), only_kv=("fp8_e4m3",), kv_dtypes=_E4M3, sinks=True,
    ),
    Backend(
        name="flash_attn", source="flash_attn.py", gpu=("sm90",), blocks=(16,), only_heads=tuple(range(264, 513, 8)),
        kv_dtypes=_HALF, sinks=True,
    ),
    Backend(
        name="flash_attn", source="flash_attn.py", gpu=("sm90",), blocks=(16,), kv_dtypes=_E4M3, sinks=True,
        max_head=256,
    ),
    Backend(
        name="flash_attn", source="flash_attn.py", gpu=("sm100",), blocks=(128,), multiples=False, prefers=128,
        since=_V30, only_heads=(256,), softcap=False, kv_dtypes=_HALF, sinks=True,
    ),
    Backend(
        name="flash_attn", source="flash_attn.py", gpu=("sm100",), blocks=(16,), kv_dtypes=_HALF, sinks=True,
        until=(0, 27, 99), max_head=512,
    ),
    Backend(
        name="flash_attn", source="flash_attn.py", gpu=("sm100",), blocks=(16,), kv_dtypes=_E4M3, sinks=True,
        only_heads=tuple(range(8, 129, 8)),
    ),
    Backend(
        name="flash_attn", source="flash_attn.py", gpu=("sm100",), blocks=(16,), kv_dtypes=_HALF, sinks=True,
        max_head=512,
    ),
    Backend(
        name="flash_attn", source="flash_attn.py", gpu=("xpu",), blocks=(64,), prefers=64, kv_dtypes=_E4M3, sinks=True,
        max_head=512,
    ),
    # FlashInfer: on SM100 the TensorRT-LLM kernels, which read large pages for grouped queries and NVFP4.
    Backend(
        name="flashinfer", source="flashinfer.py", gpu=("sm100",), blocks=(16, 32, 64, 128, 256, 512, 1024),
        multiples=False, grouped_query=True, kv_dtypes=(*_FP8, "nvfp4"), head_sizes=(64, 128, 256, 512), sinks=True,
        until=(0, 27, 99),
    ),
    Backend(
        name="flashinfer", source="flashinfer.py", gpu=("sm100",), blocks=(16, 32, 64), multiples=False,
        kv_dtypes=(*_FP8, "nvfp4"), head_sizes=(64, 128, 256, 512), sinks=True, until=(0, 27, 99),
    ),
    Backend(
        name="flashinfer", source="flashinfer.py", gpu=("sm100",), blocks=(16, 32, 64, 128, 256, 512, 1024),
        multiples=False, grouped_query=True, since=(0, 28, 0),
        kv_dtypes=(*_FP8, "nvfp4", "nvfp4_4over6"),
        head_sizes=(64, 128, 256, 512), sinks=True,
    ),
    Backend(
        name="flashinfer", source="flashinfer.py", gpu=("sm100",), blocks=(16, 32, 64), multiples=False,
        since=(0, 28, 0), kv_dtypes=(*_FP8, "nvfp4", "nvfp4_4over6"), head_sizes=(64, 128, 256, 512), sinks=True,
    ),
    Backend(
        name="flashinfer", source="flashinfer.py", gpu=_MODERN, blocks=(16, 32, 64), multiples=False, since=_V32,
        only_kv=("nvfp4",), kv_dtypes=(*_FP8, "nvfp4"), head_sizes=(128, 256, 512),
    ),
    Backend(
        name="flashinfer", source="flashinfer.py", gpu=("sm120",), blocks=(16, 32, 64), multiples=False,
        since=(0, 28, 0), kv_dtypes=_FP8, head_sizes=(64, 128, 256, 512), sinks=True,
    ),
    Backend(
        name="flashinfer", source="flashinfer.py", gpu=("sm90",), blocks=(16, 32, 64), multiples=False, since=_V30,
        kv_dtypes=_FP8, head_sizes=(64, 128, 256, 512), sinks=True,
    ),
    Backend(
        name="flashinfer", source="flashinfer.py", gpu=_MODERN, blocks=(16, 32, 64), multiples=False, kv_dtypes=_FP8,
        head_sizes=(64, 128, 256, 512),
    ),
    Backend(
        name="triton_attn", source="triton_attn.py", gpu=("cuda", "hip", "xpu"), blocks=(16,),
        kv_dtypes=(*_FP8, *_PER_TOKEN_HEAD), min_head=32, sinks=True, compute=("fp16", "bf16", "fp32"),
    ),
    Backend(
        name="flex_attention", source="flex_attention.py", gpu=_CUDA, blocks=(16,), kv_dtypes=_HALF,
        compute=("fp16", "bf16", "fp32"),
    ),
    Backend(
        name="turboquant", source="turboquant_attn.py", gpu=("cuda", "hip"), blocks=(16, 32, 64, 128), multiples=False,
        kv_dtypes=_TURBOQUANT, window=False,
    ),
    Backend(
        name="ultraquant", source="ultraquant_attn.py", gpu=("hip",), blocks=(16, 32, 64, 128), multiples=False,
        prefers=64, since=_V32, kv_dtypes=("ultraquant_4bit",), window=False, compute=("bf16",),
    ),
    Backend(
        name="hpc_attn", source="hpc_attn.py", gpu=("sm90",), blocks=(64,), multiples=False,
        kv_dtypes=("auto", "bf16", "fp8_e4m3"), head_sizes=(128,), window=False,
    ),
    Backend(
        name="b12x", source="b12x.py", gpu=("sm120",), blocks=(64, 128), multiples=False, exact=True, prefers=128,
        since=_V30, kv_dtypes=("auto", "bf16", "fp8_e4m3"), head_sizes=(64, 128, 192, 256), sinks=True,
        compute=("bf16",), needs="vllm[b12x]",
    ),
    # MLA
    Backend(
        name="flash_attn_mla", source="mla/flashattn_mla.py", gpu=("sm90",), blocks=(16,), kv_dtypes=_HALF, mla=True,
        head_sizes=_MLA_HEADS, window=False,
    ),
    Backend(
        name="flashmla", source="mla/flashmla.py", gpu=("sm90",), blocks=(64,), multiples=False, kv_dtypes=_E4M3,
        mla=True, head_sizes=_MLA_HEADS, window=False,
    ),
    Backend(
        name="flashinfer_mla", source="mla/flashinfer_mla.py", gpu=("sm100",), blocks=(32, 64), multiples=False,
        kv_dtypes=_E4M3, mla=True, head_sizes=_MLA_HEADS, window=False,
    ),
    Backend(
        name="tokenspeed_mla", source="mla/tokenspeed_mla.py", gpu=("sm100",), blocks=(32, 64), multiples=False,
        kv_dtypes=("fp8_e4m3",), mla=True, head_sizes=_MLA_HEADS, window=False,
    ),
    Backend(
        name="cutlass_mla", source="mla/cutlass_mla.py", gpu=("sm100",), blocks=(128,), multiples=False,
        kv_dtypes=_E4M3, mla=True, head_sizes=_MLA_HEADS, window=False,
    ),
    Backend(
        name="triton_mla", source="mla/triton_mla.py", gpu=("cuda", "hip", "xpu"), blocks=(16,), kv_dtypes=_E4M3,
        mla=True, window=False,
    ),
    # Sparse MLA (DeepSeek-V3.2, GLM-5); its indexer reads blocks of 64 on CUDA, see INDEXER_BLOCK.
    Backend(
        name="flash_attn_mla_sparse", source="mla/flashattn_mla_sparse.py", gpu=("sm90",), blocks=(64,),
        kv_dtypes=_HALF, mla=True, sparse=True, window=False,
    ),
    Backend(
        name="flashmla_sparse", source="mla/flashmla_sparse.py", gpu=("sm90",), blocks=(64,),
        kv_dtypes=("auto", "bf16", "fp8_e4m3", "fp8_ds_mla"), mla=True, sparse=True, head_sizes=(576,), window=False,
        compute=("bf16",),
    ),
    Backend(
        name="flashmla_sparse", source="mla/flashmla_sparse.py", gpu=("sm100",), blocks=(64,), until=(0, 29, 99),
        kv_dtypes=("auto", "bf16", "fp8_e4m3", "fp8_ds_mla"), mla=True, sparse=True, head_sizes=(576,), window=False,
        compute=("bf16",),
    ),
    Backend(
        name="flashmla_sparse", source="mla/flashmla_sparse.py", gpu=("sm100",), blocks=(64,), since=_V30,
        kv_dtypes=("auto", "bf16", "fp8_e4m3", "fp8_ds_mla", "nvfp4_ds_mla"), mla=True, sparse=True,
        head_sizes=(576,), window=False, compute=("bf16",),
    ),
    Backend(
        name="flashinfer_mla_sparse", source="mla/flashinfer_mla_sparse.py", gpu=("sm100",), blocks=(32, 64),
        multiples=False, until=_TO_V30, kv_dtypes=_E4M3, mla=True, sparse=True, head_sizes=(512, 576), window=False,
    ),
    Backend(
        name="flashinfer_mla_sparse", source="mla/flashinfer_mla_sparse.py", gpu=("sm100",), blocks=(32,), since=_V32,
        kv_dtypes=_E4M3, mla=True, sparse=True, head_sizes=(512, 576), window=False,
    ),
    Backend(
        name="flash_attn_mla_sparse_fa4", source="mla/flashattn_mla_sparse.py", gpu=("sm100",), blocks=(64,),
        since=_V33, kv_dtypes=("auto", "bf16"), mla=True, sparse=True, head_sizes=(576,), window=False,
        compute=("bf16",),
    ),
    Backend(
        name="flashinfer_mla_sparse_sm90", source="mla/flashinfer_mla_sparse_sm90.py", gpu=("sm90",), blocks=(64,),
        since=_V30, kv_dtypes=("auto", "bf16", "fp8_e4m3"), mla=True, sparse=True, head_sizes=(512, 576),
        window=False, compute=("bf16",),
    ),
    Backend(
        name="flashinfer_mla_sparse_sm120", source="mla/flashinfer_mla_sparse.py", gpu=("sm120",), blocks=(64,),
        kv_dtypes=("auto", "fp8_e4m3", "fp8_ds_mla"), mla=True, sparse=True, head_sizes=(512, 576), window=False,
        compute=("bf16",),
    ),
    # ROCm
    Backend(
        name="rocm_attn", source="rocm_attn.py", gpu=("hip",), blocks=(16,), kv_dtypes=_FP8, head_sizes=_ROCM_HEADS,
        compute=("fp16", "bf16", "fp32"),
    ),
    Backend(
        name="rocm_aiter_fa", source="rocm_aiter_fa.py", gpu=("hip",), blocks=(16, 32), multiples=False,
        kv_dtypes=_FP8, head_sizes=(64, 128, 256), needs="aiter",
    ),
    Backend(
        name="rocm_aiter_unified_attn", source="rocm_aiter_unified_attn.py", gpu=("hip",), blocks=(16,), prefers=64,
        kv_dtypes=_FP8, min_head=32, sinks=True, needs="aiter",
    ),
    Backend(
        name="rocm_aiter_mla", source="mla/rocm_aiter_mla.py", gpu=("hip",), blocks=(1,), kv_dtypes=_FP8, mla=True,
        window=False, needs="aiter",
    ),
    Backend(
        name="rocm_aiter_mla_sparse", source="mla/rocm_aiter_mla_sparse.py", gpu=("hip",), blocks=(1, 64),
        multiples=False, kv_dtypes=_E4M3, mla=True, sparse=True, window=False, needs="aiter",
    ),
    Backend(
        name="rocm_octave", source="rocm_octave.py", gpu=("hip",), blocks=(16,), since=_V33, kv_dtypes=_OCTAVE,
        window=False,
    ),
    # CPU: the selector takes one of these whatever was asked for.
    Backend(
        name="cpu_attn", source="cpu_attn.py", gpu=("cpu",), blocks=(16,), until=_TO_V28,
        kv_dtypes=("auto", "fp8_e4m3", "fp8_e5m2"), head_sizes=_CPU_HEADS, sinks=True,
        compute=("fp16", "bf16", "fp32"),
    ),
    Backend(
        name="cpu_attn", source="cpu_attn.py", gpu=("cpu",), blocks=(32,), since=_V30, until=_TO_V32,
        kv_dtypes=("auto", "fp8_e4m3", "fp8_e5m2"), head_sizes=_CPU_HEADS, sinks=True,
        compute=("fp16", "bf16", "fp32"),
    ),
    Backend(
        name="cpu_attn", source="cpu_attn.py", gpu=("cpu",), blocks=(32,), since=_V33,
        kv_dtypes=(*_FP8,), head_sizes=_CPU_HEADS, sinks=True, compute=("fp16", "bf16", "fp32"),
    ),
    Backend(
        name="cpu_mla", source="mla/cpu_mla.py", gpu=("cpu",), blocks=(16,), multiples=False, exact=True,
        since=(0, 28, 0), until=_TO_V32, kv_dtypes=("auto",), mla=True, window=False,
        compute=("fp16", "bf16", "fp32"),
    ),
    Backend(
        name="cpu_mla", source="mla/cpu_mla.py", gpu=("cpu",), blocks=(16,), multiples=False, exact=True, since=_V33,
        kv_dtypes=_HALF, mla=True, window=False, compute=("fp16", "bf16", "fp32"),
    ),
    Backend(
        name="amx_mla", source="mla/amx_mla.py", gpu=("amx",), blocks=(32,), since=_V30, kv_dtypes=_HALF, mla=True,
        window=False, compute=("bf16",),
    ),
)  # fmt: skip


def rows_of(name: str, version: Version) -> Iterator[Backend]:
    """The rows of one backend in one release."""
    return (row for row in BACKENDS if row.name == name and row.since <= version <= row.until)


def since_when(name: str) -> Version | None:
    """The first release with a backend of that name; None where the tables have none."""
    return min((row.since for row in BACKENDS if row.name == name), default=None)


def engine_dtype_name(kv_dtype: str, attention: str | None = None) -> str:
    """``--kv-cache-dtype`` for a dtype of the language. e4m3 has two names there, and two backends know only one."""
    if kv_dtype == "fp8_e4m3":
        return "fp8_e4m3" if attention == "hpc_attn" else "fp8"
    return {"bf16": "bfloat16", "fp16": "float16"}.get(kv_dtype, kv_dtype)
