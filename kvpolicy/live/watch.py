"""Watching a server after a change, and saying which figure got worse: `kvpolicy apply --guard`.

Figures are means over a window, out of the totals that a server's `/metrics` count: the window before the change and
the time since. One that got worse by more than the tolerance, over enough requests, is reason to roll back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .client import Sample

__all__ = ["FIGURES", "Totals", "Worse", "means", "totals", "worse"]

#: How much worse a mean may get: shares of traffic and latencies always vary.
TOLERANCE = 0.2
#: Requests, or eviction calls, that a mean is taken over at least.
ENOUGH = 20


@dataclass(frozen=True, slots=True)
class _Figure:
    words: str
    sums: tuple[str, ...]  # metrics added up over all labels; the first that a server has
    counts: tuple[str, ...]
    higher_is_better: bool = False
    slack: float = 0.0  # a difference below this is none
    unit: str = ""


FIGURES: dict[str, _Figure] = {
    "hit_rate": _Figure(
        "share of prompt tokens found in the cache",
        ("sglang:cached_tokens_total", "vllm:prefix_cache_hits_total"),
        ("sglang:prompt_tokens_total", "vllm:prefix_cache_queries_total"),
        higher_is_better=True,
        slack=0.01,
    ),
    "evict_s": _Figure(
        "seconds an eviction call takes",
        ("kvpolicy_evict_seconds_sum",),
        ("kvpolicy_evict_seconds_count",),
        slack=0.0005,
        unit=" s",
    ),
    "ttft": _Figure(
        "seconds to the first token",
        ("sglang:time_to_first_token_seconds_sum", "vllm:time_to_first_token_seconds_sum"),
        ("sglang:time_to_first_token_seconds_count", "vllm:time_to_first_token_seconds_count"),
        slack=0.005,
        unit=" s",
    ),
}

#: ``{figure: (sum, count)}`` since the server's start.
Totals = Mapping[str, tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Worse:
    """One figure that got worse than the tolerance allows."""

    figure: str
    before: float
    after: float

    def __str__(self) -> str:
        known = FIGURES[self.figure]
        return (
            f"{self.figure} ({known.words}): {self.before:.4g}{known.unit} before, {self.after:.4g}{known.unit} since"
        )


def totals(samples: Iterable[Sample], figures: Iterable[str]) -> dict[str, tuple[float, float]]:
    """The totals of the figures that the server has."""
    by_name: dict[str, float] = {}
    for sample in samples:
        by_name[sample.name] = by_name.get(sample.name, 0.0) + sample.value
    found = {}
    for name in figures:
        figure = FIGURES[name]
        sums = [by_name[metric] for metric in figure.sums if metric in by_name]
        counts = [by_name[metric] for metric in figure.counts if metric in by_name]
        if counts:  # a counter of cached tokens comes with the first one
            found[name] = (sums[0] if sums else 0.0, counts[0])
    return found


def means(start: Totals, end: Totals) -> dict[str, float]:
    """The means of a window, of the figures that enough happened for."""
    found = {}
    for name, (total, count) in end.items():
        first_total, first_count = start.get(name, (0.0, 0.0))
        if count - first_count >= ENOUGH:
            found[name] = (total - first_total) / (count - first_count)
    return found


def worse(before: Mapping[str, float], after: Mapping[str, float]) -> list[Worse]:
    """The figures of both windows that got worse."""
    found = []
    for name, was in before.items():
        now = after.get(name)
        if now is None:
            continue
        known = FIGURES[name]
        loss = was - now if known.higher_is_better else now - was
        if loss > max(known.slack, TOLERANCE * was):
            found.append(Worse(name, was, now))
    return found
