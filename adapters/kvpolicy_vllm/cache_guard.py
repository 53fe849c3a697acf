"""Between vLLM's block pool and the policy: no policy fault passes, and every free block stays available.

The pool calls these methods from inside the scheduler. Policies that fail are survived by the index itself; whatever
else may raise is counted here, the call is served in vLLM's own order (which its free queue keeps all along), and the
units are built anew from the pool before the next call. A pool that keeps failing is left to vLLM for good.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kvpolicy.eviction.base import RequestInfo

from .cache_requests import RequestState, state_of
from .cache_units import CachedUnits

if TYPE_CHECKING:
    from kvpolicy.runtime.active import ActivePolicy

__all__ = ["CacheGuard"]

logger = logging.getLogger("kvpolicy")

#: Faults (each one costs a pass over the pool) after which the policy gives up.
MAX_FAULTS = 32
#: Blocks that one eviction empties at least, as far as nothing protects their contents: so many, and at most that share
#: of the pool. One by one they would take twice the time.
AHEAD_BLOCKS, AHEAD_SHARE = 64, 1 / 256


#: Whose request could not be read.
_ANYBODY = RequestState(RequestInfo(), 0)


class CacheGuard:
    """One block pool's policy behind a fault barrier. No method raises."""

    def __init__(self, active: ActivePolicy, pool: Any, units: CachedUnits, *, is_off: bool = False) -> None:
        self.active = active
        self.is_off = is_off  # vLLM's own order serves, and what becomes of the blocks is only recorded
        self.units = units
        self.ahead_blocks = min(AHEAD_BLOCKS, int(pool.num_gpu_blocks * AHEAD_SHARE))
        self.pool = pool
        self.entered: RequestState | None = None  # who gets its first blocks next
        self._faults = 0
        self._is_stale = False  # a fault left the units behind the pool
        self._warned = False

    @property
    def is_stale(self) -> bool:
        """Whether the units are behind the pool, until the next eviction."""
        return self._is_stale

    @property
    def is_retired(self) -> bool:
        """Whether the policy gave up and vLLM's own order serves."""
        return self._faults > MAX_FAULTS

    # -- requests --

    def arrive(self, request: Any) -> None:
        """A request reached the scheduler: it counts, and moves the policy's time."""
        try:
            state_of(request, self.units.index.clock)
        except Exception:
            self._fault("arrive", "the policy failed to read a request's arrival")

    def enter(self, request: Any) -> None:
        """`request` looks for its prefix: the next blocks that somebody gets are its own, until :meth:`withdraw`."""
        try:
            state = state_of(request, self.units.index.clock)
            self.entered = None if state.is_served else state
        except Exception:
            self._fault("request", "the policy failed to read a request")

    def withdraw(self) -> None:
        """A new step: a request that entered and got nothing has to enter again."""
        self.entered = None

    def matched(self, blocks: Sequence[Any]) -> None:
        """Cached blocks got a user. The first ones that a request takes are its match."""
        state = self.entered
        if state is not None and not state.is_counted:
            state.is_counted = True
            state.matched = list(blocks)

    def serve(self) -> None:
        """The request that entered got its first new blocks; there is no request without any."""
        state, self.entered = self.entered, None
        if state is not None:
            state.is_served = state.is_counted = True  # a request that is preempted will match its own blocks
            if state.matched:
                self._count_hit(state)
            tokens, salt = self.units.block_tokens, state.info.cache_salt
            self.active.traffic.asked(state.prompt_tokens, state.matched_tokens, tokens, salt)

    def _count_hit(self, state: RequestState) -> None:
        blocks, state.matched = state.matched or [], None
        state.matched_tokens = len(blocks) * self.units.block_tokens
        if not self._is_stale:
            try:
                self.units.hit(blocks, state.info)
            except Exception:
                self._fault("touch", "the policy failed on a hit")

    def admitted(self, request: Any) -> RequestState | None:
        """The request's state if its blocks may be cached, which is decided at its first ones. A fault admits, as vLLM
        does."""
        if self.is_retired:
            return _ANYBODY
        try:
            state = state_of(request, self.units.index.clock)
            if state.matched:
                self._count_hit(state)
            if state.is_admitted is None:
                new_tokens = max(0, state.prompt_tokens - state.matched_tokens)
                state.is_admitted = self.units.index.admit(state.info, state.prompt_tokens, new_tokens)
            return state if state.is_admitted else None
        except Exception:
            self._fault("admit", "the policy failed to decide an admission")
            return _ANYBODY

    # -- blocks --

    def cached(self, state: RequestState, blocks: Sequence[Any], start: int, stop: int) -> None:
        """`blocks[start:stop]` of a request that :meth:`admitted` named are cached now."""
        if not self._is_stale:
            try:
                self.units.cached(blocks, start, stop, state.info, state.prompt_tokens)
            except Exception:
                self._fault("insert", "the policy failed on new blocks")

    def freed(self, blocks: Sequence[Any]) -> None:
        if not self._is_stale:
            try:
                self.units.freed(blocks)
            except Exception:
                self._fault("free", "the policy failed on blocks that became free")

    def taken(self, blocks: Sequence[Any]) -> None:
        if not self._is_stale:
            try:
                self.units.taken(*blocks)
            except Exception:
                self._fault("take", "the policy failed on blocks that are free no more")

    def dropped(self, blocks: Sequence[tuple[Any, bytes]]) -> None:
        """The engine threw these blocks' contents out of the cache: `(block, hash it had)`."""
        if not self._is_stale:
            try:
                self.units.dropped(blocks)
            except Exception:
                self._fault("remove", "the policy failed on blocks that left the cache")

    def victims(self, count: int) -> list[Any]:
        """`count` free blocks, the first to go first, and perhaps some that would go next. Fewer where the policy
        failed."""
        if self._is_stale and not self._is_recovered():
            return []
        start_s = time.perf_counter()
        try:
            blocks = self.units.victims(count, max(0, self.ahead_blocks - count))
            if self.units.index.counters.fallbacks and not self._warned:
                self._warn()
            return blocks
        except Exception:
            self._fault("evict", "the policy failed to name its victims")
            return []
        finally:
            self.active.observe_evict(time.perf_counter() - start_s)

    def lost(self) -> None:
        """The units ran out while vLLM still has free cached blocks, which it now takes in its own order."""
        if self._is_stale:  # the fault that made it so is counted
            return
        try:
            raise RuntimeError("the eviction index holds fewer blocks than the free queue")
        except RuntimeError:
            self._fault("lost", "the policy ran out of blocks before the demand was met")

    def cleared(self) -> None:
        """The prefix cache was emptied."""
        try:
            self.units.clear()
            self._is_stale = self.is_retired
        except Exception:
            self._fault("reset", "the policy failed to start afresh after a reset")

    # -- faults --

    def _fault(self, reason: str, message: str) -> None:
        self._faults += 1
        self._is_stale = True
        self.active.note_fallback(reason, f"{message}; vLLM's order serves instead")
        if self._faults == MAX_FAULTS + 1:
            self.active.core, self.active.core_reason = "engine", f"the policy failed {self._faults} times"
            logger.error("kvpolicy: the policy failed %d times; vLLM's own order serves from now on", self._faults)

    def _is_recovered(self) -> bool:
        """Build the units anew after a fault."""
        if self.is_retired:
            return False
        try:
            self.units.rebuild(self.pool.blocks, self.pool.free_block_queue.get_all_free_blocks())
        except Exception:
            self._fault("rebuild", "the policy failed to start again after a fault")
            return False
        self._is_stale = False
        return True

    def _warn(self) -> None:
        """The index survived a fault of the policy, counted it and answered in vLLM's order."""
        self._warned = True
        fault = self.units.index.counters.last_fault
        logger.warning("kvpolicy: the policy failed: %s (further ones are counted only)", fault)
