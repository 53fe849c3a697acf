"""Interval analysis: the range of each numeric node, from its fields' declared ranges.

It tells the code generator which operators need no guard (``1 + idle_requests`` is never zero) and the classifier which
factors have a known sign. IEEE rounding is monotone, so bounds computed in doubles hold for results in doubles.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from typing import NamedTuple

from . import numerics
from .nodes import Node
from .numerics import MAX, OPERATIONS

__all__ = ["SAFE", "Bounds", "bounds"]

#: Below this magnitude an operation cannot have overflowed.
SAFE = 1e300


class Bounds(NamedTuple):
    low: float
    high: float

    @property
    def safe(self) -> bool:
        return self.low >= -SAFE and self.high <= SAFE


_ALL = Bounds(-MAX, MAX)
#: Monotone in each argument, so the extremes lie at the corners.
_MONOTONE = frozenset(
    {"add", "sub", "mul", "neg", "ceil", "floor", "exp", "log", "log1p", "key_log", "sqrt", "min", "max", "clamp"}
)


@lru_cache(maxsize=4096)
def bounds(node: Node) -> Bounds:
    """Range of a numeric node."""
    if node.op == "const":
        assert isinstance(node.value, float)
        return Bounds(node.value, node.value)
    if node.field is not None:
        return Bounds(node.field.low, node.field.high)
    if node.op == "if":
        yes, no = bounds(node.args[1]), bounds(node.args[2])
        return Bounds(min(yes.low, no.low), max(yes.high, no.high))
    args = [bounds(a) for a in node.args]
    if node.op in _MONOTONE:
        return _corners(node.op, args)
    match node.op:
        case "abs":
            (x,) = args
            low = 0.0 if x.low <= 0.0 <= x.high else min(abs(x.low), abs(x.high))
            return Bounds(low, max(abs(x.low), abs(x.high)))
        case "div":
            # At zero the quotient is the limit from above, so it is monotone up to and including it.
            return _corners("div", args) if args[1].low >= 0.0 or args[1].high < 0.0 else _ALL
        case "floordiv":
            if args[1].low >= 0.0 or args[1].high < 0.0:
                quotient = _corners("div", args)
                return Bounds(numerics.sub(numerics.floor(quotient.low), 1.0), quotient.high)
            return _ALL
        case "mod":
            return Bounds(min(args[1].low, 0.0), max(args[1].high, 0.0))
        case "pow":
            return _corners("pow", args) if args[0].low >= 0.0 else _ALL
    raise AssertionError(node.op)


def _corners(op: str, args: list[Bounds]) -> Bounds:
    values = [OPERATIONS[op](*corner) for corner in product(*args)] if len(args) <= 3 else []
    if not values:  # min and max of many
        low, high = [a.low for a in args], [a.high for a in args]
        return Bounds(min(low), min(high)) if op == "min" else Bounds(max(low), max(high))
    return Bounds(min(values), max(values))
