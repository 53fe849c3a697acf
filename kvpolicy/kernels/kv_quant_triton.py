"""The Triton form of storing and loading in :mod:`.kv_quant`: one launch for K and V of a layer's new tokens.

A program takes some rows, where a row is what shares one scale: for int4, a group of the low half of a head together
with that of the high half. Works under `TRITON_INTERPRET=1` on CPU tensors too, in fp16 and fp32. Decode attention is
:mod:`.kv_decode_triton`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from .kv_quant import Layer

try:
    import triton
    import triton.language as tl
except ImportError:  # the twin in .kv_quant serves
    triton = None

__all__ = ["StoreShape", "available", "high_half", "load", "low_half", "scale_of_k", "scale_of_v", "store"]


class StoreShape(NamedTuple):
    """How storing is cut up; the same for `load`."""

    values: int = 2048  # of K, and as many of V, a program
    num_warps: int = 4


_STORE = StoreShape()


def available() -> bool:
    """Whether Triton is installed."""
    return triton is not None


if triton is not None:

    @triton.jit
    def _scale(largest: tl.tensor, QMAX: tl.constexpr) -> tl.tensor:
        """float32 scales of rows whose largest values these are, as bf16 rounds them (the interpreter truncates)."""
        bits = (largest * (1.0 / QMAX)).to(tl.uint32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        return bits.to(tl.float32, bitcast=True)

    @triton.jit
    def _word(k_scale: tl.tensor, v_scale: tl.tensor) -> tl.tensor:
        """Two float32 that are bf16 numbers, in one word: K's in the low half."""
        return (k_scale.to(tl.uint32, bitcast=True) >> 16) | v_scale.to(tl.uint32, bitcast=True)

    @triton.jit
    def scale_of_k(word: tl.tensor) -> tl.tensor:
        return (word << 16).to(tl.float32, bitcast=True)

    @triton.jit
    def scale_of_v(word: tl.tensor) -> tl.tensor:
        return (word & 0xFFFF0000).to(tl.float32, bitcast=True)

    @triton.jit
    def _codes(x: tl.tensor, scale: tl.tensor, QMAX: tl.constexpr) -> tl.tensor:
        """Codes, as float32[rows, width], of `x` with one scale a row."""
        inverse = tl.where(scale > 0, tl.math.div_rn(1.0, tl.where(scale > 0, scale, 1.0)), 0.0)
        # To the nearest integer, halves to even: what lies below 1 falls off beside 1.5 * 2**23.
        nearest = (x * inverse[:, None] + 12582912.0) - 12582912.0
        return tl.clamp(nearest, -QMAX, QMAX)

    @triton.jit
    def _pair(low: tl.tensor, low_scale: tl.tensor, high: tl.tensor, high_scale: tl.tensor) -> tl.tensor:
        """int4 codes of two halves, in bytes."""
        return (_codes(low, low_scale, 7) + 8 + (_codes(high, high_scale, 7) + 8) * 16).to(tl.uint8)

    @triton.jit
    def low_half(byte: tl.tensor) -> tl.tensor:
        """The value in a byte's low half, as float32."""
        return (byte & 15).to(tl.float32) - 8

    @triton.jit
    def high_half(byte: tl.tensor) -> tl.tensor:
        return (byte >> 4).to(tl.float32) - 8

    @triton.jit(do_not_specialize=["tokens"])
    def _store_kernel(
        k_ptr: tl.tensor, v_ptr: tl.tensor, k_codes_ptr: tl.tensor, v_codes_ptr: tl.tensor, scales_ptr: tl.tensor,
        loc_ptr: tl.tensor, tokens: tl.tensor, k_stride_token: tl.tensor, k_stride_head: tl.tensor,
        v_stride_token: tl.tensor, v_stride_head: tl.tensor, HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
        BITS: tl.constexpr, GROUPS: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr,
    ) -> None:  # fmt: skip
        """A head has PARTS rows of WIDTH codes."""
        WIDTH: tl.constexpr = HEAD_DIM * BITS // 8 // PARTS
        HALF: tl.constexpr = HEAD_DIM // 2
        row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
        inside = row < tokens * (HEADS * PARTS)
        token, in_token = row // (HEADS * PARTS), row % (HEADS * PARTS)
        head, part = in_token // PARTS, in_token % PARTS
        column, mask = tl.arange(0, WIDTH)[None, :], inside[:, None]
        k_at = k_ptr + (token * k_stride_token + head * k_stride_head + part * WIDTH)[:, None] + column
        v_at = v_ptr + (token * v_stride_token + head * v_stride_head + part * WIDTH)[:, None] + column
        slot = tl.load(loc_ptr + token, mask=inside, other=0).to(tl.int64)
        codes_at = ((slot * (HEADS * PARTS) + in_token) * WIDTH)[:, None] + column
        scale_at = scales_ptr + (slot * HEADS + head) * GROUPS + part
        k = tl.load(k_at, mask=mask, other=0).to(tl.float32)
        v = tl.load(v_at, mask=mask, other=0).to(tl.float32)
        k_largest, v_largest = tl.max(tl.abs(k), axis=1), tl.max(tl.abs(v), axis=1)
        if BITS == 8:
            k_scale, v_scale = _scale(k_largest, 127), _scale(v_largest, 127)
            tl.store(k_codes_ptr + codes_at, _codes(k, k_scale, 127).to(tl.int8), mask=mask)
            tl.store(v_codes_ptr + codes_at, _codes(v, v_scale, 127).to(tl.int8), mask=mask)
        else:
            k_high = tl.load(k_at + HALF, mask=mask, other=0).to(tl.float32)
            v_high = tl.load(v_at + HALF, mask=mask, other=0).to(tl.float32)
            k_largest_high, v_largest_high = tl.max(tl.abs(k_high), axis=1), tl.max(tl.abs(v_high), axis=1)
            if GROUPS == 1:
                k_largest, v_largest = tl.maximum(k_largest, k_largest_high), tl.maximum(v_largest, v_largest_high)
                k_largest_high, v_largest_high = k_largest, v_largest
            k_scale, v_scale = _scale(k_largest, 7), _scale(v_largest, 7)
            k_scale_high, v_scale_high = _scale(k_largest_high, 7), _scale(v_largest_high, 7)
            tl.store(k_codes_ptr + codes_at, _pair(k, k_scale, k_high, k_scale_high), mask=mask)
            tl.store(v_codes_ptr + codes_at, _pair(v, v_scale, v_high, v_scale_high), mask=mask)
            if GROUPS > 1:
                tl.store(scale_at + PARTS, _word(k_scale_high, v_scale_high), mask=inside)
        tl.store(scale_at, _word(k_scale, v_scale), mask=inside)

    @triton.jit(do_not_specialize=["tokens"])
    def _load_kernel(
        k_codes_ptr: tl.tensor, v_codes_ptr: tl.tensor, scales_ptr: tl.tensor, loc_ptr: tl.tensor, k_ptr: tl.tensor,
        v_ptr: tl.tensor, tokens: tl.tensor, HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BITS: tl.constexpr,
        GROUPS: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr,
    ) -> None:  # fmt: skip
        WIDTH: tl.constexpr = HEAD_DIM * BITS // 8 // PARTS
        HALF: tl.constexpr = HEAD_DIM // 2
        dtype: tl.constexpr = k_ptr.dtype.element_ty
        row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
        inside = row < tokens * (HEADS * PARTS)
        token, in_token = row // (HEADS * PARTS), row % (HEADS * PARTS)
        head, part = in_token // PARTS, in_token % PARTS
        column, mask = tl.arange(0, WIDTH)[None, :], inside[:, None]
        slot = tl.load(loc_ptr + token, mask=inside, other=0).to(tl.int64)
        codes_at = ((slot * (HEADS * PARTS) + in_token) * WIDTH)[:, None] + column
        scale_at = scales_ptr + (slot * HEADS + head) * GROUPS + part
        out_at = ((token * HEADS + head) * HEAD_DIM + part * WIDTH)[:, None] + column
        k = tl.load(k_codes_ptr + codes_at, mask=mask, other=0)
        v = tl.load(v_codes_ptr + codes_at, mask=mask, other=0)
        word = tl.load(scale_at, mask=inside, other=0)
        if BITS == 8:
            tl.store(k_ptr + out_at, (k.to(tl.float32) * scale_of_k(word)[:, None]).to(dtype), mask=mask)
            tl.store(v_ptr + out_at, (v.to(tl.float32) * scale_of_v(word)[:, None]).to(dtype), mask=mask)
        else:
            high = word
            if GROUPS > 1:
                high = tl.load(scale_at + PARTS, mask=inside, other=0)
            tl.store(k_ptr + out_at, (low_half(k) * scale_of_k(word)[:, None]).to(dtype), mask=mask)
            tl.store(k_ptr + out_at + HALF, (high_half(k) * scale_of_k(high)[:, None]).to(dtype), mask=mask)
            tl.store(v_ptr + out_at, (low_half(v) * scale_of_v(word)[:, None]).to(dtype), mask=mask)
            tl.store(v_ptr + out_at + HALF, (high_half(v) * scale_of_v(high)[:, None]).to(dtype), mask=mask)


def _rows(layer: Layer, shape: StoreShape) -> tuple[int, int]:
    """Rows a head, and rows a program."""
    groups = layer.scales.shape[2]
    parts = groups if layer.encoding.bits == 8 or groups == 1 else groups // 2
    return parts, max(1, shape.values * parts // layer.head_dim)


def store(layer: Layer, loc: torch.Tensor, k: torch.Tensor, v: torch.Tensor, shape: StoreShape = _STORE) -> None:
    """:func:`.kv_quant.store` in Triton."""
    tokens, heads, head_dim = k.shape
    if tokens == 0:
        return
    parts, rows = _rows(layer, shape)
    _store_kernel[(triton.cdiv(tokens * heads * parts, rows),)](
        k, v, layer.k_codes, layer.v_codes, layer.scales.view(torch.uint32), loc, tokens,
        k.stride(0), k.stride(1), v.stride(0), v.stride(1), heads, head_dim, layer.encoding.bits,
        layer.scales.shape[2], parts, rows, num_warps=shape.num_warps,
    )  # fmt: skip


def load(
    layer: Layer, loc: torch.Tensor, dtype: torch.dtype, shape: StoreShape = _STORE
) -> tuple[torch.Tensor, torch.Tensor]:
    """:func:`.kv_quant.load` in Triton."""
    tokens, (_, heads, groups, _) = loc.numel(), layer.scales.shape
    k, v = torch.empty((2, tokens, heads, layer.head_dim), dtype=dtype, device=loc.device)
    if tokens:
        parts, rows = _rows(layer, shape)
        _load_kernel[(triton.cdiv(tokens * heads * parts, rows),)](
            layer.k_codes, layer.v_codes, layer.scales.view(torch.uint32), loc, k, v, tokens, heads, layer.head_dim,
            layer.encoding.bits, groups, parts, rows, num_warps=shape.num_warps,
        )  # fmt: skip
    return k, v
