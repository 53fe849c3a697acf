"""The closed word lists of the language: dtypes, attention backends, eviction policies and their parameters.

Data only. A word of the language is engine-neutral where the engines agree and the engine's own where they do not;
which engine knows which word is written beside it, so that `check --engine` can say so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["ATTENTION_BACKENDS", "DTYPE_ALIASES", "EVICTION_POLICIES", "KV_DTYPES", "EvictionPolicy", "Param"]

SGLANG, VLLM = "sglang", "vllm"
BOTH = (SGLANG, VLLM)

#: Canonical KV dtype -> the engines that store it. SGLang: `--kv-cache-dtype` choices of 0.5.23 (0.5.16 to 0.5.20 also
#: fp4_e2m1, deprecated there), int8 and int4 in a pool of kvpolicy's. vLLM: `CacheDType` of 0.33 (which
#: release has which: facts/vllm_names.py).
KV_DTYPES: dict[str, tuple[str, ...]] = {
    "auto": BOTH,
    "bf16": BOTH,
    "fp16": (VLLM,),
    "fp8_e4m3": BOTH,
    "fp8_e5m2": BOTH,
    "mxfp8": (SGLANG,),
    "nvfp4": BOTH,
    "fp4_mx_block16": (SGLANG,),
    "fp4_e2m1": (SGLANG,),
    "nvfp4_4over6": (VLLM,),
    "fp8_per_token_head": (VLLM,),
    "int8_per_token_head": BOTH,
    "int4_per_token_head": BOTH,
    "turboquant_k8v4": (VLLM,),
    "turboquant_4bit_nc": (VLLM,),
    "turboquant_k3v4_nc": (VLLM,),
    "turboquant_3bit_nc": (VLLM,),
    "ultraquant_4bit": (VLLM,),
    "octave_k3v4": (VLLM,),
    "octave_k3v3": (VLLM,),
    "octave_k3v3_compact": (VLLM,),
    "fp8_ds_mla": (VLLM,),
    "nvfp4_ds_mla": (VLLM,),
}

#: Other spellings in use -> canonical. (`fp8` is e4m3 on both engines.)
DTYPE_ALIASES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "fp8": "fp8_e4m3"}

#: Attention backend -> engines. SGLang: `ATTENTION_BACKEND_CHOICES` of 0.5.23; vLLM: `AttentionBackendEnum`, in lower
#: case.
ATTENTION_BACKENDS: dict[str, tuple[str, ...]] = {
    "triton": (SGLANG,),
    "torch_native": (SGLANG,),
    "flex_attention": BOTH,
    "fa3": (SGLANG,),
    "fa4": (SGLANG,),
    "flashinfer": BOTH,
    "flashmla": BOTH,
    "trtllm_mha": (SGLANG,),
    "trtllm_mla": (SGLANG,),
    "cutedsl_mla": (SGLANG,),
    "tokenspeed_mla": BOTH,
    "hpc_ops": (SGLANG,),
    "dsa": (SGLANG,),
    "nsa": (SGLANG,),
    "qsa": (SGLANG,),
    "dsv4": (SGLANG,),
    "compressed": (SGLANG,),
    "llada2_cfg_flashinfer": (SGLANG,),
    "minicpm_flashattn": (SGLANG,),
    "minicpm_flashinfer": (SGLANG,),
    "aiter": (SGLANG,),
    "wave": (SGLANG,),
    "intel_amx": (SGLANG,),
    "ascend": (SGLANG,),
    "intel_xpu": (SGLANG,),
    "flash_attn": (VLLM,),
    "triton_attn": (VLLM,),
    "cpu_attn": (VLLM,),
    "turboquant": (VLLM,),
    "ultraquant": (VLLM,),
    "hpc_attn": (VLLM,),
    "rocm_attn": (VLLM,),
    "rocm_aiter_fa": (VLLM,),
    "flashmla_sparse": (VLLM,),
    "flashinfer_mla": (VLLM,),
    "cutlass_mla": (VLLM,),
    "triton_mla": (VLLM,),
    "flash_attn_mla": (VLLM,),
    "flash_attn_mla_sparse": (VLLM,),
    "flash_attn_mla_sparse_fa4": (VLLM,),
    "flashinfer_mla_sparse": (VLLM,),
    "flashinfer_mla_sparse_sm90": (VLLM,),
    "flashinfer_mla_sparse_sm120": (VLLM,),
    "rocm_aiter_unified_attn": (VLLM,),
    "rocm_aiter_mla": (VLLM,),
    "rocm_aiter_mla_sparse": (VLLM,),
    "rocm_octave": (VLLM,),
    "b12x": (VLLM,),
    "cpu_mla": (VLLM,),
    "amx_mla": (VLLM,),
}


@dataclass(frozen=True, slots=True)
class Param:
    """One parameter of an eviction policy."""

    kind: Literal["int", "float", "share", "tokens"]
    default: int | float | str  # as written in a policy
    low: float  # inclusive, of the canonical number (a share: 0 to 1)
    high: float
    text: str


@dataclass(frozen=True, slots=True)
class EvictionPolicy:
    """One built-in order; ``stock`` names the engines whose own order it reproduces victim for victim."""

    text: str
    stock: tuple[str, ...] = ()
    params: dict[str, Param] | None = None


EVICTION_POLICIES: dict[str, EvictionPolicy] = {
    "lru": EvictionPolicy("least recently used first", BOTH),
    "lfu": EvictionPolicy("fewest hits first, then least recently used", (SGLANG,)),
    "fifo": EvictionPolicy("oldest first, whatever its use", (SGLANG,)),
    "filo": EvictionPolicy("youngest first", (SGLANG,)),
    "mru": EvictionPolicy("most recently used first (for scans larger than the pool)", (SGLANG,)),
    "slru": EvictionPolicy(
        "segmented LRU: units with few hits first, then least recently used",
        (SGLANG,),
        {"protected_hits": Param("int", 2, 1, 1_000_000, "hits from which a unit is in the protected segment")},
    ),
    "priority": EvictionPolicy("lowest request priority first, then least recently used", (SGLANG,)),
    "tlru": EvictionPolicy(
        "tail-optimised LRU (arXiv:2510.15152): tails a latency budget does not need go first",
        (SGLANG,),
        {
            "threshold_tokens": Param(
                "tokens", 0, 0, 2**40, "uncached tokens that a prompt may bring within its budget"
            ),
            "next_prompt_tokens": Param(
                "tokens", 0, 0, 2**40, "tokens a conversation's next prompt is expected to add"
            ),
        },
    ),
    "gdsf": EvictionPolicy(
        "greedy dual size frequency: few hits for the space first, aged by evictions",
        params={
            "size_exponent": Param("float", 1, 0, 1, "power of the size that hits are divided by; 0: count tokens")
        },
    ),
    "s3fifo": EvictionPolicy(
        "S3-FIFO: a small queue filters what is used once",
        params={
            "small_share": Param("share", "10%", 0.01, 0.9, "share of the tokens that the small queue holds, like 10%")
        },
    ),
    "sieve": EvictionPolicy("SIEVE: one queue and a moving hand; visited units survive one pass"),
    "hit_density": EvictionPolicy("fewest expected hits for the space and time held first"),
    "reuse_rate": EvictionPolicy("least likely to be reused soon first, learned from what came back when"),
    "adaptive": EvictionPolicy("lru or reuse_rate, whichever would have hit more of late"),
}
