"""Runs this folder's programs inside a real SGLang, with the witness loaded beside kvpolicy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.programs import INSIDE, Program, with_path
from tools.environment import EngineEnv

HERE = Path(__file__).resolve().parent

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
    return with_path(engine, folder, HERE, INSIDE, **{**STRICT, **env})


def start(engine: EngineEnv, program: str | Path, *arguments: str | Path) -> Program:
    """`program` of this folder (or another, by its path), running in a process of that SGLang."""
    return Program(engine, HERE / program, *arguments)


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
