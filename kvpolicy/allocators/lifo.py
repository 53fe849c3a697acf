"""Last in, first out: what was given back last is handed out next. SGLang's order at page sizes above 1.

A stack in one preallocated tensor, its top towards index 0: what is given back together keeps its own order.
"""

from __future__ import annotations

import torch

from .base import FreeList

__all__ = ["LifoList"]


class LifoList(FreeList):
    order = "lifo"
    is_queue = True

    def replace(self, ids: torch.Tensor) -> None:
        size = max(self.num_units, ids.numel())
        self._stack = torch.empty(size, dtype=torch.int64, device=self.device)
        self._top, self.available = size - ids.numel(), ids.numel()
        self._stack[self._top :] = ids

    def take(self, count: int) -> torch.Tensor:
        top = self._top
        self._top = top + count
        self.available -= count
        return self._stack[top : self._top].clone()  # what is given back later is written over it

    def give(self, ids: torch.Tensor) -> None:
        count = ids.numel()
        if count > self._top:  # more than exist: something was given twice
            self.replace(torch.cat([ids, self.all_free()]))
            return
        end, self._top = self._top, self._top - count
        self.available += count
        self._stack[self._top : end] = ids

    def all_free(self) -> torch.Tensor:
        return self._stack[self._top :].clone()

    def sort(self) -> None:
        self.replace(self.all_free().sort().values)
