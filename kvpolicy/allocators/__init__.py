"""Free lists: which unit (a slot, or a page of slots) of the KV pool is handed out next. One order a file.

:func:`make_free_list` builds one by the policy's word. An adapter puts it under the engine's own allocator class.
"""

from __future__ import annotations

import torch

from .address import AddressList
from .base import Fragmentation, FreeList
from .fifo import FifoList
from .lifo import LifoList
from .runs import RunsList

__all__ = ["ORDERS", "Fragmentation", "FreeList", "make_free_list"]

#: Every order's list for ids on the host.
ORDERS: dict[str, type[FreeList]] = {
    "fifo": FifoList,
    "lifo": LifoList,
    "address": AddressList,
    "runs": RunsList,
}


def make_free_list(order: str, num_units: int, device: torch.device | str) -> FreeList:
    """The free list of `order` for `num_units` on `device`. Raises `ValueError` for an unknown order."""
    if order not in ORDERS:
        raise ValueError(f"unknown allocator order {order!r} (known: {', '.join(ORDERS)})")
    return ORDERS[order](num_units, device)
