"""Our eviction order in SGLang's RadixCache (0.5.16 to 0.5.18).

One method body is replaced, on the one instance the scheduler holds: `evict`, which in stock sorts every leaf on each
call and returns slots to the allocator leaf by leaf. Here victims come from the index and one call returns all their
slots at once: each return copies the allocator's whole free list, and on a paged allocator may synchronise with the
GPU.
"""

from __future__ import annotations

import functools
import time
from dataclasses import replace
from typing import Any

from .cache_guard import EvictionGuard, LeafFeed, timed

__all__ = ["attach"]


def attach(cache: Any, guard: EvictionGuard) -> None:
    """Feed the index from `cache`, a plain RadixCache, and take its victims from there."""
    import torch
    from sglang.srt.mem_cache.base_prefix_cache import EvictResult

    # `reset` clears this set in place, which resets the index too.
    leaves = cache.evictable_leaves = LeafFeed(guard, cache.evictable_leaves)
    stock_evict = cache.evict
    allocator = cache.token_to_kv_pool_allocator
    # Tree values are whole pages in row order, so their concatenation is too: no deduplication, no device sync.
    free_pages = (
        functools.partial(allocator.free_segment, start_pos=0) if hasattr(allocator, "free_segment") else allocator.free
    )

    def is_victim(node: Any) -> bool:
        return node in leaves and node.lock_ref == 0 and node.value is not None and not node.children

    def take(demand_tokens: int) -> tuple[int, bool]:
        """Delete victims worth `demand_tokens`; `(tokens, whether the policy saw it through)`."""
        tokens = 0
        values = []
        try:
            while tokens < demand_tokens:
                node, fault = guard.pop(is_victim)
                if node is None:
                    if fault or guard.spared or not leaves:
                        return tokens, not fault
                    guard.lost()
                    return tokens, False
                values.append(node.value)
                tokens += node.value.numel()  # a tensor's len() costs 20 times as much
                cache._delete_leaf(node)
                cache._record_remove_event(node)
        finally:
            if values:
                free_pages(values[0] if len(values) == 1 else torch.cat(values))
        return tokens, True

    @functools.wraps(stock_evict)
    def evict(params: Any) -> Any:
        if cache.disable:
            return EvictResult()
        start_s = time.perf_counter()
        tokens, done = 0, False
        if guard.begin():
            try:
                tokens, done = take(params.num_tokens)
            finally:
                guard.end()
        cache.update_eviction_metrics(tokens, start_s)
        if not done and tokens < params.num_tokens:
            tokens += stock_evict(replace(params, num_tokens=params.num_tokens - tokens)).num_tokens_evicted
        return EvictResult(num_tokens_evicted=tokens)

    cache.evict = timed(guard.active, evict)
