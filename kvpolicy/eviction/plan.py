"""From the typed ``eviction`` section of a policy to what an adapter needs: what to observe, and an index per pool."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvpolicy.eviction.algorithms.priority import ClampedPriority
from kvpolicy.eviction.algorithms.registry import ALGORITHMS, make_algorithm
from kvpolicy.eviction.algorithms.score import Score
from kvpolicy.eviction.algorithms.spec import Algorithm, KeyedAlgorithm, Ranked
from kvpolicy.eviction.base import Handle, PolicyClock
from kvpolicy.eviction.hints import HINTS_RULE, CompiledHints
from kvpolicy.eviction.index import EvictionIndex
from kvpolicy.eviction.metadata_index import MetadataIndex
from kvpolicy.eviction.rules import CompiledRule
from kvpolicy.eviction.tenants import CompiledTenants, Shares
from kvpolicy.language.eviction_words import resolved_params
from kvpolicy.language.expressions import CompiledScore, compile_admit, compile_match, compile_score
from kvpolicy.language.models import Eviction, Hints, Rule, Tenants

__all__ = ["CompiledEviction", "compile_eviction"]

#: Of a retain hint that names no ttl, as far as ``hints.max_ttl`` allows.
DEFAULT_TTL_MS = 300_000
#: Fields measured in policy time, which an engine must be able to carry (``reuse_gap_s`` too).
_TIME_SUFFIX = "_s"


@dataclass(frozen=True)
class CompiledEviction:
    """A policy's eviction, ready to make one index per pool. Neither ``policy`` nor ``score``: the engine's default,
    lru."""

    core: str = "auto"
    policy: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    score: CompiledScore | None = None
    rules: tuple[CompiledRule, ...] = ()
    tenants: CompiledTenants | None = None
    max_priority: int | None = None
    hints: CompiledHints | None = None  # None: requests' hints are not looked at
    needs_time: bool = False  # some field or ttl is in policy time
    explains: bool = False  # remember what was evicted, to say why something is missing; no policy's word

    @property
    def needs_metadata(self) -> bool:
        """Whether the adapter must report resident units: ``insert``, ``touch``, ``split``, ``remove``."""
        return self.explains or self.orders_by_metadata

    @property
    def orders_by_metadata(self) -> bool:
        """Whether a decision needs what is reported of resident units."""
        return (
            bool(self.rules) or self.hints is not None or self.tenants is not None or self._algorithm_needs_metadata()
        )

    def make_index(
        self,
        pool_tokens: int,
        rank: Callable[[Handle], Any] | None = None,
        *,
        clock: PolicyClock | None = None,
        keep_metadata: bool = False,
    ) -> EvictionIndex:
        """An empty index for a pool of that many tokens, with a clock of its own unless ``clock`` is given.

        ``rank`` puts the engine's own partition of the units before a built-in order; with metadata it is a TypeError.
        ``keep_metadata``: record what becomes of units even if this policy does not look at it, for one that follows.
        """
        algorithm = self._make_algorithm(clock if clock is not None else PolicyClock())
        needs_metadata = self.needs_metadata or keep_metadata
        if rank is not None:
            if needs_metadata or not isinstance(algorithm, KeyedAlgorithm):
                raise TypeError("an engine's ranks go before a bare built-in order only")
            algorithm = Ranked(algorithm, rank)
        if not needs_metadata:
            return EvictionIndex(algorithm, pool_tokens)
        return MetadataIndex(
            algorithm,
            pool_tokens,
            rules=self.rules,
            tenants=self.tenants,
            max_priority=self.max_priority,
            hints=self.hints,
            explains=self.explains,
        )

    def _algorithm_needs_metadata(self) -> bool:
        return self.score is not None or self._sets_priority() or ALGORITHMS[self.policy or "lru"].needs_metadata

    def _sets_priority(self) -> bool:
        """Whether the policy orders by a priority that it also changes."""
        changes = self.max_priority is not None or any(rule.priority is not None for rule in self.rules)
        return self.policy == "priority" and changes

    def _make_algorithm(self, clock: PolicyClock) -> Algorithm:
        if self.score is not None:
            return Score(clock, self.score)
        if self._sets_priority():
            return ClampedPriority(clock)
        return make_algorithm(self.policy or "lru", self.params, clock)


def compile_eviction(eviction: Eviction | None, *, hints: Hints | None = None) -> CompiledEviction:
    """Compile a checked policy's ``eviction`` section (``None``: absent).

    Raises ExpressionError, KeyError or UnitError for what ``check`` would have refused.
    """
    max_priority = hints.max_priority if hints is not None else None
    asks = _compile_hints(hints)
    if eviction is None:
        if asks is None:
            return CompiledEviction(max_priority=max_priority)
        eviction = Eviction()
    score = None if eviction.score is None else compile_score(eviction.score)
    params = {} if eviction.policy is None else resolved_params(eviction.policy, eviction.params)
    retained = hints if hints is not None and asks is not None and asks.retains else None
    rules, rules_need_time = _compile_rules(eviction.rules, retained)
    return CompiledEviction(
        core=eviction.core,
        policy=eviction.policy,
        params=params,
        score=score,
        rules=rules,
        tenants=None if eviction.tenants is None else _compile_tenants(eviction.tenants),
        max_priority=max_priority,
        hints=asks,
        needs_time=rules_need_time or (score is not None and _reads_time(score.fields)),
    )


def _compile_hints(hints: Hints | None) -> CompiledHints | None:
    if hints is None or not hints.allow:
        return None
    return CompiledHints(
        allow=frozenset(hints.allow),
        budget_share=hints.budget,
        ttl_ms=min(DEFAULT_TTL_MS, hints.max_ttl_ms),
        max_ttl_ms=hints.max_ttl_ms,
        classes=frozenset(hints.classes),
    )


def _compile_rules(rules: tuple[Rule, ...], hints: Hints | None) -> tuple[tuple[CompiledRule, ...], bool]:
    """``hints``: where requests may retain, as a last rule of its own."""
    weights = sorted(
        {rule.retain.weight for rule in rules if rule.retain is not None} | ({hints.weight} if hints else set())
    )
    compiled, needs_time = [], hints is not None
    for rule in rules:
        match = None if rule.match is None else compile_match(rule.match)
        refuses = None
        if rule.admit is not None:
            refuses = _always if rule.match is None else compile_admit(rule.match).evaluate
        retain = rule.retain
        needs_time |= (match is not None and _reads_time(match.fields)) or (
            retain is not None and retain.ttl_ms is not None
        )
        compiled.append(
            CompiledRule(
                name=rule.name,
                match=match.evaluate if match is not None else _always,
                is_retain=retain is not None,
                level=0 if retain is None else 1 + weights.index(retain.weight),
                ttl_ms=None if retain is None else retain.ttl_ms,
                budget_share=None if retain is None else retain.budget,
                needs_hits=match is not None and match.needs_hits,
                depth_steps=() if match is None else match.depth_steps,
                refuses=refuses,
                priority=rule.priority,
            )
        )
    if hints is not None:
        level = 1 + weights.index(hints.weight)
        compiled.append(
            CompiledRule(HINTS_RULE, _never, is_retain=True, level=level, budget_share=hints.budget, depth_steps=())
        )
    return tuple(compiled), needs_time


def _compile_tenants(tenants: Tenants) -> CompiledTenants:
    return CompiledTenants(
        default=Shares(tenants.floor, tenants.cap),
        max_floors=tenants.max_floors,
        named={name: Shares(tenant.floor, tenant.cap) for name, tenant in tenants.named.items()},
    )


def _reads_time(fields: frozenset[str]) -> bool:
    return any(name.endswith(_TIME_SUFFIX) for name in fields)


def _never(*_: Any) -> bool:
    """The condition of what only hints bring about."""
    return False


def _always(*_: Any) -> bool:
    """The condition of a rule without ``match``."""
    return True
