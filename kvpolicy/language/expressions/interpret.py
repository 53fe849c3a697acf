"""The reference evaluator: what a tree means, one node at a time.

Constant folding is this evaluator over a tree without fields, and generated code falls back to it where a field holds a
value outside its declared range.
"""

from __future__ import annotations

from collections.abc import Callable

from .fields import Field, Kind
from .nodes import Node, Value, constant
from .numerics import OPERATIONS

__all__ = ["fold", "in_range", "interpret"]


def in_range(field: Field, value: object) -> Value:
    """A field's raw value as the language sees it: numbers are doubles within the field's bounds, NaN the lower one."""
    if field.kind is Kind.BOOL:
        return bool(value)
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, (int, float)) or not value > field.low:  # also NaN
        return field.low
    return field.high if value >= field.high else float(value)


def interpret(node: Node, read: Callable[[Field], Value]) -> Value:
    """The value of ``node``; ``read`` gives a field's value, in range. Never raises."""
    value = _value(node, read)
    if value is None and node.type.kind is Kind.NUMBER:
        return 0.0
    return value


def _value(node: Node, read: Callable[[Field], Value]) -> Value:
    args = node.args
    match node.op:
        case "const":
            return node.value
        case "field":
            assert node.field is not None
            return read(node.field)
        case "and":
            return all(interpret(a, read) for a in args)
        case "or":
            return any(interpret(a, read) for a in args)
        case "not":
            return not interpret(args[0], read)
        case "if":
            return interpret(args[1] if interpret(args[0], read) else args[2], read)
        case "is_none":
            return _value(args[0], read) is None
        case "not_none":
            return _value(args[0], read) is not None
        case "lt" | "le" | "gt" | "ge" | "eq" | "ne" | "in" | "not_in":
            # Only here absence survives: an absent operand makes the comparison false.
            return _compare(node.op, _value(args[0], read), _value(args[1], read))
    operands = [v if isinstance(v := interpret(a, read), float) else 0.0 for a in args]
    return OPERATIONS[node.op](*operands)


def _compare(op: str, a: Value, b: Value) -> bool:
    if a is None or b is None:
        return False
    if op in ("in", "not_in"):
        assert isinstance(b, tuple)
        return (a in b) is (op == "in")
    if op in ("eq", "ne"):
        return (a == b) is (op == "eq")
    assert isinstance(a, float)
    assert isinstance(b, float)
    match op:
        case "lt":
            return a < b
        case "le":
            return a <= b
        case "gt":
            return a > b
    return a >= b


def fold(node: Node) -> Node:
    """``node`` with its topmost operation done where that needs no field; the arguments must be folded already."""
    args = node.args
    if not args:
        return node
    if node.op == "if" and args[0].is_const:
        return args[1] if args[0].value else args[2]
    if node.op in ("and", "or"):
        ends = node.op == "or"  # the constant that decides alone
        if any(a.is_const and a.value is ends for a in args):
            return constant(ends, node.type)
        rest = tuple(a for a in args if not a.is_const)
        if len(rest) == 1:
            return rest[0]
        if rest:
            return Node(node.op, node.type, rest, size=1 + sum(a.size for a in rest))
        return constant(not ends, node.type)
    if all(a.is_const for a in args):
        return constant(_value(node, _no_fields), node.type)
    return node


def _no_fields(field: Field) -> Value:
    raise AssertionError(field)
