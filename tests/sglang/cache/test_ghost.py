"""The ghost list of S3-FIFO works on the engine's own nodes, and its keys do not depend on the process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("version", ["0.5.18", "0.5.20"])
def test_evicted_content_is_known_when_it_returns(in_engine: Callable[..., list[dict[str, Any]]], version: str) -> None:
    [seen] = in_engine(version, "ghost.py", PYTHONHASHSEED="1")
    assert not seen["main at first"]
    assert seen["main on return"]
    assert seen["same key"]
    assert seen["fallbacks"] == {}
    [again] = in_engine(version, "ghost.py", PYTHONHASHSEED="2")
    assert again["key"] == seen["key"]
