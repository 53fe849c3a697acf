"""How much of a swap is done between two steps of the engine, and Python's garbage collector meanwhile.

Time sets the size of a slice, and nothing else: the ranks agree on the number of units, so that each holds the same new
index after the same messages however fast it is.
"""

from __future__ import annotations

import gc
import time
from typing import Any

__all__ = ["FIRST_UNITS", "LEAST_UNITS", "MOST_UNITS", "CollectionsPutOff", "next_units"]

#: What a slice may take on the slowest rank. One in which a dictionary grows takes as long again; 5 ms is the aim.
SLICE_S = 0.002
FIRST_UNITS = 64
LEAST_UNITS, MOST_UNITS = 32, 4096

#: Seconds after the last message, and in all, until full collections are as they were.
FORGOTTEN_S, LONGEST_S = 5.0, 60.0
_NEVER = 1 << 30


def next_units(units: int, slowest_s: float) -> int:
    """The units of the next slice, where one of ``units`` took the slowest rank so long."""
    fit = int(units * SLICE_S / slowest_s) if slowest_s > 0 else MOST_UNITS
    return max(LEAST_UNITS, min(fit, 2 * units, MOST_UNITS))


class CollectionsPutOff:
    """No full garbage collection while a swap goes on: its tens of thousands of new objects would set off one after the
    other, and each stops a scheduler for as long as it takes to look at all objects that are not frozen.

    Young objects are collected as ever, and so is all once :meth:`end` was called, or by itself once :meth:`go_on` was
    not for a while. A threshold that somebody else set meanwhile stays.
    """

    def __init__(self) -> None:
        self._before: tuple[int, int, int] | None = None  # the process's thresholds, while ours hold
        self._start_s = self._heard_s = 0.0

    @property
    def holds(self) -> bool:
        return self._before is not None

    def start(self) -> None:
        self._start_s = time.monotonic()
        self.go_on()
        before = gc.get_threshold()
        if self._before is None and gc.isenabled() and before[0] > 0:
            self._before = before
            gc.set_threshold(before[0], before[1], _NEVER)
            gc.callbacks.append(self._collecting)

    def go_on(self) -> None:
        """The swap's client spoke."""
        self._heard_s = time.monotonic()

    def end(self) -> None:
        before, self._before = self._before, None
        if before is None:
            return
        gc.callbacks.remove(self._collecting)
        if gc.get_threshold() == (before[0], before[1], _NEVER):
            gc.set_threshold(*before)

    def _collecting(self, phase: str, _info: dict[str, Any]) -> None:
        now_s = time.monotonic()
        if phase == "stop" and (now_s - self._heard_s > FORGOTTEN_S or now_s - self._start_s > LONGEST_S):
            self.end()
