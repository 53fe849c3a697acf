"""Bytes a token: numbers worked out by hand from published configs, and the same formula's behaviour under properties.

`test_against_sglang.py` compares the same models with the engine's own code.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpolicy.facts import kv_bytes_per_token, model_from_config
from kvpolicy.facts.capacity import granularity, index_entries, pool_tokens
from kvpolicy.facts.kv_bytes import KvBytes
from tests.facts.matrix import MODELS

NEW, OLD = (0, 5, 23), (0, 5, 16)


@pytest.mark.parametrize(
    ("name", "dtype", "expected"),
    [
        ("llama-3.1-8b", "bf16", 32 * 8 * 2 * 128 * 2),
        ("llama-3.1-8b", "fp8_e4m3", 32 * 8 * 2 * 128),
        ("llama-3.1-8b", "mxfp8", 32 * 8 * 2 * 128 + 32 * 8 * 2 * 128 // 32),
        ("llama-3.1-8b", "nvfp4", 32 * 8 * 2 * (128 // 2 + 128 // 16)),  # from 0.5.23 on without a workspace
        ("smollm2-135m", "bf16", 30 * 3 * 2 * 64 * 2),
        ("starcoder", "fp16", 40 * 1 * 2 * 128 * 2),  # multi-query
        ("olmo-2-7b", "fp16", 32 * 32 * 2 * 128 * 2),  # every head has its own KV
        ("deepseek-v2-lite", "bf16", 27 * (512 + 64) * 2),
        ("deepseek-v3", "fp8_e4m3", 61 * (512 + 64)),
        ("qwen3-next-80b", "bf16", 12 * 2 * 2 * 256 * 2),  # every fourth of 48 layers is full attention
        ("lfm2-1.2b", "bf16", 6 * 8 * 2 * 64 * 2),
        ("nemotron-h-8b", "bf16", 4 * 8 * 2 * 128 * 2),
        ("falcon-h1-1.5b", "bf16", 24 * 2 * 2 * 128 * 2),  # every layer has both kinds
        ("gemma-3-1b", "bf16", 26 * 1 * 2 * 256 * 2),  # sliding layers share the one pool
        ("gpt-oss-20b", "bf16", 12 * 8 * 2 * 64 * 2 + 0.8 * 12 * 8 * 2 * 64 * 2),
    ],
)
def test_published_models(name: str, dtype: str, expected: float) -> None:
    assert kv_bytes_per_token(model_from_config(MODELS[name]), dtype, version=NEW).total == pytest.approx(expected)


def test_sparse_attention_adds_index_keys_and_scales() -> None:
    model = model_from_config(MODELS["deepseek-v3.2"])
    index = 61 * (128 + 4)
    raw = 61 * (512 + 64)
    scaled = 61 * (512 + 4 * 4 + 2 * 64)
    assert kv_bytes_per_token(model, "bf16", version=NEW).total == 2 * raw + index
    assert kv_bytes_per_token(model, "fp8_e4m3", version=NEW).total == scaled + index
    assert kv_bytes_per_token(model, "fp8_e4m3", version=NEW, dsa_raw_layout=True).total == raw + index
    assert kv_bytes_per_token(model, "fp8_e4m3", version=OLD).total == raw + index


def test_shared_indexers_keep_no_key_from_0_5_18() -> None:
    config = MODELS["deepseek-v3.2"] | {"indexer_types": (["full", "shared"] * 31)[:61]}
    model = model_from_config(config)
    assert kv_bytes_per_token(model, "bf16", version=NEW).index == 31 * 132
    assert kv_bytes_per_token(model, "bf16", version=(0, 5, 17)).index == 61 * 132


def test_heads_are_split_over_ranks_then_replicated() -> None:
    model = model_from_config(MODELS["qwen3-next-80b"])
    one, two, eight = (kv_bytes_per_token(model, "bf16", version=NEW, tp=tp).total for tp in (1, 2, 8))
    assert (two, eight) == (one / 2, one / 2)
    latent = model_from_config(MODELS["deepseek-v3"])
    assert kv_bytes_per_token(latent, "bf16", version=NEW, tp=8).total == 61 * 576 * 2


@given(
    layers=st.integers(1, 128),
    kv_heads=st.integers(1, 64),
    group=st.integers(1, 16),
    head_dim=st.sampled_from([32, 64, 80, 96, 128, 192, 256]),
    tp=st.sampled_from([1, 2, 4, 8]),
)
def test_narrower_dtypes_and_more_ranks_never_cost_more(
    layers: int, kv_heads: int, group: int, head_dim: int, tp: int
) -> None:
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": kv_heads * group * head_dim,
        "num_hidden_layers": layers,
        "num_attention_heads": kv_heads * group,
        "num_key_value_heads": kv_heads,
    }
    model = model_from_config(config)

    def cost(dtype: str, ranks: int = tp) -> float:
        return kv_bytes_per_token(model, dtype, version=NEW, tp=ranks).total

    assert cost("fp4_mx_block16") < cost("fp8_e4m3") < cost("mxfp8") < cost("bf16") < cost("fp32")
    assert 0 < cost("bf16", 2 * tp) <= cost("bf16", tp)


@given(
    size=st.integers(0, 2**40), cell=st.integers(1, 2**20), page=st.sampled_from([1, 16, 64, 128]),
)  # fmt: skip
def test_pool_is_whole_pages_and_as_large_as_fits(size: int, cell: int, page: int) -> None:
    tokens = pool_tokens(size, KvBytes(cell, cell), page)
    assert tokens % page == 0
    assert tokens * cell <= size < (tokens + page) * cell


@given(length=st.integers(1, 10**6), page=st.sampled_from([1, 16, 64, 128]))
def test_index_entries_cover_the_request(length: int, page: int) -> None:
    entries = index_entries(length, page, "fa3")
    assert (entries - 1) * page < length <= entries * page
    assert index_entries(length, page, "flashinfer") == length


def test_granularity_at_the_pages_people_compare() -> None:
    assert [granularity(page).expected_lost_tokens for page in (1, 16, 64)] == [0, 7.5, 31.5]
    assert granularity(64).min_prefix_tokens == 64
