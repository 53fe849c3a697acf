"""An engine's seat for live swaps: another policy's index beside the one of the block pool, and the change-over.

The pool keeps its objects. Where the policy before left the order to vLLM nobody has recorded anything: the contents
are then found in slices as well, the oldest free block first, which is vLLM's own order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvpolicy.live.off import Retirement, nothing, records_only
from kvpolicy.live.preparation import Both, Preparation
from kvpolicy.live.swap import Candidate, LiveSwap
from kvpolicy.runtime.active import ActivePolicy

from .cache_guard import CacheGuard
from .cache_hooks import STOCK_REASON, needs_index, serves_stock, verdict_on
from .cache_runs import Run, content_key
from .cache_units import CachedUnits

__all__ = ["PoolSeat"]


class _PoolUnits:
    """The contents of a pool, parents first as far as they are known; see :class:`~kvpolicy.live.Population`."""

    def __init__(self, pool: Any, units: CachedUnits, *, are_unknown: bool) -> None:
        self._pool, self._units, self._are_unknown = pool, units, are_unknown
        self.takes_runs = True  # whether the policy that is prepared does

    def units(self) -> Iterator[Any]:
        if self._are_unknown:
            yield from self._found()
            return
        for run in self._units.runs.each():
            if self._units.runs.get(run.hashes[0]) is not run:
                yield None  # gone meanwhile
                continue
            parent = run.parent
            self._single(run)
            yield from reversed(list(run.up_to(parent)))

    def _single(self, run: Run) -> None:
        """For a policy that wants a handle for each block."""
        if not self.takes_runs:
            self._units.runs.shatter(run)

    def _found(self) -> Iterator[Any]:
        """Every content as it is found; None for a block with nothing new."""
        pool, found = self._pool, self._units.found
        queue, tick = pool.free_block_queue, 0
        queue.walk()
        while (block := queue.cursor.next_free_block) is not queue.fake_free_list_tail:
            queue.cursor, tick = block, tick + 1
            yield self._new(found, block, tick)
        queue.stop_walking()
        for block in list(pool.blocks):  # those in use
            yield self._new(found, block, tick)

    def _new(self, found: Any, block: Any, tick: int) -> Any:
        if block.block_hash is None or block.is_null:
            return None
        return found(block, tick)

    def parent(self, run: Run) -> Run | None:
        if not self._units.runs.has_parent(run):
            return None
        assert run.parent is not None
        self._single(run.parent)
        return run.parent

    def size_tokens(self, run: Run) -> int:
        return self._units.block_tokens

    def count_units(self, run: Run) -> int:
        return len(run.blocks)

    def depth_tokens(self, run: Run, above_tokens: int) -> int:
        return self._units.depth_tokens(run.blocks[-1])

    def content_key(self, run: Run) -> int:
        return content_key(run.hashes[0])

    def is_evictable(self, run: Run) -> bool:
        return run.is_free and not run.children


class PoolSeat:
    """See :class:`kvpolicy.live.swap.Seat`. One an engine, made once its pool is built."""

    def __init__(self, active: ActivePolicy, pool: Any, vllm_config: Any, kv_cache_config: Any) -> None:
        self.active = active
        self._pool = pool  # a PolicyBlockPool
        self._configs = vllm_config, kv_cache_config
        self._retirement: Retirement | None = None
        self.swap: LiveSwap | None = None  # told of a preparation that nobody asked for any more

    def refusals(self, after: Candidate) -> list[str]:
        if after.is_off or not after.changes_eviction(self.active):
            return []
        if self._pool.guard is not None and self._pool.guard.is_retired:
            return ["eviction: this engine gave up on policies after too many faults (see its log); restart it"]
        verdict = verdict_on(after.compiled, *self._configs)
        return [] if verdict.kind == "supported" else [f"{verdict.message}; restart without it"]

    # -- preparing --

    def prepare(self, after: Candidate) -> Preparation | None:
        self._retirement = None
        if after.is_off or not after.changes_eviction(self.active) or not needs_index(after.compiled.eviction):
            return None
        pool = self._pool
        if are_unknown := pool.guard is None:
            self._attach()
        guard: CacheGuard = pool.guard
        population = _PoolUnits(pool, guard.units, are_unknown=are_unknown)
        before = guard.units.index
        preparation = Preparation(after.compiled.eviction, before, population)
        population.takes_runs = preparation.index.takes_runs
        guard.units.use(Both(before, preparation, self._lost))
        return preparation

    def _attach(self) -> None:
        """Follow a pool that was vLLM's alone; its own order goes on."""
        from .cache_pool import PolicyQueue

        pool = self._pool
        units = CachedUnits(nothing(self.active.pool_tokens), pool.block_tokens)
        units.leave_room_for_age(len(pool.blocks) + 1)
        pool.guard = CacheGuard(self.active, pool, units, is_off=True)
        PolicyQueue.over(pool.free_block_queue, pool.guard)

    def _detach(self) -> None:
        self._pool.free_block_queue.give_back()
        self._pool.guard = None

    def _lost(self) -> None:
        guard = self._pool.guard
        self.abandon(guard.units.index.preparation)
        if self.swap is not None:
            self.swap.dropped()

    def abandon(self, preparation: Preparation | None) -> None:
        guard: CacheGuard | None = self._pool.guard
        if guard is None or not isinstance(guard.units.index, Both):
            return
        guard.units.use(guard.units.index.before)
        self._pool.free_block_queue.stop_walking()
        if self.active.index is None:  # nobody recorded anything before
            self._detach()

    # -- in charge --

    def commit(self, after: Candidate, preparation: Preparation | None) -> None:
        active, guard = self.active, self._pool.guard
        if after.changes_eviction(active):
            if preparation is not None:
                self._put_in_charge(after, guard, preparation)
            elif guard is not None:
                before = guard.units.index
                guard.units.use(records_only(before))
                guard.is_off = True
                self._retirement = Retirement(before, keeps_handles=True)
            if preparation is None:
                serves_stock(active, "switched off" if after.is_off else STOCK_REASON)
                active.index = None if guard is None else guard.units.index
        active.become(after.policy, after.flat, after.digest, after.source, after.compiled, after.is_off)

    def _put_in_charge(self, after: Candidate, guard: CacheGuard, preparation: Preparation) -> None:
        both, index = guard.units.index, preparation.index
        before = both.before
        index.succeed(before)
        guard.units.use(index)
        guard.is_off = False
        self.active.serve(index, after.compiled.eviction, "our index on vLLM's block pool, swapped in")
        self._retirement = Retirement(before, keeps_handles=False)

    def retire(self, units: int) -> bool:
        if self._retirement is not None and self._retirement.step(units):
            return True
        self._retirement = None
        return False
