"""Bytes of KV cache a token costs on one tensor-parallel rank, as SGLang sizes its pool.

Mirrors ``srt/model_executor/pool_configurator.py``: ``DefaultPoolConfigurator._compute_cell_size`` (MHA, MLA, DSA, FP4,
MXFP8) and ``HybridSWAPoolConfigurator`` (a second pool for sliding-window layers). The pool holds
``available bytes // cell size`` tokens, rounded down to whole pages.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvpolicy.facts.dtypes import ELEMENT_BITS
from kvpolicy.facts.encodings import Encoding
from kvpolicy.facts.engines import Version
from kvpolicy.facts.model import ModelFacts

__all__ = ["KvBytes", "encoded_bytes_per_token", "kv_bytes_per_token"]

_DSA_QUANT_BLOCK = 128  # DSATokenToKVPool.quant_block_size
_FP4_BLOCK = 16  # NVFP4KVCacheMethod / FP4MXBlock16KVCacheMethod.SCALE_BLOCK_SIZE
_MXFP8_BLOCK = 32
_SCALE_BYTES = 4  # one float32 per DSA block


@dataclass(frozen=True, slots=True)
class KvBytes:
    """Bytes a token on one rank. ``total`` divides the memory; it holds ``sliding`` weighted by its pool's share."""

    total: float
    full: int  # layers that keep every token
    sliding: int = 0  # layers of the sliding-window pool, per token of that pool
    index: int = 0  # sparse-attention index keys
    formula: str = ""


def kv_bytes_per_token(
    model: ModelFacts,
    kv_dtype: str,
    *,
    version: Version,
    tp: int = 1,
    swa_share: float = 0.8,
    dsa_raw_layout: bool = False,
    fp4_scale_copies: int = 1,
    fp4_workspace: bool = False,
) -> KvBytes:
    """Cell size in bytes for storage dtype ``kv_dtype`` (canonical, not ``auto``) at ``tp`` ranks.

    ``swa_share``: ``--swa-full-tokens-ratio`` (default 0.8). ``dsa_raw_layout``: the DSA kernels in use keep plain fp8
    rows (TRT-LLM, ROCm) rather than rows with block scales. ``fp4_scale_copies`` and ``fp4_workspace``: NVFP4 scale
    layouts held, and whether prefill reads an FP8 workspace.
    """
    bits = ELEMENT_BITS[kv_dtype]
    if model.is_mla:
        return _latent(model, kv_dtype, bits, version, dsa_raw_layout)
    full_row = _rank_heads(model.kv_heads, tp) * (model.head_dim + model.v_head_dim)
    if model.swa_layers:
        return _with_sliding_pool(model, kv_dtype, bits, tp, swa_share, full_row)
    layers = model.full_layers
    shape = f"{layers} layers * {_rank_heads(model.kv_heads, tp)} KV heads * {_pair(model.head_dim, model.v_head_dim)}"
    if bits == 4:
        row = 2 * _rank_heads(model.kv_heads, tp) * (model.head_dim // 2)
        scales = 2 * _rank_heads(model.kv_heads, tp) * model.head_dim // _FP4_BLOCK
        # Up to 0.5.20 every FP4 pool is charged for one FP8 workspace that its layers share.
        has_workspace = fp4_workspace or version <= (0, 5, 20)
        workspace = 2 * _rank_heads(model.kv_heads, tp) * model.head_dim if has_workspace else 0
        total = layers * (row + fp4_scale_copies * scales) + workspace
        return KvBytes(total, total, formula=f"{shape} * 1/2 byte + block scales")
    total = layers * full_row * bits // 8
    if kv_dtype == "mxfp8":
        total += layers * full_row // _MXFP8_BLOCK
        return KvBytes(total, total, formula=f"{shape} * 1 byte + block scales")
    return KvBytes(total, total, formula=f"{shape} * {bits // 8} {'byte' if bits == 8 else 'bytes'}")


def encoded_bytes_per_token(model: ModelFacts, encoding: Encoding, tp: int = 1) -> KvBytes:
    """Cell size of a pool of K and V that kvpolicy encodes itself. ValueError for heads that it does not take."""
    heads, head = _rank_heads(model.kv_heads, tp), encoding.head_bytes(model.head_dim)
    total = model.full_layers * heads * 2 * head
    groups = encoding.groups(model.head_dim)
    shape = f"{model.full_layers} layers * {heads} KV heads * 2 * {head} bytes"
    scales = f"{groups} {'scale' if groups == 1 else 'scales'}"
    return KvBytes(total, total, formula=f"{shape} ({model.head_dim} values, {scales})")


def _latent(model: ModelFacts, kv_dtype: str, bits: int, version: Version, raw_layout: bool) -> KvBytes:
    """MLA and DSA: one latent row a layer, the same on every rank."""
    layers, width = model.full_layers, model.kv_lora_rank + model.qk_rope_head_dim
    shape = f"{layers} layers * ({model.kv_lora_rank} latent + {model.qk_rope_head_dim} rope)"
    if bits == 4:
        full = layers * width // 2 + layers * (width // _FP4_BLOCK)
        return KvBytes(full, full, formula=f"{shape} * 1/2 byte + block scales")
    scaled_rows = model.is_dsa and kv_dtype == "fp8_e4m3" and not raw_layout and version >= (0, 5, 17)
    if scaled_rows:  # latent in fp8 with a float32 scale a block, rope kept in bf16
        scales = model.kv_lora_rank // _DSA_QUANT_BLOCK * _SCALE_BYTES
        full = layers * (model.kv_lora_rank + scales + 2 * model.qk_rope_head_dim)
        parts = f"{model.kv_lora_rank} latent + {scales} scales + {2 * model.qk_rope_head_dim} rope"
        shape = f"{layers} layers * ({parts}) bytes"
    else:
        full = layers * width * bits // 8
        shape = f"{shape} * {bits // 8} {'byte' if bits == 8 else 'bytes'}"
    if not model.is_dsa:
        return KvBytes(full, full, formula=shape)
    key = model.index_head_dim + model.index_head_dim // _DSA_QUANT_BLOCK * _SCALE_BYTES
    if version >= (0, 5, 23):
        key = -(-key // model.index_kpool)
    index = key * (model.index_layers if version >= (0, 5, 18) else layers)
    return KvBytes(full + index, full, index=index, formula=f"{shape} + {index} of index keys")


def _with_sliding_pool(
    model: ModelFacts, kv_dtype: str, bits: int, tp: int, swa_share: float, full_row: int
) -> KvBytes:
    swa_row = _rank_heads(model.swa_kv_heads, tp) * (model.swa_head_dim + model.swa_v_head_dim)
    element_bytes = max(bits // 8, 1)  # this configurator charges a whole byte for an FP4 element
    full_token, swa_token = full_row * element_bytes, swa_row * element_bytes
    if kv_dtype == "mxfp8":
        full_token += full_row // _MXFP8_BLOCK
        swa_token += swa_row // _MXFP8_BLOCK
    full, sliding = full_token * model.full_layers, swa_token * model.swa_layers
    if not model.full_layers:
        return KvBytes(sliding, 0, sliding, formula=f"{model.swa_layers} sliding layers * {swa_token} bytes")
    formula = (
        f"{model.full_layers} full layers * {full_token} bytes + "
        f"{swa_share:g} * {model.swa_layers} sliding layers * {swa_token} bytes"
    )
    return KvBytes(full + swa_share * sliding, full, sliding, formula=formula)


def _rank_heads(kv_heads: int, tp: int) -> int:
    """ModelConfig.get_num_kv_heads: heads are split over ranks and replicated once there are fewer than ranks."""
    return max(1, kv_heads // tp)


def _pair(head_dim: int, v_head_dim: int) -> str:
    return f"2 * {head_dim}" if head_dim == v_head_dim else f"({head_dim} + {v_head_dim})"
