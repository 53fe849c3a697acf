"""Tree to Python source to one code object.

The plain operator is used wherever the bounds prove that it gives what ``numerics`` defines, or raises; elsewhere the
reference function is called. What raises, and any result that is not finite, is evaluated again by the reference.
Two things the source must keep: a whole-number field never meets another without becoming a double first (numbers of
the language are doubles), and an absent priority counts as 0 except in comparisons.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .bounds import bounds
from .fields import Field, Kind
from .interpret import in_range, interpret
from .nodes import Node, Value, walk
from .numerics import LOG_OF_NOTHING, MAX, OPERATIONS

__all__ = ["function"]

_SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "mod": "%", "pow": "**"}
_COMPARE = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=", "in": "in", "not_in": "not in"}
#: Function, where its domain begins, and its value at and below that.
_POLES = {
    "log": ("m_log", 0.0, LOG_OF_NOTHING), "log1p": ("m_log1p", -1.0, LOG_OF_NOTHING), "sqrt": ("m_sqrt", 0.0, 0.0),
    "key_log": ("m_log", 0.0, -MAX),
}  # fmt: skip
_NAMESPACE: dict[str, Any] = {
    "__builtins__": {}, "ArithmeticError": ArithmeticError, "ValueError": ValueError, "TypeError": TypeError,
    "m_exp": math.exp, "m_log": math.log, "m_log1p": math.log1p, "m_sqrt": math.sqrt,
    **{f"n_{name}": f for name, f in OPERATIONS.items()},
}  # fmt: skip


def function(node: Node, parameters: str) -> tuple[Callable[..., Any], str]:
    """``(f, source)`` of a total function with the given parameter list that evaluates ``node``."""
    writer = _Writer()
    body = writer.write(node)
    if node.type.kind is Kind.NUMBER:
        body = writer.double(node, body)
        lines = [f"r = {body}", f"if {-MAX!r} <= r <= {MAX!r}: return r"]
    else:
        lines = [f"return {body}"]
    source = "\n".join(
        [
            f"def f({parameters}):",
            "    try:",
            *[f"        {line}" for line in lines],
            "    except (ArithmeticError, TypeError, ValueError):",
            "        pass",  # a field outside its range
            f"    return slow({parameters})",
        ]
    )
    namespace = {**_NAMESPACE, "slow": _slow(node, parameters)}
    exec(compile(source, "<kvpolicy expression>", "exec"), namespace)
    made: Callable[..., Any] = namespace["f"]
    return made, source


def _slow(node: Node, parameters: str) -> Callable[..., Value]:
    """The reference evaluator behind the same parameters."""
    fields: dict[str, Field] = {n.field.name: n.field for n in walk(node) if n.field is not None}
    namespace: dict[str, Any] = {"__builtins__": {}}
    readers: dict[str, Callable[..., object]] = {
        name: eval(f"lambda {parameters}: {field.code}", namespace) for name, field in fields.items()
    }

    def slow(*arguments: object) -> Value:
        def read(field: Field) -> Value:
            try:
                raw = readers[field.name](*arguments)
            except (ArithmeticError, TypeError):
                return field.high if field.kind is Kind.NUMBER else None
            return in_range(field, raw)

        return interpret(node, read)

    return slow


class _Writer:
    def __init__(self) -> None:
        self.temporaries = 0

    def temporary(self) -> str:
        self.temporaries += 1
        return f"t{self.temporaries}"

    def write(self, node: Node) -> str:
        """Source of ``node``, bracketed where it is no atom; an absent value reads as its default."""
        if node.field is not None:
            field = node.field
            return f"({field.code} or 0)" if field.optional and field.kind is Kind.NUMBER else field.code
        if node.is_const:
            return f"({node.value!r})" if isinstance(node.value, float) and node.value < 0.0 else repr(node.value)
        if node.type.kind is Kind.BOOL and node.op != "if":
            return self.truth(node)
        return self.arithmetic(node)

    def double(self, node: Node, source: str) -> str:
        return f"1.0 * {source}" if _is_whole(node) else source

    def truth(self, node: Node) -> str:
        match node.op:
            case "and" | "or":
                return "(" + f" {node.op} ".join(self.write(a) for a in node.args) + ")"
            case "not":
                return f"(not {self.write(node.args[0])})"
            case "is_none" | "not_none":
                field = node.args[0].field
                assert field is not None
                return f"({field.code} is {'not ' if node.op == 'not_none' else ''}None)"
        present = []
        sides = []
        for arg in node.args:
            if arg.field is not None and arg.field.optional:
                sides.append(arg.field.code)
                # `None == "x"` and `None in (...)` are false already.
                other = node.args[1 if arg is node.args[0] else 0]
                if node.op not in ("eq", "in") or not other.is_const:
                    present.append(f"{arg.field.code} is not None")
            else:
                sides.append(self.write(arg))
        test = f"{sides[0]} {_COMPARE[node.op]} {sides[1]}"
        return "(" + " and ".join([*dict.fromkeys(present), test]) + ")"

    def arithmetic(self, node: Node) -> str:
        args = [self.write(a) for a in node.args]
        t = self.temporary()
        match node.op:
            case "if":
                return f"({args[1]} if {args[0]} else {args[2]})"
            case "neg":
                return f"(-{args[0]})"
            case "abs":
                return f"({t} if ({t} := {args[0]}) >= 0.0 else -{t})"
            case "floor":
                return f"({args[0]} // 1.0)"
            case "ceil":
                return f"(-(-{args[0]} // 1.0))"
            case "min" | "max":
                return self.extreme(">" if node.op == "max" else "<", args)
            case "clamp":
                return self.extreme("<", [self.extreme(">", args[:2]), args[2]])
            case "add" | "sub" | "mul" | "div" | "floordiv" | "mod" | "pow" if self.is_plain(node):
                # Whole operands would give an exact int where the language has a double; `/` rounds alike.
                whole = all(_is_whole(a) for a in node.args) and node.op != "div"
                left = f"(1.0 * {args[0]})" if whole else args[0]
                return f"({left} {_SIGNS[node.op]} {args[1]})"
            case "exp" | "log" | "log1p" | "sqrt" | "key_log":
                return self.transcendental(node.op, bounds(node.args[0]).low, args[0], t)
        called = ", ".join(self.double(a, source) for a, source in zip(node.args, args, strict=True))
        return f"n_{node.op}({called})"

    def is_plain(self, node: Node) -> bool:
        """Python's own operator gives the defined result, for every value the fields can have."""
        a, b = (bounds(arg) for arg in node.args)
        never_zero = b.low > 0.0 or b.high < 0.0
        match node.op:
            case "add" | "sub" | "mul":
                return bounds(node).safe
            case "div" | "floordiv":
                return never_zero and bounds(node).safe
            case "mod":
                return never_zero
        return a.low > 0.0 or (a.low >= 0.0 and b.low >= 0.0)  # an overflow raises, so `slow` sees it

    def extreme(self, sign: str, args: list[str]) -> str:
        result = args[0]
        for arg in args[1:]:
            t, u = self.temporary(), self.temporary()
            result = f"({u} if ({u} := {arg}) {sign} ({t} := {result}) else {t})"
        return result

    def transcendental(self, op: str, low: float, source: str, t: str) -> str:
        if op == "exp":
            return f"m_exp({source})"  # an overflow raises, so `slow` sees it
        name, pole, default = _POLES[op]
        if low > pole or (op == "sqrt" and low >= pole):
            return f"{name}({source})"
        return f"({name}({t}) if ({t} := {source}) > {pole!r} else {default!r})"


def _is_whole(node: Node) -> bool:
    """The generated source of ``node`` may yield a Python int."""
    if node.field is not None:
        return node.field.integer
    if node.op == "if":
        return _is_whole(node.args[1]) or _is_whole(node.args[2])
    return node.op in ("neg", "abs", "min", "max", "clamp") and any(_is_whole(a) for a in node.args)
