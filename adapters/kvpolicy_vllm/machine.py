"""What this machine cannot run, so that an acceptable value is asked for where the preferred one cannot work.

Only what is certain is said no to; everything else is the engine's to refuse. That includes what vLLM up to 0.32 takes
on CPUs without a word and computes wrongly (`kvpolicy.facts.vllm_cpu` has the evidence).
"""

from __future__ import annotations

from typing import Any

from kvpolicy.facts.engines import parse_engine
from kvpolicy.facts.gpus import device_traits
from kvpolicy.facts.rules import Field
from kvpolicy.facts.vllm_device import refused_by_device

from . import probe

__all__ = ["keeps_model_dtype", "possible"]

_FIELDS: dict[str, Field] = {"block_size": "page_size", "kv_cache_dtype": "kv_dtype", "attention_backend": "attention"}


def _traits() -> frozenset[str]:
    """The device as the facts name it. On a CPU vLLM asks torch for AMX itself, whatever the policy wants."""
    from vllm.platforms import current_platform

    if current_platform.is_rocm():
        return device_traits("hip")
    if current_platform.is_cpu():
        return device_traits("cpu", amx=True)
    capability = current_platform.get_device_capability() if current_platform.is_cuda() else None
    return device_traits(str(current_platform.device_type), capability_major=getattr(capability, "major", None))


def keeps_model_dtype(name: str) -> bool:
    """Whether this KV dtype is only to be had by leaving the flag alone: CPUs store the model's own, or fp8."""
    return name == "fp32" or (name in ("bf16", "fp16") and "cpu" in _traits())


def possible(field: str, value: Any) -> bool:
    """Whether vLLM can run `value`, in the policy's words, for one of `resolution.FIELDS`."""
    if field == "attention_backend" and not _has_backend(str(value)):
        return False
    if field == "disable_cascade_attn":
        return probe.has_cascade()
    if field not in _FIELDS:
        return True
    version = parse_engine(f"vllm=={probe.engine_version()}").facts
    return refused_by_device(_FIELDS[field], value, version=version, traits=_traits()) is None


def _has_backend(name: str) -> bool:
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    return name == "auto" or name.upper() in AttentionBackendEnum.__members__
