"""The functions of the language: a fixed set, each total (see ``numerics``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["FUNCTIONS", "Function"]

_MOST = 16


@dataclass(frozen=True, slots=True)
class Function:
    usage: str
    doc: str
    least: int = 1  # number of arguments
    most: int = 1
    keeps_unit: bool = False  # else the result is a plain number


FUNCTIONS: Mapping[str, Function] = {
    "abs": Function("abs(x)", "x without its sign", keeps_unit=True),
    "ceil": Function("ceil(x)", "the whole number at or above x", keeps_unit=True),
    "clamp": Function("clamp(x, low, high)", "x, but not below low nor above high", 3, 3, keeps_unit=True),
    "exp": Function("exp(x)", "e to the power x; the largest double on overflow"),
    "floor": Function("floor(x)", "the whole number at or below x", keeps_unit=True),
    "log": Function("log(x)", "natural logarithm; -745 for x <= 0"),
    "log1p": Function("log1p(x)", "natural logarithm of 1 + x; -745 for x <= -1"),
    "max": Function("max(x, y, ...)", "the largest", 2, _MOST, keeps_unit=True),
    "min": Function("min(x, y, ...)", "the smallest", 2, _MOST, keeps_unit=True),
    "sqrt": Function("sqrt(x)", "square root; 0 for x <= 0"),
}
