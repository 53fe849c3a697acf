"""Watermarks on the engine's own cache: bounds, fewer calls, and a detector for each that can fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Run = Callable[..., list[dict[str, Any]]]
pytestmark = pytest.mark.engine

BOUNDS = ("short", "beyond high", "early", "protected units that went ahead")


@pytest.mark.parametrize(("version", "page"), [("0.5.18", 4), ("0.5.20", 1), ("0.5.23", 4)])
def test_marks_hold_and_save_calls(in_engine: Run, version: str, page: int) -> None:
    plain = in_engine(version, "watermark.py", "--page", str(page), "--eviction", "engine", "--eviction", "lru")
    for seen, core in zip(plain, ("engine", "kvpolicy"), strict=True):
        assert {bound: seen[bound] for bound in BOUNDS} == dict.fromkeys(BOUNDS, 0)
        assert seen["core"] == core
        assert seen["batches"] > 100
        assert seen["calls"] < seen["stock calls"] / 3
        assert seen["fallbacks"] == {}


RULES = ("--page", "4", "--eviction", "rules", "--high", "60%")  # more than what is not protected


@pytest.mark.parametrize("version", ["0.5.18", "0.5.23"])
def test_protected_units_are_spared_beyond_the_need(in_engine: Run, version: str) -> None:
    (seen,) = in_engine(version, "watermark.py", *RULES)
    assert {bound: seen[bound] for bound in BOUNDS} == dict.fromkeys(BOUNDS, 0)
    assert seen["batches"] > 100
    assert seen["fallbacks"] == {}


@pytest.mark.parametrize(
    ("broken", "found"), [("sparing", {"protected units that went ahead"}), ("demand", {"beyond high", "early"})]
)
def test_a_broken_mark_is_found(in_engine: Run, broken: str, found: set[str]) -> None:
    (seen,) = in_engine("0.5.20", "watermark.py", *RULES, "--broken", broken)
    assert {bound for bound in BOUNDS if seen[bound]} >= found


@pytest.mark.parametrize("version", ["0.5.18", "0.5.23"])
def test_a_fault_leaves_the_engine_its_own_way(in_engine: Run, version: str) -> None:
    (seen,) = in_engine(version, "watermark.py", "--page", "1", "--eviction", "lru", "--broken", "evictable")
    assert seen["fallbacks"]["watermark"] == 1500
    assert seen["short"] == seen["batches"] == 0
    assert seen["calls"] == seen["stock calls"]
