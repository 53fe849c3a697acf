"""Install the policy's eviction into the prefix cache this scheduler is about to build.

One hook on SGLang's own cache construction: it runs as ever, and the policy attaches to the object it returns. Which
cache that is, and whether the policy can steer it, is found by looking (never at a version string). Where it cannot,
the engine's own order stays and that is a conflict, decided by the policy's `on_conflict`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from kvpolicy.runtime.active import ActivePolicy
from kvpolicy.runtime.support import Verdict, refusal, yield_to_engine

from . import cache_admit, cache_metadata, cache_radix, cache_time, cache_touch, cache_unified, cache_watermark
from .cache_guard import EvictionGuard
from .cache_support import Needs, supported, watermark_supported

if TYPE_CHECKING:
    from kvpolicy.eviction import CompiledEviction
    from kvpolicy.language import Policy

__all__ = ["CONSTRUCTION", "asks_for_index", "build_cache", "install", "needs_of"]

#: SGLang's prefix-cache construction: one function in every supported version, called once a scheduler.
CONSTRUCTION = "sglang.srt.mem_cache.registry.create_tree_cache"


def install(active: ActivePolicy, hooks: Any) -> Callable[[], Built]:
    """Register the cache-side hooks of `active` in a scheduler; `hooks` is SGLang's `HookRegistry` or like it.

    What is returned gives the cache once it is built.
    """
    from sglang.srt.plugins.hook_registry import HookType

    now = Built(None)

    def build(stock: Callable[[Any], Any], ctx: Any) -> Any:
        nonlocal now
        now = build_cache(active, stock, ctx)
        return now.cache

    hooks.register(CONSTRUCTION, build, HookType.AROUND)
    if needs_of(active).index:  # one without metadata may be followed by one that has it
        cache_time.install_scheduler(lambda: now.guard, hooks)
    if active.compiled.allocator.watermark is not None:
        cache_watermark.install(lambda: now.ahead, hooks)
    return lambda: now


def needs_of(active: ActivePolicy) -> Needs:
    """What the policy asks of the cache: nothing with `core: engine`, or where it says nothing of eviction."""
    compiled = active.compiled.eviction
    if active.eviction_yielded_to or not asks_for_index(active.policy, compiled):
        return Needs(index=False)
    return Needs(index=True, time=bool(compiled.needs_time), metadata=bool(compiled.orders_by_metadata))


def asks_for_index(policy: Policy, compiled: CompiledEviction) -> bool:
    """Whether the policy says anything that the engine's own order does not do by itself."""
    eviction = policy.eviction
    if eviction is not None and eviction.core == "engine":
        return False
    if compiled.hints is not None:
        return True
    if eviction is None:
        return False
    return bool(eviction.score or eviction.policy or eviction.rules or eviction.tenants or eviction.core == "kvpolicy")


class Built(NamedTuple):
    """The engine's own cache, and what of ours is attached to it."""

    cache: Any
    guard: EvictionGuard | None = None  # None: the cache is untouched
    metadata: cache_metadata.Metadata | None = None  # only where the policy needs it
    ahead: cache_watermark.EvictAhead | None = None  # only where the policy has watermarks
    context: Any = None  # SGLang's TreeCacheBuildContext
    has_sessions: bool = False  # the engine orders by its session references first

    def lora_name(self, lora_id: str) -> str:
        """The name that an adapter's operator gave it; ids are random, hence no use to a rule."""
        runner = getattr(self.context.tp_worker, "model_runner", None)
        manager = getattr(runner, "lora_manager", None)
        ref = getattr(manager, "lora_refs", {}).get(lora_id)
        return getattr(ref, "lora_name", None) or lora_id


def build_cache(active: ActivePolicy, stock: Callable[[Any], Any], ctx: Any) -> Built:
    """Build the engine's own cache with the policy's eviction attached, or untouched where the engine's order stays.

    Watermarks come on top of either.
    """
    built = _build_ordered(active, stock, ctx)._replace(context=ctx)
    if active.compiled.allocator.watermark is None:
        return built
    verdict = watermark_supported(ctx.server_args, ctx)
    if verdict.kind != "supported":
        _conflict(active, verdict)
        return built
    ahead = cache_watermark.EvictAhead(active, built.cache, built.guard)
    active.watermark = ahead.mark
    return built._replace(ahead=ahead)


def _build_ordered(active: ActivePolicy, stock: Callable[[Any], Any], ctx: Any) -> Built:
    active.pool_tokens = int(ctx.params.token_to_kv_pool_allocator.size)
    needs = needs_of(active)
    if not needs.index:
        chosen = active.policy.eviction is not None and active.policy.eviction.core == "engine"
        reason = "eviction.core: engine" if chosen else "the policy leaves eviction to the engine"
        if winner := active.eviction_yielded_to:
            reason = f"{winner} won over the policy (on_conflict: warn)"
        return _stock(active, stock, ctx, reason)
    verdict = supported(ctx.server_args, ctx, needs)
    if verdict.kind != "supported":
        _conflict(active, verdict)
        return _stock(active, stock, ctx, verdict.message)

    eviction = active.compiled.eviction
    has_sessions = bool(getattr(ctx.params, "enable_session_radix_cache", False))
    rank = cache_unified.session_rank if has_sessions else None
    if has_sessions and eviction.explains:  # the engine's ranks go before a bare built-in order only
        eviction = replace(eviction, explains=False)
    index = eviction.make_index(active.pool_tokens, rank)
    page_tokens = int(ctx.params.page_size)
    guard = EvictionGuard(active, index, page_tokens=page_tokens)
    is_unified = cache_unified.prepare(ctx.params, guard)
    cache = stock(ctx)

    attach = {"UnifiedRadixCache": cache_unified.attach, "RadixCache": cache_radix.attach}.get(type(cache).__name__)
    if attach is None or is_unified != (attach is cache_unified.attach):
        name = type(cache).__name__
        _conflict(active, Verdict("stock", name, f"the policy's eviction does not know the prefix cache {name}"))
        active.core, active.core_reason = "engine", f"prefix cache {name}"
        return Built(cache)
    node_class = type(cache.tree_core.root_node if is_unified else cache.root_node)
    node_class.kvp = None  # the one attribute that the index may set on a node
    attach(cache, guard)
    if guard.observes_touches:
        (cache_touch.attach_unified if is_unified else cache_touch.attach_radix)(cache, guard)
    metadata = None
    if eviction.needs_metadata:
        stamp = cache_metadata.attach_unified if is_unified else cache_metadata.attach_radix
        metadata = stamp(cache, guard, Built(cache, context=ctx).lora_name)
        cache_admit.attach(cache, metadata)
    tree = f"{type(cache).__name__}, {type(cache.tree_core).__name__}" if is_unified else type(cache).__name__
    active.serve(index, eviction, f"our index on {tree}")
    return Built(cache, guard, metadata, has_sessions=has_sessions)


def _stock(active: ActivePolicy, stock: Callable[[Any], Any], ctx: Any, reason: str) -> Built:
    cache = stock(ctx)
    active.core = "engine"
    active.core_reason = reason
    core = getattr(cache, "tree_core", None)
    active.algorithm = f"{ctx.params.eviction_policy} on {type(cache if core is None else core).__name__}"
    return Built(cache)


def _conflict(active: ActivePolicy, verdict: Verdict) -> None:
    """Say that the engine's own way stays; SystemExit if the policy says so, or if the server must not start so."""
    if refused := refusal(active, verdict):
        raise SystemExit(refused)
    yield_to_engine(active, verdict)
