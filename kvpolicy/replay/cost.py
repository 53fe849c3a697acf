"""What a hit saves: prefill work, whose one part grows with the tokens and whose other part with pairs of tokens.

A prompt of ``n`` tokens with ``h`` of them cached computes ``n - h`` tokens (linear: projections, MLP) and attends
``sum(i for i in h+1..n)`` pairs of query and key (quadratic). A hit deep in a long prompt saves more pairs than as many
tokens at the front of short ones, so that a policy may hit less and still save more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvpolicy.facts.model import ModelFacts

__all__ = ["ModelCost", "Saved", "saved"]


@dataclass(frozen=True, slots=True)
class Saved:
    """Shares of all prefill work that hits made unnecessary, 0 to 1."""

    linear: float
    quadratic: float
    flops: float | None = None  # both together, for a given model


@dataclass(frozen=True, slots=True)
class ModelCost:
    """Floating-point operations of one model's prefill."""

    name: str
    flops_a_token: float  # 2 a weight that a token passes
    flops_a_pair: (
        float  # 2 for a query times a key, 2 for a weight times a value, for each head and layer with full attention
    )
    window_flops_a_pair: float = 0.0  # the same for layers that see a window only
    window_tokens: int = 0

    @classmethod
    def of(cls, model: ModelFacts) -> ModelCost:
        """From a model's shape.

        Raises:
            ValueError: its weights cannot be counted.
        """
        if not model.weights_bytes:
            raise ValueError(f"the weights of '{model.name}' cannot be counted from its config.json")
        bytes_a_weight = 4 if model.dtype == "fp32" else 2
        query_dim = model.kv_lora_rank + model.qk_rope_head_dim if model.is_mla else model.head_dim
        value_dim = model.kv_lora_rank if model.is_mla else model.v_head_dim
        pair = 2.0 * model.num_heads * (query_dim + value_dim)
        return cls(
            model.name,
            2.0 * model.weights_bytes / bytes_a_weight,
            pair * model.full_layers,
            2.0 * model.num_heads * (model.swa_head_dim + model.swa_v_head_dim) * model.swa_layers,
            model.sliding_window or 0,
        )

    def prefill(self, tokens: int, cached: int) -> float:
        """Operations to prefill a prompt of which ``cached`` tokens need not be computed."""
        return (
            self.flops_a_token * (tokens - cached)
            + self.flops_a_pair * (_pairs(tokens) - _pairs(cached))
            + self.window_flops_a_pair
            * (_window_pairs(tokens, self.window_tokens) - _window_pairs(cached, self.window_tokens))
        )


def saved(input_tokens: Sequence[int], hit_tokens: Sequence[int], model: ModelCost | None = None) -> Saved:
    """What the hits of these requests saved."""
    tokens, hits = sum(input_tokens), sum(hit_tokens)
    pairs = sum(map(_pairs, input_tokens))
    pairs_hit = sum(map(_pairs, hit_tokens))
    flops = None
    if model is not None:
        whole = sum(model.prefill(n, 0) for n in input_tokens)
        rest = sum(model.prefill(n, h) for n, h in zip(input_tokens, hit_tokens, strict=True))
        flops = 1 - rest / whole if whole else 0.0
    return Saved(hits / tokens if tokens else 0.0, pairs_hit / pairs if pairs else 0.0, flops)


def _pairs(tokens: int) -> int:
    return tokens * (tokens + 1) // 2


def _window_pairs(tokens: int, window: int) -> int:
    if tokens <= window:
        return _pairs(tokens)
    return _pairs(window) + (tokens - window) * window
