"""Plain data -> YAML that reads back to the same data, with an optional comment after each value."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from kvpolicy.language.scalars import resolve_plain
from kvpolicy.language.source import Problem

__all__ = ["dump"]

_PLAIN = re.compile(r"[A-Za-z0-9(_/][A-Za-z0-9_.()<>=*/+% -]*")
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}

Note = Callable[[tuple[str | int, ...]], str]


def dump(data: dict[str, Any], note: Note | None = None) -> str:
    """Block style; short lists of scalars stay on one line. ``note`` gives the comment of a leaf by its path."""
    lines: list[tuple[str, str]] = []
    _mapping(data, 0, (), lines, note)
    width = min(max((len(text) for text, comment in lines if comment), default=0), 72)
    return "".join(f"{text:<{width}}  # {comment}\n" if comment else f"{text}\n" for text, comment in lines)


def _mapping(
    data: dict[str, Any], depth: int, path: tuple[str | int, ...], lines: list[tuple[str, str]], note: Note | None
) -> None:
    for name, value in data.items():
        _value(f"{'  ' * depth}{_scalar(name)}:", value, depth + 1, (*path, name), lines, note)


def _value(
    head: str, value: Any, depth: int, path: tuple[str | int, ...], lines: list[tuple[str, str]], note: Note | None
) -> None:
    if isinstance(value, dict) and value:
        lines.append((head, ""))
        _mapping(value, depth, path, lines, note)
    elif isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        lines.append((head, ""))
        for index, item in enumerate(value):
            start = len(lines)
            if isinstance(item, dict) and item:
                _mapping(item, depth + 1, (*path, index), lines, note)
                text, comment = lines[start]
                lines[start] = (f"{'  ' * depth}- {text.lstrip()}", comment)
            else:
                _value(f"{'  ' * depth}-", item, depth + 1, (*path, index), lines, note)
    else:
        text = f"[{', '.join(_scalar(item) for item in value)}]" if isinstance(value, list) else _scalar(value)
        lines.append((f"{head} {text}", note(path) if note else ""))


def _scalar(value: Any) -> str:
    if isinstance(value, dict):
        return "{}"
    if not isinstance(value, str):
        return json.dumps(value)
    return value if _is_plain(value) else _quoted(value)


def _quoted(text: str) -> str:
    return f'"{"".join(_ESCAPES.get(c) or (c if c.isprintable() else _escape(ord(c))) for c in text)}"'


def _escape(codepoint: int) -> str:
    return f"\\u{codepoint:04x}" if codepoint <= 0xFFFF else f"\\U{codepoint:08x}"


def _is_plain(text: str) -> bool:
    """Whether the text, unquoted, reads back as itself wherever it stands; quoting too much does no harm."""
    if not _PLAIN.fullmatch(text) or text.endswith(" "):
        return False
    try:
        return resolve_plain(text) == text
    except Problem:
        return False
