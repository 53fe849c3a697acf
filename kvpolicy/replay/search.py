"""Candidates of a search as policies, and the search's evidence as text."""

from __future__ import annotations

from collections.abc import Sequence

import yaml

from kvpolicy.language import load_text
from kvpolicy.replay.policies import from_result
from kvpolicy.replay.recommend import Candidate, Recommendation, Trial
from kvpolicy.replay.simulator import Eviction
from kvpolicy.replay.table import tokens_text

__all__ = ["evictions_of", "render_evidence", "render_policy"]

_SHOWN = 5  # best trials of a capacity in the evidence


def evictions_of(candidates: Sequence[Candidate]) -> list[Eviction]:
    """Compile candidates through the language, exactly as a file would be. ValueError: one is no valid policy."""
    compiled = []
    for candidate in candidates:
        result = load_text(render_policy(candidate, []).encode(), candidate.name)
        if result.policy is None:
            raise ValueError("\n".join(map(str, result.diagnostics)))
        compiled.append(from_result(result, candidate.name))
    return compiled


def render_policy(candidate: Candidate, evidence: Sequence[str]) -> str:
    """A policy file, with its evidence as comments at the top."""
    document = {
        "apiVersion": "kvpolicy/v1",
        "kind": "KVPolicy",
        "metadata": {"name": "recommended", "description": f"Found by `kvpolicy recommend`: {candidate.name}."},
        "eviction": candidate.eviction,
    }
    comments = "".join(f"# {line}".rstrip() + "\n" for line in evidence)
    return comments + yaml.safe_dump(document, sort_keys=False, width=110)


def render_evidence(found: Sequence[Recommendation]) -> list[str]:
    """A table a capacity: the best by fit, what they reached on the part they never saw, and LRU."""
    lines = []
    for each in found:
        what = each.chosen.candidate.name if each.chosen else "nothing" if each.is_floor_broken else "stock LRU"
        lines += ["", f"{tokens_text(each.capacity_tokens)} tokens: {what} ({each.reason})"]
        tenants = "".join(f"  hits of {tenant}" for tenant in each.lru.tenants)
        lines.append(f"  {'candidate':<36} {'first 60 %':>10} {'last 40 %':>10} {'- lru':>8}{tenants}")
        shown = [*each.trials[:_SHOWN], *([each.lru] if each.lru not in each.trials[:_SHOWN] else [])]
        lines += [_line(one, each.lru) for one in shown]
    return lines


def _line(one: Trial, lru: Trial) -> str:
    """With floors, each tenant's hit rate on the fitting part and on both halves of the rest."""
    gain = 100 * (one.validation - lru.validation)
    line = f"  {one.candidate.name:<36} {100 * one.fit:>9.2f}% {100 * one.validation:>9.2f}% {gain:>+8.2f}"
    for rates in one.tenants.values():
        line += "  " + "/".join("-" if rate is None else f"{100 * rate:.1f}%" for rate in rates)
    return line
