"""Reading config.json: kinds of models, missing keys, and every way a file can be broken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpolicy.facts import FactsArgumentError, load_model, model_from_config
from kvpolicy.facts.weights import weight_bytes
from tests.facts.matrix import MODELS


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("llama-3.1-8b", "GQA"),
        ("olmo-2-7b", "MHA"),
        ("starcoder", "MQA"),
        ("deepseek-v2-lite", "MLA"),
        ("deepseek-v3.2", "DSA"),
        ("qwen3-next-80b", "GQA + linear"),
        ("gpt-oss-20b", "GQA + sliding window"),
        ("gemma-3-1b", "MQA"),
        ("llama-4-scout", "GQA + sliding window"),
    ],
)
def test_kinds(name: str, kind: str) -> None:
    assert model_from_config(MODELS[name]).attention_kind == kind


def test_nested_text_config_is_the_language_model() -> None:
    model = model_from_config(MODELS["llama-4-scout"])
    assert (model.full_layers, model.swa_layers, model.kv_heads, model.head_dim) == (12, 36, 8, 128)


def test_missing_keys_fall_back_as_the_engine_does() -> None:
    llama = MODELS["llama-3.1-8b"]
    assert model_from_config({k: v for k, v in llama.items() if k != "num_key_value_heads"}).kv_heads == 32
    assert model_from_config(llama).head_dim == 4096 // 32
    gemma = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": {"model_type": "gemma3_text"}}
    model = model_from_config(gemma)  # such configs rely on class defaults for everything
    assert (model.full_layers, model.kv_heads, model.head_dim) == (26, 4, 256)


@pytest.mark.parametrize(
    ("stated", "model_type", "served"),
    [
        ("float32", "llama", "fp16"),
        ("float32", "gemma2", "bf16"),
        ("bfloat16", "llama", "bf16"),
        (None, "llama", "fp16"),
    ],
)
def test_compute_dtype(stated: str | None, model_type: str, served: str) -> None:
    assert model_from_config(MODELS["llama-3.1-8b"] | {"torch_dtype": stated, "model_type": model_type}).dtype == served


def test_checkpoint_that_asks_for_fp8_kv(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MODELS["llama-3.1-8b"]))
    assert load_model(str(tmp_path)).kv_quant is None
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": {"kv_cache_quant_algo": "FP8"}}))
    assert load_model(str(tmp_path)).kv_quant == "fp8_e4m3"


def test_weights_are_measured_where_the_files_are(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MODELS["llama-3.1-8b"]))
    guess = load_model(str(tmp_path))
    assert guess.weights_from == "estimate"
    assert guess.weights_bytes == pytest.approx(8.03e9 * 2, rel=0.01)  # 8.03 billion parameters
    (tmp_path / "model.safetensors.index.json").write_text('{"metadata": {"total_size": 16060522496}}')
    assert (load_model(str(tmp_path)).weights_bytes, load_model(str(tmp_path)).weights_from) == (16060522496, "files")


@pytest.mark.parametrize(
    ("name", "billions"),
    [("smollm2-135m", 0.1345), ("qwen3-8b", 8.19), ("deepseek-v2-lite", 15.7), ("gpt-oss-20b", 20.9)],
)
def test_weight_estimates_are_within_a_few_percent(name: str, billions: float) -> None:
    model = MODELS[name]
    bytes_, source = weight_bytes(model, model, None)
    assert source == "estimate"
    assert bytes_ == pytest.approx(billions * 2e9, rel=0.05)


BROKEN = {
    "empty.json": (b"", "is not JSON"),
    "binary.json": (b"\x00\xff\xfe\x80", "cannot read"),
    "truncated.json": (b'{"architectures": ["Llama', "is not JSON"),
    "list.json": (b"[1, 2]", "holds a list"),
    "deep.json": (b"[" * 100_000, "is not JSON"),
    "no_layers.json": (b'{"architectures": ["LlamaForCausalLM"], "hidden_size": 64}', "no 'num_hidden_layers'"),
    "no_heads.json": (b'{"num_hidden_layers": 2, "hidden_size": 64}', "no 'num_attention_heads'"),
    "zero_heads.json": (
        b'{"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 0}',
        "'num_attention_heads' is 0",
    ),
    "text_layers.json": (
        b'{"num_hidden_layers": "two", "hidden_size": 64, "num_attention_heads": 4}',
        "'num_hidden_layers' is 'two'",
    ),
    "bad_list.json": (
        b'{"architectures": 7, "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4}',
        "no usable KV shape",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_configs_are_one_clear_error(tmp_path: Path, name: str) -> None:
    raw, message = BROKEN[name]
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(FactsArgumentError) as error:
        load_model(str(tmp_path / name))
    assert message in error.value.message
    assert error.value.argument == "model"


def test_paths_that_are_no_model(tmp_path: Path) -> None:
    with pytest.raises(FactsArgumentError, match="no such model directory"):
        load_model(str(tmp_path / "nowhere"))
    with pytest.raises(FactsArgumentError, match=r"no config\.json in"):
        load_model(str(tmp_path))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(model=st.sampled_from(sorted(MODELS)), key=st.data())
def test_a_config_with_any_key_spoiled_is_read_or_refused(model: str, key: st.DataObject) -> None:
    config: dict[str, Any] = dict(MODELS[model])
    config[key.draw(st.sampled_from([*sorted(config), "text_config", "linear_attn_config", "quantization_config"]))] = (
        key.draw(JSON)
    )
    try:
        facts = model_from_config(config)
    except FactsArgumentError:
        return
    assert facts.full_layers + facts.swa_layers + facts.linear_layers >= 1
