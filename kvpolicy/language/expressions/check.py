"""Text to typed tree: Python's own grammar, white-listed node by node, every value with a kind and a unit."""

from __future__ import annotations

import ast
import difflib
import math
import warnings
from collections.abc import Mapping
from typing import NoReturn

from .errors import ExpressionError
from .fields import EXACT, SCORE_FIELDS, Field, Kind
from .functions import FUNCTIONS
from .interpret import fold
from .nodes import BOOL, Node, Type, Value, constant, number, operation, read
from .numerics import MAX
from .scan import scan
from .units import branch_type, comparable, power_type, product_type, quotient_type, sum_type

__all__ = ["MAX_DEPTH", "MAX_EXPONENT", "MAX_NODES", "check"]

MAX_DEPTH = 48
MAX_NODES = 512
#: Bound of a constant exponent. `9**9**9` is refused, not computed.
MAX_EXPONENT = 100.0

_ARITHMETIC: Mapping[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("add", "+"), ast.Sub: ("sub", "-"), ast.Mult: ("mul", "*"), ast.Div: ("div", "/"),
    ast.FloorDiv: ("floordiv", "//"), ast.Mod: ("mod", "%"), ast.Pow: ("pow", "**"),
}  # fmt: skip
_COMPARISON: Mapping[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("lt", "<"), ast.LtE: ("le", "<="), ast.Gt: ("gt", ">"), ast.GtE: ("ge", ">="), ast.Eq: ("eq", "=="),
    ast.NotEq: ("ne", "!="), ast.In: ("in", "in"), ast.NotIn: ("not_in", "not in"), ast.Is: ("is_none", "is"),
    ast.IsNot: ("not_none", "is not"),
}  # fmt: skip
_FOREIGN: Mapping[type[ast.AST], tuple[str, str]] = {
    ast.Subscript: ("a subscript", "there is nothing to index"),
    ast.Starred: ("`*` before an argument", "pass the arguments one by one"),
    ast.Tuple: ("a tuple", 'a list stands only at the right of `in`, as in `request.lora in ("a", "b")`'),
    ast.List: ("a list", 'a list stands only at the right of `in`, as in `request.lora in ["a", "b"]`'),
}
_INSTEAD_OF = {
    "pow": "write `a ** b`",
    "log2": "write `log(x) / 0.693147`",
    "log10": "write `log(x) / 2.302585`",
    "int": "write `floor(x)`",
    "round": "write `floor(x + 0.5)`",
}


def check(
    text: str, fields: Mapping[str, Field], params: Mapping[str, object], refused: Mapping[str, str] | None = None
) -> Node:
    """The typed, unfolded tree of ``text``; raises :class:`ExpressionError`.

    ``refused`` gives, for known fields that this place may not read, why not.
    """
    return _Checker(text, fields, params, refused or {}).run()


class _Checker:
    def __init__(
        self, text: str, fields: Mapping[str, Field], params: Mapping[str, object], refused: Mapping[str, str]
    ) -> None:
        self.text = text
        self.fields = fields
        self.params = params
        self.refused = refused
        self.line, self.start = scan(text)
        self.bytes = b"" if self.line.isascii() else self.line.encode()

    def run(self) -> Node:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's advice on `x is "y"` is an error of ours anyway
            try:
                tree = ast.parse(self.line, mode="eval")
            except SyntaxError as error:
                raise self.syntax_error(error) from None
            except (RecursionError, MemoryError):
                raise ExpressionError(
                    "the expression is nested too deeply", "flatten it", self.start, len(self.line)
                ) from None
        return self.visit(tree.body, 0)

    # -- places --

    def offset(self, column: int) -> int:
        """A column of Python's (UTF-8 bytes of the line) as a character of the text."""
        return self.start + (len(self.bytes[:column].decode(errors="ignore")) if self.bytes else column)

    def error(self, at: ast.expr | tuple[ast.expr, ast.expr], message: str, help: str) -> ExpressionError:
        first, last = at if isinstance(at, tuple) else (at, at)
        begin = self.offset(first.col_offset)
        end = self.offset(last.end_col_offset or first.col_offset + 1)
        return ExpressionError(message, help, begin, end - begin)

    def source(self, at: ast.expr) -> str:
        begin, end = self.offset(at.col_offset), self.offset(at.end_col_offset or 0)
        return " ".join(self.text[begin:end].split())

    def syntax_error(self, error: SyntaxError) -> ExpressionError:
        column = max(0, min((error.offset or 1) - 1, len(self.line)))
        last = error.end_offset - 1 if error.end_offset and error.end_offset > 0 else column + 1
        percent = self.line.endswith("%")
        help = "a percent sign is the remainder operator here; write 0.02 for 2%" if percent else "complete it"
        at, length = self.start + column, min(last, len(self.line)) - column
        if not error.offset or (error.lineno or 1) > 1 or column >= len(self.line):
            return ExpressionError("the expression ends too early", help, self.start + len(self.line))
        message = error.msg.split(". ")[0]
        if message.startswith(("invalid syntax", "'", "cannot", "f-string", "Generator")):
            message = "this is no expression"
        return ExpressionError(
            message[:1].lower() + message[1:],
            "an operator, operand or comma is missing or superfluous here",
            at,
            length,
        )

    # -- nodes --

    def visit(self, tree: ast.expr, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise self.error(tree, f"the expression is nested more than {MAX_DEPTH} deep", "flatten it")
        node = fold(self.dispatch(tree, depth + 1))
        if isinstance(node.value, float) and abs(node.value) >= MAX:
            raise self.error(tree, "the number is too large", "numbers go up to 1.79e308")
        if node.size > MAX_NODES:
            raise self.error(tree, f"the expression has more than {MAX_NODES} operations", "compute less")
        return node

    def dispatch(self, tree: ast.expr, depth: int) -> Node:
        match tree:
            case ast.Constant():
                return self.literal(tree)
            case ast.Name():
                return self.name(tree, tree.id)
            case ast.Attribute():
                return self.attribute(tree)
            case ast.UnaryOp():
                return self.unary(tree, depth)
            case ast.BinOp():
                return self.binary(tree, depth)
            case ast.BoolOp():
                op = "and" if isinstance(tree.op, ast.And) else "or"
                return operation(op, BOOL, *[self.boolean(v, depth, f"an operand of `{op}`") for v in tree.values])
            case ast.Compare():
                return self.comparison(tree, depth)
            case ast.IfExp():
                return self.conditional(tree, depth)
            case ast.Call():
                return self.call(tree, depth)
        what, help = _FOREIGN.get(type(tree), (f"`{self.source(tree)[:40]}`", "use arithmetic, comparisons and fields"))
        raise self.error(tree, f"{what} is not part of the expression language", help)

    def literal(self, tree: ast.Constant) -> Node:
        value = tree.value
        if value is None:
            return constant(None, Type(Kind.NONE))
        if isinstance(value, bool):
            return constant(value, BOOL)
        if isinstance(value, str):
            return constant(value, Type(Kind.TEXT))
        if isinstance(value, int):
            if value > EXACT:
                raise self.error(tree, "the number is too large", "whole numbers go up to 2**53; write 1e20 beyond")
            return number(float(value))
        if isinstance(value, float):
            if not math.isfinite(value):
                raise self.error(tree, "the number is too large", "numbers go up to 1.79e308")
            return number(value)
        raise self.error(
            tree, f"`{self.source(tree)}` is not part of the expression language", "write a number or a string"
        )

    def name(self, tree: ast.expr, name: str) -> Node:
        if name in self.params:
            return self.param(tree, name)
        if name in self.fields:
            return read(self.fields[name])
        if name in self.refused:
            raise self.error(tree, f"`{name}` cannot be used here", self.refused[name])
        if name in FUNCTIONS:
            raise self.error(tree, f"`{name}` is a function", f"call it: {FUNCTIONS[name].usage}")
        if name == "request":
            raise self.error(tree, "`request` alone is no value", f"name one of {self.request_fields()}")
        raise self.error(tree, f"unknown field `{name}`", self.suggest(name))

    def param(self, tree: ast.expr, name: str) -> Node:
        value = self.params[name]
        if name in SCORE_FIELDS or name in FUNCTIONS:
            raise self.error(tree, f"the parameter `{name}` hides a name of the language", "rename the parameter")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.error(tree, f"the parameter `{name}` is no number", "parameters of a score are numbers")
        if not abs(value) <= (EXACT if isinstance(value, int) else 1.7e308):
            raise self.error(tree, f"the parameter `{name}` is too large", "give a smaller number")
        return number(float(value))

    def attribute(self, tree: ast.Attribute) -> Node:
        if isinstance(tree.value, ast.Name) and tree.value.id == "request":
            name = f"request.{tree.attr}"
            if name in self.fields:
                return read(self.fields[name])
            parts = [field.removeprefix("request.") for field in self.fields if field.startswith("request.")]
            close = difflib.get_close_matches(tree.attr, parts, 1, 0.66)
            help = f"did you mean `request.{close[0]}`?" if close else f"a request has {self.request_fields()}"
            raise self.error(tree, f"unknown field `{name}`", help)
        raise self.error(
            tree,
            "attributes are not part of the expression language",
            f"only a request has parts: {self.request_fields()}",
        )

    def request_fields(self) -> str:
        return ", ".join(f"`{f}`" for f in self.fields if f.startswith("request."))

    def suggest(self, name: str) -> str:
        known = [*self.fields, *self.params, "True", "False", "None"]
        bare = {f.split(".")[-1]: f for f in known}
        lower = name.lower()
        begins = [f for f in known if f.startswith(f"{lower}_")]
        close = [bare[lower]] if lower in bare else begins or difflib.get_close_matches(name, known, 1, 0.6)
        if not close and (part := difflib.get_close_matches(lower, list(bare), 1, 0.75)):
            close = [bare[part[0]]]
        if close:
            return "did you mean " + " or ".join(f"`{c}`" for c in close) + "?"
        return "the fields here are " + ", ".join(self.fields)

    # -- operations --

    def numeric(self, tree: ast.expr, depth: int, what: str) -> Node:
        node = self.visit(tree, depth)
        if node.type.kind is not Kind.NUMBER:
            self.not_a_number(tree, node, what)
        return node

    def not_a_number(self, tree: ast.expr, node: Node, what: str) -> NoReturn:
        help = {
            Kind.BOOL: f"write `1 if {self.source(tree)[:60]} else 0`",
            Kind.TEXT: "text can only be compared",
        }.get(node.type.kind, "None is only for `is None` and `is not None`")
        raise self.error(tree, f"{what} must be a number; this is {_article(node.type)}", help)

    def boolean(self, tree: ast.expr, depth: int, what: str) -> Node:
        node = self.visit(tree, depth)
        if node.type.kind is not Kind.BOOL:
            subject = self.source(tree)[:60]
            help = f"write `{subject} > 0`" if node.type.kind is Kind.NUMBER else f"write `{subject} is not None`"
            raise self.error(tree, f"{what} must be true or false; this is {_article(node.type)}", help)
        return node

    def unary(self, tree: ast.UnaryOp, depth: int) -> Node:
        if isinstance(tree.op, ast.Not):
            return operation("not", BOOL, self.boolean(tree.operand, depth, "the operand of `not`"))
        if isinstance(tree.op, (ast.USub, ast.UAdd)):
            node = self.numeric(tree.operand, depth, "the operand of a sign")
            if isinstance(tree.op, ast.UAdd):
                return node
            return operation("neg", node.type, node)
        raise self.error(tree, "`~` is not part of the expression language", "write `not`")

    def binary(self, tree: ast.BinOp, depth: int) -> Node:
        if type(tree.op) not in _ARITHMETIC:
            help = {ast.BitAnd: "write `and`", ast.BitOr: "write `or`"}.get(type(tree.op), "use + - * / // % **")
            raise self.error(tree, "bit and matrix operators are not part of the expression language", help)
        op, sign = _ARITHMETIC[type(tree.op)]
        left = self.numeric(tree.left, depth, f"an operand of `{sign}`")
        right = self.numeric(tree.right, depth, f"an operand of `{sign}`")
        constant_right = right.value if right.is_const and isinstance(right.value, float) else None
        if op in ("div", "floordiv", "mod") and constant_right == 0.0:
            raise self.error(tree.right, f"`{sign}` always divides by zero here", "divide by something else")
        if op == "pow" and constant_right is not None and abs(constant_right) > MAX_EXPONENT:
            raise self.error(tree.right, "the exponent is too large", f"constant exponents go up to {MAX_EXPONENT:g}")
        match op:
            case "mul":
                result = product_type(left.type, right.type)
            case "div" | "floordiv":
                result = quotient_type(left.type, right.type)
            case "pow":
                result = power_type(left.type, right)
            case _:
                mixed = sum_type(left.type, right.type)
                if mixed is None:
                    raise self.error(
                        tree, f"`{sign}` mixes {left.type.dim} with {right.type.dim}",
                        f"weigh one of them with a number, as in `{self.source(tree.left)[:40]} {sign} 0.1 * "
                        f"{self.operand(tree.right)}`",
                    )  # fmt: skip
                result = mixed
        return operation(op, result, left, right)

    def operand(self, tree: ast.expr) -> str:
        source = self.source(tree)[:40]
        return f"({source})" if isinstance(tree, (ast.BinOp, ast.IfExp)) else source

    def comparison(self, tree: ast.Compare, depth: int) -> Node:
        sides = [tree.left, *tree.comparators]
        pairs = []
        for left, op, right in zip(sides, tree.ops, sides[1:], strict=False):
            pairs.append(self.pair(left, op, right, depth))
        return pairs[0] if len(pairs) == 1 else operation("and", BOOL, *pairs)

    def pair(self, left: ast.expr, operator: ast.cmpop, right: ast.expr, depth: int) -> Node:
        op, sign = _COMPARISON[type(operator)]
        if op in ("is_none", "not_none"):
            return self.presence(left, op, sign, right, depth)
        a = self.visit(left, depth)
        if op in ("in", "not_in"):
            return operation(op, BOOL, a, self.choices(left, a, right, depth))
        b = self.visit(right, depth)
        kinds = {a.type.kind, b.type.kind}
        if Kind.NONE in kinds:
            raise self.error((left, right), f"`{sign} None` is always false", "write `is None` or `is not None`")
        if len(kinds) > 1:
            raise self.error(
                (left, right), f"`{sign}` compares {_article(a.type)} with {_article(b.type)}", "compare like with like"
            )
        if a.type.kind is not Kind.NUMBER:
            if sign not in ("==", "!="):
                raise self.error(
                    (left, right), f"`{sign}` compares numbers; this is {_article(a.type)}", "use `==`, `!=` or `in`"
                )
        elif not comparable(a.type, b.type):
            raise self.error(
                (left, right), f"`{sign}` compares {a.type.dim} with {b.type.dim}",
                "compare quantities of one unit, or with a plain number",
            )  # fmt: skip
        return operation(op, BOOL, a, b)

    def presence(self, left: ast.expr, op: str, sign: str, right: ast.expr, depth: int) -> Node:
        if not (isinstance(right, ast.Constant) and right.value is None):
            raise self.error(
                (left, right), f"`{sign}` is only for None", f"write `{'==' if op == 'is_none' else '!='}`"
            )
        node = self.visit(left, depth)
        if node.field is None or not node.field.optional:
            raise self.error(
                left, f"`{self.source(left)[:40]}` is never None", f"only {self.request_fields()} may be absent"
            )
        return operation(op, BOOL, node)

    def choices(self, left: ast.expr, a: Node, right: ast.expr, depth: int) -> Node:
        if not isinstance(right, (ast.Tuple, ast.List)):
            raise self.error(right, "the right side of `in` must be a list of constants", 'write `in ("a", "b")`')
        if a.type.kind not in (Kind.NUMBER, Kind.TEXT):
            raise self.error(left, f"the left side of `in` must be text or a number; this is {_article(a.type)}",
                             "use and/or/not")  # fmt: skip
        values: list[Value] = []
        for item in right.elts:
            minus = isinstance(item, ast.UnaryOp) and isinstance(item.op, ast.USub)
            literal = item.operand if isinstance(item, ast.UnaryOp) and minus else item
            node = self.visit(literal, depth) if isinstance(literal, (ast.Constant, ast.Name)) else None
            if node is None or not node.is_const or node.type.kind is not a.type.kind:
                wanted = "text" if a.type.kind is Kind.TEXT else "numbers"
                raise self.error(item, f"this list must hold constants only: {wanted}", "write its items out")
            assert isinstance(node.value, (str, float))
            values.append(-node.value if minus and isinstance(node.value, float) else node.value)
        return constant(tuple(values), a.type)  # type: ignore[arg-type]

    def conditional(self, tree: ast.IfExp, depth: int) -> Node:
        test = self.boolean(tree.test, depth, "the condition of `if`")
        yes, no = self.visit(tree.body, depth), self.visit(tree.orelse, depth)
        if yes.type.kind is not no.type.kind or yes.type.kind not in (Kind.NUMBER, Kind.BOOL):
            raise self.error(
                tree, f"the two results are {_article(yes.type)} and {_article(no.type)}",
                "both must be numbers, or both true or false",
            )  # fmt: skip
        result = BOOL if yes.type.kind is Kind.BOOL else branch_type(yes.type, no.type)
        if result is None:
            raise self.error(
                tree, f"the two results have different units: {yes.type.dim} and {no.type.dim}",
                "weigh one of them with a number",
            )  # fmt: skip
        return operation("if", result, test, yes, no)

    def call(self, tree: ast.Call, depth: int) -> Node:
        if not isinstance(tree.func, ast.Name):
            raise self.error(tree, "only plain functions can be called", "the functions are " + ", ".join(FUNCTIONS))
        name = tree.func.id
        function = FUNCTIONS.get(name)
        if function is None:
            close = difflib.get_close_matches(name, FUNCTIONS, 1, 0.6)
            help = f"did you mean `{close[0]}`?" if close else "the functions are " + ", ".join(FUNCTIONS)
            help = _INSTEAD_OF.get(name, help)
            raise self.error(tree.func, f"unknown function `{name}`", help)
        if tree.keywords:
            first = tree.keywords[0].value
            raise self.error(first, f"`{name}` takes no named arguments", f"write {function.usage}")
        for a in tree.args:
            if isinstance(a, ast.Starred):
                self.dispatch(a, depth)
        if not function.least <= len(tree.args) <= function.most:
            raise self.error(tree, f"`{name}` does not take {len(tree.args)} arguments", f"write {function.usage}")
        args = [self.numeric(a, depth, f"an argument of `{name}`") for a in tree.args]
        if not function.keeps_unit:
            return operation(name, Type(Kind.NUMBER, bare=all(a.type.bare for a in args)), *args)
        result = args[0].type
        for tree_arg, arg in zip(tree.args[1:], args[1:], strict=True):
            if not comparable(result, arg.type):
                raise self.error(
                    tree_arg, f"`{name}` compares {result.dim} with {arg.type.dim}",
                    "compare quantities of one unit, or with a plain number",
                )  # fmt: skip
            result = sum_type(result, arg.type) or result
        return operation(name, result, *args)


def _article(type: Type) -> str:
    return type.kind.value
