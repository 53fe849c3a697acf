"""Findings from evidence measured on the model itself (`check --evidence`)."""

from __future__ import annotations

from collections.abc import Mapping

from kvpolicy.facts.dtypes import AUTO
from kvpolicy.facts.findings import Deployment, Findings
from kvpolicy.facts.measured import Measured, differing_layers, shape_of
from kvpolicy.facts.model import ModelFacts
from kvpolicy.language import Policy

__all__ = ["report_measured"]

_PATH = "cache.kv_dtype"
_ENGINES = {"sglang": "SGLang", "vllm": "vLLM"}


def report_measured(findings: Findings, where: Deployment, kv_dtype: str) -> None:
    """Add one finding an evidence file. ``kv_dtype``: what the engine stores, or, unresolved, what the policy asks."""
    if where.model is None or where.target is None:
        return
    for found in where.evidence:
        if differs := _differs(found, findings.policy, where.target.name, where.model, kv_dtype):
            message = f"{found.source} says nothing about this: {differs}"
            findings.add(
                "KVP533", "warning", _PATH, message, "measure it with kvpolicy fidelity", {"source": found.source}
            )
            continue
        data = {
            "source": found.source,
            "level": found.level,
            "kv_dtype": found.kv_dtype,
            "reference": found.reference,
            "kl_mean_nats": found.kl_mean,
            "top1_agreement": found.top1_agreement,
            "perplexity_change": found.perplexity_change,
            "tokens": found.tokens,
        }
        message = (
            f"{found.kv_dtype} KV measured {found.level} on this model, against {found.reference}: {_figures(found)}"
        )
        if found.level == "bad":
            help = f"keep {found.reference}, or leave the first and last layers in it (cache.kv_dtype.layers)"
            findings.add("KVP531", "warning", _PATH, message, help, data)
        else:
            findings.info("KVP532", _PATH, message, data)


def _figures(found: Measured) -> str:
    name = "" if not found.model.name else f"{found.model.name}, "
    return (
        f"mean KL {found.kl_mean:.4f} nats, same top-1 {found.top1_agreement:.1%}, perplexity "
        f"{found.perplexity_change:+.2%} ({found.source}: {found.tokens:,} tokens, {name}"
        f"{_ENGINES.get(found.engine, found.engine)} {found.version}, {found.device})"
    )


def _differs(found: Measured, policy: Policy, engine: str, model: ModelFacts, kv_dtype: str) -> str:
    """What evidence was measured on where that is something else; empty where it is the same."""
    if found.engine != engine:
        return f"it was measured on {found.engine}"
    if not found.model.is_like(shape_of(model)):
        return f"it was measured on {found.model.name or 'another model'} ({found.model.architecture})"
    if found.kv_dtype != kv_dtype:
        return f"it measured {found.kv_dtype} KV" + ("" if kv_dtype == AUTO else f", and this stores {kv_dtype}")
    if found.kv_layers != _layers(policy, model, kv_dtype):
        listed = ", ".join(f"{layer}: {dtype}" for layer, dtype in found.kv_layers.items())
        return f"it measured other layers in another dtype ({listed or 'none'})"
    return ""


def _layers(policy: Policy, model: ModelFacts, kv_dtype: str) -> Mapping[str, str] | None:
    """The policy's layers that differ from the rest, one by one; None for a range that the model has not."""
    ranges = policy.cache.kv_dtype.layers if policy.cache and policy.cache.kv_dtype else ()
    try:
        return differing_layers(ranges, layers=shape_of(model).layers, compute=model.dtype, rest=kv_dtype)
    except ValueError:
        return None
