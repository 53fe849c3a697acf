"""A trace file, opened: its format found, its sessions interleaved, its requests streamed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import cast

from kvpolicy.replay.errors import TraceError, TraceUsageError
from kvpolicy.replay.formats import FORMATS, Options, detect, format_named
from kvpolicy.replay.interleave import Interleaving, interleave
from kvpolicy.replay.lines import Lines
from kvpolicy.replay.requests import Request, Session, TraceInfo

__all__ = ["Trace"]


class Trace:
    """One file of requests. Opening reads the first row only; :meth:`requests` may be iterated once.

    Raises:
        TraceUsageError: the file cannot be opened, or no format is known that it could be in.
        TraceError: the first row is no JSON object.
    """

    def __init__(
        self,
        path: str,
        format: str | None = None,
        options: Options | None = None,
        interleaving: Interleaving | None = None,
        limit: int | None = None,
    ) -> None:
        self.lines = Lines(path)
        self.name = self.lines.name
        self.interleaving = interleaving or Interleaving()
        self._options = options or {}
        self._limit = limit
        rows = self.lines.rows()
        first = next(rows, None)
        if first is None:
            raise TraceError(self.name, 1, "the trace is empty")
        chosen = format_named(format) if format else detect(first)
        if chosen is None:
            raise TraceError(
                self.name,
                self.lines.line,
                f"no known trace format has rows with the fields {', '.join(list(first)[:8]) or '(none)'}",
                f"name one with --trace-format: {', '.join(FORMATS)}",
            )
        self._format = chosen
        self.info: TraceInfo = chosen.info(first, self._options)
        if self.info.block_tokens < 1:
            raise TraceUsageError(f"{self.name}: a block of {self.info.block_tokens} tokens")
        self._rows = chain((first,), rows)

    def requests(self) -> Iterator[Request]:
        """The requests in order of arrival, as the trace has them (file order where it has no sessions)."""
        read = self._format.read(self._rows, self.lines, self.info, self._options)
        if self.info.has_sessions:
            requests = interleave(cast("Iterator[Session]", read), self.interleaving)
        else:
            requests = cast("Iterator[Request]", read)
        return islice(requests, self._limit)
