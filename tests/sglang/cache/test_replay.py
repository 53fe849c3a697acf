"""Ranks decide alike, and a fault in a policy never costs the engine an eviction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Run = Callable[..., list[dict[str, Any]]]
pytestmark = pytest.mark.engine

FAULTS = ("key@50", "key@400", "add@20", "discard@20", "insert@10", "touch@5", "split@2", "remove@8", "admit@4")
LISTENER_FAULTS = tuple(f"metadata.{name}@4" for name in ("state", "_touch_path", "added", "split", "removed"))
WALK_FAULTS = ("begin@3", "pop@4", "pop@5", "evicted@6", "end@3")


@pytest.mark.parametrize("version", ["0.5.18", "0.5.20", "0.5.23"])
def test_one_stream_in_two_processes_evicts_the_same(in_engine: Run, version: str) -> None:
    """Another hash seed, another start time, another clock: equal digests after every call."""
    (first,) = in_engine(version, "replay.py", "--fault", "none")
    (other,) = in_engine(version, "replay.py", "--fault", "none", "--skew-ms", "86400000", PYTHONHASHSEED="77")
    assert len(first["digests"]) > 100
    assert len(set(first["digests"])) > 100
    assert first["digests"] == other["digests"]
    assert first["evictions"] == other["evictions"]
    assert first["fallbacks"] == {}


@pytest.mark.parametrize("version", ["0.5.18", "0.5.20", "0.5.23"])
def test_a_failing_policy_is_counted_and_survived(in_engine: Run, version: str) -> None:
    words = [word for fault in (*FAULTS, *LISTENER_FAULTS, *WALK_FAULTS) for word in ("--fault", fault)]
    for result in in_engine(version, "replay.py", *words, "--steps", "300"):
        assert sum(result["fallbacks"].values()) >= 1, result["fault"]
        assert result["short"] == 0, result
        assert result["free and cached"] == result["capacity"], result


def test_a_failing_policy_fails_alike_on_every_rank(in_engine: Run) -> None:
    words = [word for fault in ("key@50", "pop@4", "insert@10") for word in ("--fault", fault)]
    first = in_engine("0.5.20", "replay.py", *words, "--steps", "300")
    other = in_engine("0.5.20", "replay.py", *words, "--steps", "300", PYTHONHASHSEED="77")
    for one, two in zip(first, other, strict=True):
        assert one["digests"] == two["digests"], one["fault"]
        assert one["fallbacks"] == two["fallbacks"]
