"""A launcher's part of a start that is the same on every engine: the flag, the policy it names, the way to children."""

from __future__ import annotations

import argparse
import atexit
import logging
import os
from collections.abc import Container, Mapping
from typing import Any

from . import carry, handshake
from .active import ActivePolicy, set_current
from .flags import DISABLE_ENV, FILE_ENV, FLAG, FLAG_HELP, disabled
from .loading import carried_by, load_active, say, summary

__all__ = ["add_flag", "explicit_in", "hand_on", "policy_in", "say_verified"]

logger = logging.getLogger("kvpolicy")

_GIVEN = "_kvpolicy_explicit"  # on the namespace: how the operator gave a field


def add_flag(parser: argparse.ArgumentParser, fields: Container[str]) -> None:
    """Add our flag to an engine's `parser`, and have it note which of the `fields` (its own) are really given."""
    group = parser.add_argument_group("kvpolicy", "KV-cache policies (kvpolicy).")
    group.add_argument(FLAG, type=str, default=None, metavar="FILE", help=FLAG_HELP)
    for action in parser._actions:
        if action.dest in fields:
            action.__class__ = _recording(type(action))


def _recording(kind: type[argparse.Action]) -> type[argparse.Action]:
    """`kind`, noting on the namespace that it was used: else a given default looks like a missing flag."""

    class Recording(kind):  # type: ignore[misc, valid-type]
        def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
            given = vars(namespace).setdefault(_GIVEN, {})
            value = "" if self.nargs == 0 else f" {getattr(values, 'name', values)}"  # an enumeration's word for it
            given[self.dest] = f"{option_string}{value}"
            super().__call__(parser, namespace, values, option_string)

    Recording.__name__ = kind.__name__
    return Recording


def explicit_in(args: argparse.Namespace) -> Mapping[str, str]:
    """`{field: how the operator gave it}` of a parsed command line."""
    given: Mapping[str, str] = getattr(args, _GIVEN, {})
    return given


def policy_in(args: argparse.Namespace, engine: str) -> ActivePolicy | None:
    """The policy that a parsed command line names; None: it names none, or the operator switched kvpolicy off.

    SystemExit with the errors of a policy that has some.
    """
    source: str | None = getattr(args, "kv_policy", None)
    if not source:
        return None
    if disabled(os.environ):
        say(f"kvpolicy: {DISABLE_ENV} is set: {FLAG} {source} is ignored, the engine runs stock")
        return None
    if (other := os.environ.get(FILE_ENV)) and other != source:
        logger.warning("kvpolicy: %s %s wins over %s=%s", FLAG, source, FILE_ENV, other)
    return load_active(source, engine)


def hand_on(active: ActivePolicy) -> str:
    """Make `active`, whose settings are resolved, the policy of this process and of those it starts.

    The directory in which they report back; it goes with this process at the latest.
    """
    directory = handshake.new_directory()
    atexit.register(_discard_by, os.getpid(), directory)
    carry.export(carried_by(active, directory))
    set_current(active)
    logger.info("%s", "\n".join(summary(active)))
    return directory


def _discard_by(launcher_pid: int, directory: str) -> None:
    if os.getpid() == launcher_pid:  # a forked child runs this too
        handshake.discard(directory)


def say_verified(active: ActivePolicy, reports: list[dict[str, Any]], processes: str) -> None:
    """One line for the log once every process has reported; `processes` counts and names them."""
    logger.info(
        "kvpolicy: %s run policy %s, digest %s, core %s (%s)",
        processes,
        active.name,
        active.digest[:12],
        reports[0].get("core"),
        reports[0].get("core_reason"),
    )
