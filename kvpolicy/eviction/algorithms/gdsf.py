"""Greedy dual size frequency: few hits for the space first, aged by evictions.

Source: L. Cherkasova, "Improving WWW proxies performance with greedy-dual-size-frequency caching policy", HP Labs
HPL-98-69R1, 1998. The key is ``L + requests * cost / size``; L is the key of the unit evicted last, so that what was
popular once ages as others go. In a prefix tree the size is the unit's own, not its path's.

``size_exponent`` says what a hit is worth: the key is ``L + requests / size ** size_exponent``. At 1 a hit is a hit
whatever its tokens (cost 1, the paper's GDSF-Hits): most units hit. At 0 a hit is worth its tokens (cost = size): most
tokens hit, which is LFU with dynamic aging. Where all units have one size it makes no difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvpolicy.eviction.algorithms.spec import KeyedAlgorithm
from kvpolicy.eviction.base import Handle, KeyChange, PolicyClock

__all__ = ["GDSF"]

#: Sizes are counted in this many tokens, so that keys stay readable; it does not change the order.
_TOKENS_UNIT = 1024


class GDSF(KeyedAlgorithm):
    """State: the key, set at insertion and at each touch. A split leaves both halves the key they had together."""

    change = KeyChange.GROWS
    needs_metadata = True

    def __init__(self, clock: PolicyClock, size_exponent: float = 1) -> None:
        super().__init__(clock)
        self._size_exponent = size_exponent
        self.inflation = 0.0

    def key(self, handle: Handle) -> Any:
        meta = handle.kvp
        return (meta.state, meta.touch_seq, meta.order)

    def inserted(self, handle: Handle) -> None:
        self.touched(handle)

    def inserted_run(self, handle: Handle, following: Sequence[int]) -> None:
        self.touched(handle)

    def touched(self, handle: Handle) -> None:
        meta = handle.kvp
        size = max(meta.size_tokens, 1) / _TOKENS_UNIT
        value = self.inflation + (meta.hits + 1) / size**self._size_exponent
        if meta.state is None or value > meta.state:  # a half of a split may be smaller: its key never falls
            meta.state = value

    def trimmed(self, handle: Handle, units: int, content_key: int | None) -> None:
        self.removed(handle, True)

    def removed(self, handle: Handle, evicted: bool) -> None:
        if evicted and handle.kvp.state > self.inflation:
            self.inflation = handle.kvp.state

    def score_of(self, handle: Handle) -> float | None:
        return float(handle.kvp.state)

    def clear(self) -> None:
        self.inflation = 0.0
