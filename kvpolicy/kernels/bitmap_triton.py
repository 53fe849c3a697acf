"""The Triton form of :mod:`.bitmap`: one program a block, and a block without a chosen id ends at once."""

from __future__ import annotations

import torch

try:
    import triton
    import triton.language as tl
except ImportError:  # the twin in .bitmap serves
    triton = None

__all__ = ["BLOCK", "available", "take_lowest"]

BLOCK = 1024  # units a program


def available() -> bool:
    """Whether Triton is installed."""
    return triton is not None


# Annotations: Triton resolves the names in them, and knows those of its own language only.
if triton is not None:

    @triton.jit(do_not_specialize=["count"])
    def _take_kernel(
        is_free_ptr: tl.tensor,
        counts_ptr: tl.tensor,
        before_ptr: tl.tensor,
        out_ptr: tl.tensor,
        count: tl.tensor,
        BLOCK: tl.constexpr,
    ) -> None:
        block = tl.program_id(0)
        before = tl.load(before_ptr + block)
        here = tl.load(counts_ptr + block)
        if (before < count) & (here > 0):
            unit = block * BLOCK + tl.arange(0, BLOCK)
            is_free = tl.load(is_free_ptr + unit).to(tl.int32)
            rank = before + tl.cumsum(is_free) - is_free
            chosen = (is_free != 0) & (rank < count)
            tl.store(out_ptr + rank, unit.to(tl.int64), mask=chosen)
            tl.store(is_free_ptr + unit, tl.zeros((BLOCK,), dtype=tl.int8), mask=chosen)
            tl.store(counts_ptr + block, here - tl.sum(chosen.to(tl.int32)))


def take_lowest(is_free: torch.Tensor, counts: torch.Tensor, count: int) -> torch.Tensor:
    """:func:`.bitmap.take_lowest` in Triton."""
    out = torch.zeros(count, dtype=torch.int64, device=is_free.device)
    before = counts.cumsum(0, dtype=torch.int32) - counts
    _take_kernel[(counts.numel(),)](is_free.view(torch.int8), counts, before, out, count, BLOCK)
    return out
