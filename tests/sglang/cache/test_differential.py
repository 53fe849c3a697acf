"""A built-in policy evicts what stock evicts, in stock's order, in every supported generation of the prefix cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Run = Callable[..., list[dict[str, Any]]]

BUILT_INS = ("lru", "lfu", "fifo", "filo", "mru", "slru", "priority")
pytestmark = pytest.mark.engine


def policies(version: str) -> list[str]:
    names = [*BUILT_INS, "tlru"] if version == "0.5.23" else BUILT_INS
    return [word for name in names for word in ("--policy", name)]


def check(results: list[dict[str, Any]], runs: int, at_least: int) -> None:
    assert len(results) == runs
    for result in results:
        assert result["fallbacks"] == {}, result
        assert result["core"] == "kvpolicy", result
        assert result["victims"] >= at_least, result
        assert result["evict_calls"] >= result["evictions"] > 0, result


@pytest.mark.parametrize("version", ["0.5.18", "0.5.20", "0.5.23"])
def test_same_victims_in_the_same_order(in_engine: Run, version: str) -> None:
    words = policies(version)
    results = in_engine(version, "differential.py", *words, "--page", "1", "--page", "16", "--steps", "3000")
    check(results, len(words) // 2 * 2, at_least=500)


@pytest.mark.parametrize("version", ["0.5.18", "0.5.20", "0.5.23"])
def test_hypothesis_finds_no_stream_with_other_victims(in_engine: Run, version: str) -> None:
    words = policies(version)
    results = in_engine(version, "differential.py", *words, "--page", "1", "--page", "16", "--examples", "6")
    assert len(results) == len(words) // 2 * 2
    assert sum(result["steps"] for result in results) > 5000


@pytest.mark.parametrize("version", ["0.5.18", "0.5.20", "0.5.23"])
def test_same_victims_at_more_than_ten_thousand_leaves(in_engine: Run, version: str) -> None:
    """Order in a small set says little of a heap: here thousands of leaves are touched between evictions."""
    args = ["--policy", "lru", "--policy", "mru", "--policy", "priority", "--page", "1"]
    results = in_engine(version, "differential.py", *args, "--flood", "11000", "--steps", "400")
    check(results, 3, at_least=50)


def test_same_victims_as_the_rust_core(in_engine: Run) -> None:
    """0.5.23's default core, which ours takes the place of under `core: auto`: equal slots freed in equal order."""
    words = policies("0.5.23")
    pages = ["--page", "1", "--page", "16"]
    results = in_engine("0.5.23", "differential.py", *words, *pages, "--steps", "3000", "--stock-core", "rust")
    check(results, len(words) // 2 * 2, at_least=500)


@pytest.mark.parametrize("version", ["0.5.20", "0.5.23"])
def test_same_victims_with_session_references(in_engine: Run, version: str) -> None:
    """`--enable-session-radix-cache`: what open sessions refer to goes last, and a closed session's units fall back.

    tlru is left out: there the engine's references and the policy's metadata are a conflict.
    """
    words = [word for name in BUILT_INS for word in ("--policy", name)]
    pages = ["--page", "1", "--page", "16"]
    results = in_engine(version, "differential.py", *words, *pages, "--sessions", "6", "--steps", "3000")
    check(results, len(BUILT_INS) * 2, at_least=500)
    results = in_engine(version, "differential.py", *words, "--page", "1", "--sessions", "6", "--examples", "4")
    assert len(results) == len(BUILT_INS)


def test_the_driver_sees_a_difference(in_engine: Run) -> None:
    """Stock lru beside our lfu must be told apart, or equal results above would mean nothing."""
    for how in (["--steps", "3000"], ["--examples", "12"]):
        with pytest.raises(AssertionError, match=r"step .*: stock .* ours"):
            in_engine("0.5.20", "differential.py", "--policy", "lru", "--ours", "lfu", "--page", "1", *how)


def test_the_driver_sees_references_that_are_not_followed(in_engine: Run) -> None:
    """An index that is not told of closed sessions must be found wrong, or the streams above close none that count."""
    with pytest.raises(AssertionError, match=r"step .*: stock .* ours"):
        in_engine(
            "0.5.23", "differential.py", "--policy", "lru", "--page", "1", "--sessions", "6", "--steps", "3000",
            KVPOLICY_TEST_DEAF="1",
        )  # fmt: skip
