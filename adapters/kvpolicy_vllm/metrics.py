"""`kvpolicy_*` in vLLM's `/metrics`: the engines' own counts, asked for when somebody scrapes.

The counts live in the engine processes, so nothing is counted twice and nothing is lost where several API servers
serve: each of them gives all engines' figures, whichever is asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any

from prometheus_client import Metric as Family
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from kvpolicy.runtime import metrics

__all__ = ["JoinedRegistry", "families"]


def families(engines: Iterable[dict[str, Any]]) -> Iterator[Family]:
    """The metrics of what each engine's `kvpolicy_status` answered."""
    info = _family(GaugeMetricFamily, metrics.INFO)
    counters = {
        "evictions": _family(CounterMetricFamily, metrics.EVICTIONS),
        "evicted_tokens": _family(CounterMetricFamily, metrics.EVICTED_TOKENS),
        "fallbacks": _family(CounterMetricFamily, metrics.FALLBACKS),
    }
    seconds = _family(HistogramMetricFamily, metrics.EVICT_SECONDS)
    digest = _family(GaugeMetricFamily, metrics.VICTIM_DIGEST)
    why = {
        "evicted_before_reuse": _family(CounterMetricFamily, metrics.REUSED),
        "evicted_before_reuse_tokens": _family(CounterMetricFamily, metrics.REUSED_TOKENS),
    }
    histograms = {name: _family(HistogramMetricFamily, metric) for name, metric in metrics.HISTOGRAMS.items()}
    protected = _family(GaugeMetricFamily, metrics.PROTECTED)
    hinted = _family(CounterMetricFamily, metrics.HINTS)
    traffic = {name: _family(CounterMetricFamily, metric) for name, metric in metrics.TRAFFIC.items()}
    shadows = _family(GaugeMetricFamily, metrics.SHADOW_HITS)
    bounds = [*(str(float(bound)) for bound in metrics.SECONDS_BUCKETS), "+Inf"]
    for engine in engines:
        block = engine["block"]
        place = ["0", "0", str(engine["dp_rank"])]  # one scheduler decides for all tensor and pipeline ranks
        info.add_metric([block["name"], block["digest"][:12], block["core"], *place], 1)
        for name, family in counters.items():
            for label, count in block[name].items():
                family.add_metric([label, *place], count)
        for rule, held in block.get("protected", {}).items():
            protected.add_metric([rule, *place], held["tokens"])
        for action, outcomes in block.get("hints", {}).get("counts", {}).items():
            for outcome, count in outcomes.items():
                hinted.add_metric([action, outcome, *place], count)
        for name, count in block.get("traffic", {}).items():
            traffic[name].add_metric(place, count)
        if (remembered := block.get("why")) is not None:
            for name, family in why.items():
                for label, count in remembered[name].items():
                    family.add_metric([label, *place], count)
            for name, family in histograms.items():
                _add_histogram(family, place, remembered[name])
        for labels, found in metrics.shadow_hits(block.get("shadows")).items():
            shadows.add_metric([*labels, *place], found)
        totals = list(accumulate(engine["evict_seconds_counts"]))
        seconds.add_metric(place, list(zip(bounds, totals, strict=True)), sum_value=block["evict_seconds"])
        if block["victim_digest"] is not None:
            digest.add_metric(place, metrics.digest_value(int(block["victim_digest"], 16)))
    ours = (
        info,
        *counters.values(),
        protected,
        hinted,
        *traffic.values(),
        *why.values(),
        *histograms.values(),
        shadows,
        seconds,
        digest,
    )
    yield from (family for family in ours if family.samples)


def _add_histogram(family: Any, place: list[str], counted: dict[str, Any]) -> None:
    bounds = [*(str(float(bound)) for bound in counted["bounds"]), "+Inf"]
    totals = accumulate(counted["counts"])
    family.add_metric(place, list(zip(bounds, totals, strict=True)), sum_value=counted["sum"])


def _family(kind: type[Any], metric: metrics.Metric) -> Any:
    return kind(metric.name, metric.help, labels=(*metric.labels, *metrics.LABELS))


class JoinedRegistry:
    """vLLM's registry and ours as one, for prometheus_client's exposition. `ours` is replaced before each scrape."""

    def __init__(self, stock: Any) -> None:
        self.stock = stock
        self.ours: list[Family] = []

    def collect(self) -> Iterator[Family]:
        yield from self.stock.collect()
        yield from self.ours

    def restricted_registry(self, names: Iterable[str]) -> JoinedRegistry:
        """For `/metrics?name[]=...`."""
        wanted = set(names)
        restricted = JoinedRegistry(self.stock.restricted_registry(wanted))
        for family in self.ours:
            samples = [sample for sample in family.samples if sample.name in wanted]
            if samples:
                part = Family(family.name, family.documentation, family.type)
                part.samples = samples
                restricted.ours.append(part)
        return restricted
