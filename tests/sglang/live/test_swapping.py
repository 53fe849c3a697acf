"""Swaps of a real prefix cache, slice by slice between its operations, lose nothing and change no victim."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.programs import INSIDE, with_path

pytestmark = pytest.mark.engine

HERE = Path(__file__).resolve().parent


@pytest.fixture
def swapping(sglang_env: Callable[..., Any]) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(version: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        engine = with_path(sglang_env(version), HERE.parent / "cache", INSIDE)
        variables = {key: value for key, value in engine.env.items() if key != "SGLANG_USE_CPU_ENGINE"}
        return subprocess.run(
            [str(engine.python), "-W", "ignore", str(HERE / "swapping.py"), *arguments],
            env={**variables, "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0")},
            capture_output=True,
            text=True,
        )

    return run


@pytest.mark.parametrize(("version", "page"), [("0.5.18", "16"), ("0.5.20", "16"), ("0.5.20", "1"), ("0.5.23", "16")])
def test_swaps_change_no_victim(swapping: Callable[..., Any], version: str, page: str) -> None:
    done = swapping(version, "--page", page)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["same"]
    assert found["swaps"] > 15
    assert found["victims"] > 300
    assert found["fallbacks"] == {}


def test_a_prepared_index_that_misses_events_is_noticed(swapping: Callable[..., Any]) -> None:
    done = swapping("0.5.20", "--forget")
    assert done.returncode != 0
    assert "AssertionError" in done.stderr
