"""How far one next-token distribution is from another, from what an engine reports: its top k and the token that came.

KL(P || Q) needs both distributions whole; an engine lists k tokens of each. :func:`kl_lower_bound` gives the smallest
KL that any pair of whole distributions with these lists can have, after merging tokens nobody lists. So the figure is
a lower bound (merging never raises a KL: the data-processing inequality, Cover and Thomas, Elements of Information
Theory, 2.8), exact when every token is listed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["TINY", "Listed", "kl_lower_bound", "listed", "same_top"]

#: Probabilities below this are rounding of float32 logprobs: the rest of a fully listed distribution may be -1e-7.
TINY = 1e-9
_ROUNDS = 64


@dataclass(frozen=True, slots=True)
class Listed:
    """One next-token distribution as an engine reports it.

    ``logprobs``: natural logarithms by token id, of the top k and of the token that the text goes on with.
    ``lowest``: the smallest logprob of the top k, which no unlisted token exceeds. ``top``: the tokens of highest
    probability, several where 16-bit logits tie. ``actual``: logprob of the text's own token.
    """

    logprobs: Mapping[int, float]
    lowest: float
    top: frozenset[int]
    actual: float


def listed(actual_token: int, actual_logprob: float, ids: Sequence[int], logprobs: Sequence[float]) -> Listed:
    """From the text's token and the engine's top-k lists (any order, not empty)."""
    best = max(logprobs)
    table = dict(zip(ids, logprobs, strict=True))
    table.setdefault(actual_token, actual_logprob)
    top = frozenset(token for token, logprob in zip(ids, logprobs, strict=True) if logprob == best)
    return Listed(table, min(logprobs), top, actual_logprob)


def same_top(p: Listed, q: Listed) -> bool:
    """Whether greedy decoding could pick the same token; a tie may fall either way."""
    return not p.top.isdisjoint(q.top)


def kl_lower_bound(p: Listed, q: Listed) -> float:
    """The least KL(P || Q), in nats, of distributions with these lists.

    Tokens listed by both count singly. Those that only P lists form a group A whose mass under Q is unknown but at
    most ``len(A) * exp(q.lowest)`` and the mass Q has left; likewise B, that only Q lists. All other tokens are one
    rest. The two unknown masses are set to what makes the KL smallest (convex in both: alternating minimization).
    """
    both = [token for token in p.logprobs if token in q.logprobs]
    known = math.fsum(math.exp(p.logprobs[t]) * (p.logprobs[t] - q.logprobs[t]) for t in both)
    only_p = [token for token in p.logprobs if token not in q.logprobs]
    only_q = [token for token in q.logprobs if token not in p.logprobs]
    rest_p, rest_q = _rest(p), _rest(q)
    mass_a, mass_b = _mass(p, only_p), _mass(q, only_q)
    most_a = min(len(only_p) * math.exp(q.lowest), rest_q)  # Q's mass on A
    most_b = min(len(only_q) * math.exp(p.lowest), rest_p)  # P's mass on B
    a, b = most_a, most_b
    for _ in range(_ROUNDS):
        before = a, b
        a = min(most_a, rest_q * mass_a / (mass_a + rest_p - b)) if only_p else 0.0
        b = min(most_b, rest_p * mass_b / (mass_b + rest_q - a)) if only_q else 0.0
        if abs(a - before[0]) + abs(b - before[1]) < TINY * 1e-3:
            break
    unknown = _term(mass_a, a) + _term(b, mass_b) + _term(rest_p - b, rest_q - a)
    return max(0.0, known + unknown)


def _rest(of: Listed) -> float:
    """Mass of the unlisted tokens."""
    return max(TINY, 1.0 - math.fsum(math.exp(logprob) for logprob in of.logprobs.values()))


def _mass(of: Listed, tokens: list[int]) -> float:
    return math.fsum(math.exp(of.logprobs[token]) for token in tokens)


def _term(p: float, q: float) -> float:
    return p * math.log(p / max(q, TINY)) if p > TINY else 0.0
