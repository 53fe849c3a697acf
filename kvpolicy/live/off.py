"""What stays of a policy that was switched off, and how an index that was replaced is taken apart.

Off, the engine decides by itself. Units keep being recorded where they were, so that a policy applied later still
knows their hits, ages and tenants; no order, rule or score of any policy runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from kvpolicy.eviction.algorithms.spec import Algorithm
from kvpolicy.eviction.base import Handle, KeyChange, Order, PolicyClock
from kvpolicy.eviction.index import EvictionIndex
from kvpolicy.eviction.metadata_index import MetadataIndex

from .twins import TwinIndex

__all__ = ["Retirement", "nothing", "records_only"]


class _NoOrder:
    """An order without members."""

    change = KeyChange.STATIC
    is_keyed = False

    def add(self, handle: Handle) -> None: ...

    def discard(self, handle: Handle) -> None: ...

    def touch(self, handle: Handle) -> None: ...

    def peek(self) -> None:
        return None

    def pop(self) -> None:
        return None

    def precedes(self, handle: Handle, victim: Handle) -> bool:
        return False

    def sweep(self, handle: Handle, most: int) -> int:
        return 1

    def clear(self) -> None: ...

    def __len__(self) -> int:
        return 0

    def __contains__(self, handle: object) -> bool:
        return False

    def __iter__(self) -> Iterator[Handle]:
        return iter(())


class _NoAlgorithm(Algorithm):
    change = KeyChange.STATIC

    def make_order(self) -> Order[Handle]:
        return _NoOrder()


def records_only(before: Any) -> Any:
    """An index over the very handles of ``before`` that records and orders nothing. O(1)."""
    algorithm = _NoAlgorithm(before.clock)
    if not before.needs_metadata:
        return _succeeding(EvictionIndex(algorithm, before.pool_tokens), before)
    inner = before.inner if isinstance(before, TwinIndex) else before
    index = MetadataIndex(algorithm, before.pool_tokens)
    index.continue_numbers(inner)
    _succeeding(index, inner)
    if not isinstance(before, TwinIndex):
        return index
    over_twins = TwinIndex(index)
    over_twins.twins = before.twins
    return over_twins


def nothing(pool_tokens: int) -> EvictionIndex:
    """The index of a pool whose units nobody has looked at yet."""
    return EvictionIndex(_NoAlgorithm(PolicyClock()), pool_tokens)


def _succeeding(index: EvictionIndex, before: EvictionIndex) -> EvictionIndex:
    index.succeed(before)
    return index


class Retirement:
    """An index that decides no more: freeing it at once would hold up a step."""

    def __init__(self, index: Any, *, keeps_handles: bool) -> None:
        """``keeps_handles``: the one that follows uses the same."""
        self._index: Any = index
        self._owns = isinstance(index, TwinIndex) and not keeps_handles

    def step(self, units: int) -> bool:
        """Take apart up to ``units`` more; whether there is more to do."""
        index = self._index
        if index is None:
            return False
        bare = index if self._owns else getattr(index, "inner", index)
        take = bare.remove if self._owns else bare.discard
        try:
            some = list(islice(bare.twins, units)) if self._owns else bare.members(units)
            for unit in some:
                take(unit)
        except Exception:  # nobody looks at it any more: it may go as a whole
            some = []
        if not some:
            self._index = None
        return bool(some)
