"""SIEVE: one queue in order of insertion and a hand that moves from the oldest unit to the youngest; a unit visited
since the hand last passed survives the pass, any other goes.

Source: Y. Zhang et al., "SIEVE is simpler than LRU: an efficient turn-key eviction algorithm for web caches", NSDI
2024.

In a prefix tree only leaves can go. A unit keeps its place in the queue, and its visits count, while it is locked or
has children; the hand skips it then. Where a unit goes, the hand looks next at what it stood on, if one request
brought both: so an unvisited prompt goes whole, from its end on, not a unit in each lap. The queue is a heap on
``(lap, place)``: the lap in which the hand comes to the unit next.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvpolicy.eviction.algorithms.spec import Algorithm, recency
from kvpolicy.eviction.base import Handle, KeyChange, Order
from kvpolicy.eviction.heap import LazyHeap

__all__ = ["Sieve"]


class Sieve(Algorithm):
    """State: the unit's hits when the hand last passed it. Of a run that is the last unit's: the hand has never come to
    those before it, which were not evictable yet."""

    needs_metadata = True

    def make_order(self) -> Order[Handle]:
        return SieveQueue()

    def inserted(self, handle: Handle) -> None:
        handle.kvp.state = 0

    def divided(self, upper: Handle, lower: Handle) -> None:
        upper.kvp.state = 0

    def trimmed(self, handle: Handle, units: int, content_key: int | None) -> None:
        handle.kvp.state = 0


class SieveQueue:
    """The evictable units of one partition and its own hand."""

    is_keyed = False
    change = KeyChange.SHRINKS  # a touch may bring another unit, of any recency, to the front

    def __init__(self) -> None:
        self._lap = 0
        self._hand: tuple[int, int] = (-1, -1)  # the furthest place examined in this lap
        self._gone: tuple[Any, Any, int] = (None, None, 0)  # the last victim, what it stood on, who brought it
        self._due: dict[Handle, int] = {}  # the lap in which the hand comes to a member
        self._heap: LazyHeap[Handle] = LazyHeap(self._turn, KeyChange.STATIC)

    def _turn(self, handle: Handle) -> tuple[int, int, int]:
        meta = handle.kvp
        return (self._due[handle], meta.birth_seq, meta.order)  # halves of a split: side by side

    def add(self, handle: Handle) -> None:
        if handle not in self._due:
            meta = handle.kvp
            is_due = (meta.birth_seq, meta.order) > self._hand or self._is_exposed(handle)
            self._due[handle] = self._lap if is_due else self._lap + 1
            self._heap.add(handle)

    def _is_exposed(self, handle: Handle) -> bool:
        """Whether the last victim stood on it, or was the end of this run, and one request brought both."""
        victim, parent, birth_seq = self._gone
        return (handle is victim or handle is parent) and handle.kvp.birth_seq == birth_seq

    def discard(self, handle: Handle) -> None:
        self._heap.discard(handle)
        self._due.pop(handle, None)

    def touch(self, handle: Handle) -> None:
        """Nothing: a visit is seen when the hand comes."""

    def peek(self) -> tuple[Any, Handle] | None:
        while (top := self._heap.peek()) is not None:
            (lap, birth_seq, order), handle = top
            meta = handle.kvp
            place = (birth_seq, order)
            if lap > self._lap or place > self._hand:
                self._lap, self._hand = lap, place
            if meta.hits == meta.state:
                return recency(handle), handle
            meta.state = meta.hits
            self._heap.discard(handle)
            self._due[handle] = lap + 1
            self._heap.add(handle)
        return None

    def pop(self) -> Handle | None:
        if self.peek() is None:
            return None
        handle = self._heap.pop()
        assert handle is not None
        del self._due[handle]
        meta = handle.kvp
        self._gone = handle, meta.parent, meta.birth_seq
        return handle

    def precedes(self, handle: Handle, victim: Handle) -> bool:
        meta = handle.kvp
        if not self._is_exposed(handle) or meta.hits != meta.state:
            return False
        self._gone = handle, meta.parent, meta.birth_seq
        return True

    def sweep(self, handle: Handle, most: int) -> int:
        return 1 if handle.kvp.hits else most  # of those before the last one no visit has been seen yet

    def clear(self) -> None:
        self._heap.clear()
        self._due.clear()
        self._gone = (None, None, 0)

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, handle: object) -> bool:
        return handle in self._due

    def __iter__(self) -> Iterator[Handle]:
        return iter(self._due)
