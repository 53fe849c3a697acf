"""Put the policy's eviction into the block pool that vLLM is about to build, and swap it in one that exists.

`install` runs in the EngineCore process before the scheduler is built. It gives vLLM's coordinator a subclass of its
own block pool, and attaches the policy to the pool once the engine has said what it holds. A policy that asks for
vLLM's own order (lru, or nothing) keeps vLLM's free queue, at vLLM's speed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvpolicy.runtime.support import Verdict, refusal, yield_to_engine

from . import hooks
from .cache_guard import CacheGuard
from .cache_support import supported
from .cache_units import CachedUnits

if TYPE_CHECKING:
    from kvpolicy.eviction import CompiledEviction
    from kvpolicy.runtime.active import ActivePolicy

__all__ = ["EvictionRefused", "attach", "install", "needs_index", "patch", "refuse", "swap", "verdict_on"]

_STOCK_ORDERS = (None, "lru")


class EvictionRefused(RuntimeError):
    """The policy's eviction cannot be honoured, and the policy does not let the engine win."""


#: What the next block pool of this process is built for: at most one entry, taken by the coordinator's construction.
_pending: list[tuple[ActivePolicy, Any]] = []


def install(active: ActivePolicy, vllm_config: Any) -> None:
    """Have the next scheduler of this process built with `active`'s eviction.

    Raises:
        EvictionRefused: this configuration cannot honour the policy.
    """
    refuse(active, verdict_on(active, vllm_config, None))
    _pending[:] = [(active, vllm_config)]
    patch()


def patch() -> None:
    """Replace the block pool's class and follow the methods that know requests. Pools without a policy behave as
    vLLM's."""
    from vllm.v1.core import kv_cache_coordinator, kv_cache_manager
    from vllm.v1.core.sched.scheduler import Scheduler

    from .cache_pool import PolicyBlockPool

    kv_cache_coordinator.BlockPool = PolicyBlockPool
    hooks.wrap(kv_cache_manager, "get_kv_cache_coordinator", _built)
    hooks.wrap(kv_cache_manager.KVCacheManager, "allocate_slots", _allocating)
    hooks.wrap(Scheduler, "add_request", _arriving)


def attach(active: ActivePolicy, pool: Any, vllm_config: Any, kv_cache_config: Any, block_tokens: int) -> None:
    """Give `pool` the policy's eviction, or leave it as it is where vLLM's order stays; `active` says which and why.

    Raises:
        EvictionRefused: this pool cannot honour the policy.
    """
    eviction = active.compiled.eviction
    active.pool_tokens = (pool.num_gpu_blocks - 1) * block_tokens  # one block is vLLM's null block
    verdict = verdict_on(active, vllm_config, kv_cache_config)
    refuse(active, verdict)
    active.core, active.algorithm, active.index = "engine", "lru, vLLM's free queue", None
    if verdict.kind == "stock":
        yield_to_engine(active, verdict)
        active.core_reason = verdict.message
    elif winner := active.eviction_yielded_to:
        active.core_reason = f"{winner} won over the policy (on_conflict: warn)"
    elif not needs_index(eviction):
        active.core_reason = "the policy asks for vLLM's own order: its free queue serves, at its speed"
    else:
        swap(active, pool, eviction, block_tokens)


def swap(active: ActivePolicy, pool: Any, eviction: CompiledEviction, block_tokens: int | None = None) -> None:
    """Make `eviction` the order of `pool` from now on, between two steps. O(cached blocks); nothing is evicted.

    Contents that are cached already keep their age, hits and prefix tree where the policy before kept them; protection
    starts with the next touch. `block_tokens` is needed where no policy ran before. `pool` must be a `PolicyBlockPool`.
    """
    from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue

    from .cache_pool import PolicyQueue

    before: CacheGuard | None = pool.guard
    free = pool.free_block_queue.get_all_free_blocks()  # in vLLM's own order, whatever the policy was
    if not needs_index(eviction):
        pool.guard, pool.free_block_queue = None, FreeKVCacheBlockQueue(free)
        active.core, active.index, active.algorithm = "engine", None, "lru, vLLM's free queue"
        active.core_reason = "the policy asks for vLLM's own order: its free queue serves, at its speed"
        return
    if block_tokens is None:
        block_tokens = before.units.block_tokens if before is not None else pool.hash_block_size
    active.pool_tokens = (pool.num_gpu_blocks - 1) * block_tokens
    index = eviction.make_index(active.pool_tokens)
    units = CachedUnits(index, block_tokens)
    units.rebuild(pool.blocks, free, before.units if before is not None else None)
    guard = CacheGuard(active, pool, units)
    pool.guard, pool.free_block_queue = guard, PolicyQueue(free, guard)
    active.serve(index, eviction, "our index on vLLM's block pool")


def needs_index(eviction: CompiledEviction) -> bool:
    """Whether the order is another than vLLM's own."""
    if eviction.core != "auto":
        return eviction.core == "kvpolicy"
    return eviction.score is not None or eviction.needs_metadata or eviction.policy not in _STOCK_ORDERS


def refuse(active: ActivePolicy, verdict: Verdict) -> None:
    """Raises EvictionRefused if the server must not start."""
    if refused := refusal(active, verdict):
        raise EvictionRefused(refused)


def verdict_on(active: ActivePolicy, vllm_config: Any, kv_cache_config: Any) -> Verdict:
    eviction = active.compiled.eviction
    if eviction.core == "engine":
        asked = eviction.score is not None or eviction.orders_by_metadata or eviction.policy not in _STOCK_ORDERS
        message = "with `core: engine` vLLM's own order serves, and it has no other than lru"
        return Verdict("stock", "eviction.core: engine", message) if asked else Verdict("supported")
    if active.eviction_yielded_to or not needs_index(eviction):
        return Verdict("supported")
    return supported(vllm_config, kv_cache_config)


# -- in the engine's methods: a pool without a guard takes vLLM's path --


def _built(original: Any, *args: Any, **kwargs: Any) -> Any:
    """Around the construction of a KVCacheManager's coordinator, which builds the pool."""
    coordinator = original(*args, **kwargs)
    if _pending:
        active, vllm_config = _pending.pop()
        tokens = {manager.block_size for manager in coordinator.single_type_managers}
        attach(active, coordinator.block_pool, vllm_config, coordinator.kv_cache_config, max(tokens, default=1))
    return coordinator


def _allocating(original: Any, manager: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
    guard: CacheGuard | None = getattr(manager.block_pool, "guard", None)
    if guard is None:
        return original(manager, request, *args, **kwargs)
    guard.enter(request)
    blocks = None
    try:
        blocks = original(manager, request, *args, **kwargs)
        return blocks
    finally:
        guard.leave(blocks is not None)


def _arriving(original: Any, scheduler: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
    guard: CacheGuard | None = getattr(scheduler.kv_cache_manager.block_pool, "guard", None)
    if guard is not None:
        guard.arrive(request)
    return original(scheduler, request, *args, **kwargs)
