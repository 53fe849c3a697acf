"""Fewest hits first, then least recently used.

Source: SGLang ``evict_policy.py``, LFUStrategy (0.5.16 to 0.5.23).
"""

from __future__ import annotations

from typing import Any

from kvpolicy.eviction.algorithms.spec import KeyedAlgorithm
from kvpolicy.eviction.base import Handle, KeyChange

__all__ = ["LFU"]


class LFU(KeyedAlgorithm):
    """Counts the engine's own ``hit_count``, whose meaning differs by version (0.5.23 counts past the inserted
    prefix)."""

    change = KeyChange.GROWS

    def key(self, handle: Handle) -> Any:
        return (handle.hit_count, float(handle.last_access_time))
