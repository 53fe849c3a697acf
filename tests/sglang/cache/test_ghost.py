"""The ghost list of S3-FIFO works on the engine's own nodes, and its keys do not depend on the process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("version", ["0.5.18", "0.5.20"])
def test_evicted_content_is_known_when_it_returns(in_engine: Callable[..., list[dict[str, Any]]], version: str) -> None:
    [seen] = in_engine(version, "ghost.py")
    assert not seen["main at first"]
    assert seen["main on return"]
    assert seen["same key"]
    assert seen["fallbacks"] == {}
    [again] = in_engine(version, "ghost.py", PYTHONHASHSEED="77")
    assert again["key"] == seen["key"]


@pytest.mark.parametrize(("version", "page"), [("0.5.18", 1), ("0.5.20", 16), ("0.5.23", 4)])
def test_contents_keep_their_number_however_the_tree_is_cut(
    in_engine: Callable[..., list[dict[str, Any]]], version: str, page: int
) -> None:
    [seen] = in_engine(version, "contents.py", str(page))
    assert seen["compared"] > 1000
    assert seen["wrong"] == 0
    assert seen["victims"] > 500
    assert seen["again"] > 50, "what was evicted was asked for again, and known"
    assert seen["several"] > 1
    assert (seen["fault"], seen["fallbacks"]) == ("", {})


def test_a_stale_number_is_seen(in_engine: Callable[..., list[dict[str, Any]]]) -> None:
    [seen] = in_engine("0.5.20", "contents.py", "16", "--stale")
    assert seen["wrong"] > 0
