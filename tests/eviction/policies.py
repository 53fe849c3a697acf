"""Compiled policies from the words a person writes."""

from __future__ import annotations

from typing import Any

from kvpolicy.eviction import CompiledEviction, compile_eviction
from kvpolicy.language.models import Eviction, Hints, Rule, Tenants


def compiled(
    policy: str | None = None,
    *,
    score: str | None = None,
    params: dict[str, Any] | None = None,
    rules: list[dict[str, Any]] | None = None,
    tenants: dict[str, Any] | None = None,
    max_priority: int | None = None,
    hints: dict[str, Any] | None = None,
) -> CompiledEviction:
    section = Eviction(
        policy=policy,
        score=score,
        params=params or {},
        rules=tuple(Rule.model_validate(rule) for rule in rules or []),
        tenants=None if tenants is None else Tenants.model_validate(tenants),
    )
    return compile_eviction(section, hints=Hints.model_validate({"max_priority": max_priority, **(hints or {})}))
