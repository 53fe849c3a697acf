"""A scheduler's seat for live swaps: another policy's index beside the one in the prefix cache, and the change-over.

The cache keeps its objects; the guard between cache and index is given another index. What only a policy with metadata
needs (who made a node, who hit it) is attached to the cache when the first such policy is prepared, and stays.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kvpolicy.eviction.base import KeyChange
from kvpolicy.live.off import Retirement, records_only
from kvpolicy.live.preparation import Both, Preparation
from kvpolicy.live.swap import Candidate, LiveSwap
from kvpolicy.runtime.active import ActivePolicy

from . import cache_admit, cache_metadata, cache_touch, cache_unified, probe
from .cache_guard import EvictionGuard
from .cache_hooks import asks_for_index
from .cache_support import Needs, still_supported, watermark_supported

if TYPE_CHECKING:
    from .cache_hooks import Built

__all__ = ["CacheSeat", "TreePopulation"]


class TreePopulation:
    """The nodes of a prefix tree, from the root down and in the order in which they came: equal on every rank."""

    def __init__(self, cache: Any, guard: EvictionGuard) -> None:
        self._guard = guard
        self._tree = getattr(cache, "tree_core", cache)
        self._leaves = "evictable_device_leaves" if hasattr(cache, "tree_core") else "evictable_leaves"

    def units(self) -> Iterator[Any]:
        stack = list(self._tree.root_node.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def parent(self, node: Any) -> Any:
        parent = node.parent
        return None if parent is None or parent is self._tree.root_node else parent

    def size_tokens(self, node: Any) -> int:
        return len(node.key)

    def count_units(self, node: Any) -> int:
        return 1

    def depth_tokens(self, node: Any, above_tokens: int) -> int:
        return above_tokens + len(node.key)

    def content_key(self, node: Any) -> int | None:
        return self._guard.content_key(node)

    def is_evictable(self, node: Any) -> bool:
        return node in getattr(self._tree, self._leaves)


class CacheSeat:
    """See :class:`kvpolicy.live.swap.Seat`. One a scheduler, made once its cache is built."""

    def __init__(self, active: ActivePolicy, built: Built, scheduler: Any) -> None:
        self.active = active
        self._built = built
        self._allocator = scheduler.token_to_kv_pool_allocator
        self._stages = probe.size(scheduler, "pp_size")
        self._context_ranks = probe.size(scheduler, "attn_cp_size")
        self._has_metadata = built.metadata is not None
        self._is_watching = built.guard is not None and built.guard.observes_touches
        self._retirement: Retirement | None = None
        self.swap: LiveSwap | None = None  # told of a preparation that nobody asked for any more

    # -- what this server can do --

    def refusals(self, after: Candidate) -> list[str]:
        found: list[str] = []
        if self._stages > 1:
            found.append("--pp-size: pipeline stages reach a step at different times; restart with the policy instead")
        if self._context_ranks > 1:
            found.append("--attn-cp-size: ranks of a context group cannot agree on a swap yet; restart with the policy")
        if after.is_off:
            return found
        return found + self._eviction_refusals(after) + self._allocator_refusals(after)

    def _eviction_refusals(self, after: Candidate) -> list[str]:
        if not after.changes_eviction(self.active):
            return []
        if self._built.guard is None:
            if not _asks_for_index(after):
                return []
            return [
                f"eviction: this server was started on the engine's own order ({self.active.core_reason}); restart "
                "with the policy (one with `eviction: {policy: lru}` or more can be swapped later)"
            ]
        eviction = after.compiled.eviction
        if not _asks_for_index(after):
            return []
        needs = Needs(index=True, time=bool(eviction.needs_time), metadata=self._keeps_metadata(after))
        verdict = still_supported(self._built.context, needs)
        return [] if verdict.kind == "supported" else [f"{verdict.message}; restart without it"]

    def _allocator_refusals(self, after: Candidate) -> list[str]:
        before, plan = self.active.compiled.allocator, after.compiled.allocator
        found = []
        owns = self.active.allocator is not None and self.active.allocator.core == "kvpolicy"
        if plan.order != before.order and not owns and plan.order is not None:
            found.append(
                "allocator.order: this server was started with the engine's own free list; restart with the policy"
            )
        if (plan.guard or "off") not in ((before.guard or "off"), "off") and not owns:
            found.append(
                "allocator.guard: this server was started with the engine's own free list; restart with the policy"
            )
        if plan.watermark is not None and plan.watermark != before.watermark and self._built.ahead is None:
            ctx = self._built.context
            verdict = watermark_supported(ctx.server_args, ctx)
            found.append(
                f"allocator.watermark: {verdict.message}"
                if verdict.kind != "supported"
                else "allocator.watermark: this server was started without marks; restart with the policy"
            )
        return found

    def _keeps_metadata(self, after: Candidate) -> bool:
        return self._has_metadata or bool(after.compiled.eviction.needs_metadata)

    # -- preparing --

    def prepare(self, after: Candidate) -> Preparation | None:
        guard = self._built.guard
        self._retirement = None
        if guard is None or after.is_off or not after.changes_eviction(self.active) or not _asks_for_index(after):
            return None
        eviction, cache = after.compiled.eviction, self._built.cache
        is_unified = hasattr(cache, "tree_core")
        if eviction.needs_metadata and not self._has_metadata:
            stamp = cache_metadata.attach_unified if is_unified else cache_metadata.attach_radix
            cache_admit.attach(cache, stamp(cache, guard, self._built.lora_name))
            self._has_metadata = True
        rank = cache_unified.session_rank if self._built.has_sessions else None
        preparation = Preparation(eviction, guard.index, TreePopulation(cache, guard), rank)
        if preparation.index.change is KeyChange.SHRINKS and not self._is_watching:
            (cache_touch.attach_unified if is_unified else cache_touch.attach_radix)(cache, guard)
            self._is_watching = True
        before = guard.index
        guard.use(Both(before, preparation, lambda: self._lost(before)))
        return preparation

    def _lost(self, before: Any) -> None:
        assert self._built.guard is not None
        self._built.guard.use(before)
        if self.swap is not None:
            self.swap.dropped()

    def abandon(self, preparation: Preparation | None) -> None:
        guard = self._built.guard
        if guard is not None and isinstance(guard.index, Both) and guard.index.preparation is preparation:
            before = guard.index.before
            guard.use(before)

    # -- in charge --

    def commit(self, after: Candidate, preparation: Preparation | None) -> None:
        self._commit_eviction(after, preparation)
        self._commit_allocator(after)
        self.active.become(after.policy, after.flat, after.digest, after.source, after.compiled, after.is_off)

    def _commit_eviction(self, after: Candidate, preparation: Preparation | None) -> None:
        active, guard = self.active, self._built.guard
        if guard is None or not after.changes_eviction(active):
            return
        before = guard.index.before if isinstance(guard.index, Both) else guard.index
        if preparation is None:
            index = records_only(before)
            guard.is_off = True
            active.core, active.index = "engine", index
            active.core_reason = "switched off" if after.is_off else "the policy leaves eviction to the engine"
            active.algorithm = "the engine's own order"
        else:
            index = preparation.index
            index.succeed(before)
            guard.is_off = False
            active.serve(index, after.compiled.eviction, f"our index on {type(self._built.cache).__name__}, swapped in")
        guard.use(index)
        self._retirement = Retirement(before, keeps_handles=preparation is None)

    def _commit_allocator(self, after: Candidate) -> None:
        active, ahead, plan = self.active, self._built.ahead, after.compiled.allocator
        if ahead is not None:
            ahead.use(None if after.is_off else plan.watermark)
            active.watermark = ahead.mark
        if active.allocator is not None and active.allocator.core == "kvpolicy":
            from .allocator import ENGINE_ORDER
            from .allocator_hooks import change_guard, change_order

            engine_order = ENGINE_ORDER[type(self._allocator).__mro__[2]]
            order = engine_order if after.is_off else plan.order or engine_order
            if order != active.allocator.order:
                change_order(active, self._allocator, order)
            mode = "off" if after.is_off else plan.guard or "off"
            if mode != active.allocator.guard:
                change_guard(active, self._allocator, mode)

    def retire(self, units: int) -> bool:
        if self._retirement is not None and self._retirement.step(units):
            return True
        self._retirement = None
        return False


def _asks_for_index(after: Candidate) -> bool:
    return not after.is_off and asks_for_index(after.policy, after.compiled.eviction)
