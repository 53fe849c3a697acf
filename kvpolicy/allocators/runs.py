"""A request's neighbours first, then the longest free run: what belongs together lies together.

Free units are kept as maximal runs: two dicts find the run that begins or ends at an id, and a heap (with entries that
may be outdated) the longest; of equal ones the lowest. A call costs a few microseconds for each run that it touches, so
the price falls as the order does its work. Ids are read on the host; :mod:`.runs_device` is for pools elsewhere.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

import numpy as np
import torch

from .address import not_free_yet
from .base import FIRST_UNIT, FreeList

__all__ = ["RunsList"]


class RunsList(FreeList):
    order = "runs"
    follows_requests = True

    def replace(self, ids: torch.Tensor) -> None:
        self._is_free = np.zeros(self.num_units + FIRST_UNIT, dtype=np.bool_)
        self._end_of: dict[int, int] = {}  # first id of a run -> its last id + 1
        self._start_of: dict[int, int] = {}  # the reverse
        self._heap: list[tuple[int, int]] = []  # (-length, first id)
        self.available = 0
        self.give(ids)

    def take(self, count: int) -> torch.Tensor:
        self.available -= count
        pieces = self._take_longest(count)
        if len(pieces) == 1:
            return torch.arange(*pieces[0])
        return _join(pieces)

    def take_after(self, last: torch.Tensor, counts: list[int]) -> torch.Tensor:
        self.available -= sum(counts)
        own: list[tuple[int, int] | None] = []
        missing = 0
        for unit, count in zip(last.tolist(), counts, strict=True):
            # `unit` is in use, so a free run that follows it begins right there; of two requests with one prefix the
            # first gets it.
            end = self._end_of.get(unit + 1) if count and unit >= FIRST_UNIT else None
            if end is None:
                own.append(None)
                missing += count
                continue
            end = self._take_from(unit + 1, min(count, end - unit - 1))
            own.append((unit + 1, end))
            missing -= end - unit - 1 - count
        others = _join(self._take_longest(missing)) if missing else torch.empty(0, dtype=torch.int64)
        pieces, used = [], 0
        for run, count in zip(own, counts, strict=True):
            if run is not None:
                pieces.append(torch.arange(*run))
                count -= run[1] - run[0]
            if count:
                pieces.append(others[used : used + count])
                used += count
        return torch.cat(pieces) if pieces else others

    def give(self, ids: torch.Tensor) -> None:
        fresh = not_free_yet(ids.numpy(), self._is_free)
        if not fresh.size:
            return
        self._is_free[fresh] = True
        self.available += fresh.size
        first, last = int(fresh[0]), int(fresh[-1])
        if last - first + 1 == fresh.size:
            self._add(first, last + 1)
        else:
            cuts = (fresh[1:] - fresh[:-1] != 1).nonzero()[0]
            starts, ends = [first, *fresh[cuts + 1].tolist()], [*fresh[cuts].tolist(), last]
            for start, end in zip(starts, ends, strict=True):
                self._add(start, end + 1)
        if len(self._heap) > 2 * len(self._end_of) + 64:
            self._heap = [(start - end, start) for start, end in self._end_of.items()]
            heapify(self._heap)

    def all_free(self) -> torch.Tensor:
        return _join(sorted(self._end_of.items(), key=lambda run: (run[0] - run[1], run[0])))

    def _longest(self) -> int:
        """The first id of the longest run."""
        while True:
            size, start = self._heap[0]
            if self._end_of.get(start) == start - size:
                return start
            heappop(self._heap)

    def _take_longest(self, count: int) -> list[tuple[int, int]]:
        pieces = []
        while count:
            start = self._longest()
            end = self._take_from(start, min(count, self._end_of[start] - start))
            pieces.append((start, end))
            count -= end - start
        return pieces

    def _take_from(self, start: int, count: int) -> int:
        """Take the first `count` units of the run at `start`; the id after them."""
        end, cut = self._end_of.pop(start), start + count
        self._is_free[start:cut] = False
        if cut == end:
            del self._start_of[end]
        else:
            self._end_of[cut], self._start_of[end] = end, cut
            heappush(self._heap, (cut - end, cut))
        return cut

    def _add(self, start: int, end: int) -> None:
        """Put `[start, end)` with the runs that touch it."""
        if (before := self._start_of.pop(start, None)) is not None:
            start = before
        if (after := self._end_of.pop(end, None)) is not None:
            end = after
        self._end_of[start], self._start_of[end] = end, start
        heappush(self._heap, (start - end, start))


def _join(runs: list[tuple[int, int]]) -> torch.Tensor:
    """The ids of half-open runs, int64, in the order given."""
    if not runs:
        return torch.empty(0, dtype=torch.int64)
    if len(runs) == 1:
        return torch.arange(*runs[0])
    starts, ends = np.array(runs, dtype=np.int64).T
    lengths = ends - starts
    shifts = starts - (lengths.cumsum() - lengths)
    return torch.from_numpy(np.arange(int(lengths.sum())) + shifts.repeat(lengths))
