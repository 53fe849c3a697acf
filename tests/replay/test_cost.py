"""Prefill saved, against sums written out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpolicy.facts.model import model_from_config
from kvpolicy.replay.cost import ModelCost, saved

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000,
    "torch_dtype": "bfloat16",
}  # fmt: skip


def test_a_deep_hit_saves_more_pairs_than_tokens() -> None:
    shallow, deep = saved([10] * 10, [1] * 10), saved([10] * 10, [10, *[0] * 9])
    assert shallow.linear == deep.linear == 0.1
    assert shallow.quadratic == pytest.approx(10 / 550)
    assert deep.quadratic == pytest.approx(55 / 550)


@given(st.integers(1, 40), st.data())
def test_a_model_s_cost_is_the_sum_over_tokens(tokens: int, data: st.DataObject) -> None:
    cached = data.draw(st.integers(0, tokens))
    window = data.draw(st.integers(1, 50))
    cost = ModelCost("m", 3.0, 5.0, 7.0, window)
    by_hand = sum(3.0 + 5.0 * (at + 1) + 7.0 * min(at + 1, window) for at in range(cached, tokens))
    assert cost.prefill(tokens, cached) == pytest.approx(by_hand)


def test_the_figures_of_a_model() -> None:
    cost = ModelCost.of(model_from_config(LLAMA, name="tiny"))
    assert cost.flops_a_pair == 2 * 4 * (16 + 16) * 2
    weights = 2 * (64 * 16 * (2 * 4 + 2 * 2) + 3 * 64 * 128) + 2 * 1000 * 64
    assert cost.flops_a_token == 2 * weights
    share = saved([100], [50], cost).flops
    assert share is not None
    assert 0.25 < share < 0.5


def test_a_model_without_countable_weights_is_refused() -> None:
    config = {key: value for key, value in LLAMA.items() if key != "vocab_size"}
    with pytest.raises(ValueError, match="cannot be counted"):
        ModelCost.of(model_from_config(config, name="x"))
