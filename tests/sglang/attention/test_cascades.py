"""Shared prefixes read once in the FlashInfer backend of real SGLangs; what a CPU lacks of FlashInfer is in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.programs import INSIDE, Program, run_all, with_path
from tools.environment import EngineEnv

pytestmark = pytest.mark.engine

HERE = Path(__file__).resolve().parent


@pytest.mark.parametrize("version", ["0.5.18", "0.5.20", "0.5.23"])
def test_steps_with_and_without_a_cascade(sglang_env: Callable[..., EngineEnv], version: str) -> None:
    program = Program(with_path(sglang_env(version), HERE, INSIDE), HERE / "cascades.py")
    (told,) = run_all(program)
    ours = "kvpolicy-cascade"
    assert told["hooks"] == 6
    assert told["captured"] == [[2, ours], [4, ours], [8, ours]]
    assert told["variants"] == {
        "shared": ours, "longer": ours, "fewer": ours, "two": None, "alone": None, "again": ours,
    }  # fmt: skip
    assert 0 < told["worst"] < 1e-5
    assert [is_cascade for is_cascade, _ in told["eager"]] == [True, False]
    assert max(error for _, error in told["eager"]) < 1e-5
    assert told["state"] == {"core": "kvpolicy", "cascade_steps": 5, "flat_steps": 2, "groups": 2}
    assert told["corrupted"] > 0.1

    assert told["off"] is None
    assert told["fallbacks before"] == {}
    variant, error, fallbacks, core = told["fault"]
    assert (variant, fallbacks, core) == (None, {"cascade": 1}, "engine")
    assert error < 1e-5, "the backend's own plan serves the step"
    assert told["after the fault"] is None
    assert program.log.count("preparing a cascade raised") == 1
