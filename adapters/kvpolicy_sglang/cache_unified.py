"""Our eviction order in SGLang's UnifiedRadixCache with the Python tree core (0.5.20 and later).

The cache keeps every method. Two of its documented construction seams are used: `component_registry_override` names the
FULL component (whose three eviction-walk hooks go to the index), and the tree core's set of evictable leaves is a
:class:`~kvpolicy_sglang.cache_guard.LeafFeed`. Stock rebuilds a heap over every leaf in each call; the index does not.
"""

from __future__ import annotations

import inspect
from typing import Any

from .cache_guard import EvictionGuard, LeafFeed, timed

#: Where a node's session references change.
_SESSION_CHANGES = ("register_session_leaf", "release_session", "discard_deleted_session_leaf")

__all__ = ["attach", "component_class", "has_session_references", "prepare", "session_rank"]


def has_session_references() -> bool:
    """Whether this SGLang's FULL component counts, for each node, the open sessions that refer to it."""
    try:
        from sglang.srt.mem_cache.unified_cache.components.full import FullComponent
    except ImportError:
        return False
    return all(hasattr(FullComponent, name) for name in ("session_ref", *_SESSION_CHANGES))


def session_rank(node: Any) -> int:
    """What stock orders by before its policy's key with `--enable-session-radix-cache`: the session references."""
    return int(node.component_data[0].session_ref)


def prepare(params: Any, guard: EvictionGuard) -> bool:
    """Ask the coming cache for our FULL component; False where this SGLang has no such cache as its default.

    On 0.5.23 the override alone makes the engine choose its Python tree core, which is the one that shows its nodes.
    """
    try:
        from sglang.srt.mem_cache.unified_cache.components import ComponentType
        from sglang.srt.mem_cache.unified_cache.components.full import FullComponent  # noqa: F401
    except ImportError:
        return False
    override = {ComponentType.FULL: component_class(guard)}
    params.component_registry_override = {**(params.component_registry_override or {}), **override}
    return True


def component_class(guard: EvictionGuard) -> type:
    """The stock FULL component with its device-eviction walk taken from the index."""
    from sglang.srt.mem_cache.unified_cache.components import ComponentType
    from sglang.srt.mem_cache.unified_cache.components.full import FullComponent

    full = ComponentType.FULL
    # The hooks' own parameters differ by version (0.5.23 adds `cache_actions`): pass on whatever stock takes.
    for hook in ("_evict_device_start", "_evict_device_next_node", "_evict_device_end"):
        if hook not in vars(FullComponent):
            raise RuntimeError(f"FullComponent has no {hook}: this SGLang version is not supported by kvpolicy")
    if "tracker" not in inspect.signature(FullComponent._evict_device_next_node).parameters:
        raise RuntimeError("FullComponent._evict_device_next_node takes no tracker: unsupported SGLang version")

    class PolicyFullComponent(FullComponent):  # type: ignore[misc]
        """FULL component whose victims come from the policy's index."""

        def _evict_device_start(self, request_cnt: int) -> None:
            self._kvp_request_tokens = request_cnt
            self._kvp_indexed = guard.begin()
            if not self._kvp_indexed:
                super()._evict_device_start(request_cnt)

        def _evict_device_next_node(self, tracker: dict[Any, int], *args: Any, **kwargs: Any) -> Any:
            if not self._kvp_indexed:
                return super()._evict_device_next_node(tracker, *args, **kwargs)
            if tracker[full] >= self._kvp_request_tokens:
                return None
            core = self.tree_core
            node, fault = guard.pop(core.evictable_device_leaves.__contains__)  # stock checks the same
            if node is not None:
                return node.id
            if not fault:
                if guard.spared or not core.evictable_device_leaves:
                    return None
                guard.lost()
            # Finish this call in the engine's order.
            self._kvp_indexed = False
            guard.end()
            super()._evict_device_start(self._kvp_request_tokens)
            return super()._evict_device_next_node(tracker, *args, **kwargs)

        def register_session_leaf(self, session_id: str, leaf: Any) -> None:
            super().register_session_leaf(session_id, leaf)
            self._kvp_offer_again(leaf)

        def release_session(self, session_id: str) -> int:
            leaves = tuple(self._session_leaves.get(session_id, ()))
            released = super().release_session(session_id)
            for leaf in leaves:
                self._kvp_offer_again(leaf)
            return int(released)

        def discard_deleted_session_leaf(self, node: Any) -> None:
            super().discard_deleted_session_leaf(node)
            self._kvp_offer_again(node.parent)  # a leaf now, maybe, and with fewer references

        def _kvp_offer_again(self, node: Any) -> None:
            if node in self.tree_core.evictable_device_leaves:
                guard.touched(node)

        def _evict_device_end(self) -> None:
            if self._kvp_indexed:
                guard.end()
            else:
                super()._evict_device_end()

    PolicyFullComponent.__name__ = FullComponent.__name__
    return PolicyFullComponent


def attach(cache: Any, guard: EvictionGuard) -> None:
    """Feed the index from `cache`, a UnifiedRadixCache built with :func:`component_class`."""
    core = cache.tree_core

    def feed() -> None:
        core.evictable_device_leaves = LeafFeed(guard, core.evictable_device_leaves)

    stock_reset = core.reset

    def reset() -> None:
        stock_reset()  # leaves a plain set behind
        guard.reset()
        feed()

    core.reset = reset
    feed()
    cache._evict = timed(guard.active, cache._evict)
