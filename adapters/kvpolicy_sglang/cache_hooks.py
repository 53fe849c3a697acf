"""Install the policy's eviction into the prefix cache this scheduler is about to build.

One hook on SGLang's own cache factory: it runs the factory as ever and attaches the policy to what it returns. Which cache
that is, and whether the policy can steer it, is found by looking at the object (never at a version string).
"""

from __future__ import annotations

import logging
from typing import Any

from . import cache_radix, cache_unified
from .active import ActivePolicy
from .cache_guard import EvictionGuard

__all__ = ["FACTORY", "install"]

logger = logging.getLogger("kvpolicy")

#: The engine's default prefix-cache factory: one function in every supported version, called once a scheduler.
FACTORY = "sglang.srt.mem_cache.registry.default_radix_cache_factory"


def install(active: ActivePolicy, hooks: Any) -> None:
    """Register the cache-side hooks of `active` with SGLang's `HookRegistry`, in a scheduler process."""
    from sglang.srt.plugins.hook_registry import HookType

    def build(stock_factory: Any, ctx: Any) -> Any:
        return build_cache(active, stock_factory, ctx)

    hooks.register(FACTORY, build, HookType.AROUND)


def build_cache(active: ActivePolicy, stock_factory: Any, ctx: Any) -> Any:
    """The engine's own cache with the policy's eviction attached, or untouched where the policy leaves eviction alone."""
    params = ctx.params
    eviction = active.compiled.eviction
    active.pool_tokens = int(params.token_to_kv_pool_allocator.size)
    index = eviction.make_index(active.pool_tokens)
    guard = EvictionGuard(active, index, needs_metadata=eviction.needs_metadata)

    cache_unified.prepare(params, guard)
    cache = stock_factory(ctx)

    kind = type(cache).__name__
    if kind == "UnifiedRadixCache":
        cache_unified.attach(cache, guard)
    elif kind == "RadixCache":
        cache_radix.attach(cache, guard)
    active.core = "kvpolicy"
    active.index = index
    return cache
