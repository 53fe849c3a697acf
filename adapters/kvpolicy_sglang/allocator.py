"""SGLang's own allocator classes over a free list in the policy's order.

Each class is a thin subclass of the exact upstream one. The engine keeps its free list in `free_pages` and copies it at
every free; here that attribute is a view of a :class:`~kvpolicy.allocators.FreeList`, read and assigned as before by
whoever looks (the memory checks, `clear`, `backup_state`), while allocating and freeing go to the list itself. Groups,
segments, resizing and everything the scheduler asks for stay the engine's code.

With `need_sort` (prefill/decode disaggregation) frees wait until the list is short and are then sorted in, as in stock,
so that transfers find contiguous pages; an order that is decided by ids alone has nothing to wait for.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator

from kvpolicy.allocators import FreeList, make_free_list
from kvpolicy.allocators.guard import Guard
from kvpolicy.kernels.pages import decode_slots, extend_slots, new_pages_of_decode, new_pages_of_extend

__all__ = ["ENGINE_ORDER", "PolicyPagedAllocator", "PolicyTokenAllocator", "substitute"]


class _OverFreeList:
    """What both classes share; stands before the engine's class. Units are slots at page size 1, pages above."""

    free_list: FreeList
    guard: Guard | None = None
    order: str

    def __init__(self, *args: Any, order: str, guard: Guard | None = None, **kwargs: Any) -> None:
        self.order, self.guard = order, guard
        self._waiting: list[torch.Tensor] = []  # freed under need_sort, not sorted in yet
        super().__init__(*args, **kwargs)

    # -- the engine's attributes, as whoever reads or assigns them knows them --

    @property
    def free_pages(self) -> torch.Tensor | None:
        return self.free_list.all_free() if hasattr(self, "free_list") else None

    @free_pages.setter
    def free_pages(self, ids: torch.Tensor | None) -> None:
        if ids is None:
            return  # the engine's constructor; `clear` follows
        units = int(getattr(self, "num_pages", self.size))
        if not hasattr(self, "free_list"):
            self.free_list = make_free_list(self.order, units, self.device)
        self.free_list.num_units = units  # after `resize`
        self.free_list.replace(ids)
        self._reset_guard()

    @property
    def release_pages(self) -> torch.Tensor:
        return torch.cat(self._waiting) if self._waiting else torch.empty(0, dtype=torch.int64, device=self.device)

    @release_pages.setter
    def release_pages(self, ids: torch.Tensor | None) -> None:
        self._waiting = [ids] if ids is not None and ids.numel() else []
        self._reset_guard()

    @property
    def staged_pages(self) -> list[torch.Tensor]:
        return self._waiting

    @staged_pages.setter
    def staged_pages(self, ids: list[torch.Tensor]) -> None:
        self._waiting = ids
        self._reset_guard()

    @property
    def num_staged_pages(self) -> int:
        return sum(ids.numel() for ids in self._waiting)

    @num_staged_pages.setter
    def num_staged_pages(self, count: int) -> None:
        pass  # counted from the pages

    def get_all_free_pages(self) -> torch.Tensor:
        return torch.cat([self.free_list.all_free(), *self._waiting])

    def available_size(self) -> int:
        return (self.free_list.available + self.num_staged_pages) * self.page_size

    def merge_and_sort_free(self) -> None:
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            self.free_list.give(torch.cat(waiting))
            self.free_list.sort()

    def use_order(self, order: str) -> None:
        """Hand out what is free in another order from now on. O(pool); what is held is not touched."""
        ids = self.free_list.all_free()
        self.order, self.free_list = order, make_free_list(order, self.free_list.num_units, self.device)
        self.free_list.replace(ids)

    def use_guard(self, guard: Guard | None) -> None:
        """Check with `guard` from now on, or not at all; between two steps. O(pool)."""
        self.guard = guard
        self._reset_guard()

    # -- allocating --

    def alloc(self, need_size: int) -> torch.Tensor | None:
        if getattr(self, "debug_mode", False):
            assert need_size % self.page_size == 0, "The allocation size should be page-aligned"
        count = need_size // self.page_size
        if not self._has(count, count):
            return None
        units = self._checked(self.free_list.take(count))
        if self.page_size == 1:
            return units
        return (units[:, None] * self.page_size + torch.arange(self.page_size, device=self.device)).reshape(-1)

    def _has(self, count: int, at_most: int) -> bool:
        """Whether `count` units are free; sorts waiting ones in when the list might not hold `at_most`."""
        if at_most > self.free_list.available:
            self.merge_and_sort_free()
        return count <= self.free_list.available

    def _checked(self, units: torch.Tensor) -> torch.Tensor:
        return units if self.guard is None else self.guard.taken(units, self.free_list)

    # -- freeing --

    def free(self, free_index: torch.Tensor) -> None:
        if free_index.numel() == 0:
            return
        if self._is_grouping():
            self.free_group.append(free_index.clone())
        else:
            self._release(free_index if self.page_size == 1 else torch.unique(free_index // self.page_size))
        if getattr(self, "debug_mode", False):
            ids = self.get_all_free_pages()
            assert len(torch.unique(ids)) == len(ids)

    def _is_grouping(self) -> bool:
        """Inside `free_group_begin` ... `free_group_end`; 0.5.18 and before keep a flag beside the list."""
        return not self.is_not_in_free_group if hasattr(self, "is_not_in_free_group") else self.free_group is not None

    def _release(self, units: torch.Tensor) -> None:
        """Give each of `units` back, once; the one way into the free list."""
        if self.guard is not None:
            units = self.guard.given(units)
        if self.need_sort and self.free_list.is_queue:
            self._waiting.append(units.clone())
        else:
            self.free_list.give(units)

    def _reset_guard(self) -> None:
        if self.guard is not None and hasattr(self, "free_list"):
            self.guard.reset(self.free_list.num_units, self.get_all_free_pages())


class PolicyTokenAllocator(_OverFreeList, TokenToKVPoolAllocator):
    """Page size 1."""


class PolicyPagedAllocator(_OverFreeList, PagedTokenToKVPoolAllocator):
    """Page sizes above 1. How many pages a call needs is known on the host, so they are taken before a kernel runs."""

    def alloc_extend(
        self,
        prefix_lens: torch.Tensor,
        prefix_lens_cpu: torch.Tensor,
        seq_lens: torch.Tensor,
        seq_lens_cpu: torch.Tensor,
        last_loc: torch.Tensor,
        extend_num_tokens: int,
        num_new_pages: int | None = None,
    ) -> torch.Tensor | None:
        counts = new_pages_of_extend(prefix_lens_cpu, seq_lens_cpu, self.page_size)
        pages = self._take(counts, last_loc, extend_num_tokens // self.page_size + len(counts) + 1)
        if pages is None:
            return None
        return extend_slots(prefix_lens, seq_lens, last_loc, pages, extend_num_tokens, self.page_size)

    def alloc_decode(
        self, seq_lens: torch.Tensor, seq_lens_cpu: torch.Tensor, last_loc: torch.Tensor
    ) -> torch.Tensor | None:
        counts = new_pages_of_decode(seq_lens_cpu, self.page_size)
        pages = self._take(counts, last_loc, len(counts))
        return None if pages is None else decode_slots(seq_lens, last_loc, pages, self.page_size)

    def _take(self, counts: list[int], last_loc: torch.Tensor, at_most: int) -> torch.Tensor | None:
        """`counts[i]` pages for each request, or None; `at_most` is when the engine sorts waiting frees in."""
        if not self._has(sum(counts), at_most):
            return None
        free = self.free_list
        if free.follows_requests:
            return self._checked(free.take_after(last_loc // self.page_size, counts))
        return self._checked(free.take(sum(counts)))

    def _release_page_ids(self, *page_ids: torch.Tensor) -> None:
        """Where `free_segment`, `free_page_ids` and groups of the engine (0.5.17 and later) arrive."""
        for ids in page_ids:
            self._release(ids)


#: The engine's exact classes, and what stands in for them.
_CLASSES: dict[type, type[Any]] = {
    TokenToKVPoolAllocator: PolicyTokenAllocator,
    PagedTokenToKVPoolAllocator: PolicyPagedAllocator,
}
#: The order that each class has by itself.
ENGINE_ORDER: dict[type, str] = {TokenToKVPoolAllocator: "fifo", PagedTokenToKVPoolAllocator: "lifo"}


def substitute(stock: Any, order: str, guard: Guard | None) -> Any:
    """An allocator like `stock`, which nothing has used yet, in `order`. Raises `KeyError` for another class."""
    sizes = {} if type(stock) is TokenToKVPoolAllocator else {"page_size": stock.page_size}
    return _CLASSES[type(stock)](
        stock.size,
        **sizes,
        dtype=stock.dtype,
        device=stock.device,
        kvcache=stock.get_kvcache(),
        need_sort=stock.need_sort,
        order=order,
        guard=guard,
    )
