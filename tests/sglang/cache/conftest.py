"""Run a script of this folder inside one of the pinned SGLang versions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.programs import INSIDE, Program, of_gpu_server, with_path

HERE = Path(__file__).resolve().parent
Run = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def in_engine(sglang_env: Callable[..., Any]) -> Run:
    """`in_engine("0.5.20", "differential.py", "--policy", "lru")` -> the JSON objects the script printed."""

    def run(version: str, script: str, *args: str, **env: str) -> list[dict[str, Any]]:
        program = Program(of_gpu_server(with_path(sglang_env(version), INSIDE), **env), HERE / script, *args)
        program.told()
        return [json.loads(line) for line in program.log.splitlines() if line.startswith("{")]

    return run
