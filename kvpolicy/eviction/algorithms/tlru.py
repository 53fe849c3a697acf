"""Tail-optimised LRU: what a conversation's latency budget does not need goes first, then least recently used.

Source: W. Zhang et al., "Tail-optimized caching for LLM inference", arXiv:2510.15152; SGLang ``evict_policy.py``,
TLRUStrategy (0.5.23). A branch whose longest history is L tokens is expected to bring ``next_prompt_tokens`` more;
with ``threshold_tokens`` of uncached prompt within budget it needs only L + next - threshold of them cached, so a unit
that lies wholly beyond is evicted before any other.

L is the greatest depth that the unit's subtree ever reached, kept in ``kvp.state``; it does not fall when the tail is
evicted, else a conversation would be trimmed again and again.
"""

from __future__ import annotations

from typing import Any

from kvpolicy.eviction.algorithms.spec import KeyedAlgorithm
from kvpolicy.eviction.base import Handle, KeyChange, PolicyClock

__all__ = ["TLRU"]


class TLRU(KeyedAlgorithm):
    """``threshold_tokens`` and ``next_prompt_tokens``: see the module text; with both 0 this is lru."""

    change = KeyChange.SHRINKS  # a split moves the unit's start deeper
    needs_metadata = True
    rises_in_runs = True  # the last units may be spare and those before them not

    def __init__(self, clock: PolicyClock, threshold_tokens: int = 0, next_prompt_tokens: int = 0) -> None:
        super().__init__(clock)
        self.uncached_tokens = threshold_tokens - next_prompt_tokens

    def key(self, handle: Handle) -> Any:
        meta = handle.kvp
        needed_tokens = max(meta.state - self.uncached_tokens, 0)
        is_spare = meta.depth_tokens - meta.size_tokens >= needed_tokens
        return (not is_spare, float(handle.last_access_time))

    def inserted(self, handle: Handle) -> None:
        meta = handle.kvp
        meta.state = depth = meta.depth_tokens
        above = meta.parent
        while above is not None and above.kvp is not None and above.kvp.state < depth:
            above.kvp.state = depth
            above = above.kvp.parent
