"""The two policies that are run: what a policy says of `cache` and `backend`, and the same without its KV dtype.

Eviction, allocator and the rest are left out: both engines have room for a window, so they change no distribution.
"""

from __future__ import annotations

from typing import Any

from kvpolicy.facts.model import ModelFacts
from kvpolicy.fidelity.base import FidelityError
from kvpolicy.language.dump import dump

__all__ = ["measured_policy", "reference_policy"]


def measured_policy(flat: dict[str, Any]) -> str:
    """YAML of the policy under test. FidelityError where it names no KV dtype: there is nothing to measure."""
    dtype = _cache(flat).get("kv_dtype", "auto")
    named = dtype if isinstance(dtype, dict) else {"prefer": dtype}
    if named.get("prefer", named.get("default", "auto")) == "auto" and not named.get("layers"):
        raise FidelityError("the policy names no KV dtype (cache.kv_dtype), so there is nothing to measure")
    return _document(flat, _cache(flat))


def reference_policy(flat: dict[str, Any], model: ModelFacts) -> str:
    """YAML of the same policy in the model's own dtype; bf16 where the checkpoint itself asks for quantized KV."""
    cache = {key: value for key, value in _cache(flat).items() if key != "kv_dtype"}
    if model.kv_quant or model.vllm_kv_quant:
        cache["kv_dtype"] = "bf16"
    return _document(flat, cache)


def _cache(flat: dict[str, Any]) -> dict[str, Any]:
    return dict(flat.get("cache") or {})


def _document(flat: dict[str, Any], cache: dict[str, Any]) -> str:
    head = {"apiVersion": flat["apiVersion"], "kind": flat["kind"], "metadata": {"name": "fidelity"}}
    backend = flat.get("backend")
    return dump({**head, **({"cache": cache} if cache else {}), **({"backend": backend} if backend else {})})
