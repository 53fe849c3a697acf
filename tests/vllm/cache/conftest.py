"""Run the checks of this folder inside a real vLLM: `check_*.py` are pytest modules that import it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.programs import INSIDE, Program, with_path
from tools.environment import CHECKOUT

HERE = Path(__file__).resolve().parent
Run = Callable[..., str]


@pytest.fixture
def in_vllm(vllm_env: Callable[..., Any]) -> Run:
    """`in_vllm("-m", "pytest", ...)` or `in_vllm(SCRIPT, ...)` -> what it printed; this folder is on its path."""

    def run(*command: str) -> str:
        engine = with_path(
            vllm_env(),
            *(CHECKOUT, CHECKOUT / "adapters", HERE, INSIDE),
            VLLM_PLUGINS="none",  # the checks install the policy themselves
            VLLM_ENABLE_V1_MULTIPROCESSING="0",
            VLLM_LOGGING_LEVEL="WARNING",
        )
        program = Program(engine, *command)
        program.told()
        return program.log

    return run


@pytest.fixture
def check(in_vllm: Run) -> Run:
    """`check("check_replay.py")` runs the checks of one file; what pytest printed."""

    def run(file: str, *arguments: str) -> str:
        return in_vllm(
            *("-m", "pytest", "-q", "--tb=short", "-W", "ignore", "-p", "no:cacheprovider", "-c", os.devnull),
            *("--rootdir", str(HERE), "--import-mode=importlib", "--noconftest"),
            *("-o", "python_files=check_*.py", "-o", "python_functions=check_*", str(HERE / file), *arguments),
        )

    return run


@pytest.fixture
def told(in_vllm: Run) -> Callable[..., list[dict[str, Any]]]:
    """`told("serve.py", "MODEL")` -> the JSON objects that the script printed."""

    def run(script: str, *arguments: str) -> list[dict[str, Any]]:
        output = in_vllm(str(HERE / script), *arguments)
        return [json.loads(line) for line in output.splitlines() if line.startswith("{")]

    return run
