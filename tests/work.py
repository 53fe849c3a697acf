"""How much work a call does, counted and not timed: a shared machine stretches seconds, never the number of calls."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

T = TypeVar("T")


def counted(call: Callable[[], T]) -> tuple[T, int]:
    """What `call` returns, and how many functions, Python's and C's, it entered: the same on every machine."""
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        result = call()
    finally:
        sys.setprofile(before)
    return result, calls
