"""Eviction by sample: the Order behind scores that move with the clock alone, which no heap can hold.

As in Redis, each victim is the best of a few candidates: some drawn afresh, some kept from earlier draws because they
were good. A key is evaluated once a request, so the victims of one walk share the candidates drawn for it. The draws
come from a counter, never from a random source, so that equal calls give equal victims on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Any, Generic

from kvpolicy.eviction.base import H, KeyChange, PolicyClock

__all__ = ["SampledOrder"]

_MASK64 = (1 << 64) - 1
# Knuth's MMIX linear congruential generator; the upper bits are used.
_MULTIPLIER, _INCREMENT = 6364136223846793005, 1442695040888963407

#: Candidates drawn for each victim (up to twice as many of fewer members), and good ones kept for the next request.
DRAWN, KEPT = 32, 16

_Ranked = tuple[Any, int, Any]  # key, a number that tells equal keys apart, handle


class SampledOrder(Generic[H]):
    """Order by a key that ``clock`` moves. Of less than ``2 * DRAWN`` members the exact smallest key; of more, the
    smallest among all candidates since the clock moved, ``DRAWN`` more for each victim.

    A draw takes members at equal distances in their list, the first at random. With n members a victim is expected
    among the lowest ``1 / (DRAWN + 1)`` of all keys, in practice lower thanks to the other candidates. Cost: that many
    key evaluations a victim, whatever n, fewer where a walk takes many victims; membership changes are O(1).
    """

    is_keyed = False

    __slots__ = (
        "_candidates",
        "_clock",
        "_is_drawn",
        "_key",
        "_keys",
        "_members",
        "_position",
        "_ranked",
        "_seq",
        "_serial",
        "_state",
        "change",
    )

    def __init__(
        self,
        key: Callable[[H], Any],
        clock: PolicyClock,
        keys: Callable[[Sequence[H]], list[Any]] | None = None,
    ) -> None:
        """``keys``: those of many handles, the same as ``key`` gives one by one but cheaper."""
        self.change: KeyChange = KeyChange.DYNAMIC
        self._key = key
        self._keys = keys if keys is not None else lambda handles: [key(handle) for handle in handles]
        self._clock = clock
        self._state = 0
        self._members: list[H] = []
        self._position: dict[H, int] = {}
        self._seq = 0  # the request at which the candidates' keys were evaluated
        self._serial = 0
        self._candidates: dict[H, _Ranked] = {}
        self._ranked: list[_Ranked] = []  # a heap; entries that are no candidate's own any more are dead
        self._is_drawn = False  # for the present victim

    def add(self, handle: H) -> None:
        if handle not in self._position:
            self._position[handle] = len(self._members)
            self._members.append(handle)
            if len(self._members) < 2 * DRAWN:
                self._is_drawn = False

    def discard(self, handle: H) -> None:
        position = self._position.pop(handle, None)
        if position is None:
            return
        last = self._members.pop()
        if last is not handle:
            self._members[position] = last
            self._position[last] = position
        if self._candidates.pop(handle, None) is not None or len(self._members) < 2 * DRAWN:
            self._is_drawn = False

    def touch(self, handle: H) -> None:
        if handle in self._candidates:
            self._rank((handle,))

    def peek(self) -> tuple[Any, H] | None:
        if self._seq != self._clock.request_seq:
            self._seq = self._clock.request_seq
            self._keep_best()
            self._draw()
        elif not self._is_drawn:
            self._draw()
        top = self._first()
        return None if top is None else (top[0], top[2])

    def pop(self) -> H | None:
        top = self.peek()
        if top is None:
            return None
        self.discard(top[1])
        return top[1]

    def precedes(self, handle: H, victim: H) -> bool:
        """The victim was the best of the candidates, so whatever is better than it is too."""
        return bool(self._key(handle) <= self._key(victim))

    def sweep(self, handle: H, most: int) -> int:
        return most

    def clear(self) -> None:
        self._members.clear()
        self._position.clear()
        self._candidates.clear()
        self._ranked.clear()
        self._is_drawn = False

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, handle: object) -> bool:
        return handle in self._position

    def __iter__(self) -> Iterator[H]:
        return iter(self._members)

    def check(self) -> None:
        """Debug: array and positions agree, and only members are candidates."""
        assert len(self._members) == len(self._position), "a member twice, or none"
        for position, handle in enumerate(self._members):
            assert self._position[handle] == position, "a position that is not the member's"
        for handle, entry in self._candidates.items():
            assert handle in self._position, "a candidate that is no member"
            assert entry in self._ranked, "a candidate that is never first"

    def _first(self) -> _Ranked | None:
        """The best candidate's entry."""
        ranked, candidates = self._ranked, self._candidates
        while ranked:
            entry = ranked[0]
            if candidates.get(entry[2]) is entry:
                return entry
            heappop(ranked)
        return None

    def _rank(self, handles: Sequence[H]) -> None:
        ranked = self._ranked
        first = self._serial + 1
        self._serial += len(handles)
        entries = list(zip(self._keys(handles), range(first, self._serial + 1), handles, strict=True))
        self._candidates.update(zip(handles, entries, strict=True))
        if len(entries) >= len(ranked):  # one pass costs less than so many pushes
            ranked += entries
            heapify(ranked)
        else:
            for entry in entries:
                heappush(ranked, entry)

    def _keep_best(self) -> None:
        """The clock moved: only the best candidates stay, under their present keys."""
        candidates, ranked = self._candidates, self._ranked
        best: list[H] = []
        while ranked and len(best) < KEPT:
            entry = heappop(ranked)
            if candidates.get(entry[2]) is entry:
                best.append(entry[2])
        candidates.clear()
        ranked.clear()
        self._rank(best)

    def _draw(self) -> None:
        members, candidates = self._members, self._candidates
        self._state = state = (self._state * _MULTIPLIER + _INCREMENT) & _MASK64
        distance = len(members) // DRAWN or 1
        self._rank([h for h in members[(state >> 33) % distance :: distance] if h not in candidates])
        self._is_drawn = True
