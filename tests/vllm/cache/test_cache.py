"""The policy in a real vLLM's block pool: every check_*.py of this folder, and an LLM that generates."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.engine

CHECKS = sorted(path.name for path in Path(__file__).parent.glob("check_*.py"))


@pytest.mark.parametrize("file", CHECKS)
def test_checks(file: str, check: Callable[..., str]) -> None:
    passed = re.search(r"^(\d+) passed", check(file), re.MULTILINE)
    assert passed, "no check ran"
    assert int(passed[1]) > 0


def test_outputs_are_stocks(told: Callable[..., list[dict[str, Any]]], tiny_model: Path) -> None:
    """Greedy outputs under pressure, with preemptions, are the ones of an untouched vLLM."""
    stock, *ours = told("serve.py", str(tiny_model))
    assert stock["policy"] == "stock"
    assert stock["preemptions"] > 0
    assert len(ours) == 5
    for run in ours:
        assert run["outputs"] == stock["outputs"], run["policy"]
        assert run["victims"] > 20
        assert (run["core"], run["fallbacks"]) == ("kvpolicy", {})


def test_recycled_content_is_noticed(told: Callable[..., list[dict[str, Any]]], tiny_model: Path) -> None:
    """The comparison sees corruption: blocks that keep their hash when they are handed out again."""
    stock, broken = told("serve.py", str(tiny_model), "--corrupt")
    assert broken["outputs"] != stock["outputs"]
