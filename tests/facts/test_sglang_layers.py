"""What check says of single layers' KV dtypes on SGLang."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvpolicy.facts import report
from kvpolicy.facts.layer_dtypes import dtypes_by_layer
from kvpolicy.language import Diagnostic, load_text
from tests.facts.matrix import MODELS

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", "hidden_size": 1024,
    "num_hidden_layers": 10, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 128,
    "intermediate_size": 2048, "vocab_size": 1000, "max_position_embeddings": 8192,
}  # fmt: skip
FP8_WITH_EDGES = '{default: fp8_e4m3, layers: {"0-1": bf16, "-1": auto}}'


def check(
    dtype: str, attention: str = "triton", *, gpu: str = "h200", model: Any = LLAMA, folder: Path, warn: bool = False
) -> list[Diagnostic]:
    text = f"""\
apiVersion: kvpolicy/v1
kind: KVPolicy
metadata: {{name: test}}
cache: {{kv_dtype: {dtype}, on_conflict: {"warn" if warn else "error"}}}
backend: {{attention: {attention}}}
"""
    loaded = load_text(text.encode(), "p.yaml", "sglang")
    assert loaded.policy is not None, loaded.diagnostics
    (folder / "config.json").write_text(json.dumps(model))
    return report(loaded.policy, engine="sglang==0.5.20", gpu=gpu, model=str(folder))


def test_each_layer_counts_with_its_own_bytes(tmp_path: Path) -> None:
    items = check(FP8_WITH_EDGES, folder=tmp_path)
    row = 2 * 2 * 128  # elements a token and layer
    (cost,) = [item for item in items if item.code == "KVP504"]
    assert cost.data is not None
    assert cost.data["bytes_per_token"] == row * (7 * 1 + 3 * 2)
    assert (
        "1,536 (3 layers in bf16) + 3,584 (7 layers in fp8_e4m3)".replace("1,536", f"{3 * row * 2:,}") in cost.message
    )
    assert [item.message for item in items if item.code == "KVP507" and "layers" in item.message] == [
        "layers 0-1 in bf16; layers -1 in auto; the others in fp8_e4m3"
    ]
    assert not [item for item in items if item.severity == "error"]


REFUSED = [
    (FP8_WITH_EDGES, "fa3", LLAMA, "h200", "with fa3, which plans with one dtype"),
    ('{default: bf16, layers: {"0": fp8_e4m3}}', "triton", MODELS["deepseek-v2-lite"], "h200", "in MLA models"),
    ('{default: bf16, layers: {"0": nvfp4}}', "triton", LLAMA, "h200", "nvfp4 cannot be mixed"),
    (
        '{default: bf16, layers: {"10": fp8_e4m3}}',
        "triton",
        LLAMA,
        "h200",
        "layers 10: the model has 10 layers, 0 to 9",
    ),
]


@pytest.mark.parametrize(("dtype", "attention", "model", "gpu", "words"), REFUSED, ids=lambda value: str(value)[:24])
def test_what_is_a_conflict(dtype: str, attention: str, model: Any, gpu: str, words: str, tmp_path: Path) -> None:
    (problem,) = [
        item
        for item in check(dtype, attention, gpu=gpu, model=model, folder=tmp_path)
        if item.code == "KVP511" and "layers" in (item.data or {})
    ]
    assert words in problem.message
    assert problem.severity == "error"
    warned = check(dtype, attention, gpu=gpu, model=model, folder=tmp_path, warn=True)
    assert [item.severity for item in warned if "layers" in (item.data or {}) and item.code == "KVP511"] == ["warning"]


def test_a_cpu_takes_fp8_for_single_layers(tmp_path: Path) -> None:
    """Where 0.5.20 refuses it for the whole pool."""
    items = check('{default: bf16, layers: {"0": fp8_e4m3}}', "torch_native", gpu="cpu", folder=tmp_path)
    assert not [item for item in items if item.severity == "error"]
    whole = check("fp8_e4m3", "torch_native", gpu="cpu", folder=tmp_path)
    assert [item.code for item in whole if item.severity == "error"] == ["KVP512"]


def test_ranges_count_from_both_ends() -> None:
    assert dtypes_by_layer((("0-1", "bf16"), ("-2:", "fp16")), 5) == {0: "bf16", 1: "bf16", 3: "fp16", 4: "fp16"}
    assert dtypes_by_layer((("0:", "float16"),), 2) == {0: "fp16", 1: "fp16"}
    with pytest.raises(ValueError, match=r"layers 7: the model has 5 layers, 0 to 4"):
        dtypes_by_layer((("7", "bf16"),), 5)
