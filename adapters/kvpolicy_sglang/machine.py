"""What this machine cannot run, so that an acceptable value is asked for where the preferred one cannot work.

Only what is certain is said no to; everything else is the engine's to refuse.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

__all__ = ["possible_on"]

_ON_CPU = {"torch_native", "intel_amx", "flex_attention"}
# Attention backends by the major CUDA compute capability they are built for (SGLang's own gates).
_CUDA_MAJOR = {"fa3": {8, 9}, "trtllm_mha": {10}, "trtllm_mla": {10}, "cutedsl_mla": {10}}

# Eviction orders every supported SGLang has, listed for its command line or not.
_ORDERS = {"lru", "lfu", "fifo", "filo", "mru", "slru", "priority"}


def _listed_orders() -> list[str]:
    """The orders this SGLang lists for its command line."""
    from sglang.srt import server_args

    return list(getattr(server_args, "RADIX_EVICTION_POLICY_CHOICES", ()))


def possible_on(device: str | None) -> Callable[[str, Any], bool]:
    """`possible(engine field, value in the policy's words)` for `ServerArgs.device`; None: what torch finds."""
    import torch

    kind = (device or ("cuda" if torch.cuda.is_available() else "cpu")).partition(":")[0]

    def attention(name: Any) -> bool:
        if name == "auto":
            return True
        if kind == "cpu":
            return name in _ON_CPU
        if name == "flashinfer" and importlib.util.find_spec("flashinfer") is None:
            return False
        if kind == "cuda" and torch.version.cuda and name in _CUDA_MAJOR:
            return torch.cuda.get_device_capability()[0] in _CUDA_MAJOR[name]
        return True

    def kv_dtype(name: Any) -> bool:
        if kind != "cpu" or name in {"auto", "bf16", "fp16", "fp32"}:
            return True
        return bool(name == "fp8_e4m3" and torch.cpu._is_amx_tile_supported())

    def order(name: Any) -> bool:
        return name in _ORDERS or name in _listed_orders()

    checks = {"attention_backend": attention, "kv_cache_dtype": kv_dtype, "radix_eviction_policy": order}
    return lambda field, value: checks[field](value) if field in checks else True
