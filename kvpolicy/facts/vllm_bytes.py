"""Bytes of KV cache a token costs under vLLM, and an upper bound on its pool.

Every attention layer's spec says how many bytes a token takes (``v1/kv_cache_interface.py``, packed dtypes through the
backends' ``customize_spec``); layers of one pool share block tables. Linear layers' states come on top: one block or
two of each a request, whatever its length.
"""

from __future__ import annotations

from kvpolicy.facts.gpus import Gpu
from kvpolicy.facts.kv_bytes import KvBytes
from kvpolicy.facts.model import ModelFacts
from kvpolicy.facts.vllm_blocks import layer_bytes_per_token

__all__ = ["vllm_kv_bytes", "vllm_pool_bytes"]

_MIB = 1 << 20
_MEMORY_SHARE = 0.92  # config/cache.py gpu_memory_utilization, 0.26 to 0.33
_INDEXER_SCALE_BYTES = 4


def vllm_kv_bytes(
    model: ModelFacts, kv_dtype: str, *, compute: str, skipped_layers: int = 0, tp: int = 1
) -> KvBytes | None:
    """Bytes of a token on one rank; None where the format's packing is not known here.

    ``skipped_layers`` are stored in ``compute``, the model's own dtype. ``sliding``: the part of window layers, which
    keep a token for the length of their window only.
    """
    layers = model.full_layers + model.swa_layers
    stored = layer_bytes_per_token(model, kv_dtype, tp=tp)
    plain = layer_bytes_per_token(model, compute, tp=tp)
    if stored is None or plain is None:
        return None
    skipped_layers = min(skipped_layers, layers)
    parts = [f"{layers - skipped_layers} layers * {stored:,} bytes"]
    if skipped_layers:
        parts.append(f"{skipped_layers} layers in {compute} * {plain:,} bytes")
    total = (layers - skipped_layers) * stored + skipped_layers * plain
    index = 0
    if model.is_dsa:  # fp8 keys with one float32 scale, in every layer's indexer cache
        index = model.index_layers * (model.index_head_dim + _INDEXER_SCALE_BYTES)
        parts.append(f"{index:,} of index keys")
    sliding = min(model.window_layers, layers) * stored if not model.is_mla else 0
    return KvBytes(total + index, total - sliding, sliding, index, " + ".join(parts))


def vllm_pool_bytes(gpu: Gpu, model: ModelFacts, *, tp: int) -> tuple[int, str] | None:
    """(bytes left for KV on one rank, how): the share vLLM takes by default, less the weights.

    An upper bound: activations, CUDA graphs and the libraries' own memory, which the engine measures, come off it too.
    None where memory or weights are unknown.
    """
    if gpu.memory_mib is None or model.weights_bytes is None:
        return None
    left = int(gpu.memory_mib * _MEMORY_SHARE * _MIB) - model.weights_bytes // tp
    weights = "weights from the files" if model.weights_from == "files" else "weights estimated"
    gib = model.weights_bytes / tp / 2**30
    how = f"{gpu.label}: {gpu.memory_mib} MiB * {_MEMORY_SHARE:g} - {gib:.1f} GiB ({weights}); less what vLLM measures"
    return max(left, 0), how
