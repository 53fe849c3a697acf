"""vLLM on CPUs: one backend by model, forced blocks, and the KV dtypes that 0.32 takes silently and computes wrongly.

``platforms/cpu.py``. Up to 0.32 ``get_attn_backend_cls`` never looks at the KV dtype; 0.33 refuses what the backend
lacks.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvpolicy.facts.engines import Version
from kvpolicy.facts.gpus import Gpu
from kvpolicy.facts.model import ModelFacts
from kvpolicy.facts.vllm_backends import Backend, rows_of

__all__ = [
    "SILENT",
    "SIXTEEN_BITS",
    "SilentDtype",
    "cpu_backend",
    "cpu_default_block",
    "keeps_model_dtype",
    "silent_wrong",
]

SIXTEEN_BITS = ("bf16", "fp16")
_DEFAULT_BLOCK_TOKENS = 128
_SOURCE = "platforms/cpu.py get_attn_backend_cls"


def cpu_backend(model: ModelFacts, gpu: Gpu, version: Version) -> Backend | str:
    """The backend the platform takes, or why the model does not run there."""
    if model.is_dsa:
        return "sparse attention does not run on CPUs"
    names = ["cpu_attn"]
    if model.is_mla:
        names = ["amx_mla", "cpu_mla"] if "amx" in gpu.traits else ["cpu_mla"]
    for name in names:
        for row in rows_of(name, version):
            return row
    return "MLA does not run on CPUs before vLLM 0.28"


def cpu_default_block(model: ModelFacts, row: Backend, asked: int | None) -> tuple[int, str] | None:
    """(block size, reason) where the platform sets one."""
    if row.name == "cpu_mla":
        return row.blocks[0], "the CPU's MLA kernel reads blocks of 16 only"
    if "DeepseekV4" in model.architecture:
        return 256, "DeepSeek-V4's CPU kernels read blocks of 256 only"
    return None if asked is not None else (_DEFAULT_BLOCK_TOKENS, "the CPU default is 128")


@dataclass(frozen=True, slots=True)
class SilentDtype:
    """One measurement: vLLM 0.32.0 on a CPU took the dtype and answered wrongly.

    ``total_variation``: between the next token's distribution with this dtype and with ``auto``, after a prefix hit of
    some 400 tokens, on a random two-layer Llama computing in float32. ``rounding``: the same for a dtype whose only
    fault is its precision, named in ``against``. A ratio far above 1 is storage misread, not rounding.
    """

    kv_dtype: str
    total_variation: float
    rounding: float
    against: str
    host: str  # what the CPU had: quantized names need AVX-512 or AMX to get this far
    source: str


_RUN = "vLLM 0.32.0 run in process: tests/facts/vllm_dtype_probe.py"
_EARLIER_RUN = "vLLM 0.32.0 run in process with a prefix of 448 tokens, before this repository"
SILENT: tuple[SilentDtype, ...] = (
    SilentDtype("bf16", 0.00774, 0.00025, "computing in bf16 throughout", "AVX2", _RUN),
    SilentDtype("fp16", 0.00774, 0.00025, "computing in bf16 throughout", "AVX2", _RUN),
    SilentDtype("bf16", 0.0160, 0.0014, "fp8_e4m3 KV", "AVX-512", _EARLIER_RUN),
    SilentDtype("nvfp4", 0.0170, 0.0014, "fp8_e4m3 KV", "AVX-512", _EARLIER_RUN),
    SilentDtype("int8_per_token_head", 0.0166, 0.0014, "fp8_e4m3 KV", "AVX-512", _EARLIER_RUN),
)


def silent_wrong(kv_dtype: str, row: Backend, *, compute: str, version: Version) -> tuple[str, str, str] | None:
    """(rule, reason, source) for a KV dtype that the CPU backend takes and cannot read, or refuses; None for the rest.

    A 16-bit name under a 16-bit model is no fault, and no choice either: see :func:`keeps_model_dtype`.
    """
    if kv_dtype in row.kv_dtypes and not (kv_dtype in SIXTEEN_BITS and compute == "fp32"):
        return None
    if kv_dtype in SIXTEEN_BITS and compute in SIXTEEN_BITS:
        return None
    stored = ", ".join(dtype for dtype in row.kv_dtypes if dtype not in ("auto", *SIXTEEN_BITS)) or "nothing else"
    if version >= (0, 33, 0) and kv_dtype not in SIXTEEN_BITS:
        return "cpu-dtype", f"{row.name} stores the model's dtype ({compute}) or {stored}", _SOURCE
    reason = (
        f"{row.name} stores the model's dtype ({compute}) or {stored}; this release takes {kv_dtype} without a word "
        "and reads the cache as something else"
    )
    measured = next((found for found in SILENT if found.kv_dtype == kv_dtype), None)
    if measured is not None:
        times = measured.total_variation / measured.rounding
        reason += f" (measured under float32: {times:.0f} times as far off as {measured.against})"
    return "cpu-silent-dtype", reason, _SOURCE


def keeps_model_dtype(kv_dtype: str, *, compute: str) -> bool:
    """Whether a CPU stores the model's own dtype under this name: any 16-bit name of a 16-bit model."""
    return kv_dtype in SIXTEEN_BITS and compute in SIXTEEN_BITS
