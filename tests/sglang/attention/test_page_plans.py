"""FlashInfer planned by pages in the backend of real SGLangs; FlashInfer's wrappers in PyTorch, which a CPU lacks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.programs import INSIDE, Program, run_all, with_path
from tools.environment import EngineEnv

pytestmark = pytest.mark.engine

HERE = Path(__file__).resolve().parent


@pytest.mark.parametrize("version", ["0.5.18", "0.5.20", "0.5.23"])
def test_attention_by_pages(sglang_env: Callable[..., EngineEnv], version: str) -> None:
    """Decode and prefill, eager and captured, prefixes, lengths that end anywhere: the tokens that stock reads."""
    program = Program(with_path(sglang_env(version), HERE, INSIDE), HERE / "page_plans.py")
    (told,) = run_all(program)
    assert 0 < told["worst"]["stock"] < 1e-6
    assert 0 < told["worst"]["pages"] < 1e-6
    assert 0 < told["fp8"] < 1e-6

    faults = told["faults"]
    assert faults["fallbacks"] == {"attention_pages": 5}  # one decode and four prefills of `eager`
    assert faults["captured fallbacks"] == {"attention_pages": 2}  # at capture; replays were planned likewise
    assert faults["captured by pages"] == {"attention_pages": 1}
    assert max(faults["eager"], faults["captured by tokens"], faults["after"]) < 1e-6
    assert program.log.count("planning attention by pages raised") == 2  # once where it was eager, once captured

    hooked = told["hooked"]
    assert (hooked["seats"], hooked["effective"]) == (1, True)
    assert hooked["error"] < 1e-6
    assert (
        "backend.page_native: SGLang made a FlashInferAttnBackend, which plans in ways of its own" in hooked["no seat"]
    )
    assert "K and V of a layer are not one tensor each of whole pages" in hooked["another pool"]
