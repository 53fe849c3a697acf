"""A policy of nothing but watermarks on a real server: stock's outputs, and a fraction of its eviction calls."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import StartServer

pytestmark = pytest.mark.server

POLICY = """\
apiVersion: kvpolicy/v1
kind: KVPolicy
metadata: {{name: marks}}
allocator: {{watermark: {{low: {low}, high: {high}}}}}
"""


def test_marks_alone_save_calls_and_change_no_output(server: StartServer, tmp_path: Path) -> None:
    """The engine keeps its default core, the Rust one here; marks of nothing are exact shortfall, counted."""
    rng = random.Random(1)
    prompts = [[rng.randrange(3, 250) for _ in range(60)] for _ in range(50)]

    def serve(marks: tuple[str, str] | None) -> tuple[list[Any], dict[str, Any]]:
        policy = None
        if marks is not None:
            policy = tmp_path / f"{marks[1]}.yaml"
            policy.write_text(POLICY.format(low=marks[0], high=marks[1]))
        flags = ("--attention-backend", "torch_native")
        with server("0.5.23", *flags, policy=policy, max_total_tokens=2048) as running:
            outputs = [running.generate(prompt, 40)["output_ids"] for prompt in prompts]
            return outputs, running.status() if policy is not None else {}

    stock, _ = serve(None)
    exact, exact_status = serve(("0%", "0%"))
    marked, status = serve(("2%", "10%"))
    assert stock == exact == marked
    assert (status["core"], status["fallbacks"], status["conflicts"]) == ("engine", {}, [])
    assert status["watermark"]["low_pages"] == 40
    assert status["watermark"]["batches"] == status["evict_calls"] > 5
    assert exact_status["watermark"]["batches"] == 0
    assert status["evict_calls"] < exact_status["evict_calls"] / 2
