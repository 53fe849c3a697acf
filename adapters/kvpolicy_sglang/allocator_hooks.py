"""Put the policy's free list and guard under the slot allocator that this scheduler builds.

One hook after SGLang's own construction: what it returns is replaced, before anything used it, by a subclass of the
same class. Where the class is another one the engine's stays, which is a conflict as `on_conflict` decides.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from kvpolicy.runtime.active import ActivePolicy, AllocatorState
from kvpolicy.runtime.support import refusal, yield_to_engine

from .allocator_support import supported

__all__ = ["CONSTRUCTION", "build_allocator", "change_guard", "change_order", "install", "is_asked_for"]

logger = logging.getLogger("kvpolicy")

#: One method in every supported version, called once for the target model and once for a draft model.
CONSTRUCTION = "sglang.srt.mem_cache.kv_cache_configurator.KVCacheConfigurator._build_token_to_kv_pool_allocator"


def is_asked_for(active: ActivePolicy) -> bool:
    """Whether the policy wants an order or a guard."""
    plan = active.compiled.allocator
    return plan.order is not None or plan.guard not in (None, "off")


def install(active: ActivePolicy, hooks: Any) -> None:
    """Register the allocator hook of `active` in a scheduler, if its policy asks for one."""
    from sglang.srt.plugins.hook_registry import HookType

    active.allocator = AllocatorState()
    if not is_asked_for(active):
        return

    def build(built: Any, configurator: Any, *_args: Any, **options: Any) -> Any:
        if options.get("token_to_kv_pool_allocator") is not None or getattr(configurator, "is_draft_worker", False):
            return None  # a draft model uses its target's
        return build_allocator(active, built)

    hooks.register(CONSTRUCTION, build, HookType.AFTER)


def build_allocator(active: ActivePolicy, built: Any) -> Any:
    """What takes the place of the allocator `built`, or `built` itself where the engine's stays.

    SystemExit where the policy cannot be honoured and `on_conflict` is `error`.
    """
    verdict = supported(built)
    if verdict.kind != "supported":
        if refused := refusal(active, verdict):
            raise SystemExit(refused)
        yield_to_engine(active, verdict)
        active.allocator = AllocatorState(reason=verdict.message)
        return built

    from kvpolicy.allocators.guard import Guard

    from .allocator import ENGINE_ORDER, substitute

    plan = active.compiled.allocator
    order = plan.order or ENGINE_ORDER[type(built)]
    state = AllocatorState("kvpolicy", _reason(order, type(built)), order, plan.guard or "off")
    guard = None if state.guard == "off" else Guard(plan.guard, _reporter(active), state.faults)
    ours = substitute(built, order, guard)
    state.free_list = ours.free_list
    active.allocator = state
    return ours


def change_order(active: ActivePolicy, allocator: Any, order: str) -> None:
    """Let the allocator that :func:`build_allocator` made hand out in another order, and the status say so."""
    assert active.allocator is not None
    allocator.use_order(order)
    state = active.allocator
    state.order, state.free_list = order, allocator.free_list
    state.reason = _reason(order, type(allocator).__mro__[2])


def change_guard(active: ActivePolicy, allocator: Any, mode: str) -> None:
    """Have that allocator checked in another mode, `off` included, and the status say so."""
    from kvpolicy.allocators.guard import Guard

    state = active.allocator
    assert state is not None
    allocator.use_guard(None if mode == "off" else Guard(mode, _reporter(active), state.faults))
    state.guard = mode


def _reason(order: str, engine_class: type) -> str:
    return f"{order} order under {engine_class.__name__}"


def _reporter(active: ActivePolicy) -> Callable[[str, str], None]:
    """Says the first fault of each kind, and lets metrics see every one."""

    def report(kind: str, message: str | None) -> None:
        if message is not None:
            logger.error("kvpolicy: allocator guard: %s: %s; repaired (further ones are counted only)", kind, message)
        if active.on_allocator_fault is not None:
            try:
                active.on_allocator_fault(active)
            except Exception:
                active.on_allocator_fault = None
                active.note_fallback("metrics", "allocator metrics stopped: their update raised")

    return report
