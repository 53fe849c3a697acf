"""S3-FIFO: a small queue filters what is used once, a main queue keeps what was used again, a ghost list remembers
what the small queue threw out.

Source: J. Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023. New units enter the small queue,
or the main one if the ghost list knows them. While the small queue holds more than its share of the resident tokens
its oldest unit is examined: with more than one use it moves to the main queue, else it goes and its key becomes a
ghost. Otherwise the oldest of the main queue is examined: with a use left it re-enters at the end with one use less,
else it goes. Uses are capped at three.

In a prefix tree only leaves can go. A unit keeps its queue and its place, and its uses count, while it is locked or has
children; the queues skip it then. The halves of a split share the place. Ghosts need ``content_key`` from the adapter;
without it every unit enters the small queue.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvpolicy.eviction.algorithms.spec import Algorithm, recency
from kvpolicy.eviction.base import Handle, KeyChange, Order, PolicyClock, UnitMeta
from kvpolicy.eviction.heap import LazyHeap

__all__ = ["S3FIFO"]

_MAX_USES = 3
_PROMOTE_USES = 2  # "more than one"


class _State:
    """One unit's queue, its place there, and how many of its hits are used up. Of a run the last unit is examined, and
    moves, alone: ``others`` is then the state of those before it, else None."""

    __slots__ = ("main", "others", "place", "spent_hits")

    def __init__(self, main: bool, place: int, spent_hits: int = 0, others: _State | None = None) -> None:
        self.main = main
        self.place = place
        self.spent_hits = spent_hits
        self.others = others


class S3FIFO(Algorithm):
    """``small_share``: the small queue's share of the resident tokens, the paper's 10 %. The ghost list remembers at
    most as many units as were ever resident at once, the paper's "as many as the main queue holds" without its fixed
    object size."""

    needs_metadata = True
    needs_content_key = True

    def __init__(self, clock: PolicyClock, small_share: float = 0.1) -> None:
        super().__init__(clock)
        self.small_share = small_share
        self.clear()

    def clear(self) -> None:
        self.small_tokens = 0
        self.resident_tokens = 0
        self._resident = self._ghost_limit = 0
        self._places = 0
        self._ghosts: dict[int, int] = {}  # units that went at once, by the first one's key; in order of age
        self._ghost_units = 0

    def make_order(self) -> Order[Handle]:
        return S3Queues(self)

    def next_place(self) -> int:
        self._places += 1
        return self._places

    def is_small_over_share(self) -> bool:
        return self.small_tokens > self.small_share * self.resident_tokens

    def inserted(self, handle: Handle) -> None:
        meta = handle.kvp
        known = meta.content_key is not None and meta.content_key in self._ghosts
        if known:
            self._ghost_units -= self._ghosts.pop(meta.content_key)
        meta.state = _State(main=known, place=self.next_place())
        self.resident_tokens += meta.tokens
        self._resident += meta.units
        self._ghost_limit = max(self._ghost_limit, self._resident)
        if not known:
            self.small_tokens += meta.tokens

    def split(self, upper: Handle, lower: Handle) -> None:
        state = lower.kvp.state
        upper.kvp.state = _State(state.main, state.place, state.spent_hits)
        self._resident += 1

    def divided(self, upper: Handle, lower: Handle) -> None:
        state = lower.kvp.state
        upper.kvp.state = state.others or state

    def trimmed(self, handle: Handle, units: int, content_key: int | None) -> None:
        meta = handle.kvp
        self._gone(meta, meta.state.main, units, content_key)
        meta.state = meta.state.others or meta.state

    def removed(self, handle: Handle, evicted: bool) -> None:
        meta = handle.kvp
        state = meta.state
        if state.others is not None and meta.units > 1:  # not in a walk, where the last unit goes alone
            self._gone(meta, state.main, 1, None)
            self._gone(meta, state.others.main, meta.units - 1, None)
        else:
            self._gone(meta, state.main, meta.units, meta.content_key if evicted else None)

    def _gone(self, meta: UnitMeta, main: bool, units: int, ghost_key: int | None) -> None:
        tokens = meta.size_tokens * units
        self._resident -= units
        self.resident_tokens -= tokens
        if main:
            return
        self.small_tokens -= tokens
        ghosts = self._ghosts
        if ghost_key is not None:
            self._ghost_units += units - ghosts.pop(ghost_key, 0)
            ghosts[ghost_key] = units
            while self._ghost_units > self._ghost_limit:
                self._ghost_units -= ghosts.pop(next(iter(ghosts)))

    def promote(self, handle: Handle) -> None:
        """From the small to the main queue."""
        meta = handle.kvp
        self.small_tokens -= meta.size_tokens
        meta.state = _State(True, self.next_place(), meta.hits, self._others(meta))

    @staticmethod
    def _others(meta: UnitMeta) -> _State | None:
        return (meta.state.others or meta.state) if meta.units > 1 else None


def _uses(handle: Handle) -> int:
    meta = handle.kvp
    return min(int(meta.hits) - int(meta.state.spent_hits), _MAX_USES)


class S3Queues:
    """The evictable units of one partition in their two queues."""

    is_keyed = False
    change = KeyChange.SHRINKS  # a touch may bring another unit, of any recency, to the front

    def __init__(self, algorithm: S3FIFO) -> None:
        self._algorithm = algorithm
        self._small: LazyHeap[Handle] = LazyHeap(_place, KeyChange.STATIC)
        self._main: LazyHeap[Handle] = LazyHeap(_place, KeyChange.STATIC)

    def add(self, handle: Handle) -> None:
        (self._main if handle.kvp.state.main else self._small).add(handle)

    def discard(self, handle: Handle) -> None:
        self._small.discard(handle)
        self._main.discard(handle)

    def touch(self, handle: Handle) -> None:
        """Nothing: uses are seen when the unit is examined."""

    def peek(self) -> tuple[Any, Handle] | None:
        small, main, algorithm = self._small, self._main, self._algorithm
        while small or main:
            queue = small if small and (algorithm.is_small_over_share() or not main) else main
            top = queue.peek()
            assert top is not None
            handle = top[1]
            uses = _uses(handle)
            if queue is small and uses >= _PROMOTE_USES:
                small.discard(handle)
                algorithm.promote(handle)
                main.add(handle)
            elif queue is main and uses > 0:
                main.discard(handle)
                meta = handle.kvp
                meta.state = _State(True, algorithm.next_place(), meta.hits - (uses - 1), algorithm._others(meta))
                main.add(handle)
            else:
                return recency(handle), handle
        return None

    def pop(self) -> Handle | None:
        top = self.peek()
        if top is None:
            return None
        handle = top[1]
        (self._main if handle.kvp.state.main else self._small).discard(handle)
        return handle

    def precedes(self, handle: Handle, victim: Handle) -> bool:
        state, last = handle.kvp.state, victim.kvp.state
        if state.main is not last.main or _place(handle) > _place(victim):
            return False
        is_small_next = bool(self._small or not state.main) and (
            self._algorithm.is_small_over_share() or not (self._main or state.main)
        )
        uses = _uses(handle)
        return uses == 0 and not is_small_next if state.main else uses < _PROMOTE_USES and is_small_next

    def sweep(self, handle: Handle, most: int) -> int:
        algorithm, meta = self._algorithm, handle.kvp
        state, size_tokens = meta.state, meta.size_tokens
        if state.others is not None:
            return 1
        if not (self._small if state.main else self._main):
            return most
        small, resident, share = algorithm.small_tokens, algorithm.resident_tokens, algorithm.small_share

        def is_next(units: int) -> bool:
            """Whether this queue is still the one to look at when so many went; it never comes back to it."""
            gone = units * size_tokens
            return (small - (0 if state.main else gone) > share * (resident - gone)) is not state.main

        if is_next(most - 1):
            return most
        return next(units for units in range(1, most) if not is_next(units))

    def clear(self) -> None:
        self._small.clear()
        self._main.clear()

    def __len__(self) -> int:
        return len(self._small) + len(self._main)

    def __contains__(self, handle: object) -> bool:
        return handle in self._small or handle in self._main

    def __iter__(self) -> Iterator[Handle]:
        yield from self._small
        yield from self._main


def _place(handle: Handle) -> tuple[int, int]:
    return (handle.kvp.state.place, handle.kvp.order)
