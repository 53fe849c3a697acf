"""How scattered the KV slots are: runs of neighbours among free pages and within running requests.

Measured when the status is asked for, between two steps, and never in one: on a GPU it reads from the device. A run is
a longest stretch of neighbouring ids. See docs/fragmentation.md for what the figures mean, and when they do not matter.
"""

from __future__ import annotations

from typing import Any

from kvpolicy.facts.capacity import index_entries

from . import built

__all__ = ["MAX_REQUESTS", "measure", "runs_in_order", "runs_of_set"]

#: Requests that are looked at, in the order in which they run: bounds the time a status takes.
MAX_REQUESTS = 64


def measure(scheduler: Any) -> dict[str, Any]:
    """Figures of one scheduler, JSON-able.

    `free_pages`, `free_runs`, `longest_free_run_pages`: None where the allocator has no one list of free pages.
    `requests`: running requests that were looked at; `runs_per_request`, `most_runs`: contiguous runs of their slots,
    mean and largest, None without a request; `index_entries`: what these requests put into the attention backend's
    table, one a token or one a page.
    """
    allocator = scheduler.token_to_kv_pool_allocator
    page = int(allocator.page_size)
    free, free_runs, longest = None, None, None
    ids = _free_ids(allocator)
    if ids is not None:
        free, (free_runs, longest) = int(ids.numel()), runs_of_set(ids)
    table = scheduler.req_to_token_pool.req_to_token
    found = built.built_values(scheduler)
    attention, by_pages = found.get("attention_backend", ""), found.get("attention_page_size", 1) > 1
    runs, entries = [], 0
    for request in scheduler.running_batch.reqs[:MAX_REQUESTS]:
        row, tokens = _row(request), request.seqlen - 1  # the last token is sampled and has no slot yet
        if row is None or tokens < 1:
            continue
        runs.append(runs_in_order(table[row, :tokens]))
        entries += index_entries(tokens, page, attention, by_pages=by_pages)
    return {
        "free_pages": free,
        "free_runs": free_runs,
        "longest_free_run_pages": longest,
        "requests": len(runs),
        "runs_per_request": round(sum(runs) / len(runs), 2) if runs else None,
        "most_runs": max(runs, default=None),
        "index_entries": entries,
    }


def runs_in_order(slots: Any) -> int:
    """Contiguous runs of a request's slots (a 1-d integer tensor, in token order)."""
    return int((slots[1:] - slots[:-1] != 1).sum()) + 1 if slots.numel() else 0


def runs_of_set(ids: Any) -> tuple[int, int]:
    """`(runs, ids in the longest)` of distinct ids in any order (a 1-d integer tensor)."""
    if not ids.numel():
        return 0, 0
    import torch

    ordered = ids.sort().values
    (ends,) = torch.nonzero(ordered[1:] - ordered[:-1] != 1, as_tuple=True)
    edges = torch.cat((ends.new_tensor([-1]), ends, ends.new_tensor([ordered.numel() - 1])))
    lengths = edges[1:] - edges[:-1]
    return int(lengths.numel()), int(lengths.max())


def _free_ids(allocator: Any) -> Any:
    """All free page ids; None where there is no one list of them."""
    if hasattr(allocator, "get_all_free_pages"):
        return allocator.get_all_free_pages()
    import torch

    lists = [ids for ids in (allocator.free_pages, getattr(allocator, "release_pages", None)) if ids is not None]
    return torch.cat(lists) if lists else None


def _row(request: Any) -> int | None:
    """The request's row of the table that maps tokens to slots; None before it has one."""
    row = getattr(request, "req_pool_idx", None)
    if row is None:
        row = getattr(getattr(request, "kv", None), "req_pool_idx", None)
    return None if row is None else int(row)
