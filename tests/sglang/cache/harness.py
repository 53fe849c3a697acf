"""Build one of SGLang's caches with kvpolicy attached, outside a server: what `install` does in a scheduler, called
directly."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from kvpolicy_sglang.cache_hooks import Built, build_cache

from kvpolicy.compiler import compile_policy
from kvpolicy.language import policy_from_flat
from kvpolicy.runtime.active import ActivePolicy


def activate(eviction: dict[str, Any], on_conflict: str = "error") -> ActivePolicy:
    """An active policy with this `eviction:` section, compiled by the project's own compiler."""
    flat = {
        "apiVersion": "kvpolicy/v1",
        "kind": "KVPolicy",
        "metadata": {"name": "test"},
        "cache": {"on_conflict": on_conflict},
        "eviction": eviction,
    }
    policy = policy_from_flat(flat, engine="sglang")
    return ActivePolicy(
        policy=policy,
        flat=flat,
        digest="",
        role="scheduler",
        source="test.yaml",
        compiled=compile_policy(policy, "sglang"),
    )


def attach(active: ActivePolicy, params: Any, factory: Callable[[Any], Any], **arguments: Any) -> Built:
    """The cache that `factory` builds from `params`, with `active` attached to it."""
    context = SimpleNamespace(params=params, server_args=SimpleNamespace(**arguments), tp_worker=None)
    return build_cache(active, lambda ctx: factory(ctx.params), context)


def build_ours(params: Any, policy: str, factory: Callable[[Any], Any]) -> tuple[Any, ActivePolicy]:
    """The cache with `policy: <built-in>`, as `--kv-policy` gives it."""
    active = activate({"policy": policy})
    built = attach(active, params, factory)
    assert built.guard is not None
    return built.cache, active
