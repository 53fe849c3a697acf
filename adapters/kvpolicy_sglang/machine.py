"""What this machine cannot run, so that an acceptable value is asked for where the preferred one cannot work.

Only what is certain is said no to; everything else is the engine's to refuse.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable
from typing import Any

from kvpolicy.facts.engines import parse_engine
from kvpolicy.facts.gpus import device_traits
from kvpolicy.facts.resolve import refused_by_device

__all__ = ["possible_on"]

_ON_CPU = {"torch_native", "intel_amx", "flex_attention"}

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

    is_rocm = kind == "cuda" and torch.version.hip is not None
    has_cuda = kind == "cuda" and torch.version.cuda is not None
    traits = device_traits(
        "hip" if is_rocm else kind,
        capability_major=torch.cuda.get_device_capability()[0] if has_cuda else None,
        amx=kind == "cpu" and bool(torch.cpu._is_amx_tile_supported()),
    )
    version = parse_engine(f"sglang=={importlib.metadata.version('sglang')}").facts

    def attention(name: Any) -> bool:
        if name == "auto":
            return True
        if kind == "cpu":
            return name in _ON_CPU
        if name == "flashinfer" and importlib.util.find_spec("flashinfer") is None:
            return False
        return refused_by_device("attention", name, version=version, traits=traits) is None

    def kv_dtype(name: Any) -> bool:
        return refused_by_device("kv_dtype", name, version=version, traits=traits) is None

    def order(name: Any) -> bool:
        return name in _ORDERS or name in _listed_orders()

    checks = {"attention_backend": attention, "kv_cache_dtype": kv_dtype, "radix_eviction_policy": order}
    return lambda field, value: checks[field](value) if field in checks else True
