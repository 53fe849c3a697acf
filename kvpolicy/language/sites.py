"""The places of a policy that hold expressions: each is compiled, an error is shown where it is in the scalar."""

from __future__ import annotations

from collections.abc import Iterator

from kvpolicy.language.diagnostics import Diagnostic
from kvpolicy.language.expressions import ExpressionError, compile_admit, compile_match, compile_score
from kvpolicy.language.meaning import rules_of
from kvpolicy.language.spans import source_index
from kvpolicy.language.tree import Mapping, Node, Scalar

__all__ = ["expressions"]

#: Fields that move without a touch: a rule, which runs only at touches, cannot see them change.
_CLOCK_FIELDS = frozenset({"idle_requests", "idle_s", "age_requests", "age_s"})

_CLASSES = {
    "stable": "it changes only when a unit is touched, so a heap keeps the exact order",
    "decay": "the order of untouched units never changes, so a heap keeps it exactly",
    "dynamic": "its order changes between touches, so it is evaluated again on a sample at eviction",
}


def expressions(tree: Mapping) -> Iterator[Diagnostic]:
    """Errors of every score and match, and the class and cost of a valid score."""
    eviction = tree.child("eviction")
    if not isinstance(eviction, Mapping):
        return
    score = _text_at(eviction, "score")
    if score is not None:
        yield from _score(score)
    for rule in rules_of(eviction):
        match = _text_at(rule, "match")
        if match is not None:
            yield from _match(match, decides_admission="admit" in rule.entries)


def _text_at(mapping: Mapping, name: str) -> Scalar | None:
    node: Node | None = mapping.child(name)
    return node if isinstance(node, Scalar) and isinstance(node.value, str) else None


def _score(node: Scalar) -> Iterator[Diagnostic]:
    try:
        score = compile_score(node.text)
    except ExpressionError as error:
        yield _located(node, error, "score")
        return
    data = {"score_class": score.score_class, "cost": score.cost, "fields": sorted(score.fields)}
    message = f"the score is {score.score_class}, {score.cost} operations a unit: {_CLASSES[score.score_class]}"
    yield node.source.at(node.index, "KVP402", "info", message, None, data)


def _match(node: Scalar, *, decides_admission: bool) -> Iterator[Diagnostic]:
    try:
        if decides_admission:
            compile_admit(node.text)
        else:
            compile_match(node.text)
    except ExpressionError as error:
        yield _located(node, error, "match")


def _located(node: Scalar, error: ExpressionError, what: str) -> Diagnostic:
    word = node.text[error.offset : error.offset + error.length]
    code = "KVP307" if what == "match" and word in _CLOCK_FIELDS else "KVP401"
    return node.source.at(source_index(node, error.offset), code, "error", f"{what}: {error.message}", error.help)
