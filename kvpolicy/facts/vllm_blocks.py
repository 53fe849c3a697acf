"""vLLM's block sizes: what the cache manager hashes and evicts, and what the kernels read of it.

The manager's block (``--block-size``) is the unit of caching: a prefix shorter than one is never shared. It starts as
asked or as the backends prefer, and grows where layers of unlike size share one pool (``platforms/interface.py
update_block_size_for_backend``): a hybrid's attention blocks must be as many bytes as its linear layers' state, and
blocks of a quantized dtype as many as those of the layers that are not.
"""

from __future__ import annotations

from math import lcm

from kvpolicy.facts.dtypes import ELEMENT_BITS
from kvpolicy.facts.model import ModelFacts
from kvpolicy.facts.vllm_backends import Backend

__all__ = ["INDEXER_BLOCK", "common_block", "hybrid_block", "layer_bytes_per_token", "mixed_dtype_block"]

#: Kernel block of the sparse-attention indexer on CUDA (v1/attention/backends/mla/indexer.py).
INDEXER_BLOCK = 64
_MLA_ALIGNMENT_TOKENS = 128
_SCALE_BYTES = 4
_TURBOQUANT_BITS = {
    "turboquant_k8v4": (8, 4),
    "turboquant_4bit_nc": (4, 4),
    "turboquant_k3v4_nc": (3, 4),
    "turboquant_3bit_nc": (3, 3),
}


def layer_bytes_per_token(model: ModelFacts, kv_dtype: str, *, tp: int) -> int | None:
    """Bytes a token takes in one attention layer on one rank (``AttentionSpec.page_size_bytes``); None: not known."""
    if model.is_mla:
        packed = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}.get(kv_dtype)
        if packed is not None:
            return packed
        bits = ELEMENT_BITS.get(kv_dtype)
        return None if bits is None else (model.kv_lora_rank + model.qk_rope_head_dim) * bits // 8
    width, value_width = model.head_dim, model.v_head_dim
    if kv_dtype in ("nvfp4", "nvfp4_4over6"):
        head = sum(part // 2 + part // 16 for part in (width, value_width))
    elif kv_dtype.endswith("_per_token_head"):
        head = (width + value_width) // (2 if kv_dtype.startswith("int4") else 1) + 2 * _SCALE_BYTES
    elif kv_dtype in _TURBOQUANT_BITS:
        key_bits, value_bits = _TURBOQUANT_BITS[kv_dtype]
        key = width if key_bits == 8 else -(-width * key_bits // 8) + 2
        head = key + -(-width * value_bits // 8) + 4
        head += head % 2
    elif kv_dtype in ELEMENT_BITS:
        head = (width + value_width) * ELEMENT_BITS[kv_dtype] // 8
    else:
        return None
    return max(1, model.kv_heads // tp) * head


def common_block(rows: list[Backend], default: int) -> int:
    """Smallest size that every backend takes, the default first (``_preferred_block_size_for_backends``)."""
    if len(rows) == 1:
        return rows[0].preferred_block(default)
    if all(row.takes_block(default) for row in rows):
        return default
    return lcm(*(min(row.blocks) for row in rows))


def hybrid_block(block: int, row: Backend, state_bytes: int, token_bytes: int, *, mla: bool) -> int:
    """Attention block whose bytes cover a linear layer's state (``_align_hybrid_block_size``)."""
    align = max(min(row.blocks), block, _MLA_ALIGNMENT_TOKENS if mla else 1)
    size = align * -(-state_bytes // (align * token_bytes))
    kernel = min(row.blocks)
    return max(block, kernel * -(-size // kernel))


def mixed_dtype_block(block: int, row: Backend, token_bytes: int, unquantized_token_bytes: int) -> int:
    """Block whose bytes cover a kernel block of the unquantized layers (``_align_heterogeneous_kv_block_size``)."""
    if token_bytes == unquantized_token_bytes:
        return block
    kernel = min(row.blocks)
    align = max(kernel, block)
    return max(block, align * -(-unquantized_token_bytes * kernel // (align * token_bytes)))
