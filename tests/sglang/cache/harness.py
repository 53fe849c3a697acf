"""Build one of SGLang's caches with kvpolicy attached, outside a server: what `install` does in a scheduler, called
directly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from activation import activate
from kvpolicy_sglang.cache_hooks import Built, build_cache

from kvpolicy.runtime.active import ActivePolicy


def attach(active: ActivePolicy, params: Any, factory: Callable[[Any], Any], **arguments: Any) -> Built:
    """The cache that `factory` builds from `params`, with `active` attached to it."""
    context = SimpleNamespace(params=params, server_args=SimpleNamespace(**arguments), tp_worker=None)
    return build_cache(active, lambda ctx: factory(ctx.params), context)


def build_ours(
    params: Any, policy: str, factory: Callable[[Any], Any], explains: bool = False
) -> tuple[Any, ActivePolicy]:
    """The cache with `policy: <built-in>`, as `--kv-policy` gives it; `explains`: evictions are remembered."""
    active = activate("sglang", {"policy": policy})
    active.compiled = replace(active.compiled, eviction=replace(active.compiled.eviction, explains=explains))
    built = attach(active, params, factory)
    assert built.guard is not None
    return built.cache, active
