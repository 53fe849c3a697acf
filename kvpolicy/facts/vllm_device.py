"""What vLLM cannot run on a device whatever the model: the rows of ``vllm_backends`` without one that would take it."""

from __future__ import annotations

from kvpolicy.facts.dtypes import AUTO, canonical
from kvpolicy.facts.engines import Version
from kvpolicy.facts.rules import Deny, Field, Rule, Value
from kvpolicy.facts.vllm_backends import BACKENDS, Backend
from kvpolicy.facts.vllm_names import name_refusal

__all__ = ["refused_by_device"]

_SELECTOR = "platforms/cuda.py get_attn_backend_cls"
_MODELS_OWN = ("bf16", "fp16", "fp32")  # to be had on every device, under a model that computes in it


def refused_by_device(name: Field, value: Value, *, version: Version, traits: frozenset[str]) -> Rule | None:
    """vLLM's twin of :func:`kvpolicy.facts.resolve.refused_by_device`: None when some model may start with the value.

    CPUs are asked what models without MLA get: there the platform settles both backend and block by the model.
    """
    if name == "kv_dtype":
        value = canonical(str(value))
    if value == AUTO or (name == "kv_dtype" and value in _MODELS_OWN):
        return None
    if name != "page_size" and (refusal := name_refusal(name, value, version)):
        of, rule, reason, source = refusal
        return Rule(name=rule, field=of, effect=Deny((value,)), reason=reason, source=source)
    here = [row for row in BACKENDS if row.since <= version <= row.until and not traits.isdisjoint(row.gpu)]
    dense = [row for row in here if "cpu" not in traits or not row.mla]
    if not here or any(_takes(row, name, value) for row in (here if name == "attention" else dense)):
        return None
    reason = {
        "attention": f"{value} does not run on this device",
        "kv_dtype": f"no attention backend stores {value} on this device",
        "page_size": f"no attention backend reads blocks of {value} on this device",
    }[name]
    return Rule(name="device", field=name, effect=Deny((value,)), reason=reason, source=_SELECTOR)


def _takes(row: Backend, name: Field, value: Value) -> bool:
    if name == "page_size":
        return row.takes_block(int(value))
    return value == row.name if name == "attention" else value in row.kv_dtypes
