"""Lowest id first where ids live on a GPU: the byte map and its counts are there, and no call waits for it."""

from __future__ import annotations

import torch

from kvpolicy.kernels.bitmap import BLOCK, put_back, take_lowest

from .base import FIRST_UNIT, FreeList

__all__ = ["AddressOnDevice"]


class AddressOnDevice(FreeList):
    order = "address"

    def replace(self, ids: torch.Tensor) -> None:
        num_blocks = (self.num_units + FIRST_UNIT + BLOCK - 1) // BLOCK
        self._is_free = torch.zeros(num_blocks * BLOCK, dtype=torch.bool, device=self.device)
        self._counts = torch.zeros(num_blocks, dtype=torch.int32, device=self.device)
        self.available = ids.numel()
        put_back(self._is_free, self._counts, ids.to(torch.int64))

    def take(self, count: int) -> torch.Tensor:
        self.available -= count
        return take_lowest(self._is_free, self._counts, count)

    def give(self, ids: torch.Tensor) -> None:
        self.available += ids.numel()
        put_back(self._is_free, self._counts, ids.to(torch.int64))

    def all_free(self) -> torch.Tensor:
        return torch.nonzero(self._is_free).flatten()
