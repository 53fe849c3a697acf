"""The contract of a trace format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from kvpolicy.replay.lines import Lines
from kvpolicy.replay.requests import Request, Session, TraceInfo

__all__ = ["Format", "Options", "Rows"]

Rows = Iterator[dict[str, Any]]
#: ``--block-size``, ``--tokenizer``: what a person may add to what the rows say.
Options = dict[str, Any]


class Format:
    """One way to write a trace as JSON rows. Readers stream; they keep nothing that grows with the trace."""

    name: ClassVar[str]
    summary: ClassVar[str]  # one line, for --help

    def matches(self, row: dict[str, Any]) -> bool:
        """Whether a file's first row looks like this format."""
        raise NotImplementedError

    def info(self, first: dict[str, Any], options: Options) -> TraceInfo:
        """What the first row says of the whole trace."""
        raise NotImplementedError

    def read(self, rows: Rows, lines: Lines, info: TraceInfo, options: Options) -> Iterator[Request | Session]:
        """The requests, or the sessions, in file order.

        Raises:
            TraceError: a row is not as the format says; ``lines`` knows the place.
        """
        raise NotImplementedError
