"""Decode attention over shared prefixes: the Triton form in its interpreter, and through its compiler."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import DEMO_VERSION
from tests.programs import Program, run_all, with_path
from tools.environment import EngineEnv

HERE = Path(__file__).resolve().parent


@pytest.mark.engine
def test_the_triton_form_agrees(sglang_env: Callable[..., EngineEnv]) -> None:
    """Nested and separate prefixes, shuffled pages, a poisoned pool: within fp16's rounding of float64."""
    (told,) = run_all(Program(sglang_env(DEMO_VERSION), HERE / "cascade_form.py"))
    assert len(told["error"]) == 4
    assert max(told["error"]) < 1e-3, told
    assert told["lost"] > 0.05, "a prefix that is not read would not be seen"


@pytest.mark.engine
def test_triton_compiles_every_kernel(sglang_env: Callable[..., EngineEnv]) -> None:
    engine = with_path(sglang_env(DEMO_VERSION), TRITON_INTERPRET="0")
    (told,) = run_all(Program(engine, HERE / "cascade_compiled.py"))
    assert told["kernels"] == 4
    assert max(told["shared_bytes"]) <= 227 * 1024  # what a program of sm_90 may use


@pytest.mark.engine
def test_steps_over_tables_that_stay(sglang_env: Callable[..., EngineEnv]) -> None:
    """Groups come and go, requests grow: within fp16's rounding of float64, at the same addresses."""
    (told,) = run_all(Program(sglang_env(DEMO_VERSION), HERE / "cascade_steps_form.py"))
    assert len(told["errors"]) == 15
    assert max(told["errors"]) < 1e-3, told
    assert told["lost"] > 0.05, "a prefix that is not read would not be seen"
    assert told["taken"] == [0, 4, 1, 1, 1]  # the third batch's child begins behind its parent's end
    assert told["levels"] == 3
    assert told["pairs"] == 4
    assert told["stays"]
    assert told["short"] == "2047 places for the slots of 8 requests of 256 tokens"
