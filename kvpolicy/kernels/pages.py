"""Slots for new tokens at page sizes above 1, in plain PyTorch; :mod:`.pages_triton` does the same on a GPU.

A request's tokens fill its last page first and then new pages, each from its start. A token's slot is
`page * page_size + offset`, its offset is its position modulo the page size. How many pages a call needs is computed
from lengths that the engine keeps on the host, so the free list is asked before a kernel starts, and for no more than
that. Work is O(tokens + batch); for a GPU without Triton the same code runs there.
"""

from __future__ import annotations

import torch

from . import pages_triton

__all__ = ["decode_slots", "extend_slots", "new_pages_of_decode", "new_pages_of_extend"]


def new_pages_of_extend(prefix_lens_cpu: torch.Tensor, seq_lens_cpu: torch.Tensor, page_size: int) -> list[int]:
    """How many pages each request needs to grow from its prefix to its full length, both in tokens."""
    counts: list[int] = ((seq_lens_cpu + (page_size - 1)) // page_size).sub_(
        (prefix_lens_cpu + (page_size - 1)) // page_size
    ).tolist()  # fmt: skip
    return counts


def new_pages_of_decode(seq_lens_cpu: torch.Tensor, page_size: int) -> list[int]:
    """How many pages (0 or 1) each request needs for its newest token; lengths include it."""
    counts: list[int] = (seq_lens_cpu % page_size == 1).int().tolist()
    return counts


def extend_slots(
    prefix_lens: torch.Tensor,
    seq_lens: torch.Tensor,
    last_loc: torch.Tensor,
    new_pages: torch.Tensor,
    num_tokens: int,
    page_size: int,
) -> torch.Tensor:
    """Slots of all new tokens, int64[num_tokens], request after request.

    `prefix_lens`, `seq_lens` (tokens before and after) and `last_loc` (slot of the last prefix token, any value where
    there is none) are integer tensors of one entry a request; `new_pages` int64[pages] in the order of the requests.
    """
    if new_pages.is_cuda and pages_triton.available():
        return pages_triton.extend_slots(prefix_lens, seq_lens, last_loc, new_pages, num_tokens, page_size)
    return extend_slots_torch(prefix_lens, seq_lens, last_loc, new_pages, num_tokens, page_size)


def decode_slots(
    seq_lens: torch.Tensor, last_loc: torch.Tensor, new_pages: torch.Tensor, page_size: int
) -> torch.Tensor:
    """The slot of each request's newest token, int64[batch].

    `seq_lens` includes it; `last_loc` is the slot of the token before.
    """
    if not new_pages.numel():
        return last_loc.to(torch.int64) + 1
    if new_pages.is_cuda and pages_triton.available():
        return pages_triton.decode_slots(seq_lens, last_loc, new_pages, page_size)
    return decode_slots_torch(seq_lens, last_loc, new_pages, page_size)


def extend_slots_torch(
    prefix_lens: torch.Tensor,
    seq_lens: torch.Tensor,
    last_loc: torch.Tensor,
    new_pages: torch.Tensor,
    num_tokens: int,
    page_size: int,
) -> torch.Tensor:
    """:func:`extend_slots` in PyTorch."""
    if num_tokens == 0:
        return torch.empty(0, dtype=torch.int64, device=new_pages.device)
    prefix, seq = prefix_lens.to(torch.int64), seq_lens.to(torch.int64)
    pages_before = (prefix + (page_size - 1)) // page_size
    pages = (seq + (page_size - 1)) // page_size - pages_before
    ends = (seq - prefix).cumsum(0)
    # For token j of request i: its position is j + to_position[i], its new page the one at position // P + to_page[i].
    to_position = seq - ends
    to_page = pages.cumsum(0) - pages - pages_before
    to_slot = last_loc.to(torch.int64) + 1 - prefix  # while in the prefix's last page
    token = torch.arange(num_tokens, device=new_pages.device)
    owner = torch.searchsorted(ends, token, right=True)
    position = token + to_position[owner]
    in_last_page = position < (pages_before * page_size)[owner]
    if not new_pages.numel():
        return position + to_slot[owner]
    page = (position // page_size + to_page[owner]).masked_fill_(in_last_page, 0)
    return torch.where(in_last_page, position + to_slot[owner], new_pages[page] * page_size + position % page_size)


def decode_slots_torch(
    seq_lens: torch.Tensor, last_loc: torch.Tensor, new_pages: torch.Tensor, page_size: int
) -> torch.Tensor:
    """:func:`decode_slots` in PyTorch; at least one new page."""
    opens_page = seq_lens % page_size == 1
    rank = (opens_page.cumsum(0) - 1).clamp_(min=0)
    return torch.where(opens_page, new_pages[rank] * page_size, last_loc.to(torch.int64) + 1)
