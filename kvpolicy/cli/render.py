"""Diagnostics as text for people, JSON, GitHub annotations or SARIF."""

from __future__ import annotations

import json
import os
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable
from typing import IO, Any

from kvpolicy import __version__
from kvpolicy.language.diagnostics import Diagnostic
from kvpolicy.language.source import Source

__all__ = ["FORMATS", "render", "wants_colour"]

FORMATS = ("text", "json", "github", "sarif")

_WIDTH = 120  # columns of source shown around a caret
_TAB = "    "
_COLOUR = {"error": "31", "warning": "33", "info": "36", "help": "32"}


def render(
    found: list[Diagnostic], format: str, sources: dict[str, Source], *, checked: int, colour: bool | None = None
) -> str:
    """All findings in one of ``FORMATS``, with a final newline. ``checked`` counts the arguments, for the summary."""
    if format == "json":
        return json.dumps([d.to_json() for d in found], indent=2, ensure_ascii=False) + "\n"
    if format == "github":
        return "".join(_github(d) for d in found)
    if format == "sarif":
        return json.dumps(_sarif(found), indent=2, ensure_ascii=False) + "\n"
    paint = wants_colour(sys.stdout) if colour is None else colour
    return "".join(_text(d, sources.get(d.file), paint) for d in found) + _summary(found, checked)


def wants_colour(stream: IO[str]) -> bool:
    """Only on a terminal, and not when NO_COLOR says otherwise (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _text(d: Diagnostic, source: Source | None, paint: bool) -> str:
    def style(text: str, name: str) -> str:
        return f"\x1b[1;{_COLOUR[name]}m{text}\x1b[0m" if paint else text

    lines = [
        f"{_visible(d.file)}:{d.line}:{d.col}: {style(f'{d.code} {d.severity}:', d.severity)} {_visible(d.message)}"
    ]
    # An info item reports a fact: its place is enough, the line itself says nothing more.
    text = source.line(d.line) if source and d.severity != "info" else None
    if text is not None and text.strip():
        shown, caret = _excerpt(text, d.col - 1)
        gutter = f"{d.line:>5} | "
        lines.append(gutter + shown)
        lines.append(" " * (len(gutter) - 2) + "| " + " " * caret + style("^", d.severity))
    if d.help:
        lines.append(f"        {style('help:', 'help')} {_visible(d.help)}")
    return "\n".join(lines) + "\n"


def _excerpt(text: str, col: int) -> tuple[str, int]:
    """The part of a line around ``col`` (from 0), as a terminal shows it, and the caret's column in it."""
    start = max(0, col - _WIDTH * 2 // 3) if len(text) > _WIDTH else 0
    end = min(len(text), start + _WIDTH)
    before = "".join(_cell(c) for c in text[start:col])
    rest = "".join(_cell(c) for c in text[col:end])
    lead = "..." if start else ""
    return lead + before + rest + ("..." if end < len(text) else ""), _columns(lead + before)


def _cell(c: str) -> str:
    if c == "\t":
        return _TAB
    return c if c.isprintable() else "\N{REPLACEMENT CHARACTER}"


def _columns(text: str) -> int:
    """Terminal columns: east-asian wide characters take two, combining ones none."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _visible(text: str) -> str:
    """A policy's own words must not move the terminal's cursor or colour."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _summary(found: Iterable[Diagnostic], checked: int) -> str:
    count = Counter(d.severity for d in found)
    parts = [f"{count[s]} {s}{'s' if count[s] != 1 else ''}" for s in ("error", "warning") if count[s]]
    return f"{checked} {'policies' if checked != 1 else 'policy'} checked: {', '.join(parts) or 'no problems'}\n"


def _github(d: Diagnostic) -> str:
    """A workflow command (GitHub Actions), which becomes an annotation on the line."""
    kind = {"error": "error", "warning": "warning", "info": "notice"}[d.severity]
    message = f"{d.message} (help: {d.help})" if d.help else d.message
    where = f"file={_escape(d.file, True)},line={d.line},col={d.col},title={d.code}"
    return f"::{kind} {where}::{_escape(message)}\n"


def _escape(text: str, is_property: bool = False) -> str:
    text = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return text.replace(":", "%3A").replace(",", "%2C") if is_property else text


def _sarif(found: list[Diagnostic]) -> dict[str, Any]:
    """SARIF 2.1.0, as code-scanning services read it."""
    from kvpolicy.language.codes import CODES

    level = {"error": "error", "warning": "warning", "info": "note"}
    used = sorted({d.code for d in found})
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "kvpolicy",
                        "version": __version__,
                        "rules": [
                            {
                                "id": code,
                                "shortDescription": {"text": CODES[code].title if code in CODES else code},
                                **({"fullDescription": {"text": CODES[code].text}} if code in CODES else {}),
                            }
                            for code in used
                        ],
                    }
                },
                "columnKind": "unicodeCodePoints",
                "results": [
                    {
                        "ruleId": d.code,
                        "ruleIndex": used.index(d.code),
                        "level": level[d.severity],
                        "message": {"text": f"{d.message}\nhelp: {d.help}" if d.help else d.message},
                        "locations": [
                            {
                                "physicalLocation": {
                                    "artifactLocation": {"uri": d.file},
                                    "region": {"startLine": d.line, "startColumn": d.col},
                                }
                            }
                        ],
                        **({"properties": {"data": d.data}} if d.data is not None else {}),
                    }
                    for d in found
                ],
            }
        ],
    }
