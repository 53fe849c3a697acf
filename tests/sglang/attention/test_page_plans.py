"""FlashInfer planned by pages in the backend of real SGLangs; FlashInfer's wrappers in PyTorch, which a CPU lacks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.programs import INSIDE, Program, run_all, with_path
from tests.proofs.engines import assert_no_complaint, start, with_witness
from tests.sglang.attention.plugin import with_torch_flashinfer
from tools.environment import CHECKOUT, EngineEnv

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


POLICY = """\
apiVersion: kvpolicy/v1
kind: KVPolicy
metadata: {name: pages}
cache: {page_size: 16}
backend: {attention: flashinfer, page_native: true}
eviction: {policy: lru}
"""


def test_a_server(sglang_env: Callable[..., EngineEnv], tiny_model: Path, tmp_path: Path) -> None:
    """A scheduler's own rows of slots: chunked prefills, cached prefixes, eviction and reuse of pages."""
    policy = tmp_path / "pages.yaml"
    policy.write_text(POLICY)
    engine = with_witness(with_torch_flashinfer(sglang_env("0.5.20"), tmp_path), tmp_path / "witness")
    program = start(engine, "outputs.py", tiny_model, CHECKOUT / "LICENSE", "1024", "auto:16", policy)
    stock, ours = run_all(program)
    assert_no_complaint(program.log)
    block = ours["kvpolicy"]
    assert block["built"]["attention_backend"] == "flashinfer"
    assert block["built"]["attention_page_size"] == 16
    assert block["settings"]["backend.page_native"]["effective"] is True
    assert (block["fallbacks"], block["conflicts"]) == ({}, [])
    assert block["evict_calls"] > 0
    assert max(ours["cached"]) > 0
    assert ours["cached"] == stock["cached"]
    assert ours["output_ids"] == stock["output_ids"]
