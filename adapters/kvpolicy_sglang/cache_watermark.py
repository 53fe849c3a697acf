"""`allocator.watermark` in a scheduler: evict ahead of need, before SGLang evicts what an allocation lacks.

SGLang asks for room in one place, with the tokens it is about to allocate. Before that place runs, the policy evicts
what its marks ask for, through the cache's own `evict` and whoever orders it; then the engine's code runs unchanged
and, as a rule, finds room. So whatever happens here, the engine still meets the need in its own way. Nothing is read
from the device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvpolicy.eviction.watermark import Watermark
from kvpolicy.runtime.active import ActivePolicy

from .cache_guard import EvictionGuard, timed

__all__ = ["EvictAhead", "install"]

_FUNCTION = "sglang.srt.mem_cache.common.evict_from_tree_cache"
_METHOD = "sglang.srt.mem_cache.allocator.base.BaseTokenToKVPoolAllocator.evict_to_free_tokens"


def install(get: Callable[[], EvictAhead | None], hooks: Any) -> None:
    """Hook the place where this SGLang asks for room; `get` gives the marks once the cache is built.

    A function in every version; from 0.5.20 on also a method of allocators, which calls it or is called by it.
    """
    from sglang.srt.mem_cache.allocator.base import BaseTokenToKVPoolAllocator
    from sglang.srt.plugins.hook_registry import HookType

    def ask(stock: Callable[..., Any], tree_cache: Any, num_tokens: int) -> Any:
        ahead = get()
        return stock(tree_cache, num_tokens) if ahead is None else ahead.around(stock, tree_cache, num_tokens)

    def ask_allocator(stock: Callable[..., Any], allocator: Any, tree_cache: Any, num_tokens: int) -> Any:
        return ask(lambda *asked: stock(allocator, *asked), tree_cache, num_tokens)

    hooks.register(_FUNCTION, ask, HookType.AROUND)
    if hasattr(BaseTokenToKVPoolAllocator, "evict_to_free_tokens"):
        hooks.register(_METHOD, ask_allocator, HookType.AROUND)


class EvictAhead:
    """The marks of one cache's pool. With a guard, units that a rule or a floor protects are spared beyond the need."""

    def __init__(self, active: ActivePolicy, cache: Any, guard: EvictionGuard | None = None) -> None:
        from sglang.srt.mem_cache.base_prefix_cache import EvictParams

        self._active, self._cache, self._guard, self._params = active, cache, guard, EvictParams
        self._allocator = cache.token_to_kv_pool_allocator
        self._page_tokens = int(self._allocator.page_size)
        self.mark: Watermark | None = None
        self.use(active.compiled.allocator.watermark)
        self._is_inside = False
        if guard is None:  # else it is timed already
            body = "_evict" if hasattr(cache, "_evict") else "evict"
            setattr(cache, body, timed(active, getattr(cache, body)))

    def use(self, marks: tuple[float, float] | None) -> None:
        """Aim at these marks, shares of the pool, from now on; None: the engine evicts what an allocation lacks."""
        pages = int(self._allocator.size) // self._page_tokens
        self.mark = None if marks is None else Watermark.of_pool(*marks, pages)

    def around(self, stock: Callable[..., Any], tree_cache: Any, num_tokens: int) -> Any:
        """The engine asks `tree_cache` for `num_tokens`."""
        if (
            self.mark is None or self._is_inside or tree_cache is not self._cache
        ):  # one hooked place called the other; or another cache
            return stock(tree_cache, num_tokens)
        self._is_inside = True
        try:
            self._make_room(num_tokens)
            return stock(tree_cache, num_tokens)
        finally:
            self._is_inside = False

    def _make_room(self, num_tokens: int) -> None:
        """Never raises."""
        mark = self.mark
        assert mark is not None
        try:
            page = self._page_tokens
            free, need = self._free_pages(), -(-num_tokens // page)
            lacking = max(0, need - free)
            demand = mark.demand_pages(free, need, self._cache.evictable_size() // page)
            if demand > lacking:
                self._evict(demand * page, lacking * page)
                mark.note(self._free_pages() - free, lacking)
        except Exception:
            self._active.note_fallback("watermark", "evicting ahead of need failed; the engine evicts what it lacks")

    def _free_pages(self) -> int:
        return int(self._allocator.available_size()) // self._page_tokens

    def _evict(self, tokens: int, needed_tokens: int) -> None:
        params = self._params(num_tokens=tokens)
        if self._guard is None:
            self._cache.evict(params)
        else:
            with self._guard.sparing_beyond(needed_tokens):
                self._cache.evict(params)
