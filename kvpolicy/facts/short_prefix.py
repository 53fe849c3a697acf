"""Rules that protect prefixes shorter than a page: only whole pages are cached, so such a rule protects nothing."""

from __future__ import annotations

import ast
from math import inf

from kvpolicy.facts.findings import Findings

__all__ = ["deepest_match_tokens", "report_short_prefixes"]


def report_short_prefixes(findings: Findings, page_size: int, *, why: str = "") -> None:
    """Warn (KVP525) of every retain whose match ends before the first page does. ``why``: how the page came about."""
    eviction = findings.policy.eviction
    for index, rule in enumerate(eviction.rules if eviction else ()):
        if rule.retain is None or rule.match is None:
            continue
        deepest = deepest_match_tokens(rule.match)
        if deepest >= page_size:
            continue
        because = f" ({why})" if why else ""
        findings.add(
            "KVP525", "warning", f"eviction.rules.{index}.match",
            f"rule '{rule.name}' matches the first {deepest:,.0f} tokens, and the first page ends at token "
            f"{page_size:,}{because}: nothing that short is cached, so it protects nothing",
            "match deeper prefixes, or take a smaller page where the model allows one",
            {"rule": rule.name, "deepest_match_tokens": int(deepest), "page_size": page_size},
        )  # fmt: skip


def deepest_match_tokens(match: str) -> float:
    """Largest ``depth_tokens`` for which ``match`` can hold, as far as its comparisons with numbers tell; else inf."""
    return _deepest(ast.parse(match.strip(), mode="eval").body)


def _deepest(node: ast.expr) -> float:
    if isinstance(node, ast.BoolOp):
        parts = [_deepest(value) for value in node.values]
        return min(parts) if isinstance(node.op, ast.And) else max(parts)
    if not isinstance(node, ast.Compare):
        return inf
    terms = (node.left, *node.comparators)
    return min(_bound(left, op, right) for left, op, right in zip(terms, node.ops, terms[1:], strict=False))


def _bound(left: ast.expr, op: ast.cmpop, right: ast.expr) -> float:
    """Bound that one comparison sets on depth_tokens."""
    if _is_depth(right):
        flipped: dict[type[ast.cmpop], ast.cmpop] = {ast.Gt: ast.Lt(), ast.GtE: ast.LtE(), ast.Eq: ast.Eq()}
        return _bound(right, flipped[type(op)], left) if type(op) in flipped and not _is_depth(left) else inf
    if not (_is_depth(left) and isinstance(right, ast.Constant) and isinstance(right.value, int | float)):
        return inf
    if isinstance(op, ast.LtE | ast.Eq):
        return float(right.value)
    return float(right.value) - 1 if isinstance(op, ast.Lt) else inf


def _is_depth(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "depth_tokens"
