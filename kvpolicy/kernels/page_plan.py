"""Which pages an attention kernel reads for a batch, in plain PyTorch; :mod:`.page_plan_triton` does the same on a GPU.

An engine keeps the slot of every token of a request, `req_to_token[row, position]`, and a page holds tokens whose
positions follow each other from a multiple of the page size on. So the first slot of each page names it, and one entry
a page is enough: `req_to_token[row, n * page_tokens] // page_tokens`. The form is FlashInfer's: pages of request after
request in one array, where each request's begin, and how many tokens are in its last page.
"""

from __future__ import annotations

import torch

from . import page_plan_triton

__all__ = ["host_plan", "most_pages", "write_page_plan", "write_page_plan_torch"]


def most_pages(tokens: int, batch: int, page_tokens: int) -> int:
    """Pages that `batch` requests of `tokens` in all can need; exact at a page size of 1."""
    return tokens if page_tokens == 1 else tokens // page_tokens + batch


def host_plan(lens_cpu: torch.Tensor, page_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`(indptr int32[batch + 1], last_page_tokens int32[batch])` of lengths in tokens that are known on the host."""
    pages = (lens_cpu + (page_tokens - 1)) // page_tokens
    indptr = torch.zeros(lens_cpu.numel() + 1, dtype=torch.int32)
    torch.cumsum(pages, 0, dtype=torch.int32, out=indptr[1:])
    return indptr, _last_page_tokens(lens_cpu, page_tokens)


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
    """Write the pages of a batch in place, without waiting for the device.

    `req_to_token` int32[requests, tokens] holds slots; `rows` and `lens` are integer tensors of one entry a request of
    the batch: its row, and how many of its tokens are read. Written, all int32: `indptr[:batch + 1]`, `indices` up to
    the last entry of `indptr` (at most :func:`most_pages`), `last_page_tokens[:batch]` (1 for a request of no tokens,
    as FlashInfer wants it).
    """
    if req_to_token.is_cuda and page_plan_triton.available():
        write = page_plan_triton.write_page_plan
    else:
        write = write_page_plan_torch
    write(req_to_token, rows, lens, page_tokens, indptr=indptr, indices=indices, last_page_tokens=last_page_tokens)


def write_page_plan_torch(
    req_to_token: torch.Tensor,
    rows: torch.Tensor,
    lens: torch.Tensor,
    page_tokens: int,
    *,
    indptr: torch.Tensor,
    indices: torch.Tensor,
    last_page_tokens: torch.Tensor,
) -> None:
    """:func:`write_page_plan` in PyTorch; on a GPU it waits for the number of pages."""
    batch = lens.numel()
    pages = (lens + (page_tokens - 1)) // page_tokens
    indptr[0] = 0
    indptr[1 : batch + 1] = pages.cumsum(0)
    last_page_tokens[:batch] = _last_page_tokens(lens, page_tokens)
    owner = torch.repeat_interleave(torch.arange(batch, device=lens.device), pages)
    page = torch.arange(owner.numel(), device=lens.device) - indptr[owner]
    first_slots = req_to_token[rows[owner].long(), page * page_tokens]
    indices[: owner.numel()] = first_slots // page_tokens


def _last_page_tokens(lens: torch.Tensor, page_tokens: int) -> torch.Tensor:
    return ((lens - 1).clamp_(min=0) % page_tokens + 1).to(torch.int32)
