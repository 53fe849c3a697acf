"""The three places an expression stands in, compiled: a score, a rule's match, an admission."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .check import check
from .classify import Change, ScoreClass, classify, trend
from .codegen import function
from .errors import ExpressionError
from .fields import ADMIT_FIELDS, MATCH_FIELDS, SCORE_FIELDS, Kind
from .nodes import Node, walk

if TYPE_CHECKING:  # the eviction layer stands above this one
    from kvpolicy.eviction.base import PolicyClock, RequestInfo, UnitMeta

__all__ = ["CompiledAdmit", "CompiledMatch", "CompiledScore", "compile_admit", "compile_match", "compile_score"]

_CLOCKED = {
    name: "a match is decided at insertion and at touches; this would change without one (for time limits: retain.ttl)"
    for name, field in SCORE_FIELDS.items()
    if field.anchor
}
_AFTER_INSERTION = {
    name: "an admission is decided before insertion: only request.*, depth_tokens and size_tokens are known"
    for name in SCORE_FIELDS
    if name not in ADMIT_FIELDS
}
_COMPARISONS: Mapping[str, Callable[..., bool]] = {
    "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge, "eq": operator.eq, "ne": operator.ne
}  # fmt: skip
_CHANGE: Mapping[str, Change] = {"same": "static", "up": "grows", "down": "shrinks", "any": "shrinks"}


@dataclass(frozen=True)
class Compiled:
    """``fields``: names read (after folding); ``cost``: operations and field reads; ``source``: the generated code."""

    text: str
    fields: frozenset[str]
    cost: int
    source: str

    @property
    def needs_time(self) -> bool:
        """Reads policy time, which exists only where requests carry arrival stamps."""
        return any(name in SCORE_FIELDS and name.endswith("_s") for name in self.fields)


@dataclass(frozen=True)
class CompiledScore(Compiled):
    """A score: the unit with the smallest is evicted first.

    ``score_class`` says how it moves while a unit is not touched, ``change`` (a ``KeyChange`` value) what its *key*
    does: ``static`` never changes, ``grows`` is never lowered by a touch, ``shrinks`` may be, ``dynamic`` has no key.
    A split changes sizes, and with them any key that reads them: a split unit is re-offered whatever ``change`` says.
    """

    score_class: ScoreClass
    change: Change
    #: ``(meta, clock) -> float``, finite. Total: never raises.
    evaluate: Callable[[UnitMeta, PolicyClock], float]
    #: ``(meta, clock) -> float``: constant between touches and ordered as the score is. ``ValueError`` when dynamic.
    key: Callable[[UnitMeta, PolicyClock], float]


@dataclass(frozen=True)
class CompiledMatch(Compiled):
    """The condition of a rule."""

    #: ``(meta, clock) -> bool``; total.
    evaluate: Callable[[UnitMeta, PolicyClock], bool]
    #: Depths, ascending, from which on the outcome may differ with all else equal; ``None``: it may at any depth.
    depth_steps: tuple[int, ...] | None = None
    #: Whether it never holds for a unit without hits, as far as its form tells.
    needs_hits: bool = False


@dataclass(frozen=True)
class CompiledAdmit(Compiled):
    """The condition of a rule that keeps out what it matches."""

    #: ``(request, depth_tokens, size_tokens) -> bool``; total.
    evaluate: Callable[[RequestInfo, int, int], bool]


def compile_score(text: str, *, params: Mapping[str, object] | None = None) -> CompiledScore:
    """Compile a score; ``params`` are numbers that the text may name. Raises :class:`ExpressionError`."""
    node = check(text, SCORE_FIELDS, params or {})
    _require(text, node, Kind.NUMBER, "a score", "write for example `1 if {} else 0`")
    score_class, key_node = classify(node)
    evaluate, source = function(node, "m, c")
    if key_node is None:
        return CompiledScore(text, _fields(node), node.size, source, score_class, "dynamic", evaluate, _no_key)
    key = evaluate if key_node is node else function(key_node, "m, c")[0]
    change = _CHANGE[trend(key_node)]
    return CompiledScore(text, _fields(node), node.size, source, score_class, change, evaluate, key)


def compile_match(text: str) -> CompiledMatch:
    """Compile a rule's ``match``. Raises :class:`ExpressionError`."""
    node = check(text, MATCH_FIELDS, {}, _CLOCKED)
    _require(text, node, Kind.BOOL, "a match", "compare it, as in `{} > 0`")
    evaluate, source = function(node, "m, c")
    steps = _depth_steps(node)
    depth_steps = None if steps is None else tuple(sorted(steps))
    return CompiledMatch(text, _fields(node), node.size, source, evaluate, depth_steps, _needs_hits(node))


def compile_admit(text: str) -> CompiledAdmit:
    """Compile the ``match`` of a rule with ``admit: never``. Raises :class:`ExpressionError`."""
    node = check(text, ADMIT_FIELDS, {}, _AFTER_INSERTION)
    _require(text, node, Kind.BOOL, "a match", "compare it, as in `{} > 0`")
    evaluate, source = function(node, "r, depth_tokens, size_tokens")
    return CompiledAdmit(text, _fields(node), node.size, source, evaluate)


def _depth_steps(node: Node) -> set[int] | None:
    """Where a number that ``depth_tokens`` is compared with is reached, and where it is passed."""
    if _is_depth(node):
        return None
    if node.op in _COMPARISONS and any(map(_is_depth, node.args)):
        numbers = [arg.value for arg in node.args if arg.is_const]
        if len(numbers) == 1 and isinstance(numbers[0], (int, float)) and math.isfinite(numbers[0]):
            return {math.ceil(numbers[0]), math.floor(numbers[0]) + 1}
        return None
    steps: set[int] = set()
    for arg in node.args:
        below = _depth_steps(arg)
        if below is None:
            return None
        steps |= below
    return steps


def _needs_hits(node: Node) -> bool:
    """Whether some part that must hold is a comparison of ``hits`` with a number that 0 hits do not meet."""
    if node.op == "and":
        return any(map(_needs_hits, node.args))
    if node.op == "or":
        return all(map(_needs_hits, node.args))
    if node.op not in _COMPARISONS or not any(_is_field(arg, "hits") for arg in node.args):
        return False
    numbers = [0 if _is_field(arg, "hits") else arg.value for arg in node.args]
    return None not in numbers and not _COMPARISONS[node.op](*numbers)


def _is_depth(node: Node) -> bool:
    return _is_field(node, "depth_tokens")


def _is_field(node: Node, name: str) -> bool:
    return node.field is not None and node.field.name == name


def _fields(node: Node) -> frozenset[str]:
    return frozenset(n.field.name for n in walk(node) if n.field is not None)


def _require(text: str, node: Node, kind: Kind, what: str, help: str) -> None:
    if node.type.kind is not kind:
        stripped = text.strip()
        raise ExpressionError(
            f"{what} must be {kind.value}; this is {node.type.kind.value}",
            help.format(" ".join(stripped.split())[:60]) if node.type.kind is not Kind.TEXT else "compare the text",
            len(text) - len(text.lstrip()),
            len(stripped),
        )


def _no_key(meta: UnitMeta, clock: PolicyClock) -> float:
    raise ValueError("a dynamic score has no static key")
