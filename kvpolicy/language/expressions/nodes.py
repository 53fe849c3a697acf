"""The typed tree between the checker and everything that reads an expression (folding, bounds, classes, code)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .fields import PLAIN, Dim, Field, Kind

__all__ = ["BOOL", "Node", "Type", "Value", "constant", "number", "operation", "read", "walk"]

#: A constant: a number is always a float; a tuple is the right side of ``in``.
Value = float | bool | str | None | tuple[float, ...] | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Type:
    """A value's kind and, for a number, its unit."""

    kind: Kind
    dim: Dim = PLAIN
    bare: bool = False  # made of literals and parameters only: takes whatever unit its place needs
    weighted: bool = False  # scaled by a bare number, which may therefore stand for a conversion


BOOL = Type(Kind.BOOL)


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """``op`` is ``const``, ``field`` or the name of an operation on ``args``; ``size`` counts the nodes below, itself
    included (a shared node counts each time it is used)."""

    op: str
    type: Type
    args: tuple[Node, ...] = ()
    value: Value = None
    field: Field | None = None
    size: int = 1

    @property
    def is_const(self) -> bool:
        return self.op == "const"


def constant(value: Value, type: Type) -> Node:
    return Node("const", type, value=value)


def number(value: float) -> Node:
    """A bare number."""
    return Node("const", Type(Kind.NUMBER, bare=True), value=value)


def read(field: Field) -> Node:
    return Node("field", Type(field.kind, field.dim), field=field)


def operation(op: str, type: Type, *args: Node) -> Node:
    return Node(op, type, args, size=1 + sum(a.size for a in args))


def walk(node: Node) -> Iterator[Node]:
    yield node
    for arg in node.args:
        yield from walk(arg)
