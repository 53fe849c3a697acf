"""KVP6xx: what a policy asks for and an engine cannot give (error or warning by `cache.on_conflict`)."""

from __future__ import annotations

import json

from kvpolicy.language.codes.base import Code, codes

__all__ = ["CONFLICTS"]

_WINDOWED = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "num_hidden_layers": 4,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "vocab_size": 201088,
    "torch_dtype": "bfloat16",
}

CONFLICTS = codes(
    Code(
        "KVP601",
        "not honoured on this engine yet",
        "The field is part of the language, but this version's adapter for the engine does nothing with it. It is "
        "never ignored silently: remove it, drop it for one engine (`engines: {vllm: {allocator: null}}`), or set "
        "`cache.on_conflict: warn`.",
        bad="allocator: {order: lifo}\n",
        good="allocator: {order: lifo}\nengines: {vllm: {allocator: null}}\n",
        args=("--engine", "vllm"),
    ),
    Code(
        "KVP602",
        "the engine has no such dtype or backend",
        "Neither the preferred value nor one of `accept` is known to the engine.",
        bad="cache: {kv_dtype: fp16}\n",
        good="cache: {kv_dtype: {prefer: fp16, accept: [fp16, bf16]}}\n",
        args=("--engine", "sglang"),
    ),
    Code(
        "KVP603",
        "the model's cache cannot be steered",
        "Models with sliding-window or state layers (Mamba, linear attention) keep several caches under one prefix. "
        "What is evicted there stays the engine's own decision: with `on_conflict: error` the server does not start, "
        "with `warn` it starts in the engine's order. Page size, dtype and backend are unaffected.",
        bad="eviction: {policy: gdsf}\n",
        good="eviction: {policy: gdsf}\nengines: {sglang: {eviction: null}}\n",
        files={"gpt-oss.json": json.dumps(_WINDOWED)},
        args=("--engine", "sglang==0.5.23", "--model", "gpt-oss.json"),
    ),
)
