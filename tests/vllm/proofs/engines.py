"""Runs this folder's programs in vLLM's own environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.programs import INSIDE, Program, with_path
from tools.environment import EngineEnv

HERE = Path(__file__).resolve().parent
ENVIRONMENT = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "WARNING"}


def start(engine: EngineEnv, program: str | Path, *arguments: str | Path) -> Program:
    """`program` of this folder (or another, by its path), running in a process of that vLLM."""
    return Program(with_path(engine, HERE, INSIDE, **ENVIRONMENT), HERE / program, *arguments)


def assert_sound(seen: dict[str, Any]) -> None:
    """An idle engine: every block is free once and in use by nobody, the index agrees with the pool, and no policy step
    failed. `seen` is what was told with `witness` and `kvpolicy`."""
    pool, block = seen["witness"], seen["kvpolicy"]
    assert (pool["listed_twice"], pool["nowhere"], pool["in_use"], pool["check"]) == (0, 0, 0, "")
    assert pool["free_blocks"] == pool["blocks"]
    if block is not None:
        assert (block["fallbacks"], block["last_fault"]) == ({}, None)
