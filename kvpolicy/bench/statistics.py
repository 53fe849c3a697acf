"""Is B faster than A? Ratios within rounds, their geometric mean, Student's interval over the rounds, and a verdict.

Both sides of a round see the same requests a moment apart, so what changes slowly (a machine that warms up, a
neighbour) cancels in the round's ratio, and the order within a round alternates, so that what is left of it does too.
The spread of the ratios over the rounds is then all the noise there is. Logarithms, since a ratio and its inverse must
weigh the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

__all__ = ["LEVEL", "MIN_ROUNDS", "Ratio", "compare"]

LEVEL = 0.95
MIN_ROUNDS = 2
#: Two-sided 95 % quantiles of Student's t by degrees of freedom, from 1 (any table of it; checked in tests).
_T95 = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281,
    2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860,
    2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times as good B is as A, by one figure: above 1 is better, whichever way the figure runs."""

    value: float
    low: float  # of the 95 % interval
    high: float
    rounds: int

    @property
    def winner(self) -> str | None:
        """``A`` or ``B``; None where the interval includes 1."""
        return "B" if self.low > 1 else "A" if self.high < 1 else None

    @property
    def seen_from(self) -> float:
        """The smallest gain, as a ratio, that so many rounds of this noise would tell from none."""
        return math.sqrt(self.high / self.low) if self.low > 0 else math.inf


def compare(a: Sequence[float], b: Sequence[float], *, higher_is_better: bool) -> Ratio | None:
    """The ratio over rounds: ``a[i]`` and ``b[i]`` are one figure of round ``i``, both above 0.

    None where a value is 0 or missing in any round, or with fewer than MIN_ROUNDS rounds: nothing can be said.
    """
    if len(a) != len(b):
        raise ValueError("a round has one value of each side")
    if len(a) < MIN_ROUNDS or any(not (value > 0 and math.isfinite(value)) for value in (*a, *b)):
        return None
    sign = 1 if higher_is_better else -1
    logs = [sign * math.log(after / before) for before, after in zip(a, b, strict=True)]
    half = _t95(len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
    mean = fmean(logs)
    return Ratio(math.exp(mean), _exp(mean - half), _exp(mean + half), len(logs))


def _t95(freedom: int) -> float:
    """Beyond the table the next smaller entry serves: an interval a hair too wide."""
    return _T95[min(freedom, len(_T95)) - 1]


def _exp(value: float) -> float:
    return math.inf if value > 700 else math.exp(value)
