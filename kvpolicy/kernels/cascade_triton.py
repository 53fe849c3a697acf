"""Decode attention over shared prefixes, in Triton: what several requests share is read once for all of them.

A *part* is a stretch of cached tokens and the requests that continue it: a prefix that many share, one nested in it, or
what a single request has of its own. A program computes one KV head's queries of some of a part's requests against one
stretch of its tokens, so that tensor cores work on full tiles, and K and V come from memory once a part; a last kernel
weighs every request's pieces by their log-sum-exp (Ye et al., Cascade Inference, FlashInfer 2024; Juravsky et al.,
Hydragen, 2024). Works under `TRITON_INTERPRET=1` on CPU tensors too, in fp16 and fp32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch

try:
    import triton
    import triton.language as tl
except ImportError:  # nothing here can run
    triton = None

__all__ = [
    "CascadePlan",
    "CascadeShape",
    "Launch",
    "PagedPart",
    "available",
    "cascade_attention",
    "plan_cascade",
    "processors",
    "shape_for",
]

_LOG2_E = 1.4426950408889634


class PagedPart(NamedTuple):
    """`tokens` cached tokens whose pages begin at `first_page` of the page table, and the requests that read them."""

    first_page: int
    tokens: int
    requests: Sequence[int]


class CascadeShape(NamedTuple):
    """How the work is cut up; the best of 36 on an H200 (`benchmarks/cascade.py --tune`)."""

    block_m: int = 128  # queries of one KV head in a program, where requests share
    block_n: int = 64  # tokens a step
    programs_per_sm: int = 1
    num_warps: int = 8
    num_stages: int = 3
    own_block_n: int = 64  # the same where a request is alone
    own_programs_per_sm: int = 8
    own_num_warps: int = 2
    own_num_stages: int = 3


#: Where all queries of a KV head fit in one program: more of them, and longer steps, keep the memory busy.
_FEW_QUERIES = CascadeShape(block_n=128, programs_per_sm=2, num_stages=2)


def shape_for(requests: int, q_heads: int, kv_heads: int) -> CascadeShape:
    """How to cut up a batch."""
    return _FEW_QUERIES if requests * (q_heads // kv_heads) <= _FEW_QUERIES.block_m else CascadeShape()


@dataclass(frozen=True, slots=True)
class Launch:
    """Programs of one size: int32 tensors `[tiles]` on the device, and into how many stretches each part is cut."""

    tiles: tuple[torch.Tensor, ...]  # first page, tokens, first member, members, column
    member_ids: torch.Tensor  # int32, which requests, from each tile's first member on
    block_m: int
    splits: int
    is_shared: bool


@dataclass(frozen=True, slots=True)
class CascadePlan:
    """What :func:`cascade_attention` does for one batch; the same for every layer."""

    requests: int
    q_heads: int
    kv_heads: int
    columns: int  # pieces that a request's attention can come in
    launches: tuple[Launch, ...]
    shape: CascadeShape


def available() -> bool:
    """Whether Triton can be imported."""
    return triton is not None


def plan_cascade(
    parts: Sequence[PagedPart],
    requests: int,
    q_heads: int,
    kv_heads: int,
    device: torch.device | str,
    shape: CascadeShape | None = None,
) -> CascadePlan:
    """Cut `parts` into programs. Every request must be in at least one part that has tokens.

    One copy to the device, from pinned memory on a GPU, so nothing waits. O(parts + members).
    """
    shape = shape or shape_for(requests, q_heads, kv_heads)
    device = torch.device(device)
    queries = q_heads // kv_heads
    alone_m = max(16, triton.next_power_of_2(queries))
    sizes = {True: max(shape.block_m, alone_m), False: alone_m}
    member_ids: list[int] = []
    depths = [0] * requests  # parts that each request is in so far: shared ones get columns of their own
    rows: dict[bool, list[tuple[int, int, int, int, int]]] = {True: [], False: []}
    for part in parts:
        if not part.requests:
            continue
        is_shared = len(part.requests) > 1
        together = sizes[is_shared] // queries
        first = len(member_ids)
        member_ids.extend(part.requests)
        depth = max(depths[request] for request in part.requests)
        for request in part.requests:
            depths[request] = depth + 1
        for at in range(0, len(part.requests), together):
            count = min(together, len(part.requests) - at)
            rows[is_shared].append((part.first_page, part.tokens, first + at, count, depth))
    per_sm = {True: shape.programs_per_sm, False: shape.own_programs_per_sm}
    wanted = {
        kind: triton.next_power_of_2(triton.cdiv(processors(device) * per_sm[kind], len(found) * kv_heads))
        for kind, found in rows.items()
        if found
    }
    # A power of two, of stretches of at least four steps: no shorter for being more.
    longest = {kind: max(row[1] for row in rows[kind]) for kind in wanted}
    steps = {True: shape.block_n, False: shape.own_block_n}
    splits = {
        kind: max(1, min(count, triton.next_power_of_2(triton.cdiv(longest[kind], 4 * steps[kind])), 64))
        for kind, count in wanted.items()
    }
    most = max(splits.values(), default=1)
    table = [
        value
        for kind in splits
        for column in range(5)
        for value in (row[column] * (most if column == 4 else 1) for row in rows[kind])
    ]
    both = torch.tensor([*member_ids, *table], dtype=torch.int32)
    if device.type == "cuda":
        both = both.pin_memory()
    both = both.to(device, non_blocking=True)
    at = len(member_ids)
    launches = []
    for kind in splits:
        count = len(rows[kind])
        columns = both[at : at + 5 * count].view(5, count).unbind()
        launches.append(Launch(columns, both[: len(member_ids)], sizes[kind], splits[kind], kind))
        at += 5 * count
    return CascadePlan(requests, q_heads, kv_heads, max(depths, default=1) * most, tuple(launches), shape)


@lru_cache
def processors(device: torch.device) -> int:
    """Multiprocessors of a GPU; a few for the interpreter, so that parts are cut there too."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 4


if triton is not None:

    @triton.jit
    def _step(
        q: tl.tensor, k_ptr: tl.tensor, v_ptr: tl.tensor, pages_ptr: tl.tensor, acc: tl.tensor, largest: tl.tensor,
        total: tl.tensor, block: tl.tensor, last: tl.tensor, kv_head: tl.tensor, dim: tl.tensor,
        stride_slot: tl.tensor, qk_scale: tl.tensor, logit_cap: tl.tensor, HEAD_DIM: tl.constexpr,
        PAGE_TOKENS: tl.constexpr, CAPPED: tl.constexpr, MASKED: tl.constexpr, BLOCK_N: tl.constexpr,
    ) -> tl.tensor:  # fmt: skip
        """One block of tokens more. `qk_scale` has log2(e) in it: all exponents are of two."""
        token = block + tl.arange(0, BLOCK_N)
        here = token < last
        if MASKED:
            page = tl.load(pages_ptr + token // PAGE_TOKENS, mask=here, other=0).to(tl.int64)
        else:
            page = tl.load(pages_ptr + token // PAGE_TOKENS).to(tl.int64)
        at = (page * PAGE_TOKENS + token % PAGE_TOKENS) * stride_slot + kv_head * HEAD_DIM
        if MASKED:
            k = tl.load(k_ptr + at[None, :] + dim[:, None], mask=here[None, :], other=0.0)
            v = tl.load(v_ptr + at[:, None] + dim[None, :], mask=here[:, None], other=0.0)
        else:
            k = tl.load(k_ptr + at[None, :] + dim[:, None])
            v = tl.load(v_ptr + at[:, None] + dim[None, :])
        scores = tl.dot(q, k.to(q.dtype), input_precision="ieee")
        if CAPPED:
            capped = logit_cap * (2 * tl.sigmoid(2 * scores * qk_scale / (logit_cap * 1.4426950408889634)) - 1)
            scores = capped * 1.4426950408889634
        else:
            scores = scores * qk_scale
        if MASKED:
            scores = tl.where(here[None, :], scores, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, axis=1))
        p = tl.exp2(scores - new_largest[:, None])
        decay = tl.exp2(largest - new_largest)
        total = total * decay + tl.sum(p, axis=1)
        acc = tl.dot(p.to(q.dtype), v.to(q.dtype), acc * decay[:, None], input_precision="ieee")
        return acc, new_largest, total

    @triton.jit(do_not_specialize=["splits", "columns"])
    def _part_kernel(
        q_ptr: tl.tensor, k_ptr: tl.tensor, v_ptr: tl.tensor, pages_ptr: tl.tensor, first_page_ptr: tl.tensor,
        tokens_ptr: tl.tensor, first_member_ptr: tl.tensor, members_ptr: tl.tensor, column_ptr: tl.tensor,
        ids_ptr: tl.tensor, partial_ptr: tl.tensor, lse_ptr: tl.tensor, stride_request: tl.tensor,
        stride_head: tl.tensor, stride_slot: tl.tensor, qk_scale: tl.tensor, logit_cap: tl.tensor, splits: tl.tensor,
        columns: tl.tensor,
        HEADS: tl.constexpr, QUERIES: tl.constexpr, HEAD_DIM: tl.constexpr, PAGE_TOKENS: tl.constexpr,
        CAPPED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    ) -> None:  # fmt: skip
        """Tiles of one part are neighbours, so that K and V of all but the first come from the L2 cache."""
        tile, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
        tokens = tl.load(tokens_ptr + tile)
        # Stretches of whole blocks: only a part's last block needs masks.
        stretch = ((tokens + splits - 1) // splits + BLOCK_N - 1) // BLOCK_N * BLOCK_N
        first = split * stretch
        last = tl.minimum(first + stretch, tokens)
        if first < last:
            row = tl.arange(0, BLOCK_M)
            member, in_head = row // QUERIES, row % QUERIES
            is_query = member < tl.load(members_ptr + tile)
            request = tl.load(ids_ptr + tl.load(first_member_ptr + tile) + member, mask=is_query, other=0).to(tl.int64)
            q_head = kv_head * QUERIES + in_head
            dim = tl.arange(0, HEAD_DIM)
            q_at = q_ptr + (request * stride_request + q_head * stride_head)[:, None] + dim[None, :]
            q = tl.load(q_at, mask=is_query[:, None], other=0.0)
            acc = tl.zeros((BLOCK_M, HEAD_DIM), dtype=tl.float32)
            largest = tl.full((BLOCK_M,), -1e30, dtype=tl.float32)
            total = tl.zeros((BLOCK_M,), dtype=tl.float32)
            part_pages = pages_ptr + tl.load(first_page_ptr + tile)
            whole = first + (last - first) // BLOCK_N * BLOCK_N
            for block in range(first, whole, BLOCK_N):
                acc, largest, total = _step(
                    q, k_ptr, v_ptr, part_pages, acc, largest, total, block, last, kv_head, dim, stride_slot, qk_scale,
                    logit_cap, HEAD_DIM, PAGE_TOKENS, CAPPED, False, BLOCK_N,
                )  # fmt: skip
            if whole < last:
                acc, largest, total = _step(
                    q, k_ptr, v_ptr, part_pages, acc, largest, total, whole, last, kv_head, dim, stride_slot, qk_scale,
                    logit_cap, HEAD_DIM, PAGE_TOKENS, CAPPED, True, BLOCK_N,
                )  # fmt: skip
            out_row = (request * (HEADS * QUERIES) + q_head) * columns + tl.load(column_ptr + tile) + split
            partial_at = partial_ptr + out_row[:, None] * HEAD_DIM + dim[None, :]
            tl.store(partial_at, acc / total[:, None], mask=is_query[:, None])
            tl.store(lse_ptr + out_row, largest + tl.log2(total), mask=is_query)

    @triton.jit(do_not_specialize=["columns"])
    def _weigh_kernel(
        partial_ptr: tl.tensor, lse_ptr: tl.tensor, out_ptr: tl.tensor, v_scale: tl.tensor, columns: tl.tensor,
        Q_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_C: tl.constexpr,
    ) -> None:  # fmt: skip
        """One program a request and q head: the columns that a program wrote, each by the weight of its tokens."""
        row = tl.program_id(0).to(tl.int64) * Q_HEADS + tl.program_id(1)
        every, dim = tl.arange(0, COLUMNS), tl.arange(0, HEAD_DIM)
        lse = tl.load(lse_ptr + row * columns + every, mask=every < columns, other=float("-inf"))
        largest = tl.maximum(tl.max(lse, axis=0), -1e30)
        total = tl.sum(tl.exp2(lse - largest), axis=0)
        acc = tl.zeros((HEAD_DIM,), dtype=tl.float32)
        for start in range(0, columns, BLOCK_C):
            column = start + tl.arange(0, BLOCK_C)
            one = tl.load(lse_ptr + row * columns + column, mask=column < columns, other=float("-inf"))
            at = (row * columns + column)[:, None] * HEAD_DIM + dim[None, :]
            piece = tl.load(partial_ptr + at, mask=(one > -1e29)[:, None], other=0.0)
            acc += tl.sum(piece * tl.exp2(one - largest)[:, None], axis=0)
        out = acc * v_scale / tl.where(total > 0, total, 1.0)
        tl.store(out_ptr + row * HEAD_DIM + dim, out.to(out_ptr.dtype.element_ty))


def cascade_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    pages: torch.Tensor,
    page_tokens: int,
    plan: CascadePlan,
    sm_scale: float,
    logit_cap: float = 0.0,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """One step of decode attention for every request of `plan`.

    Args:
        q: `[requests, q_heads, head_dim]`, fp16, bf16 or fp32; the last dimension contiguous, `head_dim` a power of 2.
        k, v: the pool, `[slots, kv_heads, head_dim]`, a slot's heads side by side; of q's dtype, or fp8 with
            `k_scale`, `v_scale`.
        pages: int32 or int64 page table; a part's tokens lie in its pages, in order, from the first slot of the first.
        page_tokens: slots a page; at 1 `pages` are slots.
        sm_scale: what scores are multiplied with; `logit_cap`: `cap * tanh(score / cap)`, where it is above 0.

    Returns:
        `[requests, q_heads, head_dim]` of q's dtype.

    Raises:
        ValueError: another batch's plan, or a pool whose heads do not lie side by side.
    """
    requests, q_heads, head_dim = q.shape
    if (requests, q_heads, k.shape[1]) != (plan.requests, plan.q_heads, plan.kv_heads):
        raise ValueError(
            f"a plan for {plan.requests} requests, {plan.q_heads} q heads and {plan.kv_heads} KV heads, "
            f"not {requests}, {q_heads} and {k.shape[1]}"
        )
    if k.stride() != v.stride() or k.stride()[1:] != (head_dim, 1):
        raise ValueError(f"K and V of strides {k.stride()} and {v.stride()}: heads of a slot must lie side by side")
    if out is None:
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
    if requests == 0:
        return out
    kv_heads, columns, shape = plan.kv_heads, plan.columns, plan.shape
    queries = q_heads // kv_heads
    partial = torch.empty((requests, q_heads, columns, head_dim), dtype=torch.float32, device=q.device)
    lse = torch.full((requests, q_heads, columns), float("-inf"), dtype=torch.float32, device=q.device)
    for one in plan.launches:
        _part_kernel[(one.tiles[0].numel(), kv_heads, one.splits)](
            q, k, v, pages, *one.tiles, one.member_ids, partial, lse, q.stride(0),
            q.stride(1), k.stride(0), sm_scale * k_scale * _LOG2_E, logit_cap, one.splits,
            columns,
            kv_heads, queries, head_dim, page_tokens, logit_cap > 0, one.block_m,
            shape.block_n if one.is_shared else shape.own_block_n,
            num_warps=shape.num_warps if one.is_shared else shape.own_num_warps,
            num_stages=shape.num_stages if one.is_shared else shape.own_num_stages,
        )  # fmt: skip
    padded = triton.next_power_of_2(columns)
    _weigh_kernel[(requests, q_heads)](
        partial, lse, out, v_scale, columns, q_heads, head_dim, padded, min(padded, 16), num_warps=2
    )
    return out
