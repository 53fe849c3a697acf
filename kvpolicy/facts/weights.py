"""Size of a model's weights: the files when they are there, else a count of its matrices (within a few percent)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvpolicy.facts.dtypes import ELEMENT_BITS, canonical

__all__ = ["weight_bytes"]

_QUANT_BITS = {"fp8": 8, "awq": 4, "gptq": 4, "mxfp4": 4.25, "modelopt": 8, "compressed-tensors": 8, "bitsandbytes": 4}


def weight_bytes(config: Mapping[str, Any], text: Mapping[str, Any], directory: Path | None) -> tuple[int | None, str]:
    """(bytes of all weights before tensor parallelism, "files" | "estimate" | "")."""
    measured = _measured(directory) if directory is not None else 0
    if measured:
        return measured, "files"
    try:
        parameters = _parameters(text)
    except (KeyError, TypeError, ValueError):
        return None, ""
    stated = canonical(str(text.get("dtype") or text.get("torch_dtype") or config.get("torch_dtype") or "bfloat16"))
    bits: float = min(ELEMENT_BITS.get(stated, 16), 16)
    quantization = config.get("quantization_config") or text.get("quantization_config")
    if isinstance(quantization, Mapping):
        bits = _QUANT_BITS.get(str(quantization.get("quant_method", "")).lower(), bits)
    return int(parameters * bits / 8), "estimate"


def _measured(directory: Path) -> int:
    try:
        index = json.loads((directory / "model.safetensors.index.json").read_text(encoding="utf-8"))
        return int(index["metadata"]["total_size"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    try:
        return sum(file.stat().st_size for file in directory.glob("*.safetensors"))
    except OSError:
        return 0


def _parameters(text: Mapping[str, Any]) -> int:
    """Parameters of a decoder: embeddings, attention, dense or expert MLPs; norms and biases are ignored."""
    hidden, layers = int(text["hidden_size"]), int(text["num_hidden_layers"])
    heads = int(text["num_attention_heads"])
    head_dim = int(text.get("head_dim") or hidden // heads)
    kv_heads = int(text.get("num_key_value_heads") or heads)
    if text.get("kv_lora_rank"):
        rank, rope = int(text["kv_lora_rank"]), int(text.get("qk_rope_head_dim") or 0)
        nope, value = int(text.get("qk_nope_head_dim") or head_dim), int(text.get("v_head_dim") or head_dim)
        q_rank = int(text.get("q_lora_rank") or 0)
        query = hidden * q_rank + q_rank * heads * (nope + rope) if q_rank else hidden * heads * (nope + rope)
        attention = query + hidden * (rank + rope) + rank * heads * (nope + value) + heads * value * hidden
    else:
        attention = hidden * head_dim * (2 * heads + 2 * kv_heads)
    dense = 3 * hidden * int(text["intermediate_size"])
    experts = int(text.get("n_routed_experts") or text.get("num_experts") or text.get("num_local_experts") or 0)
    if not experts:
        mlp = layers * dense
    else:
        width = int(text.get("moe_intermediate_size") or text["intermediate_size"])
        shared = int(text.get("n_shared_experts") or 0)
        dense_layers = int(text.get("first_k_dense_replace") or 0)
        mlp = dense_layers * dense + (layers - dense_layers) * 3 * hidden * width * (experts + shared)
    embeddings = int(text["vocab_size"]) * hidden * (1 if text.get("tie_word_embeddings") else 2)
    return layers * attention + mlp + embeddings
