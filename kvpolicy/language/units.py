"""Quantities with units: shares (`2%`), durations (`600s`) and token counts (`8Ki`), each with one canonical number.

A bare number is refused where a unit decides the meaning (is `ttl: 600` seconds or milliseconds?); token counts may
be bare.
"""

from __future__ import annotations

import re
from typing import Any

__all__ = [
    "DURATION_PATTERN",
    "SHARE_PATTERN",
    "TOKENS_PATTERN",
    "UnitError",
    "parse_duration_ms",
    "parse_share",
    "parse_tokens",
]

_NUMBER = r"[0-9]+(\.[0-9]+)?"
SHARE_PATTERN = r"^(100(\.0+)?|[0-9]{1,2}(\.[0-9]+)?) ?%$"
DURATION_PATTERN = rf"^(?!0+(\.0+)? ?[a-z]){_NUMBER} ?(ms|s|m|h)$"
TOKENS_PATTERN = rf"^{_NUMBER} ?(Ki|Mi|Gi|k|M|G)$"

_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
_TOKENS = {"k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
_QUANTITY = re.compile(rf"({_NUMBER}) ?([^0-9\s]*)")
#: Ten years: nothing in a cache lives longer, and milliseconds stay far inside 64 bits.
MAX_DURATION_MS = 10 * 365 * 24 * _MS["h"]
MAX_TOKENS = 2**40


class UnitError(ValueError):
    """A quantity that cannot be read: ``code`` KVP205 (unit), KVP206 (range) or KVP203 (not a quantity at all)."""

    def __init__(self, code: str, message: str, help: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.help = help


def parse_share(value: Any) -> float:
    """``20%`` -> 0.2. Raises UnitError unless it is a percentage from 0% to 100%."""
    number, unit = _split(value, "a share", "write a percentage, like 20%")
    if unit != "%":
        guess = f"{number * 100:g}%" if not unit and 0 < number <= 1 else f"{number:g}%"
        raise UnitError("KVP205", _wrong_unit(value, unit, "a share", "%"), f"write a percentage, like {guess}")
    if number > 100:
        raise UnitError("KVP206", f"{value} is more than the whole", "a share lies between 0% and 100%")
    return number / 100


def parse_duration_ms(value: Any) -> int:
    """``250ms``, ``600s``, ``10m``, ``1h`` -> whole milliseconds, at least 1."""
    number, unit = _split(value, "a duration", "write a number with ms, s, m or h, like 600s")
    if unit not in _MS:
        raise UnitError(
            "KVP205", _wrong_unit(value, unit, "a duration", "ms, s, m or h"), f"write {number:g}s or {number:g}m"
        )
    milliseconds = number * _MS[unit]
    if milliseconds != int(milliseconds) or not 1 <= milliseconds <= MAX_DURATION_MS:
        raise UnitError(
            "KVP206",
            f"{value} is not a usable duration",
            "policy time counts whole milliseconds, from 1ms to ten years",
        )
    return int(milliseconds)


def parse_tokens(value: Any) -> int:
    """``4096``, ``8Ki``, ``8k``, ``1Mi`` -> tokens."""
    if isinstance(value, int) and not isinstance(value, bool):
        number, unit = float(value), ""
    else:
        number, unit = _split(value, "a token count", "write a number of tokens, like 4096 or 4Ki")
    if unit and unit not in _TOKENS:
        hint = "tokens are counted, not bytes: " if unit.endswith(("B", "b")) else ""
        raise UnitError(
            "KVP205", _wrong_unit(value, unit, "a token count", "k, M, G, Ki, Mi or Gi"), f"{hint}write 4096, 4Ki or 4k"
        )
    tokens = number * _TOKENS.get(unit, 1)
    if tokens != int(tokens) or not 0 <= tokens <= MAX_TOKENS:
        raise UnitError("KVP206", f"{value} is not a usable token count", "tokens are whole, from 0 to 1024Gi")
    return int(tokens)


def _split(value: Any, what: str, help: str) -> tuple[float, str]:
    """(number, unit) of a quantity; plain numbers have the unit ''."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not 0 <= value < 1e15:
            raise UnitError("KVP206", f"{value} is out of range for {what}", help)
        return float(value), ""
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) and len(value) <= 40 else None
    if match is None:
        raise UnitError("KVP203", f"expected {what}, got {describe(value)}", help)
    return float(match[1]), match[3]


def _wrong_unit(value: Any, unit: str, what: str, accepted: str) -> str:
    if not unit:
        return f"{what} needs a unit, and {value} has none (accepted: {accepted})"
    return f"the unit '{unit}' of {value} is not one of {what} (accepted: {accepted})"


def describe(value: Any) -> str:
    """A value as a person would name it: `the string "16"`, `a list`."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return f"the boolean {str(value).lower()}"
    if isinstance(value, int | float):
        return f"the number {value:g}" if isinstance(value, float) else f"the number {value}"
    if isinstance(value, str):
        return f'the string "{value if len(value) <= 40 else value[:37] + "..."}"'
    return "a list" if isinstance(value, list | tuple) else "a mapping"
