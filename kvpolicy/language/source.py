"""One policy file's text: bytes -> checked characters, and an index into them -> line and column."""

from __future__ import annotations

import bisect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvpolicy.language.diagnostics import Diagnostic, Severity

__all__ = ["MAX_BYTES", "Problem", "Source", "decode"]

#: A policy is read whole and parsed in pure Python (about 150 KiB/s); a larger file is a mistake, not a policy.
MAX_BYTES = 128 * 1024

# The line breaks of YAML 1.1, as PyYAML counts them.
_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")


class Problem(Exception):
    """A finding that ends the reading of a file, raised where it is seen and turned into one diagnostic."""

    def __init__(self, code: str, message: str, help: str | None = None, *, index: int = 0) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.help = help
        self.index = index  # characters into the text
        self.place = (1, 1)  # line and column, for a file that gave no text to index


@dataclass(slots=True, eq=False)
class Source:
    """A file's name (as the person gave it) and text."""

    name: str
    text: str = ""
    _starts: list[int] = field(default_factory=list)
    _ends: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        breaks = list(_BREAK.finditer(self.text))
        self._starts = [0, *(m.end() for m in breaks)]
        self._ends = [*(m.start() for m in breaks), len(self.text)]

    def position(self, index: int) -> tuple[int, int]:
        """(line, column) of a character, both from 1."""
        line = bisect.bisect_right(self._starts, max(index, 0)) - 1
        return line + 1, index - self._starts[line] + 1

    def line(self, number: int) -> str | None:
        """The text of a line (from 1) without its break, or None past the end."""
        if not 1 <= number <= len(self._starts):
            return None
        return self.text[self._starts[number - 1] : self._ends[number - 1]]

    def at(
        self,
        index: int,
        code: str,
        severity: Severity,
        message: str,
        help: str | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> Diagnostic:
        line, col = self.position(index)
        return Diagnostic(self.name, line, col, code, severity, message, help, dict(data) if data is not None else None)


def decode(raw: bytes) -> str:
    """The text of a policy file.

    Raises:
        Problem: empty (KVP102), binary (KVP103), not UTF-8 (KVP104) or too large (KVP105).
    """
    if len(raw) > MAX_BYTES:
        raise Problem(
            "KVP105",
            f"the file is larger than {MAX_BYTES // 1024} KiB",
            "a policy is a page or two of YAML; is this the right file?",
        )
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise Problem("KVP104", "the file is UTF-16, not UTF-8", "save it as UTF-8")
    if b"\0" in raw:
        raise Problem("KVP103", "the file is binary (it contains a NUL byte)", "give a YAML text file")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        readable = raw[: error.start].decode("utf-8-sig", errors="replace")
        problem = Problem(
            "KVP104", f"the file is not UTF-8 (it has the byte 0x{raw[error.start]:02x})", "save it as UTF-8"
        )
        problem.place = Source("", readable).position(len(readable))
        raise problem from None
    if not text.strip():
        raise Problem("KVP102", "the file is empty", "`kvpolicy init FILE` writes a policy to start from")
    return text
