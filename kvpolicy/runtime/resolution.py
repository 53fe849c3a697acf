"""The policy's start-up values against explicit flags, the engine's resolution, and what was really built.

The preferred values go in as if an operator had given them, only where the operator gave none; the engine's own
resolution then has the last word. Three comparisons follow: explicit flags before resolution (:func:`ask`), the
resolved arguments after it, and the objects that were built (both :func:`compare`). A difference outside the policy's
accept list is a conflict; `on_conflict` says whether it ends the start. Which fields an engine has, and how its words
translate, is the adapter's: it makes the :class:`Request` list.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from kvpolicy.compiler import Preference

from .active import ActivePolicy, Conflict, Setting

__all__ = ["Request", "Use", "ask", "compare", "conflict", "raise_or_note"]

logger = logging.getLogger("kvpolicy")


class Use(enum.Enum):
    """What is done with the engine's field."""

    SET = "set"  # set where the operator left it, then compared
    WATCH = "watch"  # never set; compared wherever the engine or the operator gave it a value
    EXPLICIT = "explicit"  # never set; compared with an explicit flag alone


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class Request:
    """One value a policy asks of the engine."""

    path: str  # in the policy
    field: str  # in the engine's argument record
    flag: str  # that sets the field
    preference: Preference[Any]
    use: Use = Use.SET
    to_engine: Callable[[Any], Any] = _same
    to_policy: Callable[[Any], Any] = _same
    #: Why the engine cannot have a value that is not possible; None: it is asked all the same, and says so itself.
    impossible: str | None = None
    #: An `auto` among the accepted values lets the engine choose freely; False: it is a value like others.
    is_auto_free: bool = True

    def accepts(self, value: Any) -> bool:
        """Whether `value` honours the policy."""
        return self.preference.accepts(value) or (self.is_auto_free and "auto" in self.preference.candidates)


def ask(
    active: ActivePolicy,
    requests: Iterable[Request],
    record: Any,
    explicit: Mapping[str, str],
    possible: Callable[[str, Any], bool],
    *,
    engine: str,
    put: Callable[[Any, str, Any], None] = setattr,
) -> None:
    """Put the policy's values into the engine's unresolved argument `record` and settle them against explicit flags.

    `explicit` maps a field to how the operator gave it; `possible(field, value)` says whether this machine can run a
    value, so that an acceptable one is asked for where the preferred one cannot run; `engine` is its name for people.
    SystemExit under `on_conflict: error`.
    """
    conflicts: list[Conflict] = []
    for request in requests:
        prefer, origin = request.preference.prefer, active.origin(request.path)
        if not hasattr(record, request.field):
            if request.use is Use.SET:
                why = f"this {engine} has no {request.flag}"
                conflicts.append(conflict(request, None, f"this {engine}", why, origin))
            continue
        if request.field in explicit:
            value = request.to_policy(getattr(record, request.field))
            given = explicit[request.field]
            if not request.accepts(value):
                conflicts.append(conflict(request, value, given, f"{given} was given explicitly", origin))
            setting = Setting(request.path, request.flag, prefer, value, given, origin)
        elif request.use is Use.SET:
            value = request.preference.first_possible(partial(possible, request.field))
            if request.impossible is not None and not possible(request.field, value):
                conflicts.append(conflict(request, None, f"this {engine}", request.impossible, origin))
                continue
            put(record, request.field, request.to_engine(value))
            decided = "policy" if value == prefer else f"accept list ({prefer} cannot run here)"
            setting = Setting(request.path, request.flag, prefer, value, decided, origin)
        else:
            continue
        active.settings[request.field] = setting
    raise_or_note(active, conflicts)


def compare(
    active: ActivePolicy,
    requests: Iterable[Request],
    found: Mapping[str, Any],
    winner: Callable[[str], str],
    *,
    is_watching: bool = False,
) -> None:
    """Compare with what the engine decided or built, naming who did. SystemExit under `on_conflict: error`.

    `found` is `{field: value in the policy's words}`; a field that could not be read off is absent. `is_watching`:
    fields that were never asked for count too, if the engine gave them a value.
    """
    conflicts: list[Conflict] = []
    for request in requests:
        effective = found.get(request.field)
        known = active.settings.get(request.field)
        if known is None:
            if not is_watching or effective is None or request.use is Use.EXPLICIT:
                continue
            prefer, origin = request.preference.prefer, active.origin(request.path)
            known = active.settings[request.field] = Setting(request.path, request.flag, prefer, prefer, origin=origin)
        if request.field not in found or effective in (
            known.effective,
            request.to_policy(request.to_engine(known.effective)),
        ):
            continue
        if any(one.setting == request.path and one.winner == known.decided_by for one in active.conflicts):
            active.settings[request.field] = replace(known, effective=effective)  # what the winning flag came to
            continue
        by = winner(request.field)
        active.settings[request.field] = replace(known, effective=effective, decided_by=by)
        if not request.accepts(effective):
            outcome = f"{by} makes it {effective} ({request.flag})"
            conflicts.append(conflict(request, effective, by, outcome, known.origin))
    raise_or_note(active, conflicts)


def conflict(request: Request, effective: Any, winner: str, outcome: str, origin: str) -> Conflict:
    """Say that `outcome` stands against what the policy asks."""
    prefer = request.preference.prefer
    also = [str(value) for value in request.preference.candidates if value != prefer]
    accepted = f" (also accepted: {', '.join(also)})" if also else ""
    message = f"{request.path}: the policy asks for {prefer}{accepted} at {origin}, but {outcome}"
    return Conflict(request.path, prefer, effective, winner, origin, message)


def raise_or_note(active: ActivePolicy, conflicts: Iterable[Conflict]) -> None:
    """All conflicts at once: SystemExit naming both sides of each, or a note of each under `on_conflict: warn`."""
    found = list(conflicts)
    if not found:
        return
    if active.compiled.on_conflict == "error":
        lines = "\n".join(f"  conflict: {conflict.message}" for conflict in found)
        raise SystemExit(
            f"kvpolicy: {active.source}: the policy cannot be honoured:\n{lines}\n"
            "  help: change one side, extend the accept list, or set `cache: {on_conflict: warn}` to let the engine win"
        )
    active.conflicts += found
    for one in found:
        logger.warning("kvpolicy: conflict, going on (on_conflict: warn): %s", one.message)
