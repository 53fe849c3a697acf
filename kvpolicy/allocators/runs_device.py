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
        run_of, _, run_end = self._runs()
        behind = torch.where(self._is_free[last + 1], run_end[run_of[last + 1]] - last, 0)
        length = torch.where((first[last] == number) & (last >= FIRST_UNIT), behind, 0)
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

    def _runs(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """`(number, first, last)`: of each id how many runs begin up to it, and of each run, by its number from 1 on,
        the ids it lies between; a run that there is not has none. Scans and scatters only: a running maximum would
        name the borders at once, but takes a single block of threads over the whole pool."""
        free, ids = self._is_free, self._ids
        begins, ends = free.clone(), free.clone()
        begins[1:] &= ~free[:-1]
        ends[:-1] &= ~free[1:]
        number = begins.cumsum(0)
        runs = ids.numel() // 2 + 2
        first, last = torch.zeros(runs, dtype=torch.int64, device=self.device), torch.full_like(ids[:runs], -1)
        first.scatter_(0, torch.where(begins, number, 0), ids)  # run 0 takes what is no border, and is then none
        last.scatter_(0, torch.where(ends, number, 0), ids)
        first[:1].zero_()
        last[:1].fill_(-1)
        return number, first, last

    def _ranked(self, count: int) -> torch.Tensor:
        """The first `count` free ids by run, the longest and of equal ones the lowest first, then by id."""
        _, first, last = self._runs()
        size = self._ids.numel()
        length = last - first + 1
        chosen = ((size - length) * size + first).topk(min(count, length.numel()), largest=False, sorted=True).indices
        length = length[chosen]
        end = length.cumsum(0)
        place = torch.arange(count, device=self.device)
        run = torch.searchsorted(end, place, right=True).clamp(max=chosen.numel() - 1)
        return first[chosen[run]] + place - (end - length)[run]
