"""Where a section of a policy works: the shape of each adapter's tables, and what happens where it does not.

An adapter lists its engine's features as rows, asks :func:`decide` with what is about to start, and either ends the
start with the words of :func:`refusal` or lets the engine's order stay with :func:`yield_to_engine`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from kvpolicy.facts.engines import is_supported, supported_span

from .active import ActivePolicy, Conflict
from .flags import FLAG, UNTESTED_ENV

__all__ = ["Feature", "Kind", "Verdict", "decide", "refusal", "require_supported", "yield_to_engine"]

logger = logging.getLogger("kvpolicy")

Kind = Literal["supported", "stock", "refused"]
S = TypeVar("S")  # what an adapter knows of the configuration about to start


def require_supported(engine: str, label: str, version: str) -> None:
    """SystemExit for a version outside the supported range, whose seams nobody looked at; see UNTESTED_ENV.

    `engine` as in :data:`~kvpolicy.facts.engines.SUPPORTED`, `label` as its makers write it.
    """
    if is_supported(engine, version):
        return
    span = supported_span(engine)
    if os.environ.get(UNTESTED_ENV) == "1":
        logger.warning("%s %s is outside the supported range %s; continuing", label, version, span)
        return
    raise SystemExit(
        f"kvpolicy: {label} {version} is not supported: the places where a policy goes in are known for {span}.\n"
        f"Remove {FLAG}, use a supported version, or set {UNTESTED_ENV}=1 to try it on your own risk."
    )


@dataclass(frozen=True, slots=True)
class Verdict:
    """`supported`: the policy decides. `stock`: the engine's order stays, a conflict. `refused`: the server must not
    start."""

    kind: Kind
    winner: str = ""  # the flag or fact that decides
    message: str = ""
    section: str = "eviction"  # of the policy


@dataclass(frozen=True, slots=True)
class Feature(Generic[S]):
    """One row of an adapter's table."""

    name: str  # as an operator calls it
    flag: str  # what turns it on
    kind: Kind
    reason: str
    used: Callable[[S], bool]


def decide(features: Iterable[Feature[S]], start: S, section: str = "eviction") -> Verdict:
    """The first row that is in use and not `supported` decides."""
    for feature in features:
        if feature.kind != "supported" and feature.used(start):
            message = f"the policy's {section} does not work with {feature.name} ({feature.flag}): {feature.reason}"
            return Verdict(feature.kind, feature.flag, message, section)
    return Verdict("supported", section=section)


def refusal(active: ActivePolicy, verdict: Verdict) -> str | None:
    """Why the server must not start, in words; None: it may."""
    if verdict.kind == "supported" or (verdict.kind == "stock" and active.compiled.on_conflict == "warn"):
        return None
    ways = f"drop the flag or the {verdict.section} section"
    if verdict.kind == "stock":
        ways += ", or set `cache: {on_conflict: warn}` to let the engine win"
    return (
        f"kvpolicy: {active.source}: the policy cannot be honoured:\n"
        f"  conflict: {verdict.section}: {verdict.message} (policy: {active.origin(verdict.section)})\n"
        f"  help: {ways}"
    )


def yield_to_engine(active: ActivePolicy, verdict: Verdict) -> None:
    """Record and say that the engine's own order stays."""
    section = verdict.section
    origin = active.origin(section)
    message = f"{section}: {verdict.message}; the engine's own order stays (policy: {origin})"
    active.conflicts.append(Conflict(section, "policy", "engine order", verdict.winner, origin, message))
    logger.warning("kvpolicy: conflict: %s", message)
