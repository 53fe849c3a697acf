"""A progress line on stderr for runs that take a while; nothing where stderr is no terminal."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from kvpolicy.replay.lines import Lines

__all__ = ["Progress"]

_FIRST_S, _EVERY_S, _CELLS = 0.5, 0.1, 24


class Progress:
    """``with Progress(lines, "trace.gz") as step: step(requests_done, "")``."""

    def __init__(self, lines: Lines, label: str) -> None:
        self._lines, self._label = lines, label.rsplit("/", 1)[-1][:32]
        self._on = sys.stderr.isatty()
        self._next = time.monotonic() + _FIRST_S
        self._shown = False

    def __enter__(self) -> Progress:
        return self

    def __call__(self, requests: int, doing: str) -> None:
        if not self._on or (requests & 31 and not doing):
            return
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _EVERY_S
        self._shown = True
        share = 1.0 if doing else self._lines.progress
        if share is None:
            bar = ""
        else:
            full = int(share * _CELLS)
            bar = f" [{'#' * full}{'.' * (_CELLS - full)}] {100 * share:3.0f}%"
        sys.stderr.write(f"\r\x1b[K{self._label}{bar} {requests:,} requests {doing}")
        sys.stderr.flush()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
