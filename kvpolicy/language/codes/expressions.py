"""KVP4xx: expressions in `score` and `match`."""

from __future__ import annotations

from kvpolicy.language.codes.base import Code, codes

__all__ = ["EXPRESSIONS"]

EXPRESSIONS = codes(
    Code(
        "KVP401",
        "invalid expression",
        "Expressions are a small, total subset of Python's: arithmetic, comparison, and/or/not, a conditional, a "
        "fixed set of functions and the fields of a unit. A score is a number, a match is true or false, and units "
        "must agree: tokens do not compare with seconds.",
        bad="eviction: {score: hits + idle_requets}\n",
        good="eviction: {score: hits - idle_requests}\n",
    ),
    Code(
        "KVP402",
        "class and cost of a score",
        "Says how a score moves between touches: `stable` and `decay` keep an exact order in a heap; `dynamic` is "
        "evaluated again on a sample at eviction. The cost counts operations.",
        bad="eviction: {score: log1p(hits) / (1 + idle_requests)}\n",
        good="eviction: {policy: lru}\n",
    ),
)
