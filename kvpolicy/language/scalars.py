"""YAML 1.2's core schema for plain scalars (PyYAML resolves by YAML 1.1, where `off`, `no` and `1:30` are not
strings)."""

from __future__ import annotations

import re

from kvpolicy.language.source import Problem

__all__ = ["Value", "resolve_plain"]

Value = None | bool | int | float | str

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]+")
_OCTAL = re.compile(r"0o[0-7]+")
_HEX = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INF = re.compile(r"[-+]?\.(inf|Inf|INF)")
_NAN = frozenset({".nan", ".NaN", ".NAN"})
#: Integers are counts; 64 bits hold every count there is, and Python's unbounded ones would be a way to burn memory.
_MAX_INT = 2**63 - 1


def resolve_plain(text: str) -> Value:
    """The value of an unquoted scalar.

    Raises:
        Problem: a number with a leading zero (KVP115), or an integer that does not fit 64 bits (KVP116).
    """
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if _INT.fullmatch(text):
        digits = text.lstrip("+-")
        if len(digits) > 1 and digits[0] == "0":
            plain = text[: len(text) - len(digits)] + (digits.lstrip("0") or "0")
            octal = f" or 0o{digits.lstrip('0')}" if digits.strip("01234567") == "" and digits.strip("0") else ""
            raise Problem(
                "KVP115",
                f"{_clip(text)} is ambiguous: octal to YAML 1.1, decimal to YAML 1.2",
                f"write {_clip(plain)}{_clip(octal)}, or quote it if it is a name",
            )
        return _bounded(text, 10)
    if _OCTAL.fullmatch(text):
        return _bounded(text[2:], 8)
    if _HEX.fullmatch(text):
        return _bounded(text[2:], 16)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _INF.fullmatch(text):
        return float("-inf") if text[0] == "-" else float("inf")
    if text in _NAN:
        return float("nan")
    return text


def _bounded(digits: str, base: int) -> int:
    if len(digits) > 64 or abs(value := int(digits, base)) > _MAX_INT:
        raise Problem(
            "KVP116", f"the integer {_clip(digits)} does not fit 64 bits", "the largest is 9223372036854775807"
        )
    return value


def _clip(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."
