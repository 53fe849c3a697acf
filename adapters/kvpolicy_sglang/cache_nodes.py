"""From what a request holds as its `last_node` to the tree's node, in each of SGLang's prefix caches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["node_finder"]


def node_finder(cache: Any) -> Callable[[Any], Any]:
    """What turns a handle of `cache` into its node; None for a handle of no node.

    RadixCache hands out nodes, UnifiedRadixCache numbers, which its Python tree core keeps nodes for. A tree that shows
    no nodes (a compiled core, a cache that keeps nothing) gives None for every handle.
    """
    core = getattr(cache, "tree_core", None)
    if core is None:
        return lambda handle: handle if hasattr(handle, "children") else None
    # The arena is replaced at each reset.
    return lambda handle: getattr(core, "_node_arena", {}).get(handle) if isinstance(handle, int) else None
