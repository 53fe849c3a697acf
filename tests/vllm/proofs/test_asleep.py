"""A pool survives its engine's sleep: the index is as empty as the pool, and fills and evicts again after it."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.programs import run_all
from tests.vllm.proofs.engines import assert_sound, start
from tools import preloaded
from tools.environment import START, EngineEnv

SIDES = ("stock_lru", "agentic")  # vLLM's own queue, and rules on our index

#: Of a model whose weights vLLM makes up: a GPU's machine may have none.
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 1024,
    "max_position_embeddings": 4096, "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def sides(folder: Path) -> list[str | Path]:
    for name in SIDES:
        (folder / f"{name}.yaml").write_text(
            f"apiVersion: kvpolicy/v1\nkind: KVPolicy\nmetadata: {{name: sleeper}}\nextends: builtin:{name}\n"
            "cache: {page_size: 32}\n"
        )
    return ["stock", *(folder / f"{name}.yaml" for name in SIDES)]


def assert_survived(stock: dict[str, Any], ours: dict[str, Any]) -> None:
    for told in (stock, ours):
        assert told["asleep"]
        assert_sound({**told, "witness": told["empty"]})
        assert told["empty"]["cached_blocks"] == 0
        assert_sound(told)
        for round_ in (told["before"], told["after"]):
            assert round_["first_cached"] == 0
            assert round_["again_cached"] == 128
            assert set(round_["together_tokens"]) == {40}
            assert round_["output_ids"] == stock["before"]["output_ids"]
    assert ours["async_scheduling"] == stock["async_scheduling"]
    if ours["kvpolicy"]["core"] == "kvpolicy":
        assert ours["after"]["evictions"] > ours["before"]["evictions"] > 0


def assert_all_survived(told: list[dict[str, Any]]) -> None:
    stock, *ours = told
    assert [one["kvpolicy"]["core"] for one in ours] == ["engine", "kvpolicy"]
    for one in ours:
        assert_survived(stock, one)


@pytest.mark.engine
def test_the_scheduler_paused(vllm_env: Callable[..., EngineEnv], tiny_model: Path, tmp_path: Path) -> None:
    *all_sides, ours = sides(tmp_path)
    acts = [*((side, "pause") for side in (*all_sides, ours)), (ours, "keep")]
    *told, kept = run_all(*[start(vllm_env(), "asleep.py", tiny_model, side, act) for side, act in acts])
    assert_all_survived(told)
    assert kept["empty"]["cached_blocks"] > 0
    with pytest.raises(AssertionError):
        assert_survived(told[0], kept)


@pytest.mark.gpu
@pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("is_async", [False, True], ids=["in turn", "async scheduling"])
def test_asleep_on_a_gpu(tmp_path: Path, is_async: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this interpreter's own vLLM."""
    monkeypatch.setenv(preloaded.COLD, "1")  # what is imported ahead is a CPU's
    (model := tmp_path / "model").mkdir()
    (model / "config.json").write_text(json.dumps(CONFIG))
    path = os.pathsep.join([str(START), *filter(None, [os.environ.get("PYTHONPATH")])])
    engine = EngineEnv("", Path(sys.executable), {**os.environ, "PYTHONPATH": path}, "vllm")
    given = ["load_format='dummy'", "skip_tokenizer_init=True", "dtype='bfloat16'", f"async_scheduling={is_async}",
             "gpu_memory_utilization=0.1"]  # fmt: skip
    told = run_all(*[start(engine, "asleep.py", model, side, "sleep", *given) for side in sides(tmp_path)])
    assert_all_survived(told)
    assert told[0]["async_scheduling"] is is_async
