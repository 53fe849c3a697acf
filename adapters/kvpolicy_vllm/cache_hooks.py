"""Put the policy's eviction into the block pool that vLLM is about to build.

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
    from kvpolicy.compiler import CompiledPolicy
    from kvpolicy.eviction import CompiledEviction
    from kvpolicy.runtime.active import ActivePolicy

__all__ = [
    "STOCK_REASON",
    "EvictionRefused",
    "arriving",
    "attach",
    "install",
    "looking_up",
    "needs_index",
    "patch",
    "refuse",
    "scheduling",
    "serves_stock",
    "start_verdict",
    "verdict_on",
]

_STOCK_ORDERS = (None, "lru")
STOCK_REASON = "the policy asks for vLLM's own order: its free queue serves, at its speed"


class EvictionRefused(RuntimeError):
    """The policy's eviction cannot be honoured, and the policy does not let the engine win."""


#: What the next block pool of this process is built for: at most one entry, taken by the coordinator's construction.
_pending: list[tuple[ActivePolicy, Any]] = []


def install(active: ActivePolicy, vllm_config: Any) -> None:
    """Have the next scheduler of this process built with `active`'s eviction.

    Raises:
        EvictionRefused: this configuration cannot honour the policy.
    """
    refuse(active, start_verdict(active, vllm_config, None))
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
    hooks.replace(kv_cache_manager.KVCacheManager, "get_computed_blocks", looking_up)
    hooks.replace(Scheduler, "schedule", scheduling)
    hooks.replace(Scheduler, "add_request", arriving)


def attach(active: ActivePolicy, pool: Any, vllm_config: Any, kv_cache_config: Any, block_tokens: int) -> None:
    """Give `pool` the policy's eviction, or leave it as it is where vLLM's order stays; `active` says which and why.

    Raises:
        EvictionRefused: this pool cannot honour the policy.
    """
    eviction = active.compiled.eviction
    pool.block_tokens = block_tokens
    active.pool_tokens = (pool.num_gpu_blocks - 1) * block_tokens  # one block is vLLM's null block
    verdict = start_verdict(active, vllm_config, kv_cache_config)
    refuse(active, verdict)
    if verdict.kind == "stock":
        yield_to_engine(active, verdict)
        serves_stock(active, verdict.message)
    elif winner := active.eviction_yielded_to:
        serves_stock(active, f"{winner} won over the policy (on_conflict: warn)")
    elif not needs_index(eviction):
        serves_stock(active, STOCK_REASON)
    else:
        serve_pool(active, pool, block_tokens)


def serve_pool(active: ActivePolicy, pool: Any, block_tokens: int) -> None:
    """Make the policy's eviction the order of `pool`, a `PolicyBlockPool` that nothing has used yet."""
    from .cache_pool import PolicyQueue

    eviction = active.compiled.eviction
    index = eviction.make_index(active.pool_tokens)
    units = CachedUnits(index, block_tokens)
    units.rebuild(pool.blocks, pool.free_block_queue.get_all_free_blocks())
    pool.guard = CacheGuard(active, pool, units)
    PolicyQueue.over(pool.free_block_queue, pool.guard)
    active.serve(index, eviction, "our index on vLLM's block pool")


def serves_stock(active: ActivePolicy, reason: str) -> None:
    """Say that vLLM's own order decides."""
    active.core, active.index, active.algorithm = "engine", None, "lru, vLLM's free queue"
    active.core_reason = reason


def needs_index(eviction: CompiledEviction) -> bool:
    """Whether the order is another than vLLM's own."""
    if eviction.core != "auto":
        return eviction.core == "kvpolicy"
    return eviction.score is not None or eviction.needs_metadata or eviction.policy not in _STOCK_ORDERS


def refuse(active: ActivePolicy, verdict: Verdict) -> None:
    """Raises EvictionRefused if the server must not start."""
    if refused := refusal(active, verdict):
        raise EvictionRefused(refused)


def start_verdict(active: ActivePolicy, vllm_config: Any, kv_cache_config: Any) -> Verdict:
    """Whether a start can honour the policy's eviction; what was yielded to the engine before is settled."""
    if active.eviction_yielded_to and active.compiled.eviction.core != "engine":
        return Verdict("supported")
    return verdict_on(active.compiled, vllm_config, kv_cache_config)


def verdict_on(compiled: CompiledPolicy, vllm_config: Any, kv_cache_config: Any) -> Verdict:
    """Whether this configuration can honour the policy's eviction."""
    eviction = compiled.eviction
    if eviction.core == "engine":
        asked = eviction.score is not None or eviction.orders_by_metadata or eviction.policy not in _STOCK_ORDERS
        message = "with `core: engine` vLLM's own order serves, and it has no other than lru"
        return Verdict("stock", "eviction.core: engine", message) if asked else Verdict("supported")
    return supported(vllm_config, kv_cache_config) if needs_index(eviction) else Verdict("supported")


# -- in the engine's methods: a pool without a guard takes vLLM's path --


def _built(original: Any, *args: Any, **kwargs: Any) -> Any:
    """Around the construction of a KVCacheManager's coordinator, which builds the pool."""
    coordinator = original(*args, **kwargs)
    if _pending:
        active, vllm_config = _pending.pop()
        tokens = {manager.block_size for manager in coordinator.single_type_managers}
        attach(active, coordinator.block_pool, vllm_config, coordinator.kv_cache_config, max(tokens, default=1))
    return coordinator


def looking_up(original: Any) -> Any:
    """In place of `KVCacheManager.get_computed_blocks`: a request that looks for its prefix gets its first blocks next.

    `allocate_slots` would say the same, but it runs for every request in every step."""

    def get_computed_blocks(manager: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        guard: CacheGuard | None = getattr(manager.block_pool, "guard", None)
        if guard is not None:
            guard.enter(request)
        return original(manager, request, *args, **kwargs)

    return get_computed_blocks


def scheduling(original: Any) -> Any:
    """In place of `Scheduler.schedule`: who looked for a prefix in the step before and got nothing looks again."""

    def schedule(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        guard: CacheGuard | None = getattr(scheduler.kv_cache_manager.block_pool, "guard", None)
        if guard is not None:
            guard.withdraw()
        return original(scheduler, *args, **kwargs)

    return schedule


def arriving(original: Any) -> Any:
    """In place of `Scheduler.add_request`."""

    def add_request(scheduler: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        guard: CacheGuard | None = getattr(scheduler.kv_cache_manager.block_pool, "guard", None)
        if guard is not None:
            guard.arrive(request)
        return original(scheduler, request, *args, **kwargs)

    return add_request
