"""Two runs over one text, compared: KL, greedy agreement and perplexity, for each pass and by position."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kvpolicy.fidelity.base import Settings
from kvpolicy.fidelity.measures import Listed, kl_lower_bound, listed, same_top

__all__ = ["Bucket", "Difference", "Place", "Run", "compare", "passes_apart"]

_FIRST_BUCKET_TOKENS = 64

Place = tuple[int, int]  # (window, position in it of the token that is predicted)


@dataclass(slots=True)
class Run:
    """What one child measured. ``rows``: by pass, distributions by place."""

    settings: Settings
    windows: list[list[int]]
    stride_tokens: int
    rows: dict[str, dict[Place, Listed]] = field(default_factory=dict)

    def add(
        self, kind: str, window: int, start: int, rows: Iterable[tuple[float, Sequence[int], Sequence[float]]]
    ) -> None:
        """Distributions of ``windows[window][start + 1:]``, in order."""
        tokens, into = self.windows[window], self.rows.setdefault(kind, {})
        for position, (actual, ids, logprobs) in enumerate(rows, start + 1):
            into[window, position] = listed(tokens[position], actual, ids, logprobs)


@dataclass(frozen=True, slots=True)
class Difference:
    """How far one run is from another over some tokens; natural logarithms."""

    tokens: int
    kl_mean: float  # nats a token; a lower bound, see measures.py
    kl_p99: float
    kl_max: float
    top1_agreement: float  # share of tokens
    perplexity_reference: float
    perplexity: float
    nll_change: float  # mean of -ln p(text), this less the reference: ln of the perplexities' ratio
    nll_change_error: float  # its standard error, tokens taken as independent
    listed_mass: float  # mean probability that the reference's lists cover

    @property
    def perplexity_change(self) -> float:
        """As a share: 0.01 is one percent worse."""
        return math.expm1(self.nll_change)


@dataclass(frozen=True, slots=True)
class Bucket:
    """Tokens at positions [first, end) of their window."""

    first: int
    end: int
    difference: Difference


def compare(reference: dict[Place, Listed], other: dict[Place, Listed]) -> tuple[Difference, list[Bucket]]:
    """Over the places that both have; buckets double in length. ValueError where they have none in common."""
    places = sorted(place for place in reference if place in other)
    if not places:
        raise ValueError("the runs have no position in common")
    samples = [_Sample.of(place[1], reference[place], other[place]) for place in places]
    buckets: list[Bucket] = []
    first, end = 0, _FIRST_BUCKET_TOKENS
    while any(sample.position >= first for sample in samples):
        if inside := [sample for sample in samples if first <= sample.position < end]:
            buckets.append(Bucket(first, end, _difference(inside)))
        first, end = end, 2 * end
    return _difference(samples), buckets


def passes_apart(run: Run) -> Difference:
    """The engine's own rounding: one dtype in both passes, whose kernels see other shapes."""
    return compare(run.rows["cold"], run.rows["cached"])[0]


@dataclass(frozen=True, slots=True)
class _Sample:
    position: int
    kl: float
    same_top: bool
    nll_reference: float
    nll: float
    listed_mass: float

    @classmethod
    def of(cls, position: int, p: Listed, q: Listed) -> _Sample:
        mass = min(1.0, math.fsum(math.exp(logprob) for logprob in p.logprobs.values()))
        return cls(position, kl_lower_bound(p, q), same_top(p, q), -p.actual, -q.actual, mass)


def _difference(samples: list[_Sample]) -> Difference:
    count = len(samples)
    kls = sorted(sample.kl for sample in samples)
    nll_reference = _mean([sample.nll_reference for sample in samples])
    changes = [sample.nll - sample.nll_reference for sample in samples]
    change = _mean(changes)
    variance = math.fsum((each - change) ** 2 for each in changes) / max(1, count - 1)
    return Difference(
        tokens=count,
        kl_mean=_mean(kls),
        kl_p99=kls[math.ceil(0.99 * count) - 1],
        kl_max=kls[-1],
        top1_agreement=_mean([float(sample.same_top) for sample in samples]),
        perplexity_reference=math.exp(nll_reference),
        perplexity=math.exp(nll_reference + change),
        nll_change=change,
        nll_change_error=math.sqrt(variance / count),
        listed_mass=_mean([sample.listed_mass for sample in samples]),
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
