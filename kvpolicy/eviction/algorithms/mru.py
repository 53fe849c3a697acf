"""Most recently used first: for scans larger than the pool.

Source: SGLang ``evict_policy.py``, MRUStrategy (0.5.16 to 0.5.23).
"""

from __future__ import annotations

from typing import Any

from kvpolicy.eviction.algorithms.spec import KeyedAlgorithm
from kvpolicy.eviction.base import Handle, KeyChange

__all__ = ["MRU"]


class MRU(KeyedAlgorithm):
    """Every access lowers the key, so accesses without a lock must be told through ``touched``."""

    change = KeyChange.SHRINKS

    def key(self, handle: Handle) -> Any:
        return -float(handle.last_access_time)
