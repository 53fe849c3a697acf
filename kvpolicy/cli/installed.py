"""Which engine a command starts: one that the interpreter which runs the command can import."""

from __future__ import annotations

import importlib.util
import sys

from kvpolicy.language import ENGINES

__all__ = ["NotInstalled", "installed_engine"]


class NotInstalled(Exception):
    """The engine that was asked for is not here, or it is not clear which one is meant."""


def installed_engine(asked: str | None) -> str:
    """The engine to run, which must be importable by this interpreter. NotInstalled."""
    found = [engine for engine in ENGINES if importlib.util.find_spec(engine) is not None]
    if asked in found:
        return asked
    if asked is not None:
        raise NotInstalled(f"{asked} is not installed beside {sys.executable}: run this where the engine is")
    if len(found) == 1:
        return found[0]
    what = "both sglang and vllm are" if found else "neither sglang nor vllm is"
    raise NotInstalled(
        f"{what} installed here: {'say which with --engine' if found else 'run this where the engine is'}"
    )
