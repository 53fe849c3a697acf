"""Search a policy for a trace: fit on its first 60 % in time, believe only what holds on the rest.

Candidates are simulated on the whole trace, so that the caches are warm where validation begins; a request counts for
fitting or for validation by its place. The best on the fitting part is recommended only if it also beats LRU on the
validation part by more than the difference between two halves of it would explain; otherwise stock LRU is.

A floor is a hit rate that a tenant must have. Only candidates that keep every floor on the fitting part compete, and
the best of them must keep it in both halves of the rest. Where LRU breaks a floor, keeping it counts for more than
hits.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from kvpolicy.replay.cost import saved
from kvpolicy.replay.errors import TraceUsageError

__all__ = [
    "FIT_SHARE",
    "OBJECTIVES",
    "Candidate",
    "Floor",
    "Recommendation",
    "Trial",
    "candidates",
    "judge",
    "objective_of",
    "trial",
]

FIT_SHARE = 0.6
#: objective -> what it maximises
OBJECTIVES = {
    "hit": "hit tokens",
    "prefill": "prefill pairs of query and key saved (the quadratic part)",
    "ttft_tail": "tokens left to prefill by the slowest 10 % of requests (fewer is better)",
}
_LEAD = 0.002  # a gain below this share is not worth a restart


@dataclass(frozen=True, slots=True)
class Candidate:
    """An ``eviction`` section to try."""

    name: str
    eviction: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Floor:
    """The hit rate, 0 to 1, that a tenant (a `cache_salt`) must have."""

    tenant: str
    hit_rate: float

    def __str__(self) -> str:
        return f"{self.tenant} at {100 * self.hit_rate:g} %"


@dataclass(frozen=True, slots=True)
class Trial:
    """How one candidate did at one capacity; higher is better."""

    candidate: Candidate
    capacity_tokens: int
    fit: float
    validation: float
    halves: tuple[float, float]  # of the validation part
    #: The hit rates of each tenant with a floor: fitting part and both halves of the rest; None where it asked nothing.
    tenants: dict[str, tuple[float | None, float | None, float | None]] = field(default_factory=dict)

    def keeps_fitting(self, floors: Sequence[Floor]) -> bool:
        """Whether every floor holds on the fitting part."""
        return all(_at_least(self.tenants[floor.tenant][0], floor) for floor in floors)

    def keeps(self, floors: Sequence[Floor]) -> bool:
        """Whether every floor holds on the fitting part and on both halves of the rest."""
        return all(_at_least(rate, floor) for floor in floors for rate in self.tenants[floor.tenant])


def _at_least(rate: float | None, floor: Floor) -> bool:
    return rate is None or rate >= floor.hit_rate


@dataclass(slots=True)
class Recommendation:
    """The outcome at one capacity. ``chosen`` is None where stock LRU is best."""

    capacity_tokens: int
    lru: Trial
    chosen: Trial | None
    reason: str
    trials: list[Trial] = field(default_factory=list)
    is_floor_broken: bool = False  # no candidate is known to keep every floor


def candidates(seed: int, count: int, tenants: Sequence[str] = ()) -> list[Candidate]:
    """Built-in orders, then scores and rules over a grid, shuffled by ``seed`` and cut to ``count``; LRU is first.

    For ``tenants`` orders that keep a share of the pool for each of them come before the grid.
    """
    names = ("lru", "lfu", "slru", "gdsf", "sieve", "s3fifo", "tlru", "reuse_rate", "adaptive")
    fixed = [Candidate(name, {"policy": name}) for name in names]
    if tenants:
        for name, percent in product(("lru", "reuse_rate"), (10, 20, 40, 60, 80)):
            share = f"{percent / len(tenants):g}%"
            named = {tenant: {"floor": share} for tenant in tenants}
            fixed.append(Candidate(f"{name}-floor{share}", {"policy": name, "tenants": {"named": named}}))
    varied: list[Candidate] = []
    for weight in (10, 50, 200, 800, 3200):
        varied.append(Candidate(f"hits-{weight}", {"score": f"{weight} * log1p(hits) - idle_requests"}))
    for factor, depth in product((0.5, 2.0, 8.0), (1024, 8192)):
        score = f"{factor:g} * log1p(hits) * depth_tokens / {depth} - idle_requests"
        varied.append(Candidate(f"deep-hits-{factor:g}-{depth}", {"score": score}))
    for tokens in (256, 2048):
        varied.append(Candidate(f"small-first-{tokens}", {"score": f"- idle_requests - size_tokens / {tokens}"}))
    for hits, budget, ttl, depth in product((1, 2, 4), (0.1, 0.25, 0.5), (60, 300, 1800), (4096, 1 << 20)):
        rule = {
            "name": "reused",
            "match": f"hits >= {hits} and depth_tokens <= {depth}",
            "retain": {"weight": 4, "ttl": f"{ttl}s", "budget": f"{100 * budget:g}%"},
        }
        name = f"retain-hits{hits}-{100 * budget:g}pct-{ttl}s-{depth}"
        varied.append(Candidate(name, {"policy": "lru", "rules": [rule]}))
    random.Random(seed).shuffle(varied)
    return [*fixed, *varied][:count]


def objective_of(name: str) -> Callable[[Sequence[int], Sequence[int]], float]:
    """(input tokens, hit tokens) of some requests -> a figure, higher is better. Raises TraceUsageError."""
    if name == "hit":
        return lambda inputs, hits: saved(inputs, hits).linear
    if name == "prefill":
        return lambda inputs, hits: saved(inputs, hits).quadratic
    if name == "ttft_tail":
        return _tail
    raise TraceUsageError(f"unknown objective '{name}' (known: {', '.join(OBJECTIVES)})")


def judge(trials: Sequence[Trial], capacity_tokens: int, floors: Sequence[Floor] = ()) -> Recommendation:
    """Choose among the trials of one capacity."""
    here = [trial for trial in trials if trial.capacity_tokens == capacity_tokens]
    lru = next(trial for trial in here if trial.candidate.name == "lru")
    ranked = sorted(here, key=lambda trial: (-trial.fit, trial.candidate.name))
    able = [trial for trial in ranked if trial.keeps_fitting(floors)]
    wanted = " and ".join(map(str, floors))
    if not able:
        reason = f"no candidate keeps {wanted} where it was fitted"
        return Recommendation(capacity_tokens, lru, None, reason, ranked, is_floor_broken=True)
    best = able[0]
    if not best.keeps(floors):
        reason = (
            f"{best.candidate.name} was best where it was fitted, but does not keep {wanted} in both halves of the rest"
        )
        return Recommendation(capacity_tokens, lru, None, reason, able, is_floor_broken=not lru.keeps(floors))
    if not lru.keeps(floors):
        return Recommendation(capacity_tokens, lru, best, f"the best that keeps {wanted}, which LRU does not", able)
    if best is lru or best.fit - lru.fit < _LEAD:
        return Recommendation(capacity_tokens, lru, None, "no candidate did better where it was fitted", able)
    gains = [a - b for a, b in zip(best.halves, lru.halves, strict=True)]
    if best.validation - lru.validation < _LEAD or min(gains) <= 0:
        reason = f"{best.candidate.name} was best where it was fitted, but not in both halves of the rest"
        return Recommendation(capacity_tokens, lru, None, reason, able)
    return Recommendation(capacity_tokens, lru, best, "better than LRU in both halves of the part it never saw", able)


def trial(
    candidate: Candidate,
    capacity_tokens: int,
    inputs: Sequence[int],
    hits: Sequence[int],
    measure: Callable[[Sequence[int], Sequence[int]], float],
    owners: Sequence[str | None] = (),
    floors: Sequence[Floor] = (),
) -> Trial:
    """Split one run's requests into the fitting part and the rest. ``owners``: the tenant of each, for ``floors``."""
    cut = int(len(inputs) * FIT_SHARE)
    middle = cut + (len(inputs) - cut) // 2

    def part(a: int, b: int) -> float:
        return measure(inputs[a:b], hits[a:b])

    def rate(tenant: str, a: int, b: int) -> float | None:
        own = [at for at in range(a, b) if owners[at] == tenant]
        asked = sum(inputs[at] for at in own)
        return sum(hits[at] for at in own) / asked if asked else None

    end = len(inputs)
    halves = (part(cut, middle), part(middle, end))
    tenants = {
        each.tenant: (rate(each.tenant, 0, cut), rate(each.tenant, cut, middle), rate(each.tenant, middle, end))
        for each in floors
    }
    return Trial(candidate, capacity_tokens, part(0, cut), part(cut, end), halves, tenants)


def _tail(inputs: Sequence[int], hits: Sequence[int]) -> float:
    """Minus the mean share of tokens left to prefill among the tenth of the requests that has most of them."""
    left = sorted((n - h for n, h in zip(inputs, hits, strict=True)), reverse=True)
    tenth = left[: max(1, len(left) // 10)]
    whole = sorted(inputs, reverse=True)[: max(1, len(inputs) // 10)]
    return 1 - sum(tenth) / sum(whole) if sum(whole) else 0.0
