"""The Triton form of :mod:`.page_plan`: one launch, O(pages + batch^2) work, nothing waits for the device.

Every program adds up the pages of the requests before its own, which is a read of the lengths from the L2 cache, and
then copies its share of the request's pages. Works under `TRITON_INTERPRET=1` on CPU tensors too.
"""

from __future__ import annotations

import torch

try:
    import triton
    import triton.language as tl
except ImportError:  # the twin in .page_plan serves
    triton = None

__all__ = ["available", "write_page_plan"]

_BATCH = 1024  # requests a step of the sum
_PAGES = 256  # pages a step of the copy
_PROGRAMS = 1024  # wanted in all; a long request is divided among several


def available() -> bool:
    """Whether Triton is installed."""
    return triton is not None


# Annotations: Triton resolves the names in them, and knows those of its own language only.
if triton is not None:

    @triton.jit(do_not_specialize=["row_stride"])
    def _page_plan_kernel(
        table_ptr: tl.tensor, row_ptr: tl.tensor, len_ptr: tl.tensor,
        indptr_ptr: tl.tensor, index_ptr: tl.tensor, last_ptr: tl.tensor,
        row_stride: tl.tensor, page_size: tl.constexpr, BATCH: tl.constexpr, BLOCK: tl.constexpr,
    ) -> None:  # fmt: skip
        request = tl.program_id(0)
        before = tl.zeros((), dtype=tl.int32)
        for start in range(0, request, BATCH):
            other = start + tl.arange(0, BATCH)
            other_len = tl.load(len_ptr + other, mask=other < request, other=0)
            before += tl.sum((other_len + page_size - 1) // page_size).to(tl.int32)
        length = tl.load(len_ptr + request)
        pages = ((length + page_size - 1) // page_size).to(tl.int32)
        part = tl.program_id(1)
        if part == 0:
            if request == 0:
                tl.store(indptr_ptr, 0)
            tl.store(indptr_ptr + request + 1, before + pages)
            last = tl.where(length > 0, (length - 1) % page_size + 1, 1)
            tl.store(last_ptr + request, last.to(tl.int32))
        row = tl.load(row_ptr + request).to(tl.int64) * row_stride
        for start in range(part * BLOCK, pages, tl.num_programs(1) * BLOCK):
            page = start + tl.arange(0, BLOCK)
            inside = page < pages
            slot = tl.load(table_ptr + row + page * page_size, mask=inside, other=0)
            tl.store(index_ptr + before + page, slot // page_size, mask=inside)


def write_page_plan(
    req_to_token: torch.Tensor,
    rows: torch.Tensor,
    lens: torch.Tensor,
    page_tokens: int,
    *,
    indptr: torch.Tensor,
    indices: torch.Tensor,
    last_page_tokens: torch.Tensor,
) -> None:
    """:func:`.page_plan.write_page_plan` in Triton."""
    batch = lens.numel()
    if batch == 0:
        indptr[0] = 0
        return
    grid = (batch, min(16, max(1, _PROGRAMS // batch)))
    _page_plan_kernel[grid](
        req_to_token, rows, lens, indptr, indices, last_page_tokens, req_to_token.stride(0), page_tokens, _BATCH, _PAGES
    )
