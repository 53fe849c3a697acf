"""Lowest priority first, then least recently used.

Source: SGLang ``evict_policy.py``, PriorityStrategy (0.5.16 to 0.5.23). From 0.5.20 the engine inserts a prompt with
its request's priority plus one, so that of equal priorities the output goes first.
"""

from __future__ import annotations

from typing import Any

from kvpolicy.eviction.algorithms.spec import KeyedAlgorithm
from kvpolicy.eviction.base import Handle, KeyChange

__all__ = ["ClampedPriority", "Priority"]


class Priority(KeyedAlgorithm):
    """The engine's own ``priority``, a maximum over the unit's requests."""

    change = KeyChange.GROWS

    def key(self, handle: Handle) -> Any:
        return (handle.priority, float(handle.last_access_time))


class ClampedPriority(KeyedAlgorithm):
    """The same over the priority that the policy itself keeps: requests' priorities clamped by ``hints.max_priority``,
    or set by a rule. Absent counts as 0; of equal priorities outputs go before prompts, as the engine has it."""

    change = KeyChange.SHRINKS  # a rule may lower it
    needs_metadata = True

    def key(self, handle: Handle) -> Any:
        meta = handle.kvp
        return (meta.priority or 0, not meta.is_output, float(handle.last_access_time))
