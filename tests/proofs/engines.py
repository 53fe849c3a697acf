"""Runs one of this folder's programs inside a real SGLang, with the witness loaded beside kvpolicy."""

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

#: SGLang's own memory checks, all of them, and fatal: while it serves, and when it is idle.
STRICT = {
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1",
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_IDLE": "1",
    "SGLANG_CHECK_KV_PAGE_INVARIANTS": "1",
}


def with_witness(engine: EngineEnv, folder: Path, **env: str) -> EngineEnv:
    """`engine` with witness.py as an installed plugin; `env` is added."""
    info = folder / "witness-1.dist-info"
    if not info.exists():
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: witness\nVersion: 1\n")
        (info / "entry_points.txt").write_text("[sglang.srt.plugins]\nwitness = witness:load\n")
    path = os.pathsep.join([str(folder), str(HERE), engine.env["PYTHONPATH"]])
    return EngineEnv(engine.version, engine.python, {**engine.env, **STRICT, **env, "PYTHONPATH": path})


class Program:
    """`program` of this folder, running in a process of that engine."""

    def __init__(self, engine: EngineEnv, program: str, *arguments: str | Path) -> None:
        # A pipe would block a program that nobody reads yet.
        self.output = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [str(engine.python), str(HERE / program), *map(str, arguments)],
            env=engine.env, stdin=subprocess.DEVNULL, stdout=self.output, stderr=self.output, start_new_session=True,
        )  # fmt: skip

    def told(self) -> tuple[list[Any], str]:
        """`(the JSON values it told, everything it printed)`; fails if it ended badly."""
        try:
            code = self.process.wait(TIMEOUT_S)
        finally:
            self.stop()
        self.output.seek(0)
        text = self.output.read()
        assert code == 0, f"exit code {code}:\n{text[-6000:]}"
        lines = [line.removeprefix("TOLD ") for line in text.splitlines() if line.startswith("TOLD ")]
        return [json.loads(line) for line in lines], text

    def stop(self) -> None:
        """End it and its engine's processes, whatever state they are in."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def run(engine: EngineEnv, program: str, *arguments: str | Path) -> tuple[list[Any], str]:
    return Program(engine, program, *arguments).told()


def run_both(one: Program, other: Program) -> tuple[tuple[list[Any], str], tuple[list[Any], str]]:
    """What two programs tell that run at the same time."""
    try:
        return one.told(), other.told()
    finally:
        one.stop()
        other.stop()


def assert_no_complaint(log: str) -> None:
    """SGLang's own memory checks said nothing."""
    for words in ("leak detected", "double free", "use-after-free"):
        assert words not in log.lower(), log[-3000:]


def assert_sound(state: dict[str, Any]) -> None:
    """An idle scheduler: every slot is free or held once, the index agrees with itself, and no policy step failed."""
    seen, block = state["witness"], state.get("kvpolicy")
    assert (seen["held_twice"], seen["free_and_held"], seen["nowhere"], seen["check"]) == (0, 0, 0, "")
    assert seen["available_tokens"] + seen["evictable_tokens"] == seen["pool_tokens"]
    assert seen["protected_tokens"] == 0
    if block is not None:
        assert (block["fallbacks"], block["last_fault"]) == ({}, None)
        assert block["core"] == "kvpolicy"
