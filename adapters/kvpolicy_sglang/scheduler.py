"""A scheduler process's side: take the carried policy, check it, watch what is built, report to the launcher.

Start-up faults end the process with words; nothing here raises once the scheduler serves.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvpolicy.facts.unprotected import unprotected_room
from kvpolicy.live.swap import LiveSwap
from kvpolicy.runtime import carry, flags, handshake, status
from kvpolicy.runtime.active import ActivePolicy, set_current
from kvpolicy.runtime.loading import activate

from . import (
    attention_cascade_hooks,
    attention_pages_hooks,
    built,
    fragmentation,
    live_carrier,
    metrics,
    pool_hooks,
    probe,
    resolution,
)
from .hooks import HookSet

if TYPE_CHECKING:
    from . import cache_hooks
    from .cache_feed import ShadowSeat

__all__ = ["register"]

logger = logging.getLogger("kvpolicy")

_SCHEDULER = "sglang.srt.managers.scheduler"


def register() -> None:
    """Hook the scheduler if this child is one (the detokenizer and the like have nothing to change)."""
    if _SCHEDULER not in sys.modules:
        return  # SGLang pickles the process's main function by name, so a scheduler has its module before plugins load
    carried = carry.read(os.environ[flags.CARRY_ENV])
    child = _Child(carried)
    child.register()


class _Child:
    """The hooks of one scheduler process."""

    def __init__(self, carried: carry.Carried) -> None:
        self.carried = carried
        self.hooks = HookSet()
        self.active: ActivePolicy | None = None
        self.require_pool: Callable[[Any], None] = lambda _pool: None
        self.built: Callable[[], cache_hooks.Built] | None = None
        self.swap: LiveSwap | None = None
        self.shadows: ShadowSeat | None = None  # on one rank of those that decide alike

    def register(self) -> None:
        from sglang.srt.plugins.hook_registry import HookType

        try:
            self.active = active = activate(self.carried, "sglang")
            set_current(active)
            self.hooks.register(f"{_SCHEDULER}.Scheduler.__init__", self._build, HookType.AROUND)
            self.hooks.register(f"{_SCHEDULER}.Scheduler.get_internal_state", self._state, HookType.AFTER)
            self.hooks.register(f"{_SCHEDULER}.Scheduler.set_internal_state", self._change, HookType.AROUND)
            from . import allocator_hooks, cache_hooks

            self.built = cache_hooks.install(active, self.hooks)
            allocator_hooks.install(active, self.hooks)
            self.require_pool = pool_hooks.install(active, self.hooks)
        except Exception as error:
            message = f"kvpolicy: in a scheduler: {type(error).__name__}: {error}"
            handshake.report_failure(self.carried.handshake_dir, message)
            raise

    def _cache(self) -> Any:
        assert self.built is not None
        return self.built().cache

    def _build(self, original: Callable[..., Any], scheduler: Any, server_args: Any, *args: Any, **kwargs: Any) -> None:
        """Around `Scheduler.__init__`."""
        active = self.active
        assert active is not None
        try:
            expected = getattr(server_args, "_kv_policy", None)
            if expected != active.digest:
                raise SystemExit(
                    f"kvpolicy: the scheduler was given arguments for policy {str(expected)[:12]}, "
                    f"but carries policy {active.digest[:12]}"
                )
            self.hooks.verify()
            cascade = attention_cascade_hooks.install(active, self.hooks, server_args, self._cache)
            pages = attention_pages_hooks.Pages(active, self.hooks)
            pages.install(server_args)
            original(scheduler, server_args, *args, **kwargs)
            if cascade is not None:
                cascade.settle(scheduler.tp_worker.model_runner)
            self.require_pool(scheduler.token_to_kv_pool_allocator.get_kvcache())
            pages.require_built(scheduler)
            resolution.compare_built(active, built.built_values(scheduler))
            active.kv_pool = built.built_pool(scheduler)
        except SystemExit as error:
            handshake.report_failure(self.carried.handshake_dir, str(error))
            raise
        self._seat(scheduler)
        self._start_metrics(scheduler)
        handshake.report(self.carried.handshake_dir, {**status.start_facts(active), **probe.ranks(scheduler)})
        logger.info("%s", status.line(active))
        self._say_room(scheduler)

    def _seat(self, scheduler: Any) -> None:
        """Be ready for live swaps. A failure is logged and counted: the policy that was started with runs."""
        assert self.active is not None
        assert self.built is not None
        try:
            from .cache_live import CacheSeat

            seat = CacheSeat(self.active, self.built(), scheduler)
            seat.swap = self.swap = LiveSwap(seat, "sglang", live_carrier.gather_of(scheduler))
            ranks = probe.ranks(scheduler)
            if not ranks["attn_tp_rank"] and not ranks["pp_rank"]:
                from .cache_feed import ShadowSeat

                self.shadows = ShadowSeat(self.active, self.built(), ranks["dp_rank"])
        except Exception:
            self.active.note_fallback("live", "the policy of this server cannot be swapped while it runs")

    def _change(self, original: Callable[..., Any], scheduler: Any, recv_req: Any, *args: Any, **kwargs: Any) -> Any:
        """Around `Scheduler.set_internal_state`: a message of a live swap is ours, everything else the engine's."""
        message = live_carrier.unpack(recv_req)
        if message is None:
            return original(scheduler, recv_req, *args, **kwargs)
        if str(message.get("op")).startswith("shadow_"):
            if self.shadows is not None:
                self.shadows.handle(message)
            return live_carrier.answer(False)
        return live_carrier.answer(self.swap is not None and self.swap.handle(message))

    def _say_room(self, scheduler: Any) -> None:
        """Warn where protection leaves less than one request: only now is the pool's real size known.

        Only advice: a failure is logged and counted, the server starts.
        """
        assert self.active is not None
        if not self.active.pool_tokens:
            return
        try:
            finding = unprotected_room(self.active.policy, self.active.pool_tokens, scheduler.max_req_len)
        except Exception:
            self.active.note_fallback("room", "the room that protection leaves is not known")
            return
        if finding is not None:
            logger.warning("kvpolicy: %s: %s (%s)", finding.code, finding.message, finding.help)

    def _start_metrics(self, scheduler: Any) -> None:
        """Metrics are a convenience: a failure is logged and counted, the server starts."""
        assert self.active is not None
        try:
            metrics.start_for(self.active, scheduler)
        except Exception:
            self.active.note_fallback("metrics", "no kvpolicy metrics: starting them raised")

    def _state(self, result: Any, scheduler: Any, *_args: Any, **_kwargs: Any) -> None:
        """After `Scheduler.get_internal_state`: add our block. A failure is said in the block, not raised."""
        assert self.active is not None
        try:
            block = status.block(self.active)
        except Exception as error:
            block = {"error": f"{type(error).__name__}: {error}"}
        block["occupancy"] = self._occupancy(scheduler)
        block["fragmentation"] = self._fragmentation(scheduler)
        if self.swap is not None:
            block["live"] = self.swap.to_json()
        if (shadows := self._shadows()) is not None:
            block["shadows"] = shadows
        try:
            result.internal_state["kvpolicy"] = block
        except Exception:
            self.active.note_fallback("status", "the server's state shows no policy")

    def _occupancy(self, scheduler: Any) -> dict[str, int | None] | None:
        """None where the cache has no one number of tokens (sliding windows, state layers), and, counted, after a
        failure."""
        assert self.active is not None
        try:
            free = int(scheduler.token_to_kv_pool_allocator.available_size())
            return status.occupancy(self.active.pool_tokens, free, int(scheduler.tree_cache.evictable_size()))
        except TypeError:  # a number for each kind of layer
            return None
        except Exception:
            self.active.note_fallback("occupancy", "the pool's occupancy could not be counted")
            return None

    def _shadows(self) -> dict[str, Any] | None:
        """None where nobody ever asked for any."""
        assert self.active is not None
        shadows = None if self.shadows is None else self.shadows.to_json()
        try:
            if shadows is not None and self.active.on_shadows is not None:
                self.active.on_shadows(shadows)
        except Exception:
            self.active.on_shadows = None
            self.active.note_fallback("metrics", "metrics of shadow policies stopped: their update raised")
        return shadows

    def _fragmentation(self, scheduler: Any) -> dict[str, Any] | None:
        """None, counted, where it could not be measured."""
        assert self.active is not None
        try:
            figures = fragmentation.measure(scheduler)
            if self.active.on_measure is not None:
                self.active.on_measure(figures)
        except Exception:
            self.active.note_fallback("fragmentation", "the runs of slots could not be counted")
            return None
        return figures
