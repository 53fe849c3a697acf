"""A trace file, opened: its format found, its sessions interleaved, its requests streamed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import Any, cast

from kvpolicy.replay.errors import TraceError, TraceUsageError
from kvpolicy.replay.formats import FORMATS, Options, detect, format_named
from kvpolicy.replay.interleave import Interleaving, interleave
from kvpolicy.replay.lines import Lines
from kvpolicy.replay.requests import Request, Session, TraceInfo

__all__ = ["Trace"]


class Trace:
    """One file of requests. Opening reads the first row only; :meth:`requests` may be iterated once.

    ``skip_bad`` passes over rows that cannot be read; ``bad_rows`` counts them and ``first_bad`` keeps the first.

    Raises:
        TraceUsageError: the file cannot be opened.
        TraceError: the first row is no JSON, or of no known format.
    """

    def __init__(
        self,
        path: str,
        format: str | None = None,
        options: Options | None = None,
        interleaving: Interleaving | None = None,
        limit: int | None = None,
        skip_bad: bool = False,
    ) -> None:
        self.lines = Lines(path)
        self.name = self.lines.name
        self.interleaving = interleaving or Interleaving()
        self.bad_rows = 0
        self.first_bad: TraceError | None = None
        self.out_of_order = 0  # requests that arrive before their predecessor in the file
        self._skip_bad = skip_bad
        self._limit = limit
        rows = self._good_rows()
        first = next(rows, None)
        if first is None:
            raise self.first_bad or TraceError(self.name, 1, "no request in this file", self.lines.why_empty())
        chosen = format_named(format) if format else detect(first)
        if chosen is None:
            fields = ", ".join(list(first)[:8]) if isinstance(first, dict) else "a list"
            raise TraceError(
                self.name,
                self.lines.line,
                f"no known trace format has rows like this one ({fields or 'nothing'})",
                f"name one with --trace-format: {', '.join(FORMATS)}",
            )
        if not isinstance(first, dict) and chosen.name != "kv-events":
            raise self.lines.fail("a row of this format is a JSON object, this is a list")
        self._reader = chosen(self.lines, options or {})
        self.info: TraceInfo = self._reader.start(first)
        if self.info.block_tokens < 1:
            raise TraceUsageError(f"{self.name}: a block of {self.info.block_tokens} tokens")
        self._rows = chain((first,), rows)

    def requests(self) -> Iterator[Request]:
        """The requests in order of arrival, as the trace has them (file order where it has no sessions)."""
        read = self._read()
        if self.info.has_sessions:
            requests = interleave(cast("Iterator[Session]", read), self.interleaving)
        else:
            requests = self._in_file_order(cast("Iterator[Request]", read))
        return islice(requests, self._limit)

    def _in_file_order(self, requests: Iterator[Request]) -> Iterator[Request]:
        last_ms = 0
        for request in requests:
            if request.arrival_ms < last_ms:
                self.out_of_order += 1
            else:
                last_ms = request.arrival_ms
            yield request

    def _read(self) -> Iterator[Request | Session]:
        reader = self._reader
        is_list_format = reader.name == "kv-events"
        for row in self._rows:
            try:
                if not is_list_format and not isinstance(row, dict):
                    raise self.lines.fail("a row is a JSON object, this is a list")
                items = reader.row(row)
            except TraceError as error:
                self._bad(error)
                continue
            yield from items
        try:
            yield from reader.finish()
        except TraceError as error:
            self._bad(error)

    def _good_rows(self) -> Iterator[Any]:
        rows = self.lines.rows()
        while True:
            try:
                row = next(rows)
            except StopIteration:
                return
            if isinstance(row, TraceError):
                self._bad(row)
            else:
                yield row

    def _bad(self, error: TraceError) -> None:
        if not self._skip_bad:
            raise error
        self.bad_rows += 1
        self.first_bad = self.first_bad or error
