"""Neighbours first, then the longest free run, where ids live on a GPU: the same ids as :mod:`.runs`.

Every step has a shape that the host knows, so no call waits for the GPU; the price is some passes over a byte map of
the pool a call.
"""

from __future__ import annotations

import torch

from .base import FIRST_UNIT, FreeList

__all__ = ["RunsOnDevice"]


class RunsOnDevice(FreeList):
    order = "runs"
    follows_requests = True

    def replace(self, ids: torch.Tensor) -> None:
        # One more than there is, never free: every run ends before it.
        self._is_free = torch.zeros(self.num_units + FIRST_UNIT + 1, dtype=torch.bool, device=self.device)
        self._ids = torch.arange(self._is_free.numel(), device=self.device)
        self._is_free.index_fill_(0, ids.to(torch.int64), True)
        self.available = ids.numel()

    def take(self, count: int) -> torch.Tensor:
        self.available -= count
        ids = self._ranked(count)
        self._is_free.index_fill_(0, ids, False)
        return ids

    def take_after(self, last: torch.Tensor, counts: list[int]) -> torch.Tensor:
        total = sum(counts)
        if not total:
            return torch.empty(0, dtype=torch.int64, device=self.device)
        self.available -= total
        wanted = torch.tensor(counts).to(self.device, non_blocking=True)
        owner = torch.repeat_interleave(wanted, output_size=total)
        place = torch.arange(total, device=self.device) - (wanted.cumsum(0) - wanted)[owner]

        # Of requests that end in the same unit, the first one that asks for any gets what follows it.
        last = last.clamp(min=0)
        number = torch.arange(len(counts), device=self.device)
        asking = torch.where(wanted > 0, number, len(counts))
        first = torch.full_like(self._ids, len(counts)).scatter_reduce_(0, last, asking, "amin")
        length = torch.where((first[last] == number) & (last >= FIRST_UNIT), self._ends()[last + 1] - last - 1, 0)
        is_neighbour = place < length[owner]
        neighbour = torch.where(is_neighbour, last[owner] + 1 + place, 0)  # 0 is never free
        self._is_free.index_fill_(0, neighbour, False)

        others = self._ranked(total)[((~is_neighbour).cumsum(0) - 1).clamp(min=0)]
        ids = torch.where(is_neighbour, neighbour, others)
        self._is_free.index_fill_(0, ids, False)
        return ids

    def give(self, ids: torch.Tensor) -> None:
        self.available += ids.numel()
        self._is_free.index_fill_(0, ids.to(torch.int64), True)

    def all_free(self) -> torch.Tensor:
        return torch.nonzero(self._is_free).flatten()

    def _ends(self) -> torch.Tensor:
        """For each id the next one, itself included, that is not free."""
        used = torch.where(self._is_free, self._ids.numel(), self._ids)
        return used.flip(0).cummin(0).values.flip(0)

    def _ranked(self, count: int) -> torch.Tensor:
        """The first `count` free ids by run, the longest and of equal ones the lowest first, then by id."""
        size = self._ids.numel()
        starts = torch.where(self._is_free, 0, self._ids + 1).cummax(0).values
        shortness = size - (self._ends() - starts)
        key = torch.where(self._is_free, shortness * size + self._ids, size * size + size)
        return key.topk(count, largest=False, sorted=True).values % size
