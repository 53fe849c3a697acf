"""Listen to the engine's own methods, and tell the index when they change what an evictable leaf's key is made of.

A listener never disturbs its method: a fault in one (an engine that is not as expected) is counted.

Only orders whose keys can fall need to know (mru: a match makes a leaf go sooner; tlru: a split may). For all others a
key that grew is found when its turn comes, and nothing is hooked.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .cache_guard import EvictionGuard

__all__ = ["after", "attach_radix", "attach_unified", "before"]


def after(guard: EvictionGuard, target: Any, name: str, then: Callable[..., None]) -> None:
    """Run `then(result, *args)` after the instance's method `name`."""
    original = getattr(target, name)

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        try:
            then(result, *args)
        except Exception:
            guard.fault("observe", f"the policy failed to follow {name}")
        return result

    setattr(target, name, wrapper)


def before(guard: EvictionGuard, target: Any, name: str, first: Callable[..., None]) -> None:
    """Run `first(*args)` before the instance's method `name`."""
    original = getattr(target, name)

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            first(*args)
        except Exception:
            guard.fault("observe", f"the policy failed to follow {name}")
        return original(*args, **kwargs)

    setattr(target, name, wrapper)


def attach_unified(cache: Any, guard: EvictionGuard) -> None:
    """Watch a UnifiedRadixCache: match ends, nodes walked by an insert, and the lower half of a split."""
    core = cache.tree_core

    def leaf(node: Any) -> None:
        if node in core.evictable_device_leaves:
            guard.touched(node)

    def matched(result: Any, *_: Any) -> None:
        node = core._node_arena.get(result.best_match_node)
        if node is not None:
            leaf(node)

    after(guard, core, "match_prefix", matched)
    after(guard, core, "_touch_node", lambda _result, node: leaf(node))
    after(guard, core, "_split_node", lambda _result, _key, child, *_: leaf(child))


def attach_radix(cache: Any, guard: EvictionGuard) -> None:
    """Watch a RadixCache: a walk can only touch the leaf it ends on, or the lower half of its split."""

    def leaf(node: Any) -> None:
        if node in cache.evictable_leaves:
            guard.touched(node)

    after(guard, cache, "_match_prefix_helper", lambda result, *_: leaf(result[1]))
    after(guard, cache, "_insert_helper", lambda result, *_: leaf(result[1]))
    after(guard, cache, "_split_node", lambda _upper, _key, child, *_: leaf(child))
