"""Which rules, and which sides of their conditions, a policy's tests reached.

The compiled policy is wrapped, not rewritten: each `match` notes its own outcome, and the conditions inside it and
inside the score (operands of and/or, the test of a conditional) are evaluated beside it by the language's own compiler.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from kvpolicy.eviction.plan import CompiledEviction
from kvpolicy.eviction.rules import CompiledRule
from kvpolicy.language.expressions import ExpressionError, compile_admit, compile_score
from kvpolicy.language.models import Policy

__all__ = ["Condition", "Coverage", "RuleCoverage", "observed"]


@dataclass(slots=True)
class Condition:
    """How often a condition was true and false."""

    text: str
    true: int = 0
    false: int = 0

    def note(self, value: bool) -> None:
        if value:
            self.true += 1
        else:
            self.false += 1

    @property
    def missing(self) -> list[str]:
        return [word for word, count in (("true", self.true), ("false", self.false)) if not count]


@dataclass(slots=True)
class RuleCoverage:
    """``match.true`` counts the units (or requests) that the rule took, ``match.false`` those that it let pass."""

    name: str
    match: Condition
    has_match: bool
    conditions: list[Condition] = field(default_factory=list)

    def gaps(self) -> Iterator[str]:
        if not self.match.true:
            yield f"rule {self.name} was never reached" if not self.match.false else f"rule {self.name} never matched"
        elif self.has_match and not self.match.false:
            yield f"rule {self.name} matched always: no test shows what it leaves alone"
        elif self.match.true:
            yield from _gaps(f"rule {self.name}", self.conditions)


@dataclass(slots=True)
class Coverage:
    rules: list[RuleCoverage] = field(default_factory=list)
    score: list[Condition] = field(default_factory=list)

    def gaps(self) -> list[str]:
        """What no test reached, as sentences; empty: everything was."""
        return [*(gap for rule in self.rules for gap in rule.gaps()), *_gaps("score", self.score)]

    def to_json(self) -> dict[str, Any]:
        def conditions(found: list[Condition]) -> list[dict[str, Any]]:
            return [{"condition": c.text, "true": c.true, "false": c.false} for c in found]

        return {
            "rules": [
                {
                    "name": r.name,
                    "matched": r.match.true,
                    "passed": r.match.false,
                    "conditions": conditions(r.conditions),
                }
                for r in self.rules
            ],
            "score": conditions(self.score),
            "gaps": self.gaps(),
        }


def observed(policy: Policy, compiled: CompiledEviction) -> tuple[CompiledEviction, Coverage]:
    """``compiled`` with eyes: what its indexes decide is counted in the coverage."""
    coverage = Coverage()
    written = policy.eviction.rules if policy.eviction is not None else ()
    rules: list[CompiledRule] = []
    for rule, text in zip(compiled.rules, written, strict=False):
        reach = RuleCoverage(rule.name, Condition(text.match or ""), text.match is not None)
        coverage.rules.append(reach)
        if rule.refuses is not None:
            inner = [(c, compile_admit(c.text).evaluate) for c in _conditions(text.match)]
            rules.append(replace(rule, refuses=_noting(rule.refuses, reach.match, inner)))
        else:
            inner = [(c, _truth(c.text)) for c in _conditions(text.match)]
            rules.append(replace(rule, match=_noting(rule.match, reach.match, inner), needs_hits=False))
        reach.conditions = [condition for condition, _ in inner]
    rules += compiled.rules[len(written) :]  # what hints protect, which no condition decides
    score = compiled.score
    if score is not None and (found := [(c, _truth(c.text)) for c in _conditions(score.text)]):
        coverage.score = [condition for condition, _ in found]
        score = replace(score, evaluate=_noting(score.evaluate, None, found), key=_noting(score.key, None, found))
    return replace(compiled, rules=tuple(rules), score=score), coverage


def _gaps(where: str, conditions: list[Condition]) -> Iterator[str]:
    for condition in conditions:
        for word in condition.missing:
            yield f"{where}: `{condition.text}` was never {word}"


def _conditions(text: str | None) -> list[Condition]:
    """Operands of and/or, and the tests of conditionals; none where the whole is one comparison."""
    if text is None:
        return []
    found: dict[str, None] = {}
    for node in ast.walk(ast.parse(f"({text}\n)", mode="eval")):
        parts = node.values if isinstance(node, ast.BoolOp) else [node.test] if isinstance(node, ast.IfExp) else []
        for part in parts:
            if not isinstance(part, ast.BoolOp):
                found[ast.unparse(part)] = None
    return [Condition(part) for part in found]


def _truth(text: str) -> Callable[..., bool]:
    """A condition on a unit, the fields of scores included."""
    try:
        value = compile_score(f"1 if {text} else 0").evaluate
    except ExpressionError:  # it folds to a constant, or only stands inside the whole
        return lambda *_: False
    return lambda meta, clock: value(meta, clock) > 0


def _noting(
    evaluate: Callable[..., Any], whole: Condition | None, inner: list[tuple[Condition, Callable[..., bool]]]
) -> Callable[..., Any]:
    def noted(*args: Any) -> Any:
        value = evaluate(*args)
        if whole is not None:
            whole.note(value)
        for condition, truth in inner:
            condition.note(truth(*args))
        return value

    return noted
