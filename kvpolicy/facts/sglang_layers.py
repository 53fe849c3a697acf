"""Findings about single layers' KV dtypes on SGLang: whether they can differ, and what they come to.

The adapter's own table (`kvpolicy_sglang.pool_support`), as far as model, device and settings tell.
"""

from __future__ import annotations

from kvpolicy.facts.dtypes import AUTO
from kvpolicy.facts.engines import EngineTarget
from kvpolicy.facts.findings import Deployment, Findings
from kvpolicy.facts.layer_dtypes import dtypes_by_layer
from kvpolicy.facts.model import ORDINARY, ModelFacts
from kvpolicy.facts.resolve import Outcome, refused_by_device
from kvpolicy.language import Severity

__all__ = ["MIXABLE", "READERS", "is_cpu", "mixed_dtypes", "report_layers"]

#: KV dtypes that a layer can have beside others in one pool.
MIXABLE = ("auto", "bf16", "fp16", "fp32", "fp8_e4m3", "fp8_e5m2")
#: Attention backends that take a layer's dtype from the tensor they are given.
READERS = ("torch_native", "triton")

_PATH = "cache.kv_dtype"


def report_layers(
    findings: Findings, where: Deployment, target: EngineTarget, outcome: Outcome, layers: tuple[tuple[str, str], ...]
) -> None:
    """Add them for an outcome that starts. ``layers``: the policy's (layer range, dtype) pairs."""
    if not layers:
        return
    model = where.model or ORDINARY
    found = _problem(where, target, outcome, layers, model)
    if found is not None:
        severity: Severity = "error" if findings.policy.on_conflict == "error" else "warning"
        message, help = found
        findings.add("KVP511", severity, _PATH, message, help, {"layers": [list(pair) for pair in layers]})
        return
    listed = "; ".join(f"layers {text} in {dtype}" for text, dtype in layers)
    findings.info("KVP507", _PATH, f"{listed}; the others in {outcome.kv_dtype}", {"layers": dict(layers)})


def _problem(
    where: Deployment, target: EngineTarget, outcome: Outcome, layers: tuple[tuple[str, str], ...], model: ModelFacts
) -> tuple[str, str] | None:
    """Why the layers cannot differ, and what to do."""
    backends = {outcome.attention, outcome.prefill_attention, outcome.decode_attention} - {None}
    others = sorted(name for name in map(str, backends) if name not in READERS)
    if others:
        return (
            f"layers cannot have KV dtypes of their own with {others[0]}, which plans with one dtype for all",
            f"set `backend: {{attention: {'torch_native' if is_cpu(where) else 'triton'}}}`",
        )
    if model.is_mla or model.swa_layers or model.linear_layers:
        return f"layers cannot have KV dtypes of their own in {model.attention_kind} models", "drop the layers"
    for dtype in (outcome.kv_dtype, *(dtype for _, dtype in layers)):
        if dtype not in MIXABLE:
            return f"{dtype} cannot be mixed with other KV dtypes", f"mix any of {', '.join(MIXABLE)}"
    for text, dtype in layers:
        traits = where.gpu.traits if where.gpu else frozenset()
        rule = refused_by_device("kv_dtype", dtype, version=target.facts, traits=traits)
        if rule is not None and not is_cpu(where):  # there the refusal is of the whole pool's dtype
            return f"layers {text} cannot have {dtype}: {rule.reason}", "give them another dtype"
    if where.model is not None:
        try:
            dtypes_by_layer(layers, model.full_layers)
        except ValueError as error:
            return str(error), "name layers that the model has"
    return None


def is_cpu(where: Deployment) -> bool:
    """Whether the deployment is on a CPU, as far as is known."""
    return where.gpu is not None and "cpu" in where.gpu.traits


def mixed_dtypes(layers: tuple[tuple[str, str], ...], model: ModelFacts, default: str) -> dict[str, int]:
    """``{dtype: number of layers}`` of a model whose other layers have ``default``; empty where ranges do not fit."""
    try:
        by_layer = dtypes_by_layer(layers, model.full_layers)
    except ValueError:
        return {}
    counts: dict[str, int] = {}
    for layer in range(model.full_layers):
        name = by_layer.get(layer, default)
        name = model.dtype if name == AUTO else name
        counts[name] = counts.get(name, 0) + 1
    return counts
