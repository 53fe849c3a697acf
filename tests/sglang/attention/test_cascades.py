"""Shared prefixes read once in the FlashInfer backend of real SGLangs; what a CPU lacks of FlashInfer is in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.programs import INSIDE, Program, run_all, with_path
from tests.proofs.engines import assert_no_complaint, start, with_witness
from tests.sglang.attention.plugin import with_torch_flashinfer
from tools.environment import EngineEnv

pytestmark = pytest.mark.engine

HERE = Path(__file__).resolve().parent


@pytest.mark.parametrize("version", ["0.5.18", "0.5.20", "0.5.23"])
def test_steps_with_and_without_a_cascade(sglang_env: Callable[..., EngineEnv], version: str) -> None:
    program = Program(with_path(sglang_env(version), HERE, INSIDE), HERE / "cascades.py")
    (told,) = run_all(program)
    ours = "kvpolicy-cascade"
    assert told["hooks"] == 6
    assert told["captured"] == [[2, ours], [4, ours], [8, ours]]
    assert told["variants"] == {
        "shared": ours, "longer": ours, "fewer": ours, "two": None, "alone": None, "again": ours,
    }  # fmt: skip
    assert 0 < told["worst"] < 1e-5
    assert [is_cascade for is_cascade, _ in told["eager"]] == [True, False]
    assert max(error for _, error in told["eager"]) < 1e-5
    assert told["state"] == {"core": "kvpolicy", "cascade_steps": 5, "flat_steps": 2, "groups": 2}
    assert told["corrupted"] > 0.1

    assert told["off"] is None
    assert told["fallbacks before"] == {}
    variant, error, fallbacks, core = told["fault"]
    assert (variant, fallbacks, core) == (None, {"cascade": 1}, "engine")
    assert error < 1e-5, "the backend's own plan serves the step"
    assert told["after the fault"] is None
    assert program.log.count("preparing a cascade raised") == 1


POLICY = """\
apiVersion: kvpolicy/v1
kind: KVPolicy
metadata: {name: cascade}
backend: {attention: flashinfer, cascade: {min_shared_tokens: 32, min_batch: 2}}
eviction: {policy: lru}
"""


def test_a_scheduler(sglang_env: Callable[..., EngineEnv], tiny_model: Path, tmp_path: Path) -> None:
    """Groups off the scheduler's own tree: every token and log probability is stock's, and steps did cascade."""
    policy = tmp_path / "cascade.yaml"
    policy.write_text(POLICY)
    engine = with_witness(with_torch_flashinfer(sglang_env("0.5.20"), tmp_path), tmp_path / "witness")
    program = start(engine, HERE / "shared_batches.py", tiny_model, "stock", policy)
    stock, ours = run_all(program)
    assert_no_complaint(program.log)
    block = ours["kvpolicy"]
    assert (block["fallbacks"], block["conflicts"]) == ({}, [])
    cascade = block["cascade"]
    assert cascade["core"] == "kvpolicy"
    assert cascade["groups"] == 3
    assert cascade["cascade_steps"] >= 10  # of the first batch's eleven; those of the second share nothing
    assert ours["cached"] == stock["cached"]
    assert ours["output_ids"] == stock["output_ids"]
    off = [
        abs(a - b)
        for mine, theirs in zip(ours["logprobs"], stock["logprobs"], strict=True)
        for one, other in zip(mine, theirs, strict=True)
        for a, b in zip(one, other, strict=True)
    ]
    assert max(off) < 1e-4
