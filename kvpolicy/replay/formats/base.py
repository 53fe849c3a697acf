"""The contract of a trace format."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from kvpolicy.replay.lines import Lines
from kvpolicy.replay.requests import Request, Session, TraceInfo

__all__ = ["Format", "Options"]

#: What a person may add to what the rows say: ``block_tokens``, ``tokenizer``.
Options = dict[str, Any]


class Format:
    """Reads one trace, row by row. Keeps nothing that grows with the trace, only what is still open."""

    name: ClassVar[str]
    summary: ClassVar[str]  # one line, for --help and docs

    def __init__(self, lines: Lines, options: Options) -> None:
        self.lines = lines
        self.options = options
        self.info: TraceInfo

    @classmethod
    def matches(cls, row: Any) -> bool:
        """Whether a file's first row looks like this format."""
        raise NotImplementedError

    def start(self, first: Any) -> TraceInfo:
        """What the first row says of the whole trace. The row is given to :meth:`row` too."""
        raise NotImplementedError

    def row(self, row: Any) -> Iterable[Request | Session]:
        """The requests (or sessions) that are complete with this row, in order of arrival.

        Raises:
            TraceError: the row is not as the format says; nothing of it was taken in.
        """
        raise NotImplementedError

    def finish(self) -> Iterable[Request]:
        """Requests still open at the end of the trace."""
        return ()

    def block_tokens(self, stated: object, default: int) -> int:
        """The block size: as given by hand, else as the trace states it, else the format's own."""
        given = self.options.get("block_tokens")
        if isinstance(given, int):
            return given
        if isinstance(stated, int) and not isinstance(stated, bool) and stated > 0:
            return stated
        return default
