"""Trace formats by name, and the choice among them from a file's first row."""

from __future__ import annotations

from typing import Any

from kvpolicy.replay.errors import TraceUsageError
from kvpolicy.replay.formats.agentic import Agentic
from kvpolicy.replay.formats.bailian import Bailian
from kvpolicy.replay.formats.base import Format, Options
from kvpolicy.replay.formats.dynamo import Dynamo
from kvpolicy.replay.formats.kv_events import KvEvents
from kvpolicy.replay.formats.mooncake import Mooncake
from kvpolicy.replay.formats.recorded import Recorded
from kvpolicy.replay.formats.sglang_log import SGLangLog
from kvpolicy.replay.formats.tokens import Tokens

__all__ = ["FORMATS", "Format", "Options", "detect", "format_named"]

#: In the order in which a first row is tried: the more particular ones first.
FORMATS: dict[str, type[Format]] = {
    f.name: f for f in (Recorded, Agentic, SGLangLog, KvEvents, Dynamo, Bailian, Mooncake, Tokens)
}


def format_named(name: str) -> type[Format]:
    """Raises TraceUsageError, naming the known ones."""
    try:
        return FORMATS[name]
    except KeyError:
        raise TraceUsageError(f"unknown trace format '{name}' (known: {', '.join(FORMATS)})") from None


def detect(row: Any) -> type[Format] | None:
    """The format whose rows look like this one."""
    return next((f for f in FORMATS.values() if f.matches(row)), None)
