"""Units of results.

One rule: a bare number (made of literals and parameters only) takes the unit its place needs, so ``1 + idle_requests``
and ``depth_tokens <= 4096`` are fine. A sum of different units needs a bare number as a weight on a side, which then
stands for the conversion: ``size_tokens - 0.1 * idle_s``. A comparison of different units is always a mistake. Plain
numbers (counts, results of log and exp) go with everything.
"""

from __future__ import annotations

from .fields import PLAIN, Dim, Kind
from .nodes import Node, Type

__all__ = ["branch_type", "comparable", "power_type", "product_type", "quotient_type", "sum_type"]


def _number(dim: Dim, a: Type, b: Type) -> Type:
    bare = a.bare and b.bare
    scaled = (a.bare != b.bare) or a.weighted or b.weighted
    return Type(Kind.NUMBER, dim, bare, scaled and not bare)


def product_type(a: Type, b: Type) -> Type:
    return _number(Dim(*(x + y for x, y in zip(a.dim, b.dim, strict=True))), a, b)


def quotient_type(a: Type, b: Type) -> Type:
    return _number(Dim(*(x - y for x, y in zip(a.dim, b.dim, strict=True))), a, b)


def power_type(base: Type, exponent: Node) -> Type:
    """A small whole literal raises the unit; any other exponent leaves a plain number."""
    value = exponent.value
    bare = base.bare and exponent.type.bare
    if exponent.is_const and isinstance(value, float) and value.is_integer() and abs(value) <= 8:
        return Type(Kind.NUMBER, Dim(*(x * int(value) for x in base.dim)), bare, base.weighted)
    return Type(Kind.NUMBER, PLAIN, bare)


def comparable(a: Type, b: Type) -> bool:
    return a.dim == b.dim or PLAIN in (a.dim, b.dim)


def sum_type(a: Type, b: Type) -> Type | None:
    """``None``: the units do not go together."""
    bare, weighted = a.bare and b.bare, a.weighted or b.weighted
    if comparable(a, b):
        return Type(Kind.NUMBER, b.dim if a.dim == PLAIN else a.dim, bare, weighted)
    return Type(Kind.NUMBER, PLAIN, bare, True) if weighted else None


branch_type = sum_type
