"""Least recently used first: SGLang's default order.

Source: SGLang ``evict_policy.py``, LRUStrategy (0.5.16 to 0.5.23).
"""

from __future__ import annotations

from typing import Any

from kvpolicy.eviction.algorithms.spec import KeyedAlgorithm
from kvpolicy.eviction.base import Handle, KeyChange

__all__ = ["LRU"]


class LRU(KeyedAlgorithm):
    """The engine moves ``last_access_time`` forward only."""

    change = KeyChange.GROWS

    def key(self, handle: Handle) -> Any:
        return float(handle.last_access_time)
