"""Finds units that are given back twice, or that nobody handed out, or that are handed out while in use; and repairs.

A byte a unit says whether it is handed out. What is wrong with a call is dropped from it: a unit given back twice goes
back once, a unit in use stays with its holder and another one is handed out. Each kind is reported once with the call
that did it, and counted from then on. Checking reads a tensor's values, so on a GPU a checked call waits for it; under
`sampled` every 16th call is checked, counted in calls so that all ranks check the same ones.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable
from typing import Literal

import torch

from .base import FIRST_UNIT, FreeList

__all__ = ["FAULTS", "Guard", "Mode"]

Mode = Literal["sampled", "full"]
Report = Callable[[str, "str | None"], None]  # (kind, what happened; None once a fault of this kind was told)

#: Kinds of faults, in an operator's words.
FAULTS = {
    "double_free": "freed twice",
    "padding_free": "freed, which holds what padding writes and is nobody's",
    "foreign_free": "freed, which this pool does not have",
    "use_after_free": "handed out while in use: somebody freed what another still holds",
}
_EVERY = {"full": 1, "sampled": 16}


class Guard:
    """Watches one free list, and counts units by kind in `faults`."""

    def __init__(self, mode: Mode, report: Report, faults: Counter[str] | None = None) -> None:
        self.faults: Counter[str] = Counter() if faults is None else faults
        self._report = report
        self._every, self._calls = _EVERY[mode], 0
        self._is_out = torch.empty(0, dtype=torch.bool)  # [units], by id
        self._seen_at = torch.empty(0, dtype=torch.int64)  # [units], scratch

    def reset(self, num_units: int, free: torch.Tensor) -> None:
        """From now on `free`, int64[k], are free and all others of `num_units` are handed out."""
        self._is_out = torch.ones(num_units + FIRST_UNIT, dtype=torch.bool, device=free.device)
        self._is_out[self._within(free)] = False
        self._seen_at = torch.empty(num_units + FIRST_UNIT, dtype=torch.int64, device=free.device)

    def given(self, ids: torch.Tensor) -> torch.Tensor:
        """Of the units that a caller gives back, those that the free list may have."""
        within = self._within(ids)
        if self._is_checked():
            is_good = (ids == within) & (ids >= FIRST_UNIT) & self._is_out[within] & self._is_first(within)
            if not bool(is_good.all()):
                is_foreign = ids != within
                is_padding = ids == 0
                self._count("padding_free", ids[is_padding])
                self._count("foreign_free", ids[is_foreign])
                self._count("double_free", ids[~(is_good | is_padding | is_foreign)])
                ids = within = torch.unique(ids[is_good])  # sorted: the same on every rank
        self._is_out[within] = False
        return ids

    def taken(self, ids: torch.Tensor, free: FreeList) -> torch.Tensor:
        """The units to hand out in place of `ids`, which `free` gave: others for those in use."""
        within = self._within(ids)
        if self._is_checked():
            while not bool((is_good := self._may_go_out(ids, within)).all()):
                bad = ids[~is_good]
                self._count("use_after_free", bad)
                if free.available < bad.numel():
                    break  # nothing to repair it with: as without a guard, and counted
                ids = ids.clone()
                ids[~is_good] = free.take(bad.numel())
                within = self._within(ids)
        self._is_out[within] = True
        return ids

    def _within(self, ids: torch.Tensor) -> torch.Tensor:
        """`ids` that may index our tensors: 0, the padding's, in place of what this pool does not have."""
        return ids.masked_fill((ids < 0) | (ids >= self._is_out.numel()), 0)

    def _is_checked(self) -> bool:
        self._calls += 1
        return self._calls % self._every == 0

    def _may_go_out(self, ids: torch.Tensor, within: torch.Tensor) -> torch.Tensor:
        return (ids == within) & (ids >= FIRST_UNIT) & ~self._is_out[within] & self._is_first(within)

    def _is_first(self, within: torch.Tensor) -> torch.Tensor:
        """Whether an id appears for the first time, bool[k]; which one of equals that is does not matter."""
        place = torch.arange(within.numel(), device=within.device)
        self._seen_at[within] = place
        return self._seen_at[within] == place

    def _count(self, kind: str, ids: torch.Tensor) -> None:
        count = ids.numel()
        if not count:
            return
        is_new = kind not in self.faults
        self.faults[kind] += count
        message = None
        if is_new:
            shown = ", ".join(map(str, ids[:8].tolist())) + (", ..." if count > 8 else "")
            message = f"{count} unit(s) {FAULTS[kind]} ({shown}), in {_caller()}"
        self._report(kind, message)


def _caller() -> str:
    """The functions that led here, innermost first, without this module's."""
    frames = [frame for frame in traceback.extract_stack() if frame.filename != __file__]
    return " < ".join(f"{frame.name} ({frame.filename.rpartition('/')[2]}:{frame.lineno})" for frame in frames[:-5:-1])
