"""What check says of int8 and int4 KV on SGLang, and that vLLM's words of the same name are left to vLLM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvpolicy.facts import report
from kvpolicy.language import load_text
from tests.facts.matrix import MODELS
from tests.facts.test_sglang_layers import LLAMA, check


@pytest.mark.parametrize(("name", "head_bytes"), [("int8", 128 + 2), ("int4", 64 + 8)])
def test_scales_are_counted(name: str, head_bytes: int, tmp_path: Path) -> None:
    items = check(f"{name}_per_token_head", folder=tmp_path)
    (cost,) = [item for item in items if item.code == "KVP504"]
    assert cost.data is not None
    assert cost.data["bytes_per_token"] == 10 * 2 * 2 * head_bytes
    (pool,) = [item for item in items if item.code == "KVP508"]
    assert "MHATokenToKVPool: substituted" in pool.message
    assert not [item for item in items if item.severity == "error"]


REFUSED = [
    ("fa3", LLAMA, "h200", "fa3 does not read it", "triton"),
    ("flashinfer", LLAMA, "h200", "flashinfer does not read it", "triton"),
    ("triton", {**LLAMA, "head_dim": 96}, "h200", "one of 32, 64, 128, 256; this model has 96", "another KV dtype"),
    ("triton", MODELS["deepseek-v2-lite"], "h200", "not in MLA models", "another KV dtype"),
]


@pytest.mark.parametrize(("attention", "model", "gpu", "words", "way"), REFUSED, ids=lambda value: str(value)[:24])
def test_what_is_a_conflict(attention: str, model: Any, gpu: str, words: str, way: str, tmp_path: Path) -> None:
    for warn, severity in ((False, "error"), (True, "warning")):
        items = check("int8_per_token_head", attention, gpu=gpu, model=model, folder=tmp_path, warn=warn)
        (problem,) = [item for item in items if item.code == "KVP511" and "kv_dtype" in (item.data or {})]
        assert words in problem.message
        assert problem.severity == severity
        assert way in str(problem.help)


def test_layers_cannot_be_mixed_with_it(tmp_path: Path) -> None:
    items = check('{default: int8_per_token_head, layers: {"0": bf16}}', folder=tmp_path)
    assert any("int8_per_token_head cannot be mixed with other KV dtypes" in item.message for item in items)


def test_vllm_stores_it_by_itself(tmp_path: Path) -> None:
    text = "apiVersion: kvpolicy/v1\nkind: KVPolicy\nmetadata: {name: t}\ncache: {kv_dtype: int8_per_token_head}\n"
    loaded = load_text(text.encode(), "p.yaml", "vllm")
    assert loaded.policy is not None
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    items = report(loaded.policy, engine="vllm==0.32.0", gpu="h200", model=str(tmp_path))
    assert not [item for item in items if item.severity == "error"]
    (cost,) = [item for item in items if item.code == "KVP504"]
    assert cost.data is not None
    assert cost.data["bytes_per_token"] == 10 * 2 * 2 * (128 + 4)  # vLLM's scales are float32
