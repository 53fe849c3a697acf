"""A policy file, or one that a launcher carried here, becomes this process's :class:`~.active.ActivePolicy`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import replace

from kvpolicy.compiler import CompiledPolicy, compile_policy
from kvpolicy.language import load_policy, policy_from_flat

from .active import ActivePolicy
from .carry import Carried
from .flags import explains

__all__ = ["PATHS", "activate", "carried_by", "explaining", "load_active", "say", "summary"]

#: Where the values stand in a policy that can be in conflict with an engine.
PATHS = (
    "eviction",
    "allocator",
    "cache.page_size",
    "cache.kv_dtype",
    "cache.kv_dtype.layers",
    "backend.attention",
    "backend.cascade",
    "eviction.policy",
    "eviction.score",
    "eviction.params",
)


def load_active(source: str, engine: str) -> ActivePolicy:
    """Load and compile a policy file or shipped policy for `engine`.

    Its warnings go to stderr; SystemExit with its errors, as `kvpolicy check` prints them.
    """
    result = load_policy(source, engine=engine)
    errors = [str(found) for found in result.diagnostics if found.severity == "error"]
    for found in result.diagnostics:
        if found.severity == "warning":
            say(str(found))
    if errors or result.policy is None:
        summary = f"kvpolicy: {source}: not started: the policy has errors (see kvpolicy check {source})"
        raise SystemExit("\n".join([*errors, summary]))
    compiled = compile_policy(result, engine)
    return ActivePolicy(
        policy=result.policy,
        flat=result.flat,
        digest=result.digest,
        role="launcher",
        name=compiled.name,
        source=source,
        compiled=compiled,
        origins={path: "{}:{}:{}".format(*result.locate(path)) for path in PATHS},
    )


def activate(carried: Carried, engine: str) -> ActivePolicy:
    """The policy of a child process, from what its launcher carried."""
    policy = policy_from_flat(carried.flat, engine=engine)
    compiled = explaining(compile_policy(policy, engine))
    return ActivePolicy(
        policy=policy,
        flat=carried.flat,
        digest=carried.digest,
        role="scheduler",
        name=compiled.name,
        source=carried.source,
        compiled=compiled,
        origins=carried.origins,
        settings=carried.settings,
        conflicts=carried.conflicts,
    )


def explaining(compiled: CompiledPolicy) -> CompiledPolicy:
    """The same policy, with its evictions remembered where this process is to explain misses."""
    eviction = compiled.eviction
    return replace(compiled, eviction=replace(eviction, explains=explains(os.environ, eviction.orders_by_metadata)))


def carried_by(active: ActivePolicy, handshake_dir: str) -> Carried:
    """What a launcher hands on of its policy, with the directory in which children report."""
    return Carried(
        digest=active.digest,
        flat=active.flat,
        source=active.source,
        handshake_dir=handshake_dir,
        settings=active.settings,
        conflicts=active.conflicts,
        origins=active.origins,
    )


def summary(active: ActivePolicy) -> Iterable[str]:
    """The lines that a launcher logs once every setting is resolved."""
    yield f"kvpolicy: policy {active.name} ({active.source}), digest {active.digest[:12]}"
    for known in active.settings.values():
        name = known.flag.removeprefix("--")
        yield f"  {name:24} {known.requested} -> {known.effective} ({known.decided_by})"


def say(line: str) -> None:
    """For a person at the terminal, before logging is set up or whatever its level."""
    print(line, file=sys.stderr, flush=True)
