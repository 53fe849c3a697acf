"""Segmented LRU: units with few hits (probationary) before those with more (protected), each least recently used first.

Source: SGLang ``evict_policy.py``, SLRUStrategy (0.5.16 to 0.5.23). After R. Karedla, J. S. Love, B. G. Wherry,
"Caching strategies to improve disk system performance", IEEE Computer 27(3), 1994; there the protected segment has a
bounded size and demotes into the other one, here nothing is demoted.
"""

from __future__ import annotations

from typing import Any

from kvpolicy.eviction.algorithms.spec import KeyedAlgorithm
from kvpolicy.eviction.base import Handle, KeyChange, PolicyClock

__all__ = ["SLRU"]


class SLRU(KeyedAlgorithm):
    """``protected_hits``: the engine's ``hit_count`` from which a unit is protected."""

    change = KeyChange.GROWS

    def __init__(self, clock: PolicyClock, protected_hits: int = 2) -> None:
        super().__init__(clock)
        self.protected_hits = protected_hits

    def key(self, handle: Handle) -> Any:
        return (handle.hit_count >= self.protected_hits, float(handle.last_access_time))
