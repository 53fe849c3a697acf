"""The Triton form of decode attention over int8 and int4 (:mod:`.kv_quant`).

Split over a request's tokens: a program computes one KV head's queries against one stretch of tokens, and a second
kernel weighs the stretches. Codes become numbers in registers. Where a head has one scale, scores take K's and
probabilities or values V's; where it has several, keys and values take them. Works under `TRITON_INTERPRET=1` on CPU
tensors too, in fp16 and fp32.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from .kv_quant import Layer

try:
    import triton
    import triton.language as tl

    from .kv_quant_triton import high_half, low_half, scale_of_k, scale_of_v
except ImportError:  # the twin in .kv_quant serves
    triton = None

__all__ = ["SHAPES", "DecodeShape", "decode_attention", "launch_decode"]

_MAX_SPLITS = 64


class DecodeShape(NamedTuple):
    """How decode attention is cut up: tuned on an H200 (`benchmarks/kv_quant.py --tune`)."""

    block_n: int = 64  # tokens a step
    split_tokens: int = 256  # a stretch has at least that many
    programs_per_sm: int = 16
    num_warps: int = 2
    num_stages: int = 3
    scale_v: bool = False  # int8 values, not probabilities, take the scale
    packed: bool = False  # on CUDA, int4 codes become bf16 four bytes at a time, in inline PTX


SHAPES = {8: DecodeShape(), 4: DecodeShape(packed=True)}  # by bits

if triton is not None:

    @triton.jit
    def _int4_numbers(codes: tl.tensor, FAST: tl.constexpr, dtype: tl.constexpr) -> tl.tensor:
        """Both values in each byte. `FAST`, in bf16, four bytes at a time: half a byte beside 128, less 136."""
        if FAST:
            return tl.inline_asm_elementwise(
                """{
                .reg .b32 one, less, pair<2>, low<2>, high<2>;
                mov.b32 one, 0x3F803F80;
                mov.b32 less, 0xC308C308;
                prmt.b32 pair0, $4, 0, 0x4140;
                prmt.b32 pair1, $4, 0, 0x4342;
                lop3.b32 low0, pair0, 0x000F000F, 0x43004300, 0xEA;
                lop3.b32 low1, pair1, 0x000F000F, 0x43004300, 0xEA;
                shr.b32 pair0, pair0, 4;
                shr.b32 pair1, pair1, 4;
                lop3.b32 high0, pair0, 0x000F000F, 0x43004300, 0xEA;
                lop3.b32 high1, pair1, 0x000F000F, 0x43004300, 0xEA;
                fma.rn.bf16x2 $0, low0, one, less;
                fma.rn.bf16x2 $1, low1, one, less;
                fma.rn.bf16x2 $2, high0, one, less;
                fma.rn.bf16x2 $3, high1, one, less;
                }""",
                "=r,=r,=r,=r,r", [codes], dtype=(tl.bfloat16, tl.bfloat16), is_pure=True, pack=4,
            )  # fmt: skip
        return low_half(codes).to(dtype), high_half(codes).to(dtype)

    @triton.jit
    def _product(numbers: tl.tensor, scales: tl.tensor, FAST: tl.constexpr) -> tl.tensor:
        """Of two tensors that broadcast. `FAST`, in bf16, two at a time."""
        if FAST:
            numbers, scales = tl.broadcast(numbers, scales)
            return tl.inline_asm_elementwise(
                """{
                .reg .b32 nothing;
                mov.b32 nothing, 0x80008000;
                fma.rn.bf16x2 $0, $1, $2, nothing;
                }""",
                "=r,r,r", [numbers, scales], dtype=tl.bfloat16, is_pure=True, pack=2,
            )  # fmt: skip
        return numbers * scales

    @triton.jit
    def _scale_keys(codes: tl.tensor, scales: tl.tensor, FAST: tl.constexpr) -> tl.tensor:
        """Keys from numbers [head_dim, tokens] and scales [groups, tokens], of one dtype."""
        dim: tl.constexpr = codes.shape[0]
        tokens: tl.constexpr = codes.shape[1]
        groups: tl.constexpr = scales.shape[0]
        grouped = _product(tl.reshape(codes, (groups, dim // groups, tokens)), scales[:, None, :], FAST)
        return tl.reshape(grouped, (dim, tokens))

    @triton.jit
    def _scale_values(codes: tl.tensor, scales: tl.tensor, FAST: tl.constexpr) -> tl.tensor:
        """Values from numbers [tokens, head_dim] and scales [tokens, groups], of one dtype."""
        tokens: tl.constexpr = codes.shape[0]
        dim: tl.constexpr = codes.shape[1]
        groups: tl.constexpr = scales.shape[1]
        grouped = _product(tl.reshape(codes, (tokens, groups, dim // groups)), scales[:, :, None], FAST)
        return tl.reshape(grouped, (tokens, dim))

    @triton.jit
    def _stretch(tokens: tl.tensor, splits: tl.tensor, SPLIT_TOKENS: tl.constexpr) -> tl.tensor:
        """Tokens a stretch, so that at most `splits` of them cover the request: a multiple of SPLIT_TOKENS."""
        even = (tokens + splits - 1) // splits
        return tl.maximum((even + SPLIT_TOKENS - 1) // SPLIT_TOKENS * SPLIT_TOKENS, SPLIT_TOKENS)

    @triton.jit(do_not_specialize=["splits"])
    def _decode_kernel(
        q_ptr: tl.tensor, k_ptr: tl.tensor, v_ptr: tl.tensor, scales_ptr: tl.tensor, indptr_ptr: tl.tensor,
        indices_ptr: tl.tensor, partial_ptr: tl.tensor, lse_ptr: tl.tensor, stride_request: tl.tensor,
        stride_head: tl.tensor, sm_scale: tl.tensor, logit_cap: tl.tensor, splits: tl.tensor, HEADS: tl.constexpr,
        QUERIES: tl.constexpr, BLOCK_H: tl.constexpr, HEAD_DIM: tl.constexpr, BITS: tl.constexpr,
        GROUPS: tl.constexpr, CAPPED: tl.constexpr, FAST: tl.constexpr, SCALE_V: tl.constexpr,
        SPLIT_TOKENS: tl.constexpr, BLOCK_N: tl.constexpr,
    ) -> None:  # fmt: skip
        """`QUERIES` q heads share a KV head. BITS 16 reads K and V as they are, for comparison."""
        WIDTH: tl.constexpr = HEAD_DIM // 2 if BITS == 4 else HEAD_DIM
        PART: tl.constexpr = GROUPS // 2 if BITS == 4 and GROUPS > 1 else GROUPS  # scales beside WIDTH values
        TILES: tl.constexpr = (QUERIES + BLOCK_H - 1) // BLOCK_H
        dtype: tl.constexpr = q_ptr.dtype.element_ty
        request, split = tl.program_id(0).to(tl.int64), tl.program_id(2)
        kv_head, tile = tl.program_id(1) // TILES, tl.program_id(1) % TILES
        start = tl.load(indptr_ptr + request).to(tl.int64)
        tokens = (tl.load(indptr_ptr + request + 1) - start).to(tl.int32)
        stretch = _stretch(tokens, splits, SPLIT_TOKENS)
        first = split * stretch
        last = tl.minimum(first + stretch, tokens)
        if first < last:
            in_head = tile * BLOCK_H + tl.arange(0, BLOCK_H)
            is_query = in_head < QUERIES
            q_head = kv_head * QUERIES + in_head
            dim, group = tl.arange(0, WIDTH), tl.arange(0, PART)
            q_at = q_ptr + request * stride_request + q_head[:, None] * stride_head + dim[None, :]
            q = tl.load(q_at, mask=is_query[:, None], other=0)
            acc = tl.zeros((BLOCK_H, WIDTH), dtype=tl.float32)
            if BITS == 4:
                q_high = tl.load(q_at + WIDTH, mask=is_query[:, None], other=0)
                acc_high = tl.zeros((BLOCK_H, WIDTH), dtype=tl.float32)
            largest = tl.full((BLOCK_H,), -1e30, dtype=tl.float32)
            total = tl.zeros((BLOCK_H,), dtype=tl.float32)
            for block in range(first, last, BLOCK_N):
                token = block + tl.arange(0, BLOCK_N)
                here = token < last
                slot = tl.load(indices_ptr + start + token, mask=here, other=0).to(tl.int64)
                head_at = slot * HEADS + kv_head
                k = tl.load(k_ptr + (head_at * WIDTH)[None, :] + dim[:, None], mask=here[None, :], other=0)
                v = tl.load(v_ptr + (head_at * WIDTH)[:, None] + dim[None, :], mask=here[:, None], other=0)
                if BITS == 16:
                    scores = tl.dot(q, k, input_precision="ieee")
                elif GROUPS == 1:
                    word = tl.load(scales_ptr + head_at, mask=here, other=0)
                    if BITS == 8:
                        scores = tl.dot(q, k.to(dtype), input_precision="ieee")
                    else:
                        low, high = _int4_numbers(k, FAST, dtype)
                        scores = tl.dot(q_high, high, tl.dot(q, low, input_precision="ieee"), input_precision="ieee")
                    scores *= scale_of_k(word)[None, :]
                else:
                    word_at = scales_ptr + (head_at * GROUPS)[None, :] + group[:, None]
                    word = tl.load(word_at, mask=here[None, :], other=0)
                    if BITS == 8:
                        scaled = _scale_keys(k.to(dtype), scale_of_k(word).to(dtype), FAST)
                        scores = tl.dot(q, scaled, input_precision="ieee")
                    else:
                        word_high = tl.load(word_at + PART, mask=here[None, :], other=0)
                        low, high = _int4_numbers(k, FAST, dtype)
                        scores = tl.dot(q, _scale_keys(low, scale_of_k(word).to(dtype), FAST), input_precision="ieee")
                        scaled = _scale_keys(high, scale_of_k(word_high).to(dtype), FAST)
                        scores = tl.dot(q_high, scaled, scores, input_precision="ieee")
                scores *= sm_scale
                if CAPPED:
                    scores = logit_cap * (2 * tl.sigmoid(2 * scores / logit_cap) - 1)
                scores = tl.where(here[None, :], scores * 1.4426950408889634, float("-inf"))  # log2(e)
                new_largest = tl.maximum(largest, tl.max(scores, axis=1))
                p = tl.exp2(scores - new_largest[:, None])
                decay = tl.exp2(largest - new_largest)
                total = total * decay + tl.sum(p, axis=1)
                largest = new_largest
                acc *= decay[:, None]
                if BITS == 4:
                    acc_high *= decay[:, None]
                if BITS == 16:
                    acc = tl.dot(p.to(dtype), v, acc, input_precision="ieee")
                elif GROUPS == 1 and SCALE_V:
                    scaled = _scale_values(v.to(dtype), scale_of_v(word).to(dtype)[:, None], FAST)
                    acc = tl.dot(p.to(dtype), scaled, acc, input_precision="ieee")
                elif GROUPS == 1:
                    p = (p * scale_of_v(word)[None, :]).to(dtype)
                    if BITS == 8:
                        acc = tl.dot(p, v.to(dtype), acc, input_precision="ieee")
                    else:
                        low, high = _int4_numbers(v, FAST, dtype)
                        acc = tl.dot(p, low, acc, input_precision="ieee")
                        acc_high = tl.dot(p, high, acc_high, input_precision="ieee")
                else:
                    p = p.to(dtype)
                    scale = tl.trans(scale_of_v(word).to(dtype))
                    if BITS == 8:
                        scaled = _scale_values(v.to(dtype), scale, FAST)
                        acc = tl.dot(p, scaled, acc, input_precision="ieee")
                    else:
                        low, high = _int4_numbers(v, FAST, dtype)
                        acc = tl.dot(p, _scale_values(low, scale, FAST), acc, input_precision="ieee")
                        scaled = _scale_values(high, tl.trans(scale_of_v(word_high).to(dtype)), FAST)
                        acc_high = tl.dot(p, scaled, acc_high, input_precision="ieee")
            row = (request * (HEADS * QUERIES) + q_head) * splits + split
            partial_at = partial_ptr + row[:, None] * HEAD_DIM + dim[None, :]
            tl.store(partial_at, acc / total[:, None], mask=is_query[:, None])
            if BITS == 4:
                tl.store(partial_at + WIDTH, acc_high / total[:, None], mask=is_query[:, None])
            tl.store(lse_ptr + row, largest + tl.log2(total), mask=is_query)

    @triton.jit(do_not_specialize=["splits"])
    def _merge_kernel(
        partial_ptr: tl.tensor, lse_ptr: tl.tensor, indptr_ptr: tl.tensor, out_ptr: tl.tensor, splits: tl.tensor,
        Q_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, SPLIT_TOKENS: tl.constexpr, MAX_SPLITS: tl.constexpr,
    ) -> None:  # fmt: skip
        """One program a request and q head: its stretches, each by the weight that its tokens have."""
        request, q_head = tl.program_id(0).to(tl.int64), tl.program_id(1)
        tokens = (tl.load(indptr_ptr + request + 1) - tl.load(indptr_ptr + request)).to(tl.int32)
        stretch = _stretch(tokens, splits, SPLIT_TOKENS)
        used = (tokens + stretch - 1) // stretch
        row = request * Q_HEADS + q_head
        split, dim = tl.arange(0, MAX_SPLITS), tl.arange(0, HEAD_DIM)
        lse = tl.load(lse_ptr + row * splits + split, mask=split < used, other=float("-inf"))
        largest = tl.maximum(tl.max(lse, axis=0), -1e30)
        total = tl.sum(tl.exp2(lse - largest), axis=0)
        acc = tl.zeros((HEAD_DIM,), dtype=tl.float32)
        for one in range(used):
            weight = tl.exp2(tl.load(lse_ptr + row * splits + one) - largest)
            acc += weight * tl.load(partial_ptr + (row * splits + one) * HEAD_DIM + dim)
        out = acc / tl.where(total > 0, total, 1.0)  # zeros where there is no token
        tl.store(out_ptr + row * HEAD_DIM + dim, out.to(out_ptr.dtype.element_ty))


@lru_cache
def _processors(device: torch.device) -> int:
    """Multiprocessors of a GPU; a few for the interpreter, so that requests are split there too."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 8


def decode_attention(
    q: torch.Tensor,
    layer: Layer,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    sm_scale: float,
    logit_cap: float = 0.0,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """:func:`.kv_quant.decode_attention` in Triton."""
    return launch_decode(
        q, layer.k_codes, layer.v_codes, layer.scales.view(torch.uint32), layer.encoding.bits, layer.scales.shape[2],
        kv_indptr, kv_indices, sm_scale, logit_cap, SHAPES[layer.encoding.bits], out,
    )  # fmt: skip


def launch_decode(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scales: torch.Tensor, bits: int, groups: int,
    kv_indptr: torch.Tensor, kv_indices: torch.Tensor, sm_scale: float, logit_cap: float, shape: DecodeShape,
    out: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """Both kernels. No shape depends on a length, so that a CUDA graph can be captured. `bits` 16: plain K and V."""
    requests, q_heads, head_dim = q.shape
    heads = k.shape[1]
    queries = q_heads // heads
    if out is None:
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
    if requests == 0:
        return out
    block_h = min(max(16, triton.next_power_of_2(queries)), 64)
    tiles = triton.cdiv(queries, block_h)
    wanted = triton.cdiv(_processors(q.device) * shape.programs_per_sm, requests * heads * tiles)
    splits = min(triton.next_power_of_2(wanted), _MAX_SPLITS)
    fast = shape.packed and bits == 4 and q.is_cuda and q.dtype is torch.bfloat16 and torch.version.hip is None
    partial = torch.empty((requests, q_heads, splits, head_dim), dtype=torch.float32, device=q.device)
    lse = torch.empty((requests, q_heads, splits), dtype=torch.float32, device=q.device)
    _decode_kernel[(requests, heads * tiles, splits)](
        q, k, v, scales, kv_indptr, kv_indices, partial, lse, q.stride(0), q.stride(1), sm_scale, logit_cap, splits,
        heads, queries, block_h, head_dim, bits, groups, logit_cap > 0, fast, shape.scale_v and bits == 8,
        shape.split_tokens, shape.block_n, num_warps=shape.num_warps, num_stages=shape.num_stages,
    )  # fmt: skip
    _merge_kernel[(requests, q_heads)](
        partial, lse, kv_indptr, out, splits, q_heads, head_dim, shape.split_tokens, splits, num_warps=2
    )
    return out
