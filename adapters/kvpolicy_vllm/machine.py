"""What this machine cannot run, so that an acceptable value is asked for where the preferred one cannot work.

Only what is certain is said no to; everything else is the engine's to refuse. That includes what vLLM up to 0.32 takes
on CPUs without a word and computes wrongly (`kvpolicy.facts.vllm_cpu` has the evidence).
"""

from __future__ import annotations

from typing import Any

__all__ = ["keeps_model_dtype", "possible"]

_CPU_BLOCK_TOKENS = 32  # CPU_ATTN reads multiples of this
_CPU_DTYPES = {"auto", "fp8_e4m3", "fp8_e5m2"}
_CPU_BACKENDS = {"auto", "cpu_attn", "cpu_mla", "amx_mla"}
_MODEL_DTYPES = {"bf16", "fp16", "fp32"}


def _is_cpu() -> bool:
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def keeps_model_dtype(name: str) -> bool:
    """Whether this KV dtype is only to be had by leaving the flag alone: CPUs store the model's own, or fp8."""
    return name == "fp32" or (name in _MODEL_DTYPES and _is_cpu())


def possible(field: str, value: Any) -> bool:
    """Whether vLLM can run `value`, in the policy's words, for one of `resolution.FIELDS`."""
    if field == "attention_backend":
        return _has_backend(str(value)) and (not _is_cpu() or value in _CPU_BACKENDS)
    if not _is_cpu():
        return True
    if field == "block_size":
        return int(value) % _CPU_BLOCK_TOKENS == 0
    if field == "kv_cache_dtype":
        return value in _CPU_DTYPES | _MODEL_DTYPES
    return True


def _has_backend(name: str) -> bool:
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    return name == "auto" or name.upper() in AttentionBackendEnum.__members__
