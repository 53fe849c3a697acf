"""Models whose prefix cache a policy's eviction cannot steer: state layers and sliding windows.

The adapters refuse them at start (`cache_support` of each); here the model's configuration alone tells.
"""

from __future__ import annotations

from typing import Any

from kvpolicy.facts.findings import Findings
from kvpolicy.facts.model import ModelFacts
from kvpolicy.language import Policy

__all__ = ["asks_for_an_order", "report_cache_kind"]


def report_cache_kind(findings: Findings, engine: str, model: ModelFacts) -> None:
    """Add the conflict (KVP603) where the engine's own order would stay."""
    if not asks_for_an_order(findings.policy, engine) or (kind := _kind(engine, model)) is None:
        return
    severity: Any = "error" if findings.policy.on_conflict == "error" else "warning"
    name = {"sglang": "SGLang", "vllm": "vLLM"}[engine]
    findings.add(
        "KVP603",
        severity,
        "eviction",
        f"the policy's eviction does not work with {model.name} on {name}: {kind}, whose order is the engine's own",
        f"drop it for this engine (`engines: {{{engine}: {{eviction: null}}}}`), or set `cache: {{on_conflict: warn}}`",
        {"engine": engine, "field": "eviction", "model": model.name},
    )


def asks_for_an_order(policy: Policy, engine: str) -> bool:
    """Whether the policy's eviction needs more than the engine's own order."""
    eviction = policy.eviction
    if eviction is not None and eviction.core == "engine":
        return False
    if policy.hints is not None and policy.hints.allow:
        return True
    if eviction is None:
        return False
    if eviction.core == "kvpolicy" or eviction.score or eviction.rules or eviction.tenants:
        return True
    own = (None, "lru") if engine == "vllm" else (None,)  # vLLM's own queue serves lru; SGLang's heap is replaced
    return eviction.policy not in own


def _kind(engine: str, model: ModelFacts) -> str | None:
    if model.linear_layers or model.linear_state is not None:
        return "its state layers make the cache a hybrid"
    if model.swa_layers or (engine == "vllm" and model.window_layers):
        return "its sliding-window layers have a cache of their own"
    return None
