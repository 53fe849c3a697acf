"""Youngest first.

Source: SGLang ``evict_policy.py``, FILOStrategy (0.5.16 to 0.5.23).
"""

from __future__ import annotations

from typing import Any

from kvpolicy.eviction.algorithms.spec import KeyedAlgorithm
from kvpolicy.eviction.base import Handle, KeyChange

__all__ = ["FILO"]


class FILO(KeyedAlgorithm):
    """Units of one age (the halves of a split) go by last access, as the engine's node comparison has it."""

    change = KeyChange.GROWS

    def key(self, handle: Handle) -> Any:
        return (-float(handle.creation_time), float(handle.last_access_time))
