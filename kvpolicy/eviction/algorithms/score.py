"""A policy's own ``score``: the smallest goes first, ties by last touch, then by creation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kvpolicy.eviction.algorithms.spec import Algorithm
from kvpolicy.eviction.base import Handle, KeyChange, Order, PolicyClock, UnitMeta
from kvpolicy.eviction.heap import LazyHeap
from kvpolicy.eviction.sample import SampledOrder
from kvpolicy.language.expressions import CompiledScore

__all__ = ["Score"]


class Score(Algorithm):
    """A stable or decaying score is a key in a heap; a dynamic one is evaluated on a sample at eviction."""

    needs_metadata = True

    def __init__(self, clock: PolicyClock, score: CompiledScore) -> None:
        super().__init__(clock)
        self._score = score
        self.rises_in_runs = "depth_tokens" in score.fields
        self._is_dynamic = score.score_class == "dynamic"
        self.rank = _rank(score.evaluate if self._is_dynamic else score.key, clock)
        self._ranks = _ranks(score.evaluate, clock)
        # The tie-break by last touch only grows, so it never makes a key less movable than the score itself.
        change = KeyChange(score.change)
        self.change = KeyChange.GROWS if change is KeyChange.STATIC else change

    def make_order(self) -> Order[Handle]:
        return (
            SampledOrder(self.rank, self.clock, self._ranks) if self._is_dynamic else LazyHeap(self.rank, self.change)
        )

    make_member_order = make_order

    def score_of(self, handle: Handle) -> float | None:
        return float(self._score.evaluate(handle.kvp, self.clock))


def _rank(evaluate: Callable[[UnitMeta, PolicyClock], float], clock: PolicyClock) -> Callable[[Handle], Any]:
    """The sort key of a handle. A closure: it runs for every candidate of every victim."""

    def rank(handle: Handle) -> Any:
        meta = handle.kvp
        return (evaluate(meta, clock), meta.touch_seq, meta.order)

    return rank


def _ranks(evaluate: Callable[[UnitMeta, PolicyClock], float], clock: PolicyClock) -> Callable[..., list[Any]]:
    """The sort keys of many handles."""

    def ranks(handles: Sequence[Handle]) -> list[Any]:
        return [(evaluate(meta := handle.kvp, clock), meta.touch_seq, meta.order) for handle in handles]

    return ranks
