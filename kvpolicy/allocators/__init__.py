"""Free lists: which unit (a slot, or a page of slots) of the KV pool is handed out next. One order a file.

:func:`make_free_list` builds one by the policy's word. An adapter puts it under the engine's own allocator class.
"""

from __future__ import annotations

import torch

from .address import AddressList
from .address_device import AddressOnDevice
from .base import FreeList
from .fifo import FifoList
from .lifo import LifoList
from .runs import RunsList
from .runs_device import RunsOnDevice

__all__ = ["ORDERS", "ORDERS_ON_DEVICE", "FreeList", "make_free_list"]

#: Every order's list for ids on the host.
ORDERS: dict[str, type[FreeList]] = {
    "fifo": FifoList,
    "lifo": LifoList,
    "address": AddressList,
    "runs": RunsList,
}
#: For ids elsewhere: they are not read, so that nothing waits for a GPU.
ORDERS_ON_DEVICE: dict[str, type[FreeList]] = {**ORDERS, "address": AddressOnDevice, "runs": RunsOnDevice}


def make_free_list(order: str, num_units: int, device: torch.device | str) -> FreeList:
    """The free list of `order` for `num_units` on `device`. Raises `ValueError` for an unknown order."""
    if order not in ORDERS:
        raise ValueError(f"unknown allocator order {order!r} (known: {', '.join(ORDERS)})")
    orders = ORDERS if torch.device(device).type == "cpu" else ORDERS_ON_DEVICE
    return orders[order](num_units, device)
