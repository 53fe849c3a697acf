"""Run a script of this folder inside one of the pinned SGLang versions."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.programs import INSIDE, Program, with_path

HERE = Path(__file__).resolve().parent
Run = Callable[..., list[dict[str, Any]]]
#: The same strings in the same order of sets, unless the run says otherwise.
HASHES = {"PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0")}


@pytest.fixture
def in_engine(sglang_env: Callable[..., Any]) -> Run:
    """`in_engine("0.5.20", "differential.py", "--policy", "lru")` -> the JSON objects the script printed."""

    def run(version: str, script: str, *args: str, **env: str) -> list[dict[str, Any]]:
        engine = with_path(sglang_env(version), INSIDE)
        # The classes under test are the GPU server's; only a server needs the switch to SGLang's CPU engine.
        variables = {key: value for key, value in engine.env.items() if key != "SGLANG_USE_CPU_ENGINE"}
        program = Program(replace(engine, env={**variables, **HASHES, **env}), HERE / script, *args)
        program.told()
        return [json.loads(line) for line in program.log.splitlines() if line.startswith("{")]

    return run
