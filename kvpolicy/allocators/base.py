"""The contract of a free list: which unit of the KV pool is handed out next.

A *unit* is what an engine allocates at once: a slot at page size 1, a page above. Units are numbered 1 to `num_units`;
unit 0 holds what padding writes and is never handed out. A free list knows ids only: no engine, no keys and values.

Lengths are host integers and ids are tensors on the pool's device, so that no call has to wait for a GPU. Giving back
k units costs O(k): no call copies the list. All lists are deterministic: equal calls give equal ids on every rank.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch

__all__ = ["FIRST_UNIT", "FreeList"]

FIRST_UNIT = 1  # unit 0 is the padding's


class FreeList(ABC):
    """The free units of one pool, in an order of its own."""

    order: ClassVar[str]  # the policy's word for it
    is_queue: ClassVar[bool] = False  # ids keep the order in which they came back; others are placed by their value
    follows_requests: ClassVar[bool] = False  # whether `take_after` looks at its `last`

    def __init__(self, num_units: int, device: torch.device | str) -> None:
        """All of `num_units` are free; ids are int64 tensors on `device`."""
        self.num_units = num_units
        self.device = torch.device(device)
        self.available = 0  # free units; subclasses keep it
        self.clear()

    @abstractmethod
    def take(self, count: int) -> torch.Tensor:
        """Hand out the next `count` units, int64[count], first to use first; the tensor is the caller's.

        The caller has checked that `count <= available`.
        """

    def take_after(self, last: torch.Tensor, counts: list[int]) -> torch.Tensor:
        """`counts[i]` units for each of several requests, int64[sum(counts)], in the order of the requests.

        `last`, int64[len(counts)], is the unit that each request's tokens end in, -1 if it has none. An order that
        does not care about neighbours takes `sum(counts)` units.
        """
        return self.take(sum(counts))

    @abstractmethod
    def give(self, ids: torch.Tensor) -> None:
        """Take `ids`, int64[k], back. Each was handed out and appears once; :mod:`.guard` checks that."""

    @abstractmethod
    def all_free(self) -> torch.Tensor:
        """All free ids, next to be handed out first, where the order allows; for tests, checks and :meth:`replace`."""

    @abstractmethod
    def replace(self, ids: torch.Tensor) -> None:
        """Forget what is free: from now on exactly `ids` are, to be handed out in this order where it has one."""

    def sort(self) -> None:
        """Hand out ascending ids from now on. Nothing to do for an order that ids alone decide."""
        return

    def clear(self) -> None:
        """Everything is free again, in ascending order."""
        self.replace(torch.arange(FIRST_UNIT, FIRST_UNIT + self.num_units, dtype=torch.int64, device=self.device))

    def resize(self, num_units: int) -> None:
        """The pool now has `num_units`, all free."""
        self.num_units = num_units
        self.clear()
