"""K and V stored as int8 or int4, in plain PyTorch; :mod:`.kv_quant_triton` and
:mod:`.kv_decode_triton` do the same on a GPU.

A layer keeps codes of K, codes of V, and scales. Each head of a token is quantized by itself, symmetrically, with one
scale for the whole of it or for every `group` values in a row::

    scale = bf16(max |x| / qmax)        qmax = 127 or 7
    code  = round(x / scale)            so that |x - code * scale| <= scale / 2, whatever the scale was rounded to

bf16 scales have the range of what is stored, so that small heads lose no precision to fp16's subnormals, and their
rounding costs nothing: codes are taken with the rounded scale. Two int4 codes share a byte: byte j has value j in its
low half and value j + head_dim / 2 in its high one, each plus 8, so that a kernel unpacks two vectors that are each
contiguous. The scales of a head's K and V lie side by side and are loaded as one 32-bit word.

Attention reads the codes of the tokens it attends to; nothing here dequantizes a pool. Slots come as SGLang's
`kv_indptr` and `kv_indices`: request i has the slots `kv_indices[kv_indptr[i]:kv_indptr[i + 1]]`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch

from kvpolicy.facts.encodings import ENCODINGS, INT4, INT8, Encoding

from . import kv_decode_triton, kv_quant_triton

__all__ = ["ENCODINGS", "INT4", "INT8", "Encoding", "Layer", "decode_attention", "empty", "load", "load_side", "store"]

SCALE_DTYPE = torch.bfloat16


class Layer(NamedTuple):
    """K and V of one layer; `width` is head_dim for int8 and head_dim / 2 for int4."""

    encoding: Encoding
    k_codes: torch.Tensor  # int8 or uint8[slots, heads, width]
    v_codes: torch.Tensor
    scales: torch.Tensor  # bf16[slots, heads, groups, 2]: of K, of V

    @property
    def head_dim(self) -> int:
        """Values a head."""
        return self.k_codes.shape[2] * 8 // self.encoding.bits


def empty(encoding: Encoding, slots: int, heads: int, head_dim: int, device: torch.device | str) -> Layer:
    """Zeroed room for `slots` tokens of one layer. ValueError for a head_dim that the kernels do not take."""
    width, dtype = (head_dim, torch.int8) if encoding.bits == 8 else (head_dim // 2, torch.uint8)
    k_codes, v_codes = (torch.zeros((slots, heads, width), dtype=dtype, device=device) for _ in range(2))
    shape = (slots, heads, encoding.groups(head_dim), 2)
    return Layer(encoding, k_codes, v_codes, torch.zeros(shape, dtype=SCALE_DTYPE, device=device))


def store(layer: Layer, loc: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Quantize `k` and `v`, float[tokens, heads, head_dim], into the slots `loc`, int[tokens], no slot twice.

    Token and head strides are free; a head's values are contiguous.
    """
    if k.is_cuda and kv_quant_triton.available():
        kv_quant_triton.store(layer, loc, k, v)
    else:
        store_torch(layer, loc, k, v)


def load(layer: Layer, loc: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V of the slots `loc`, int[tokens]: dtype[tokens, heads, head_dim] each."""
    if layer.k_codes.is_cuda and kv_quant_triton.available():
        return kv_quant_triton.load(layer, loc, dtype)
    return load_torch(layer, loc, dtype)


def decode_attention(
    q: torch.Tensor,
    layer: Layer,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    sm_scale: float,
    logit_cap: float = 0.0,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """One new token a request against all its tokens: like `q`, float[requests, q heads, head_dim].

    Consecutive q heads share a KV head. `kv_indptr` int[requests + 1], `kv_indices` int[tokens]. Scores are capped as
    `cap * tanh(score / cap)` where `logit_cap` is above 0. A request without tokens gets zeros. Written into `out`,
    contiguous, if it is given.
    """
    if q.is_cuda and kv_quant_triton.available():
        return kv_decode_triton.decode_attention(q, layer, kv_indptr, kv_indices, sm_scale, logit_cap, out)
    return decode_attention_torch(q, layer, kv_indptr, kv_indices, sm_scale, logit_cap, out)


def store_torch(layer: Layer, loc: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """:func:`store` in PyTorch."""
    for side, (codes, x) in enumerate(((layer.k_codes, k), (layer.v_codes, v))):
        codes[loc], layer.scales[loc, ..., side] = _quantized(layer.encoding, x)


def _quantized(encoding: Encoding, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes [tokens, heads, width] and scales [tokens, heads, groups] of `x`."""
    tokens, heads, head_dim = x.shape
    grouped = x.to(torch.float32).reshape(tokens, heads, encoding.groups(head_dim), -1)
    scales = (grouped.abs().amax(-1) * (1.0 / encoding.qmax)).to(SCALE_DTYPE)
    inverse = torch.where(scales > 0, 1.0 / scales.to(torch.float32), 0.0)
    rounded = torch.round(grouped * inverse[..., None]).clamp_(-encoding.qmax, encoding.qmax)
    codes = rounded.to(torch.int8).view(tokens, heads, head_dim)
    if encoding.bits == 4:
        low, high = (codes + 8).to(torch.uint8).chunk(2, dim=-1)
        codes = low | (high << 4)
    return codes, scales


def load_torch(layer: Layer, loc: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """:func:`load` in PyTorch."""
    return load_side(layer, loc, 0, dtype), load_side(layer, loc, 1, dtype)


def load_side(layer: Layer, loc: torch.Tensor, side: int, dtype: torch.dtype) -> torch.Tensor:
    """K (`side` 0) or V (1) alone, as :func:`load` gives them; in PyTorch on every device."""
    codes, scales = (layer.k_codes, layer.v_codes)[side][loc], layer.scales[loc, ..., side].to(torch.float32)
    if layer.encoding.bits == 4:
        codes = torch.cat((codes & 15, codes >> 4), dim=-1).to(torch.int8) - 8
    grouped = codes.to(torch.float32).view(*scales.shape, -1) * scales[..., None]
    return grouped.view(codes.shape).to(dtype)


def decode_attention_torch(
    q: torch.Tensor,
    layer: Layer,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    sm_scale: float,
    logit_cap: float = 0.0,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """:func:`decode_attention` in PyTorch, request after request, in float32."""
    requests, q_heads, _ = q.shape
    out = torch.zeros_like(q) if out is None else out.zero_()
    ends = kv_indptr.tolist()
    for request, (start, end) in enumerate(pairwise(ends[: requests + 1])):
        if start == end:
            continue
        loaded = load_torch(layer, kv_indices[start:end].to(torch.int64), torch.float32)
        k, v = (x.transpose(0, 1) for x in loaded)
        grouped = q[request].to(torch.float32).view(k.shape[0], -1, k.shape[2])
        scores = grouped @ k.transpose(1, 2) * sm_scale
        if logit_cap > 0:
            scores = logit_cap * torch.tanh(scores / logit_cap)
        out[request] = (torch.softmax(scores, dim=-1) @ v).view(q_heads, -1).to(q.dtype)
    return out
