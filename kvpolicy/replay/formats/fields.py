"""Typed access to one row: a value or an error that names the field, what it holds, and the place."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from kvpolicy.eviction.envelope import HINTS_KEY, Envelope, read_envelope
from kvpolicy.replay.lines import Lines
from kvpolicy.replay.pages import number_of

__all__ = ["blocks", "count", "hints", "integer", "milliseconds", "text", "tokens"]


def count(row: dict[str, Any], key: str, lines: Lines, default: int | None = None) -> int:
    """A whole number of at least 0."""
    value = row.get(key, default)
    if value is None:
        raise _missing(row, key, lines)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value) or value < 0:
        raise lines.fail(f"'{key}' is {_show(value)}, expected a whole number of at least 0")
    return int(value)


def milliseconds(row: dict[str, Any], key: str, lines: Lines, scale: float = 1.0) -> int:
    """A time of at least 0; ``scale`` is the unit in milliseconds. Cut to whole milliseconds."""
    value = row.get(key)
    if value is None:
        raise _missing(row, key, lines)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e15:
        raise lines.fail(f"'{key}' is {_show(value)}, expected a time of at least 0")
    return int(value * scale)


def blocks(row: dict[str, Any], key: str, lines: Lines, input_tokens: int, block_tokens: int) -> Sequence[Hashable]:
    """A list of block ids, not more than ``input_tokens`` fill. Strings (which a trace may hold too) become numbers."""
    value = row.get(key)
    if value is None:
        raise _missing(row, key, lines)
    if not isinstance(value, list):
        raise lines.fail(f"'{key}' is {_show(value)}, expected a list of block ids")
    kinds = set(map(type, value))
    if kinds - {int, str}:
        wrong = next(kind.__name__ for kind in kinds if kind not in (int, str))
        raise lines.fail(f"'{key}' holds a {wrong}, expected whole numbers or strings")
    most = -(-input_tokens // block_tokens)
    if len(value) > most:
        raise lines.fail(
            f"{len(value)} {key} for {input_tokens} tokens of input: {most} blocks of {block_tokens} tokens hold them",
            "give the trace's own block size with --block-size",
        )
    return [number_of(each) if isinstance(each, str) else each for each in value] if str in kinds else value


def tokens(row: dict[str, Any], key: str, lines: Lines) -> list[int]:
    """A list of token ids."""
    value = row.get(key)
    if value is None:
        raise _missing(row, key, lines)
    if not isinstance(value, list) or set(map(type, value)) - {int}:
        raise lines.fail(f"'{key}' is {_show(value)}, expected a list of token ids")
    return value


def integer(row: dict[str, Any], key: str, lines: Lines) -> int | None:
    """A whole number of any sign, or ``None``."""
    value = row.get(key)
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise lines.fail(f"'{key}' is {_show(value)}, expected a whole number")


def hints(row: dict[str, Any]) -> Envelope | None:
    """What the request asked for itself: the envelope that the server was sent. As there, what cannot be read is
    counted, and asks for nothing."""
    return read_envelope(row.get(HINTS_KEY, row.get("hints")))


def text(row: dict[str, Any], key: str, lines: Lines) -> str | None:
    """A string, a number as one, or ``None``."""
    value = row.get(key)
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise lines.fail(f"'{key}' is {_show(value)}, expected a string")


def _missing(row: dict[str, Any], key: str, lines: Lines) -> Exception:
    if key in row:
        return lines.fail(f"'{key}' is null")
    return lines.fail(f"no '{key}' in this row", f"it has: {', '.join(list(row)[:8]) or 'nothing'}")


def _show(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 40 else f"{shown[:37]}..."
