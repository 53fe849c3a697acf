"""From an offset inside a decoded scalar back to its place in the file, whatever the YAML style.

Folding, indentation and chomping change only white space, so every other character of a scalar stands in the source in
the same order, one for one (an escape or a doubled quote counts as its one character). Those are paired; a blank is
placed by stepping on from the character before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from kvpolicy.language.tree import Scalar

__all__ = ["source_index"]

_ANCHOR = re.compile(r"&\S+(?:\s+|#[^\n]*\n)*")
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
_BLANK_ESCAPES = frozenset(" \tntrvfNLP_")  # what str.isspace() calls white space


def source_index(scalar: Scalar, offset: int) -> int:
    """Where in ``scalar.source.text`` the decoded character at ``offset`` is; the length gives the place after it."""
    text, end = scalar.source.text, scalar.end
    start = scalar.index
    if anchor := _ANCHOR.match(text, start, end):
        start = anchor.end()
    marks = _characters(text, start, end, scalar.style)
    after = start + 1 if scalar.style in ("'", '"') else start  # where the next character may stand
    for char in scalar.text[:offset]:
        if not char.isspace():
            _, after = next(marks, (after, after))
        elif after < end and text[after] in " \t":
            after += 1
    if offset < len(scalar.text) and not scalar.text[offset].isspace():
        return next(marks, (after, after))[0]
    return after


def _characters(text: str, start: int, end: int, style: str | None) -> Iterator[tuple[int, int]]:
    """(start, end) in the source of each character of the scalar that is not white space."""
    if style in ("|", ">"):
        start = text.find("\n", start, end)  # past the header: indicators and a comment
        start = end if start < 0 else start
    elif style is not None:
        start, end = start + 1, end - 1  # the quotes
    at = start
    while at < end:
        width, blank = 1, text[at].isspace()
        if style == "'" and text[at] == "'":
            width = 2
        elif style == '"' and text[at] == "\\" and at + 1 < end:
            width, blank = _escape(text, at, end)
        if not blank:
            yield at, at + width
        at += width


def _escape(text: str, at: int, end: int) -> tuple[int, bool]:
    """(length, whether it stands for white space) of a double-quoted escape."""
    kind = text[at + 1]
    if kind in _HEX_DIGITS:
        width = 2 + _HEX_DIGITS[kind]
        try:
            return width, chr(int(text[at + 2 : at + width], 16)).isspace()
        except (ValueError, OverflowError):
            return min(width, end - at), False
    is_line_break = kind.isspace() and kind not in " \t"  # escaped away
    return 2, is_line_break or kind in _BLANK_ESCAPES
