"""Hit density: the unit with the fewest expected hits for the space and time it will hold goes first.

Source: N. Beckmann, H. Chen, A. Cidon, "LHD: improving cache hit rate by maximizing hit density", NSDI 2018. For a
unit of class c and age a

    density(c, a) = P(hit after a) / E[time still held after a],    rank = density / size_tokens

where age is the number of requests since the last touch, and both terms come from counters of what happened to earlier
units of the class: how many were hit, and how many evicted, at each age. Simplified against the paper: ages in powers
of two rather than linear buckets, classes by number of hits (0, 1, 2-3, 4 and more) rather than by application and
last ages, counts that are halved at each reconfiguration rather than decayed by a factor, and no explorer objects. All
counters are integers, and a reconfiguration comes after a fixed number of events, so that ranks agree.

Before anything is learned half of the units at each age are hit, and each age is half as common as the one before:
density falls with age, as in lru for units of one size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvpolicy.eviction.algorithms.spec import Algorithm
from kvpolicy.eviction.base import Handle, KeyChange, Order, PolicyClock, UnitMeta
from kvpolicy.eviction.sample import SampledOrder

__all__ = ["HitDensity"]

AGES = 24  # bucket b: ages of 2**b - 1 to 2**(b + 1) - 2 requests, the last one open
CLASSES = 4
_OLD = 2 ** (AGES - 1) - 1  # requests from which an age is in the last bucket
_MANY_HITS = 2 ** (CLASSES - 2)  # hits from which a unit is in the last class
#: Events (hits and evictions) between reconfigurations.
PERIOD = 1024


class HitDensity(Algorithm):
    """``hits[class][age]`` and ``evictions[class][age]`` are learned; ``density`` is computed from them."""

    needs_metadata = True
    change = KeyChange.DYNAMIC

    def __init__(self, clock: PolicyClock) -> None:
        super().__init__(clock)
        self.clear()

    def clear(self) -> None:
        self.hits = [_prior() for _ in range(CLASSES)]
        self.evictions = [_prior() for _ in range(CLASSES)]
        self._events = 0
        self._compute()

    def make_order(self) -> Order[Handle]:
        return SampledOrder(self.rank, self.clock, self._ranks)

    make_member_order = make_order

    def rank(self, handle: Handle) -> Any:
        meta = handle.kvp
        touch_seq = meta.touch_seq
        density = self.density[_class(meta.hits)][_age(self.clock.request_seq - touch_seq)]
        return (density / (meta.size_tokens or 1), touch_seq, meta.order)

    def _ranks(self, handles: Sequence[Handle]) -> list[Any]:
        """The same of many. In one piece: it runs for every candidate of every victim."""
        seq, density, last = self.clock.request_seq, self.density, CLASSES - 1
        ranks = []
        for handle in handles:
            meta = handle.kvp
            hits, touch_seq = meta.hits, meta.touch_seq
            requests = seq - touch_seq
            value = density[hits.bit_length() if hits < _MANY_HITS else last][
                (requests + 1).bit_length() - 1 if requests < _OLD else AGES - 1
            ]
            ranks.append((value / (meta.size_tokens or 1), touch_seq, meta.order))
        return ranks

    def score_of(self, handle: Handle) -> float | None:
        return float(self.rank(handle)[0])

    def inserted(self, handle: Handle) -> None:
        handle.kvp.state = self.clock.request_seq

    def touched(self, handle: Handle) -> None:
        meta = handle.kvp
        age = _age(self.clock.request_seq - meta.state)
        meta.state = self.clock.request_seq
        self._count(self.hits[_class(meta.hits - 1)], age, meta.units)

    def trimmed(self, handle: Handle, units: int, content_key: int | None) -> None:
        meta: UnitMeta = handle.kvp
        self._count(self.evictions[_class(meta.hits)], _age(self.clock.request_seq - meta.state), units)

    def removed(self, handle: Handle, evicted: bool) -> None:
        if evicted:
            self.trimmed(handle, handle.kvp.units, None)

    def _count(self, row: list[int], age: int, units: int) -> None:
        """One event for each unit, as if they came one by one."""
        while units:
            events = min(units, PERIOD - self._events % PERIOD)
            row[age] += events
            units -= events
            self._events += events
            if self._events % PERIOD == 0:
                self._compute()
                for table in (self.hits, self.evictions):
                    for counts in table:
                        counts[:] = [(count + 1) // 2 for count in counts]

    def _compute(self) -> None:
        """``density[c][a]``: from the oldest age down, hits still to come over time still to be held."""
        self.density = [[0.0] * AGES for _ in range(CLASSES)]
        for klass in range(CLASSES):
            hits = events = held_requests = 0
            for age in range(AGES - 1, -1, -1):
                hits += self.hits[klass][age]
                events += self.hits[klass][age] + self.evictions[klass][age]
                held_requests += events << age  # each of them is held for this bucket's width
                self.density[klass][age] = hits / max(held_requests, 1)


def _prior() -> list[int]:
    return [(1 << (8 - age)) if age <= 8 else 0 for age in range(AGES)]


def _class(hits: int) -> int:
    return hits.bit_length() if hits < _MANY_HITS else CLASSES - 1


def _age(requests: int) -> int:
    return (requests + 1).bit_length() - 1 if requests < _OLD else AGES - 1
