"""First in, first out: the unit that has been free longest is handed out next. SGLang's order at page size 1.

A ring in one preallocated tensor: `take` reads at the head, `give` writes at the tail.
"""

from __future__ import annotations

import torch

from .base import FreeList

__all__ = ["FifoList"]


class FifoList(FreeList):
    order = "fifo"
    is_queue = True

    def replace(self, ids: torch.Tensor) -> None:
        self._ring = torch.empty(max(self.num_units, ids.numel()), dtype=torch.int64, device=self.device)
        self._ring[: ids.numel()] = ids
        self._head, self.available = 0, ids.numel()

    def take(self, count: int) -> torch.Tensor:
        head, size = self._head, self._ring.numel()
        end = head + count
        self.available -= count
        if end <= size:
            self._head = end if end < size else 0
            return self._ring[head:end].clone()  # what is given back later is written over it
        self._head = end - size
        return torch.cat([self._ring[head:], self._ring[: self._head]])

    def give(self, ids: torch.Tensor) -> None:
        count, size = ids.numel(), self._ring.numel()
        if self.available + count > size:  # more than exist: something was given twice
            self.replace(torch.cat([self.all_free(), ids]))
            return
        start = self._head + self.available
        if start >= size:
            start -= size
        self.available += count
        end = start + count
        if end <= size:
            self._ring[start:end] = ids
        else:
            self._ring[start:] = ids[: size - start]
            self._ring[: end - size] = ids[size - start :]

    def all_free(self) -> torch.Tensor:
        end, size = self._head + self.available, self._ring.numel()
        if end <= size:
            return self._ring[self._head : end].clone()
        return torch.cat([self._ring[self._head :], self._ring[: end - size]])

    def sort(self) -> None:
        self.replace(self.all_free().sort().values)
