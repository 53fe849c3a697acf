"""Runs one of this folder's programs in vLLM's own environment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from tools.environment import EngineEnv

HERE = Path(__file__).resolve().parent
TIMEOUT_S = 850.0  # below pytest's own, so that what the program printed is shown
ENVIRONMENT = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "WARNING"}


class Program:
    """`program` of this folder, running in a process of that vLLM. Several may run at once."""

    def __init__(self, engine: EngineEnv, program: str, *arguments: str | Path) -> None:
        # A pipe would block a program that nobody reads yet.
        self.output = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [str(engine.python), str(HERE / program), *map(str, arguments)],
            env={**engine.env, **ENVIRONMENT}, cwd=os.path.sep, stdin=subprocess.DEVNULL, stdout=self.output,
            stderr=self.output, start_new_session=True,
        )  # fmt: skip

    def told(self) -> list[Any]:
        """The JSON values it told; fails, showing what it printed, if it ended badly."""
        try:
            code = self.process.wait(TIMEOUT_S)
        finally:
            self.stop()
        self.output.seek(0)
        text = self.output.read()
        assert code == 0, f"exit code {code}:\n{text[-6000:]}"
        lines = [line.removeprefix("TOLD ") for line in text.splitlines() if line.startswith("TOLD ")]
        return [json.loads(line) for line in lines]

    def stop(self) -> None:
        """End it, whatever state it is in."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def run(engine: EngineEnv, program: str, *arguments: str | Path) -> list[Any]:
    return Program(engine, program, *arguments).told()


def run_all(programs: list[Program]) -> list[Any]:
    """What programs tell that run at the same time, one after the other."""
    try:
        return [value for program in programs for value in program.told()]
    finally:
        for program in programs:
            program.stop()


def assert_sound(seen: dict[str, Any]) -> None:
    """An idle engine: every block is free once and in use by nobody, the index agrees with the pool, and no policy step
    failed. `seen` is what was told with `witness` and `kvpolicy`."""
    pool, block = seen["witness"], seen["kvpolicy"]
    assert (pool["listed_twice"], pool["nowhere"], pool["in_use"], pool["check"]) == (0, 0, 0, "")
    assert pool["free_blocks"] == pool["blocks"]
    if block is not None:
        assert (block["fallbacks"], block["last_fault"]) == ({}, None)
