"""Swaps of a real prefix cache, slice by slice between its operations, lose nothing and change no victim."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.programs import INSIDE, Program, of_gpu_server, with_path

pytestmark = pytest.mark.engine

HERE = Path(__file__).resolve().parent


@pytest.fixture
def swapping(sglang_env: Callable[..., Any]) -> Callable[..., Any]:
    """`swapping("0.5.20", "--page", "16")` -> what swapping.py found."""

    def run(version: str, *arguments: str) -> Any:
        engine = with_path(sglang_env(version), HERE.parent / "cache", INSIDE)
        program = Program(of_gpu_server(engine), HERE / "swapping.py", *arguments)
        program.told()
        return json.loads(program.log.splitlines()[-1])

    return run


@pytest.mark.parametrize(("version", "page"), [("0.5.18", "16"), ("0.5.20", "16"), ("0.5.20", "1"), ("0.5.23", "16")])
def test_swaps_change_no_victim(swapping: Callable[..., Any], version: str, page: str) -> None:
    found = swapping(version, "--page", page)
    assert found["same"]
    assert found["swaps"] > 15
    assert found["victims"] > 300
    assert found["fallbacks"] == {}


def test_a_prepared_index_that_misses_events_is_noticed(swapping: Callable[..., Any]) -> None:
    with pytest.raises(AssertionError, match=r"Traceback[\s\S]*AssertionError"):
        swapping("0.5.20", "--forget")
