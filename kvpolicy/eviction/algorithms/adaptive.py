"""Adaptive: lru or reuse_rate, whichever would have hit more tokens of late; the traffic decides, again and again.

Two *shadows* of the cache hold metadata only: which contents would be resident if lru, or reuse_rate, had always been
in charge. Both see the same contents, drawn by ``content_key``, and have the same share of the pool's size. The order
in charge changes when the other shadow is ahead by more than a margin. Both orders are kept at all times, so that a
change costs nothing and moves no unit. At first lru is in charge.

Sources: choice by a duel on a sample of the traffic: M. Qureshi et al., "Adaptive insertion policies for high
performance caching", ISCA 2007 (set duelling); scaled-down caches on a sample drawn by hash: C. Waldspurger et al.,
"Cache modeling and optimization using miniature simulations", ATC 2017. The orders are lru.py's and reuse_rate.py's.

A shadow holds units, not a tree: a child is never used later than its parent, so both orders mostly empty it from the
leaves. Without ``content_key`` nothing can be drawn, and lru stays in charge. Of a run the units that are drawn have a
:class:`Content` of their own (``Content.drawn``), as they enter and leave the shadows one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kvpolicy.eviction.algorithms.reuse_rate import Content, ReuseRate
from kvpolicy.eviction.base import Handle, KeyChange, Order
from kvpolicy.eviction.heap import LazyHeap
from kvpolicy.eviction.sample import SampledOrder

__all__ = ["Adaptive"]

#: Contents that a shadow holds at most; with more, half of the sample is dropped.
_SHADOW_CONTENTS = 1024
#: The window of the duel, in sizes of a shadow: what was asked for is halved when it is that much.
_WINDOW = 16
#: How far ahead the other one must be, as a share of the tokens asked for.
_MARGIN = 0.005
#: Fibonacci hashing: content keys may be small numbers.
_SPREAD, _MASK64 = 0x9E3779B97F4A7C15, (1 << 64) - 1


class Shadow:
    """What one order would keep of the sample."""

    def __init__(self, order: Order[Content]) -> None:
        self.order = order
        self.tokens: dict[Content, int] = {}
        self.held_tokens = 0

    def use(self, content: Content, tokens: int, capacity_tokens: int) -> int:
        """A request uses the content, which is then held: how many of its tokens were."""
        held = self.tokens.get(content, 0)
        room = tokens - held
        if held:
            self.order.discard(content)  # in use: not evicted for its own growth
        while self.held_tokens + room > capacity_tokens and (victim := self.order.pop()) is not None:
            self.held_tokens -= self.tokens.pop(victim)
        self.tokens[content] = tokens
        self.held_tokens += room
        self.order.add(content)
        return min(held, tokens)

    def drop(self, content: Content) -> None:
        self.order.discard(content)
        self.held_tokens -= self.tokens.pop(content)


class Adaptive(ReuseRate):
    """``by_rate``: whether reuse_rate is in charge; ``lead`` of ``asked`` tokens: how far it is ahead in the window."""

    def clear(self) -> None:
        super().clear()
        self.by_rate = False
        self.lead = self.asked = 0
        self.switches = 0
        self._sample_bits, self._draw_shift = 0, 64  # one content in 2 ** bits is drawn: the top bits of its key are 0
        self._resident_tokens = self._most_tokens = 0
        self.lru_shadow = Shadow(LazyHeap(_used, KeyChange.SHRINKS))
        self.rate_shadow = Shadow(SampledOrder(self._shadow_rank, self.clock, self._shadow_ranks))

    def make_order(self) -> Order[Handle]:
        return EitherOrder(self)

    make_member_order = ReuseRate.make_member_order

    def score_of(self, handle: Handle) -> float | None:
        return super().score_of(handle) if self.by_rate else None

    def inserted(self, handle: Handle) -> None:
        super().inserted(handle)
        self._hold(handle.kvp.size_tokens)
        content: Content = handle.kvp.state
        if content.key is not None and self._is_drawn(content.key):
            self._duel(content, handle.kvp.size_tokens)

    def inserted_run(self, handle: Handle, following: Sequence[int]) -> None:
        super().inserted_run(handle, following)
        meta = handle.kvp
        content: Content = meta.state
        content.drawn = drawn = []
        held = 0
        if meta.content_key is not None:
            shift, above = self._draw_shift, meta.order - meta.units
            keys = enumerate((meta.content_key, *following), 1)
            for at, key in [(at, key) for at, key in keys if not ((key * _SPREAD) & _MASK64) >> shift]:
                if self._is_drawn(key):  # it may have been thinned meanwhile
                    self._hold((at - held) * meta.size_tokens)
                    held = at
                    unit = content.twin(key)
                    drawn.append((above + at, unit))
                    self._duel(unit, meta.size_tokens)
        self._hold((meta.units - held) * meta.size_tokens)

    def touched(self, handle: Handle) -> None:
        meta = handle.kvp
        content: Content = meta.state
        if content.drawn is not None:
            self._used_together(meta)
            return
        self._used(content, meta.size_tokens)
        key = content.key
        if key is not None and not ((key * _SPREAD) & _MASK64) >> self._draw_shift:
            self._duel(content, meta.size_tokens)

    def trimmed(self, handle: Handle, units: int, content_key: int | None) -> None:
        super().trimmed(handle, units, content_key)
        self._resident_tokens -= handle.kvp.size_tokens * units

    def removed(self, handle: Handle, evicted: bool) -> None:
        super().removed(handle, evicted)
        self._resident_tokens -= handle.kvp.tokens

    def _hold(self, tokens: int) -> None:
        """That many more are resident."""
        self._resident_tokens += tokens
        self._most_tokens = max(self._most_tokens, self._resident_tokens)

    def _drawn_used(self, unit: Content, tokens: int) -> None:
        if unit.key is not None and self._is_drawn(unit.key):
            self._duel(unit, tokens)

    # -- the duel --

    def _is_drawn(self, key: int) -> bool:
        return not ((key * _SPREAD) & _MASK64) >> self._draw_shift

    def _duel(self, content: Content, tokens: int) -> None:
        """A request uses a content of the sample."""
        capacity = self._most_tokens >> self._sample_bits
        lru_hit = self.lru_shadow.use(content, tokens, capacity)
        rate_hit = self.rate_shadow.use(content, tokens, capacity)
        self.asked += tokens
        self.lead += rate_hit - lru_hit
        if self.asked > _WINDOW * capacity:
            self.asked //= 2
            self.lead = int(self.lead / 2)
        ahead = -self.lead if self.by_rate else self.lead
        if ahead > _MARGIN * max(self.asked, capacity):
            self.by_rate = not self.by_rate
            self.switches += 1
        if len(self.lru_shadow.tokens) > _SHADOW_CONTENTS or len(self.rate_shadow.tokens) > _SHADOW_CONTENTS:
            self._thin()

    def _thin(self) -> None:
        self._sample_bits += 1
        self._draw_shift -= 1
        for shadow in (self.lru_shadow, self.rate_shadow):
            for content in list(shadow.tokens):
                if content.key is None or not self._is_drawn(content.key):
                    shadow.drop(content)
        self.asked //= 2
        self.lead = int(self.lead / 2)

    def _shadow_rank(self, content: Content) -> tuple[float, int]:
        seq = content.used_seq
        if seq == self.clock.request_seq:  # of the present request: locked, in a real cache
            return (float("inf"), seq)
        return (self.rate(content), seq)

    def _shadow_ranks(self, contents: Sequence[Content]) -> list[tuple[float, int]]:
        now, locked = self.clock.request_seq, float("inf")
        return [
            (locked if content.used_seq == now else rate, content.used_seq)
            for content, rate in zip(contents, self.rates_of(contents), strict=True)
        ]


class EitherOrder:
    """The evictable units of one partition in both orders. Keys of both have one shape, so that partitions compare."""

    is_keyed = False
    change = KeyChange.DYNAMIC

    def __init__(self, algorithm: Adaptive) -> None:
        self._algorithm = algorithm
        self._by_use: LazyHeap[Handle] = LazyHeap(_last_access, KeyChange.GROWS)
        self._by_rate: SampledOrder[Handle] = SampledOrder(algorithm.rank, algorithm.clock, algorithm.ranks)

    @property
    def _in_charge(self) -> Order[Handle]:
        return self._by_rate if self._algorithm.by_rate else self._by_use

    def add(self, handle: Handle) -> None:
        self._by_use.add(handle)
        self._by_rate.add(handle)

    def discard(self, handle: Handle) -> None:
        self._by_use.discard(handle)
        self._by_rate.discard(handle)

    def touch(self, handle: Handle) -> None:
        self._by_rate.touch(handle)

    def peek(self) -> tuple[Any, Handle] | None:
        return self._in_charge.peek()

    def pop(self) -> Handle | None:
        top = self._in_charge.peek()
        if top is None:
            return None
        self.discard(top[1])
        return top[1]

    def precedes(self, handle: Handle, victim: Handle) -> bool:
        return self._in_charge.precedes(handle, victim)

    def sweep(self, handle: Handle, most: int) -> int:
        return self._in_charge.sweep(handle, most)

    def clear(self) -> None:
        self._by_use.clear()
        self._by_rate.clear()

    def __len__(self) -> int:
        return len(self._by_use)

    def __contains__(self, handle: object) -> bool:
        return handle in self._by_use

    def __iter__(self) -> Iterator[Handle]:
        return iter(self._by_use)

    def check(self) -> None:
        """Debug: both orders hold the same units."""
        self._by_use.check()
        self._by_rate.check()
        assert len(self._by_use) == len(self._by_rate), "a unit in one order only"
        assert all(handle in self._by_rate for handle in self._by_use), "a unit in one order only"


def _used(content: Content) -> int:
    return content.used_seq


def _last_access(handle: Handle) -> tuple[float, int, int]:
    return (float(handle.last_access_time), 0, 0)
