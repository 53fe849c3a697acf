"""Run a script of this folder inside one of the pinned SGLang versions."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.programs import INSIDE, with_path

HERE = Path(__file__).resolve().parent
Run = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def in_engine(sglang_env: Callable[..., Any]) -> Run:
    """`in_engine("0.5.20", "differential.py", "--policy", "lru")` -> the JSON objects the script printed."""

    def run(version: str, script: str, *args: str, **env: str) -> list[dict[str, Any]]:
        engine = with_path(sglang_env(version), INSIDE)
        # The classes under test are the GPU server's; only a server needs the switch to SGLang's CPU engine.
        variables = {key: value for key, value in engine.env.items() if key != "SGLANG_USE_CPU_ENGINE"}
        done = subprocess.run(
            [str(engine.python), "-W", "ignore", str(HERE / script), *args],
            env={
                **variables,
                **env,
                "PYTHONHASHSEED": env.get("PYTHONHASHSEED", os.environ.get("PYTHONHASHSEED", "0")),
            },
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{script} {' '.join(args)}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]

    return run
