"""Runs programs in an engine's own environment, and reads what they tell: lines of `TOLD ` and a JSON value."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from tools.environment import EngineEnv
from tools.preloaded import start

#: Modules that programs of both engines import there.
INSIDE = Path(__file__).resolve().parent / "inside"
TIMEOUT_S = 850.0  # below pytest's own, so that what a program printed is shown


def with_path(engine: EngineEnv, *folders: Path, **env: str) -> EngineEnv:
    """`engine` whose interpreters look for modules in `folders` first; `env` is added."""
    path = [*map(str, folders), *filter(None, [engine.env.get("PYTHONPATH")])]
    return replace(engine, env={**engine.env, **env, "PYTHONPATH": os.pathsep.join(path)})


def of_gpu_server(engine: EngineEnv, **env: str) -> EngineEnv:
    """A SGLang that picks the classes of a GPU's server: only a server needs the switch to SGLang's CPU engine.

    Sets have the same order in each run, unless this run, or `env`, says otherwise.
    """
    variables = {key: value for key, value in engine.env.items() if key != "SGLANG_USE_CPU_ENGINE"}
    hashes = {"PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0")}
    return replace(engine, env={**variables, **hashes, **env})


def told_by(output: str) -> list[Any]:
    """The JSON values of the lines that begin with `TOLD `."""
    return [json.loads(line.removeprefix("TOLD ")) for line in output.splitlines() if line.startswith("TOLD ")]


class Program:
    """`PROGRAM ARGUMENT ...` or `-m MODULE ARGUMENT ...` in a process of that engine; several may run at once.

    `log` is all it printed, once it has told.
    """

    def __init__(self, engine: EngineEnv, *command: str | Path) -> None:
        self.log = ""
        # A pipe would block a program that nobody reads yet.
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = start(engine, list(map(str, command)), output=self._output, cwd=os.path.sep)

    def told(self) -> list[Any]:
        """The JSON values it told; fails, showing what it printed, if it ended badly."""
        try:
            code = self._process.wait(TIMEOUT_S)
        finally:
            self.stop()
        self._output.seek(0)
        self.log = self._output.read()
        assert code == 0, f"exit code {code}:\n{self.log[-6000:]}"
        return told_by(self.log)

    def stop(self) -> None:
        """End it and its engine's processes, whatever state they are in."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def run_all(*programs: Program) -> list[Any]:
    """What programs tell that run at the same time, one after the other."""
    try:
        return [value for program in programs for value in program.told()]
    finally:
        for program in programs:
            program.stop()
