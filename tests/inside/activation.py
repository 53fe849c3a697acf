"""A policy made active without a launcher: what each adapter's launch side does in an engine, called directly."""

from __future__ import annotations

from typing import Any

from kvpolicy.compiler import compile_policy
from kvpolicy.language import policy_from_flat
from kvpolicy.runtime.active import ActivePolicy


def activate(engine: str, eviction: dict[str, Any] | None, on_conflict: str = "error", **sections: Any) -> ActivePolicy:
    """An active policy with this `eviction:` section, compiled for `engine` by the project's own compiler."""
    flat: dict[str, Any] = {
        "apiVersion": "kvpolicy/v1",
        "kind": "KVPolicy",
        "metadata": {"name": "test"},
        "cache": {"on_conflict": on_conflict},
        **({} if eviction is None else {"eviction": eviction}),
        **sections,
    }
    policy = policy_from_flat(flat, engine=engine)
    return ActivePolicy(
        policy=policy,
        flat=flat,
        digest="",
        role="scheduler",
        source="test.yaml",
        compiled=compile_policy(policy, engine),
    )
