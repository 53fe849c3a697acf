"""The object the scheduler holds is stock's own: class, public methods, signatures and result types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("version", ["0.5.18", "0.5.20", "0.5.23"])
def test_the_cache_is_stocks_own(in_engine: Callable[..., list[dict[str, Any]]], version: str) -> None:
    """For an order that needs nothing, one that observes touches, and one that stamps nodes."""
    policies = ["lru", "mru", "gdsf"]
    found = in_engine(version, "interface.py", *policies)
    assert [result["policy"] for result in found] == policies
    for result in found:
        assert result["core"] == "kvpolicy"
        assert result["same class"]
        assert "evict" in result["stock"]
        assert "match_prefix" in result["stock"]
        assert result["ours"] == result["stock"]
        assert result["our results"] == result["stock results"]
        assert result["fallbacks"] == {}
        # Requests are grouped by what they share, off the nodes that the scheduler holds.
        expected = [[0, 64, [0, 1, 2, 3, 4, 5]], [64, 96, [0, 2, 4]], [64, 96, [1, 3, 5]]]
        assert result["groups"] == [expected, expected]
