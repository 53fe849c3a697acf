"""The Triton form of :mod:`.pages`: two launches for an extend, one for a decode step, O(tokens + batch) work.

A first program scans the batch once and leaves where each request's tokens and pages begin; then every block of output
tokens finds its requests by binary search. Works under `TRITON_INTERPRET=1` on CPU tensors too.
"""

from __future__ import annotations

import torch

try:
    import triton
    import triton.language as tl
except ImportError:  # the twin in .pages serves
    triton = None

__all__ = ["available", "decode_slots", "extend_slots"]

_SCAN = 512  # requests a step of a scan
_TOKENS = 256  # output tokens a program


def available() -> bool:
    """Whether Triton is installed."""
    return triton is not None


# Annotations: Triton resolves the names in them, and knows those of its own language only.
if triton is not None:

    @triton.jit(do_not_specialize=["batch"])
    def _scan_kernel(
        prefix_ptr: tl.tensor, seq_ptr: tl.tensor, token_end_ptr: tl.tensor, page_start_ptr: tl.tensor,
        batch: tl.tensor, page_size: tl.constexpr, BLOCK: tl.constexpr,
    ) -> None:  # fmt: skip
        """One program: inclusive sum of new tokens and exclusive sum of new pages over the batch."""
        tokens_before = tl.zeros((), dtype=tl.int64)
        pages_before = tl.zeros((), dtype=tl.int64)
        for start in range(0, batch, BLOCK):
            row = start + tl.arange(0, BLOCK)
            inside = row < batch
            prefix = tl.load(prefix_ptr + row, mask=inside, other=0).to(tl.int64)
            seq = tl.load(seq_ptr + row, mask=inside, other=0).to(tl.int64)
            tokens = seq - prefix
            pages = (seq + page_size - 1) // page_size - (prefix + page_size - 1) // page_size
            tl.store(token_end_ptr + row, tokens_before + tl.cumsum(tokens), mask=inside)
            tl.store(page_start_ptr + row, pages_before + tl.cumsum(pages) - pages, mask=inside)
            tokens_before += tl.sum(tokens)
            pages_before += tl.sum(pages)

    @triton.jit(do_not_specialize=["batch", "num_tokens"])
    def _extend_kernel(
        prefix_ptr: tl.tensor, seq_ptr: tl.tensor, last_loc_ptr: tl.tensor, page_ptr: tl.tensor,
        token_end_ptr: tl.tensor, page_start_ptr: tl.tensor, out_ptr: tl.tensor,
        batch: tl.tensor, num_tokens: tl.tensor, page_size: tl.constexpr, BLOCK: tl.constexpr,
    ) -> None:  # fmt: skip
        token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = token < num_tokens
        # The owner is the first request whose tokens end after this one.
        low = tl.zeros((BLOCK,), dtype=tl.int32)
        high = low + batch
        for _ in range(32):
            middle = (low + high) // 2
            open_ = low < high
            ends_before = tl.load(token_end_ptr + middle, mask=open_, other=0) <= token
            low = tl.where(open_ & ends_before, middle + 1, low)
            high = tl.where(open_ & (ends_before == 0), middle, high)
        owner = low
        seq = tl.load(seq_ptr + owner, mask=inside, other=0).to(tl.int64)
        prefix = tl.load(prefix_ptr + owner, mask=inside, other=0).to(tl.int64)
        position = token + seq - tl.load(token_end_ptr + owner, mask=inside, other=0)
        pages_before = (prefix + page_size - 1) // page_size
        in_last_page = position < pages_before * page_size
        last_loc = tl.load(last_loc_ptr + owner, mask=inside & in_last_page, other=0).to(tl.int64)
        new_page = inside & (in_last_page == 0)
        page_at = tl.load(page_start_ptr + owner, mask=new_page, other=0) + position // page_size - pages_before
        page = tl.load(page_ptr + page_at, mask=new_page, other=0)
        slot = tl.where(in_last_page, last_loc + 1 + position - prefix, page * page_size + position % page_size)
        tl.store(out_ptr + token, slot, mask=inside)

    @triton.jit(do_not_specialize=["batch"])
    def _decode_kernel(
        seq_ptr: tl.tensor, last_loc_ptr: tl.tensor, page_ptr: tl.tensor, out_ptr: tl.tensor, batch: tl.tensor,
        page_size: tl.constexpr, BLOCK: tl.constexpr,
    ) -> None:  # fmt: skip
        """One program: the rank of a new page is a running sum over the batch."""
        pages_before = tl.zeros((), dtype=tl.int32)
        for start in range(0, batch, BLOCK):
            row = start + tl.arange(0, BLOCK)
            inside = row < batch
            opens_page = (tl.load(seq_ptr + row, mask=inside, other=0) % page_size) == 1
            count = (opens_page & inside).to(tl.int32)
            rank = pages_before + tl.cumsum(count) - count
            page = tl.load(page_ptr + rank, mask=inside & opens_page, other=0)
            last_loc = tl.load(last_loc_ptr + row, mask=inside, other=0).to(tl.int64)
            tl.store(out_ptr + row, tl.where(opens_page, page * page_size, last_loc + 1), mask=inside)
            pages_before += tl.sum(count)


def extend_slots(
    prefix_lens: torch.Tensor,
    seq_lens: torch.Tensor,
    last_loc: torch.Tensor,
    new_pages: torch.Tensor,
    num_tokens: int,
    page_size: int,
) -> torch.Tensor:
    """:func:`.pages.extend_slots` in Triton."""
    batch = seq_lens.numel()
    out = torch.empty(num_tokens, dtype=torch.int64, device=new_pages.device)
    if num_tokens == 0:
        return out
    token_end, page_start = torch.empty((2, batch), dtype=torch.int64, device=new_pages.device)
    _scan_kernel[(1,)](prefix_lens, seq_lens, token_end, page_start, batch, page_size, _SCAN)
    grid = (triton.cdiv(num_tokens, _TOKENS),)
    _extend_kernel[grid](
        prefix_lens, seq_lens, last_loc, new_pages, token_end, page_start, out, batch, num_tokens, page_size, _TOKENS
    )
    return out


def decode_slots(
    seq_lens: torch.Tensor, last_loc: torch.Tensor, new_pages: torch.Tensor, page_size: int
) -> torch.Tensor:
    """:func:`.pages.decode_slots` in Triton."""
    batch = seq_lens.numel()
    out = torch.empty(batch, dtype=torch.int64, device=new_pages.device)
    _decode_kernel[(1,)](seq_lens, last_loc, new_pages, out, batch, page_size, _SCAN)
    return out
