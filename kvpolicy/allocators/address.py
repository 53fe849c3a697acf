"""Lowest id first: the pool fills from its start, and holes are filled before fresh room is touched.

A byte a unit and a count a block of 1,024. Taking finds the first blocks that hold enough free units; giving back sets
bytes. Ids are read on the host, so this form is for pools whose ids live there; :mod:`.address_device` is for others.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from .base import FIRST_UNIT, FreeList

__all__ = ["AddressList", "not_free_yet"]

_SHIFT = 10
_BLOCK = 1 << _SHIFT


class AddressList(FreeList):
    order = "address"

    def replace(self, ids: torch.Tensor) -> None:
        num_blocks = (self.num_units >> _SHIFT) + 1
        padded = np.zeros(num_blocks << _SHIFT, dtype=np.bool_)
        self._is_free = padded[: self.num_units + FIRST_UNIT]
        self._is_free[not_free_yet(ids.numpy(), self._is_free)] = True
        self._counts = padded.reshape(num_blocks, _BLOCK).sum(axis=1, dtype=np.int64)
        self._lowest = 0  # no block below holds a free unit
        self.available = int(self._counts.sum())

    def take(self, count: int) -> torch.Tensor:
        if count == 0:
            return torch.empty(0, dtype=torch.int64)
        counts, first = self._counts, self._lowest
        if counts[first] >= count:
            last = first
            counts[first] -= count
        else:
            sums = counts[first:].cumsum()
            blocks = int(sums.searchsorted(count))  # whole blocks before the last one that is needed
            last = self._lowest = first + blocks
            counts[first:last] = 0
            counts[last] = sums[blocks] - count
        ids = self._is_free[first << _SHIFT : (last + 1) << _SHIFT].nonzero()[0][:count]
        ids += first << _SHIFT
        self._is_free[ids] = False
        self.available -= count
        return torch.from_numpy(ids)

    def give(self, ids: torch.Tensor) -> None:
        fresh = not_free_yet(ids.numpy(), self._is_free)
        if not fresh.size:
            return
        self._is_free[fresh] = True
        np.add.at(self._counts, fresh >> _SHIFT, 1)
        self._lowest = min(self._lowest, int(fresh[0]) >> _SHIFT)
        self.available += fresh.size

    def all_free(self) -> torch.Tensor:
        return torch.from_numpy(np.flatnonzero(self._is_free))


def not_free_yet(ids: np.ndarray[Any, Any], is_free: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Those of `ids` that exist and are not free, ascending and each once: the list must hold no id twice."""
    if not ids.size:
        return ids
    if ids.size > 1 and not (ids[1:] > ids[:-1]).all():
        ids = np.unique(ids)
    if ids[0] < FIRST_UNIT or ids[-1] >= is_free.size:
        ids = ids[(ids >= FIRST_UNIT) & (ids < is_free.size)]
    known = is_free[ids]
    return ids[~known] if known.any() else ids
