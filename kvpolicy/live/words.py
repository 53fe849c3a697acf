"""Figures of a status in words, alike in every command that prints them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["counted", "duration", "number", "page_tokens", "share"]


def number(value: float) -> str:
    return f"{value:,.0f}"


def counted(count: float, noun: str) -> str:
    return f"{number(count)} {noun}{'' if count == 1 else 's'}"


def share(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole else "-"


def duration(seconds: float) -> str:
    """In the largest unit that leaves a number above 2."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"


def page_tokens(block: Mapping[str, Any]) -> int | None:
    """The page size that the engine runs, as far as its status says."""
    setting = block.get("settings", {}).get("cache.page_size", {})
    built = block.get("built", {})
    for value in (setting.get("effective"), built.get("page_size"), built.get("block_size")):
        if isinstance(value, int) and value > 0:
            return value
    return None
