"""Open a trace (plain, .gz, .zst or standard input) and hand out its JSON rows with their line numbers."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any

from kvpolicy.replay.errors import TraceError, TraceUsageError

__all__ = ["MAX_LINE_BYTES", "Lines"]

#: A longer line is no row: it is a file of another kind, and would only fill the memory.
MAX_LINE_BYTES = 256 * 1024 * 1024

#: What a logger puts before a row: `[2026-01-31 12:00:00] {`, or `[2026-01-31 12:00:00 TP0] {`.
_LOGGED = re.compile(rb"\[\d{4}-[^\]{}]{4,60}\]\s*(?=\{)")

_STAMPED = re.compile(rb"\[\d{4}-\d\d-\d\d[ T]")

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


class Lines:
    """The JSON rows of one file, one a line, streamed.

    In a server's log (a file whose first line is no JSON) rows stand behind a ``[time] `` and between other lines, that
    are passed over.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.name = "<stdin>" if path == "-" else path
        self.line = 0  # of the row handed out last, from 1
        self._is_log = False
        self._raw: IO[bytes] | None = None
        self._bytes = 0

    @property
    def progress(self) -> float | None:
        """Share of the file's bytes read so far, ``None`` where its size is not known (a pipe)."""
        if self._raw is None or not self._bytes:
            return None
        try:
            return min(1.0, self._raw.tell() / self._bytes)
        except (OSError, ValueError):
            return 1.0

    def rows(self) -> Iterator[Any]:
        """Every row, an object or a list; a :class:`TraceError` in place of a line that is no JSON. Blank lines are
        passed over.

        Raises:
            TraceUsageError: the file cannot be opened.
            TraceError: the compressed stream is broken.
        """
        with self._open() as stream:
            while True:
                try:
                    raw = stream.readline(MAX_LINE_BYTES)
                except (OSError, EOFError, zlib.error) as error:
                    raise TraceError(self.name, self.line + 1, f"the compressed data is damaged: {error}") from None
                if not raw:
                    return
                self.line += 1
                text = raw.strip()
                if not text:
                    continue
                if self.line == 1 and (text[:1] not in b"{[" or _STAMPED.match(text)):
                    self._is_log = True
                if text[:1] != b"{":
                    logged = _LOGGED.match(text)
                    if logged:
                        text = text[logged.end() :]
                    elif self._is_log:
                        continue
                yield self._row(text, raw.endswith(b"\n"))

    def why_empty(self) -> str | None:
        """What a file without a row may be."""
        if self._is_log:
            return "of a server's log, only requests are rows: SGLang writes them with --log-requests-format json"
        return None

    def fail(self, message: str, help: str | None = None) -> TraceError:
        """The error of the current row, to be raised by the reader of a format."""
        return TraceError(self.name, self.line, message, help)

    def _row(self, text: bytes, whole: bool) -> Any:
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
            reason = getattr(error, "msg", None) or str(error)
            column = f" at column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
            cut = None if whole else "the last line may be cut off: was the trace still being written?"
            return self.fail(f"not JSON: {reason}{column}", cut)
        if not isinstance(row, dict | list):
            return self.fail(f"a row is a JSON object, this is a {_kind(row)}")
        return row

    def _open(self) -> IO[bytes]:
        if self.path == "-":
            raw: IO[bytes] = sys.stdin.buffer
        else:
            try:
                raw = open(self.path, "rb")  # noqa: SIM115 -- closed with the stream that is returned
                status = os.fstat(raw.fileno())
            except (OSError, ValueError) as error:
                raise TraceUsageError(f"cannot open '{self.path}': {getattr(error, 'strerror', error)}") from None
            self._bytes = status.st_size
        self._raw = raw
        start = raw.peek(4)[:4] if isinstance(raw, io.BufferedReader) else b""
        if start.startswith(_GZIP):
            return gzip.GzipFile(fileobj=raw, mode="rb")  # type: ignore[return-value]
        if start.startswith(_ZSTD):
            return _zstd(raw, self.name)
        return raw


def _zstd(raw: IO[bytes], name: str) -> IO[bytes]:
    """Zstandard: Python's own from 3.14, the zstandard package, or the zstd program, whichever is there."""
    opener: Callable[[IO[bytes]], IO[bytes]]
    try:
        from compression import zstd  # type: ignore[import-not-found,unused-ignore]

        opener = lambda f: zstd.ZstdFile(f)  # type: ignore[no-any-return,unused-ignore]  # noqa: E731
    except ImportError:
        try:
            import zstandard  # type: ignore[import-not-found,unused-ignore]

            opener = lambda f: io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(f, read_across_frames=True))  # noqa: E731
        except ImportError:
            program = shutil.which("zstd")
            if program is None:
                raise TraceUsageError(
                    f"'{name}' is Zstandard data: install the Python package zstandard, or the zstd program"
                ) from None
            return _Program([program, "-dc"], raw)
    return opener(raw)


class _Program(io.BufferedReader):
    """The output of a decompressing program; its failure is an error of the stream, not silence at the end."""

    def __init__(self, command: list[str], source: IO[bytes]) -> None:
        try:
            os.lseek(source.fileno(), 0, os.SEEK_SET)  # what was peeked lies in a buffer that the program does not see
        except OSError:
            raise TraceUsageError("Zstandard data on standard input: pipe it through `zstd -dc`") from None
        self._process = subprocess.Popen(command, stdin=source, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert self._process.stdout is not None
        super().__init__(self._process.stdout.raw)  # type: ignore[attr-defined]

    def readline(self, size: int | None = -1, /) -> bytes:
        line = super().readline(-1 if size is None else size)
        if not line and self._process.wait() != 0:
            assert self._process.stderr is not None
            reason = self._process.stderr.read().decode(errors="replace").strip().splitlines()
            raise OSError(reason[-1] if reason else "zstd failed")
        return line

    def close(self) -> None:
        super().close()
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()


def _kind(value: object) -> str:
    names = {str: "string", int: "number", float: "number", bool: "boolean"}
    return names.get(type(value), "null")
