"""Eviction by sample: the Order behind scores that move with the clock alone, which no heap can hold.

As in Redis, each victim is the best of a few candidates: some drawn afresh, some kept from earlier draws because they
were good. The draws come from a counter, never from a random source, so that equal calls give equal victims on every
rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic

from kvpolicy.eviction.base import H, KeyChange, PolicyClock

__all__ = ["SampledOrder"]

_MASK64 = (1 << 64) - 1
# Knuth's MMIX linear congruential generator; the upper bits are used.
_MULTIPLIER, _INCREMENT = 6364136223846793005, 1442695040888963407

#: Candidates drawn for each victim, and good ones kept for the next.
DRAWN, KEPT = 32, 16


class SampledOrder(Generic[H]):
    """Order by a key that ``clock`` moves. Of at most ``DRAWN + KEPT`` members the exact smallest key; of more, the
    smallest among that many candidates.

    With n members the victim is expected among the lowest ``1 / (DRAWN + 1)`` of all keys, in practice lower thanks to
    the kept ones. Cost: that many key evaluations a victim, whatever n; membership changes are O(1).
    """

    is_keyed = False

    __slots__ = ("_best", "_best_seq", "_clock", "_kept", "_key", "_members", "_position", "_state", "change")

    def __init__(self, key: Callable[[H], Any], clock: PolicyClock) -> None:
        self.change: KeyChange = KeyChange.DYNAMIC
        self._key = key
        self._clock = clock
        self._state = 0
        self._members: list[H] = []
        self._position: dict[H, int] = {}
        self._kept: list[H] = []
        self._best: tuple[Any, H] | None = None  # the last answer, until membership, a touch or the clock changes it
        self._best_seq = 0

    def add(self, handle: H) -> None:
        if handle not in self._position:
            self._position[handle] = len(self._members)
            self._members.append(handle)
            if len(self._members) <= DRAWN + KEPT:
                self._best = None

    def discard(self, handle: H) -> None:
        position = self._position.pop(handle, None)
        if position is None:
            return
        last = self._members.pop()
        if last is not handle:
            self._members[position] = last
            self._position[last] = position
        if self._best is not None and (self._best[1] is handle or len(self._members) == DRAWN + KEPT):
            self._best = None

    def touch(self, handle: H) -> None:
        if self._best is not None and (self._best[1] is handle or len(self._members) <= DRAWN + KEPT):
            self._best = None

    def peek(self) -> tuple[Any, H] | None:
        if (self._best is None or self._best_seq != self._clock.request_seq) and self._members:
            key = self._key
            ranked = [(key(handle), handle) for handle in self._candidates()]
            ranked.sort(key=_first)
            self._best = ranked[0]
            self._best_seq = self._clock.request_seq
            self._kept = [handle for _, handle in ranked[: KEPT + 1]]
        return self._best

    def pop(self) -> H | None:
        top = self.peek()
        if top is None:
            return None
        self.discard(top[1])
        return top[1]

    def clear(self) -> None:
        self._members.clear()
        self._position.clear()
        self._kept.clear()
        self._best = None

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, handle: object) -> bool:
        return handle in self._position

    def __iter__(self) -> Iterator[H]:
        return iter(self._members)

    def check(self) -> None:
        """Debug: array and positions agree."""
        assert len(self._members) == len(self._position), "a member twice, or none"
        for position, handle in enumerate(self._members):
            assert self._position[handle] == position, "a position that is not the member's"

    def _candidates(self) -> list[H]:
        members = self._members
        if len(members) <= DRAWN + KEPT:
            return members
        position, state, size = self._position, self._state, len(members)
        chosen = {handle: None for handle in self._kept if handle in position}
        for _ in range(DRAWN):
            state = (state * _MULTIPLIER + _INCREMENT) & _MASK64
            chosen[members[(state >> 33) % size]] = None
        self._state = state
        return list(chosen)


def _first(ranked: tuple[Any, Any]) -> Any:
    return ranked[0]
