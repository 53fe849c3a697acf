"""An engine's side: take the policy out of the configuration, check it in every worker, watch what is built, report.

An engine (vLLM: `EngineCore`) is one scheduler with its workers; there is one a data-parallel rank. Start-up faults end
the process with words; nothing here raises once the scheduler serves.
"""

from __future__ import annotations

import json
import logging
import os
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kvpolicy.facts.unprotected import unprotected_room
from kvpolicy.language import digest_of
from kvpolicy.live.swap import LiveSwap
from kvpolicy.runtime import carry, handshake, status
from kvpolicy.runtime.active import ActivePolicy, current, set_current
from kvpolicy.runtime.flags import CARRY_ENV
from kvpolicy.runtime.loading import activate
from kvpolicy.runtime.metrics import SECONDS_BUCKETS

from . import cache_hooks, resolution, worker
from .hooks import wrap

__all__ = ["LIVE_METHOD", "STATUS_METHOD", "register"]

logger = logging.getLogger("kvpolicy")

# Methods of EngineCore, callable through vLLM's utility calls, which it answers between two steps.
STATUS_METHOD = "kvpolicy_status"
LIVE_METHOD = "kvpolicy_live"


def register() -> None:
    """Hook the construction of engines in this process; one without a policy is built as ever."""
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine.core import EngineCore

    wrap(EngineCore, "_initialize_kv_caches", _initialize_kv_caches)
    wrap(Scheduler, "__init__", _build_scheduler)
    setattr(EngineCore, STATUS_METHOD, _status)
    setattr(EngineCore, LIVE_METHOD, _live)


def _initialize_kv_caches(original: Callable[..., Any], core: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
    """Around the step that sizes the KV cache: the workers exist with their model, the scheduler does not yet."""
    carried = _carried(vllm_config)
    if carried is None:
        set_current(None)
        return original(core, vllm_config, *args, **kwargs)
    with _last_words(carried):
        active = activate(carried, "vllm")
        active.on_evict = EvictSeconds()
        kv_cache_config = original(core, vllm_config, *args, **kwargs)
        built = _ask_workers(core, active, vllm_config)
        if blocks := _block_tokens(kv_cache_config):
            built["block_size"] = blocks
        resolution.compare_built(active, built)
        cache_hooks.install(active, vllm_config)
        set_current(active)
        core.kvpolicy_active = active
        return kv_cache_config


def _carried(vllm_config: Any) -> carry.Carried | None:
    """The policy of this engine, whose two carriers must agree: the configuration and the environment."""
    given = (vllm_config.additional_config or {}).get(worker.CONFIG_KEY)
    packed = os.environ.get(CARRY_ENV)
    if given is None and (packed is None or packed.startswith(f"{os.getpid()}:")):
        return None  # an engine without a policy; its launcher may have had one for another
    if packed is None:
        raise SystemExit("kvpolicy: the configuration has a policy, the environment of this process has lost it")
    carried = carry.read(packed)
    with _last_words(carried):
        found = None if given is None else digest_of(given["policy"])
        if found != carried.digest:
            raise SystemExit(
                f"kvpolicy: the engine was given a configuration for policy {str(found)[:12]}, "
                f"but carries policy {carried.digest[:12]}"
            )
    return carried


@contextmanager
def _last_words(carried: carry.Carried) -> Iterator[None]:
    """What ends an engine's start is also told to the launcher, and ends it with words instead of a traceback."""
    try:
        yield
    except (SystemExit, cache_hooks.EvictionRefused) as error:
        handshake.report_failure(carried.handshake_dir, str(error))
        raise SystemExit(str(error)) from error


def _ask_workers(core: Any, active: ActivePolicy, vllm_config: Any) -> dict[str, Any]:
    """Every worker's proof that it has the policy, and what they built. SystemExit naming one that has not."""
    reports = core.model_executor.collective_rpc(worker.report)
    expected = vllm_config.parallel_config.world_size
    if len(reports) != expected:
        raise SystemExit(f"kvpolicy: {len(reports)} of {expected} workers answered")
    for found in reports:
        if found["digest"] != active.digest:
            raise SystemExit(
                f"kvpolicy: worker {found['rank']} has policy {str(found['digest'])[:12]}, not {active.digest[:12]}"
            )
    active.workers = len(reports)
    built: dict[str, Any] = {}
    for found in reports:
        for field, value in found["built"].items():
            built.setdefault(field, value)
    return built


def _block_tokens(kv_cache_config: Any) -> int | None:
    """Tokens in a block of the attention layers: what can be cached and evicted alone."""
    specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
    attention = [int(spec.block_size) for spec in specs if "Attention" in type(spec).__name__]
    return max(attention, default=None)


def _build_scheduler(original: Callable[..., Any], scheduler: Any, *args: Any, **kwargs: Any) -> None:
    """Around `Scheduler.__init__`, which builds the block pool: afterwards the engine runs what it says it runs."""
    original(scheduler, *args, **kwargs)
    active = current()
    if active is None or active.role != "scheduler":
        return
    carried = carry.read(os.environ[CARRY_ENV])
    with _last_words(carried):
        if not active.core:
            raise SystemExit("kvpolicy: the scheduler was built without the policy's block pool")
    handshake.report(carried.handshake_dir, {**status.start_facts(active), "workers": active.workers})
    logger.info("%s", status.line(active))
    _say_room(active, scheduler)
    _seat(active, scheduler)


def _seat(active: ActivePolicy, scheduler: Any) -> None:
    """Be ready for live swaps. A failure is logged and counted: the policy that was started with runs."""
    try:
        from .cache_feed import ShadowSeat
        from .cache_live import PoolSeat

        seat = PoolSeat(active, scheduler.kv_cache_manager.block_pool, scheduler.vllm_config, scheduler.kv_cache_config)
        seat.swap = scheduler.kvpolicy_swap = LiveSwap(seat, "vllm")
        scheduler.kvpolicy_shadows = ShadowSeat(active, scheduler)
    except Exception:
        active.note_fallback("live", "the policy of this engine cannot be swapped while it runs")


def _live(core: Any, message: str) -> dict[str, Any]:
    """`EngineCore.kvpolicy_live(message)`: one message of a live swap or to shadows, as JSON; the answer to it."""
    asked = json.loads(message)
    if asked["op"].startswith("shadow_"):
        shadows = getattr(core.scheduler, "kvpolicy_shadows", None)
        if shadows is None:
            return {"rank": 0, "state": "none", "refused": "this engine can have no shadows: see its log"}
        if asked["op"] != "shadow_look":
            shadows.handle(asked, _rank(core))
        return dict(shadows.to_json() or {"rank": _rank(core), "state": "none", "refused": ""})
    swap: LiveSwap | None = getattr(core.scheduler, "kvpolicy_swap", None)
    if swap is None:
        why = "this engine cannot swap policies: it has none, or see its log"
        return {"state": "refused", "digest": "", "why": [why], "more": False}
    swap.handle(asked)
    return swap.answer.to_json()


def _say_room(active: ActivePolicy, scheduler: Any) -> None:
    """Warn where protection leaves less than one request; only advice, so a failure is logged and counted."""
    try:
        finding = unprotected_room(active.policy, active.pool_tokens, scheduler.max_model_len)
    except Exception:
        active.note_fallback("room", "the room that protection leaves is not known")
        return
    if finding is not None:
        logger.warning("kvpolicy: %s: %s (%s)", finding.code, finding.message, finding.help)


class EvictSeconds:
    """How long eviction calls took, counted by bucket: the figures of a histogram that another process serves."""

    def __init__(self) -> None:
        self.counts = [0] * (len(SECONDS_BUCKETS) + 1)

    def __call__(self, _active: ActivePolicy, seconds: float) -> None:
        self.counts[bisect_left(SECONDS_BUCKETS, seconds)] += 1


def _status(core: Any) -> dict[str, Any] | None:
    """`EngineCore.kvpolicy_status()`: the status block and what metrics need besides, or None without a policy."""
    active: ActivePolicy | None = getattr(core, "kvpolicy_active", None)
    if active is None:
        return None
    counts = active.on_evict.counts if isinstance(active.on_evict, EvictSeconds) else []
    return {
        "dp_rank": _rank(core),
        "evict_seconds_counts": list(counts),
        "policy": active.flat,
        "block": {
            **status.block(active),
            "workers": active.workers,
            "occupancy": _occupancy(core, active),
            **({"live": swap.to_json()} if (swap := getattr(core.scheduler, "kvpolicy_swap", None)) else {}),
            **({"shadows": shadows} if (shadows := _shadows(core)) is not None else {}),
        },
    }


def _shadows(core: Any) -> dict[str, Any] | None:
    seat = getattr(core.scheduler, "kvpolicy_shadows", None)
    return None if seat is None else seat.to_json()


def _rank(core: Any) -> int:
    """The data-parallel one. Replicas of a dense model are engines of their own, each with rank 0 in its
    configuration."""
    return int(getattr(core, "engine_index", core.vllm_config.parallel_config.data_parallel_rank))


def _occupancy(core: Any, active: ActivePolicy) -> dict[str, int | None] | None:
    """None, counted, where that failed, or while the policy recovers from a fault."""
    try:
        pool = core.scheduler.kv_cache_manager.block_pool
        guard = getattr(pool, "guard", None)
        block_tokens = active.pool_tokens // (pool.num_gpu_blocks - 1)  # one is vLLM's null block
        free = pool.get_num_free_blocks() * block_tokens
        if guard is None:
            return status.occupancy(active.pool_tokens, free, None)
        if guard.is_stale:
            return None
        evictable = guard.units.free_units() * block_tokens
        return status.occupancy(active.pool_tokens, free - evictable, evictable)
    except Exception:
        active.note_fallback("occupancy", "the pool's occupancy could not be counted")
        return None
