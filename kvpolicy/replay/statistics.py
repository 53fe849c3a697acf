"""What one replay counted: per-request hits, evictions, and histograms small enough to keep for any trace."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from math import log

__all__ = ["Histogram", "RunStatistics"]


class Histogram:
    """Weights over durations in milliseconds, in buckets 5 % wide: quantiles without keeping the values."""

    _BASE = log(1.05)

    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}
        self.weight = 0

    def add(self, value_ms: int, weight: int) -> None:
        bucket = int(log(value_ms) / self._BASE) if value_ms > 0 else -1
        self._buckets[bucket] = self._buckets.get(bucket, 0) + weight
        self.weight += weight

    def quantile_s(self, share: float) -> float | None:
        """Seconds below which ``share`` of the weight lies (within 5 %), ``None`` when empty."""
        if not self.weight:
            return None
        rest = share * self.weight
        for bucket in sorted(self._buckets):
            rest -= self._buckets[bucket]
            if rest <= 0:
                return 0.0 if bucket < 0 else float(1.05 ** (bucket + 0.5)) / 1000
        return float(1.05 ** (max(self._buckets) + 0.5)) / 1000


@dataclass(slots=True)
class RunStatistics:
    """Counts of one policy at one capacity. Hits are in tokens, one entry a request."""

    hit_tokens: array[int] = field(default_factory=lambda: array("q"))
    evicted_tokens: int = 0
    victims: int = 0
    evict_calls: int = 0  # times that room was made
    evict_s: float = 0.0  # time inside eviction walks, for the report only
    truncated_tokens: int = 0  # of requests that did not fit
    refused_tokens: int = 0  # not admitted by the policy
    touched_pages: int = 0
    idle_at_eviction: Histogram = field(default_factory=Histogram)  # since the last touch, weighted by tokens
    reuse_gap: Histogram = field(default_factory=Histogram)  # between touches, weighted by tokens
    evicted_by_rule: dict[str, int] = field(default_factory=dict)
    fallbacks: int = 0  # faults of the policy that the index survived
