"""Watermarks on the engine's own cache and allocator, in the SGLang found on PYTHONPATH, hooked as in a scheduler.

Two caches of one pool size see one stream: prompts come and are cached, some stay locked for a while, and each
allocation asks the engine's own functions for room. One cache has marks, the other is stock in the same process.

    python watermark.py --page 1 --eviction engine|lru|rules [--broken evictable|sparing|demand] [--steps 1500]
"""

from __future__ import annotations

import argparse
import json
import random
from typing import Any

from activation import activate
from differential import Side, default_kind
from kvpolicy_sglang import cache_watermark
from kvpolicy_sglang.hooks import HookSet
from replay import PolicySide, sound

CAPACITY_PAGES = 300
RULES: dict[str, Any] = {
    "policy": "lru",
    "rules": [{"name": "gold", "match": "request.priority == 2", "retain": {"weight": 4, "budget": "95%"}}],
}
EVICTIONS: dict[str, Any] = {"engine": {"core": "engine"}, "lru": {"policy": "lru"}, "rules": RULES}


class Marked(PolicySide):
    """A cache under the policy's eviction and marks; it asks for room as SGLang's scheduler does."""

    def __init__(self, eviction: str, page: int, low: str, high: str) -> None:
        self.policy = activate("sglang", EVICTIONS[eviction], allocator={"watermark": {"low": low, "high": high}})
        Side.__init__(self, default_kind(), "lru", page, CAPACITY_PAGES * page, ours=False)

    def _watch(self) -> None:
        pass


class Stock(Side):
    """The engine's cache as it is, in the same hooked process."""

    def _watch(self) -> None:
        pass


#: What the hooks serve, as in a scheduler: what was built last.
NOW: list[cache_watermark.EvictAhead] = []


def ask(side: Side, tokens: int, by_allocator: bool) -> None:
    """What SGLang does before it allocates (the function) or checks a decode step (the method, if there is one)."""
    from sglang.srt.mem_cache import common

    method = getattr(side.allocator, "evict_to_free_tokens", None)
    if by_allocator and method is not None:
        method(side.cache, tokens)
    else:
        common.evict_from_tree_cache(side.cache, tokens)


def protected_tokens(side: Marked) -> int:
    """Tokens of evictable leaves that a rule protects."""
    index = side.built.guard.index if side.built.guard is not None else None
    leaves = () if index is None else [handle for handle in side_leaves(side) if index.is_protected(handle)]
    return sum(len(leaf.key) for leaf in leaves)


def side_leaves(side: Side) -> list[Any]:
    cache = side.cache
    return list(cache.evictable_leaves if side.kind == "RadixCache" else cache.tree_core.evictable_device_leaves)


def run(eviction: str, page: int, low: str, high: str, steps: int, broken: str, seed: int) -> dict[str, Any]:
    marked = Marked(eviction, page, low, high)
    stock = Stock(default_kind(), "lru", page, CAPACITY_PAGES * page, ours=False)
    stock_calls = count_calls(stock)
    ahead = marked.built.ahead
    assert ahead is not None
    NOW[:] = [ahead]
    if broken:
        BROKEN[broken](marked, ahead)

    rng = random.Random(seed)
    mark, sides = ahead.mark, (marked, stock)
    locks: list[list[Any]] = []
    short = beyond = early = raided = 0
    largest = 12 * page
    for step in range(steps):
        tokens = [rng.randrange(1, 50) for _ in range(page * rng.randrange(1, 12))]
        priority = rng.choice([0, 2])
        need, by_allocator = len(tokens), step % 3 == 0
        free, evictable, held = (value(marked) for value in (available, Side.evictable, protected_tokens))
        lacking = max(0, need - free)
        for side in sides:
            ask(side, need, by_allocator)
        left = available(marked) - need
        short += available(marked) < min(need, free + evictable)
        early += available(marked) > free and free - need >= mark.low_pages * page
        beyond += available(marked) > free and left >= mark.high_pages * page + largest
        raided += held - protected_tokens(marked) > lacking + largest
        if available(marked) < need or available(stock) < need:
            for lock in locks:
                for side, one in zip(sides, lock, strict=True):
                    side.unlock(one)
            locks.clear()
            continue
        if eviction == "rules":
            marked.request(tokens, "", priority, step)
        else:
            marked.insert(tokens, 0)
        stock.insert(tokens, 0)
        if rng.random() < 0.2:
            locks.append([side.lock(tokens) for side in sides])
        if len(locks) > 8 or (locks and rng.random() < 0.1):
            for side, one in zip(sides, locks.pop(rng.randrange(len(locks))), strict=True):
                side.unlock(one)
    for lock in locks:
        marked.unlock(lock[0])
    sound(marked)
    active = marked.policy
    return {
        "eviction": eviction,
        "core": active.core,
        "short": short,
        "beyond high": beyond,
        "early": early,
        "protected units that went ahead": raided,
        "calls": active.evict_calls,
        "stock calls": stock_calls[0],
        "batches": mark.batches,
        "fallbacks": dict(active.fallbacks),
    }


def available(side: Side) -> int:
    return int(side.allocator.available_size())


def count_calls(side: Side) -> list[int]:
    """The stock cache's eviction calls."""
    calls = [0]
    evict = side.cache.evict_for_alloc if hasattr(side.cache, "evict_for_alloc") else side.cache.evict
    name = evict.__name__

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        return evict(*args, **kwargs)

    setattr(side.cache, name, counted)
    return calls


def fail_to_count(side: Marked, ahead: cache_watermark.EvictAhead) -> None:
    """The engine cannot say what is evictable, each time it is asked around an allocation."""
    count = side.cache.evictable_size
    side.cache.evictable_size = lambda: count() if not ahead._is_inside else 1 // 0


def spare_nothing(side: Marked, ahead: cache_watermark.EvictAhead) -> None:
    """Protected units go ahead of need like others."""
    assert side.built.guard is not None
    side.built.guard._spares = lambda node: False  # type: ignore[method-assign]


def demand_all(side: Marked, ahead: cache_watermark.EvictAhead) -> None:
    """Marks that ask for all that can be evicted, at every allocation."""

    class Greedy(type(ahead.mark)):  # type: ignore[misc]
        def demand_pages(self, free_pages: int, need_pages: int, evictable_pages: int) -> int:
            return evictable_pages

    ahead.mark = Greedy(ahead.mark.low_pages, ahead.mark.high_pages)


BROKEN = {"evictable": fail_to_count, "sparing": spare_nothing, "demand": demand_all}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--page", type=int, required=True)
    parser.add_argument("--eviction", choices=EVICTIONS, action="append", required=True)
    parser.add_argument("--low", default="3%")
    parser.add_argument("--high", default="15%")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--broken", choices=BROKEN, default="")
    args = parser.parse_args()
    hooks = HookSet()
    cache_watermark.install(lambda: NOW[0] if NOW else None, hooks)
    hooks.apply_now()
    for eviction in args.eviction:
        print(json.dumps(run(eviction, args.page, args.low, args.high, args.steps, args.broken, 1)), flush=True)


if __name__ == "__main__":
    main()
