"""Stamp tree nodes with what policies see: who made them, who hit them, how deep they are.

Only for policies that need it. The engine's methods run unchanged; per-instance wrappers tell the index about new
nodes, splits, deletions and hits. While a request is being cached it is the *current* one, so that the nodes made
meanwhile are its nodes. A request's hit is the path it was admitted on (its lock at the first call), counted once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvpolicy.eviction.base import RequestInfo

from .cache_guard import EvictionGuard
from .cache_nodes import node_finder
from .cache_requests import RequestState, is_health_check, state_of
from .cache_touch import after, before

__all__ = ["Metadata", "attach_radix", "attach_unified"]

_NOBODY = RequestInfo()


class Metadata:
    """The stamping side of one cache."""

    def __init__(
        self,
        guard: EvictionGuard,
        *,
        root: Callable[[], Any],
        leaves: Callable[[], Any],
        node_of: Callable[[Any], Any],
        lora_name: Callable[[str], str],
    ) -> None:
        self.guard = guard
        self._root = root
        self._leaves = leaves
        self._node_of = node_of  # the engine's handle in `req.last_node` -> node, None if it is no tree node
        self._lora_name = lora_name
        self.current: RequestState | None = None

    # -- requests --

    def state(self, req: Any) -> RequestState:
        return state_of(req, self._lora_name)

    def enter(self, req: Any) -> bool:
        """A request is about to be cached: count its hit and decide its admission, each once; False: cache nothing.

        A fault admits the request, as stock does.
        """
        try:
            return self._enter(req)
        except Exception:
            self.guard.fault("request", "the policy failed to read a request")
            return True

    def _enter(self, req: Any) -> bool:
        self.current = state = self.state(req)
        if not state.touched:
            state.touched = True
            if not is_health_check(req):
                hit_tokens, page_tokens = _protected_tokens(req), self.guard.page_tokens
                self.guard.active.traffic.asked(state.prompt_tokens, hit_tokens, page_tokens, state.info.cache_salt)
            self._touch_path(self._node_of(getattr(req, "last_node", None)), state.info)
        if state.admitted is None:
            prompt_tokens = state.prompt_tokens
            state.admitted = self.guard.admit(state.info, prompt_tokens, max(0, prompt_tokens - _protected_tokens(req)))
        return state.admitted

    def leave(self) -> None:
        self.current = None

    def _touch_path(self, node: Any, info: RequestInfo) -> None:
        root = self._root()
        while node is not None and node is not root:
            self.guard.touch(node, info)
            node = node.parent

    # -- nodes --

    def added(self, node: Any) -> None:
        """`node` is linked in as a new leaf of the current request's path."""
        state = self.current
        info = _NOBODY if state is None else state.info
        parent = node.parent
        at_root = parent is None or parent is self._root()
        depth = len(node.key) + (0 if at_root else self._depth_tokens(parent))
        is_output = state is not None and depth > state.prompt_tokens
        if self.guard.insert(node, None if at_root else parent, info, len(node.key), depth, is_output):
            self.guard.stamped(node, self._leaves())

    def split(self, upper: Any, lower: Any) -> None:
        """`upper` is the new ancestor half of what was `lower` alone."""
        if self.guard.split(upper, lower, len(upper.key)):
            state, meta = self.current, self.guard.meta(upper)
            # Stock cuts a finished request's leaf at the end of its prompt: the upper half holds no generated token.
            if meta is not None and meta.is_output and state is not None and meta.depth_tokens <= state.prompt_tokens:
                self.guard.is_prompt(upper)

    def removed(self, node: Any) -> None:
        self.guard.remove(node)

    def _depth_tokens(self, node: Any) -> int:
        meta = self.guard.meta(node)
        if meta is not None:
            return int(meta.depth_tokens)
        depth, root = 0, self._root()  # a fault left this node unstamped
        while node is not None and node is not root:
            depth += len(node.key)
            node = node.parent
        return depth


def _protected_tokens(req: Any) -> int:
    """Tokens of the request that were in the cache when it was admitted."""
    kv = getattr(req, "kv", None)
    return int(getattr(kv if hasattr(kv, "cache_protected_len") else req, "cache_protected_len", 0) or 0)


def attach_unified(cache: Any, guard: EvictionGuard, lora_name: Callable[[str], str]) -> Metadata:
    """Stamp the nodes of a UnifiedRadixCache on the Python tree core. Its handles are node numbers."""
    core = cache.tree_core
    metadata = Metadata(
        guard,
        root=lambda: core.root_node,
        leaves=lambda: core.evictable_device_leaves,
        node_of=node_finder(cache),
        lora_name=lora_name,
    )
    after(guard, core, "_add_new_node", lambda node, *_: metadata.added(node))
    after(guard, core, "_split_node", lambda result, _key, child, *_: metadata.split(result[0], child))
    before(guard, core, "_remove_leaf_from_parent", lambda node: metadata.removed(node))
    return metadata


def attach_radix(cache: Any, guard: EvictionGuard, lora_name: Callable[[str], str]) -> Metadata:
    """Stamp the nodes of a RadixCache. It makes new leaves inline, and announces each in `_record_store_event`."""
    metadata = Metadata(
        guard,
        root=lambda: cache.root_node,
        leaves=lambda: cache.evictable_leaves,
        node_of=node_finder(cache),
        lora_name=lora_name,
    )
    after(guard, cache, "_record_store_event", lambda _result, node, *_: metadata.added(node))
    after(guard, cache, "_split_node", lambda upper, _key, child, *_: metadata.split(upper, child))
    before(guard, cache, "_delete_leaf", lambda node: metadata.removed(node))
    return metadata
