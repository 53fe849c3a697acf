"""`kvpolicy_*` in SGLang's `/metrics`: evictions by rule, evicted tokens, fallbacks, evict seconds, policy info.

The scheduler writes into prometheus_client's multiprocess directory, which SGLang's HTTP process serves. The client
must not be imported before SGLang has named that directory, hence the import inside :func:`start`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvpolicy.runtime import metrics, status
from kvpolicy.runtime.active import ActivePolicy
from kvpolicy.runtime.metrics import Metric

from . import probe

__all__ = ["start", "start_for"]


def start(active: ActivePolicy, labels: Mapping[str, str]) -> None:
    """Create the metrics of this scheduler and let eviction calls and the allocator's guard update them."""
    from prometheus_client import Counter, Gauge, Histogram

    names, values = tuple(labels), tuple(labels.values())

    def make(kind: Any, metric: Metric, **more: Any) -> Any:
        return kind(metric.name, metric.help, (*metric.labels, *names), **more)

    info = make(Gauge, metrics.INFO, multiprocess_mode="mostrecent")
    runs = info.labels(active.name, active.digest[:12], active.core, *values)
    runs.set(1)

    def swapped(active: ActivePolicy) -> None:
        nonlocal runs
        runs.set(0)  # it was there: a series cannot be taken out of the shared directory
        runs = info.labels(active.name, active.digest[:12], active.core, *values)
        runs.set(1)

    active.on_swap = swapped
    evictions = make(Counter, metrics.EVICTIONS)
    tokens = make(Counter, metrics.EVICTED_TOKENS)
    faults = make(Counter, metrics.FALLBACKS)
    misused = make(Counter, metrics.ALLOCATOR_FAULTS)
    seconds = make(Histogram, metrics.EVICT_SECONDS, buckets=metrics.SECONDS_BUCKETS)
    digest = make(Gauge, metrics.VICTIM_DIGEST, multiprocess_mode="mostrecent").labels(*values)
    observe_seconds = seconds.labels(*values).observe
    reused, reused_tokens = make(Counter, metrics.REUSED), make(Counter, metrics.REUSED_TOKENS)
    histograms: dict[str, _Growing] = {}
    protected = make(Gauge, metrics.PROTECTED, multiprocess_mode="mostrecent")
    hinted = make(Counter, metrics.HINTS)
    seen_hints: dict[tuple[str, str], int] = {}
    traffic = {name: make(Counter, metric).labels(*values) for name, metric in metrics.TRAFFIC.items()}
    seen: dict[tuple[Counter, str], int] = {}
    seen_traffic: dict[str, int] = {}

    def grow(counter: Counter, counts: Mapping[str, int]) -> None:
        """Our counts are totals, prometheus counters take increments."""
        for label, total in counts.items():
            if grown := total - seen.get((counter, label), 0):
                counter.labels(label, *values).inc(grown)
                seen[counter, label] = total

    def update(active: ActivePolicy, elapsed_s: float) -> None:
        observe_seconds(elapsed_s)
        follow()

    def follow() -> None:
        counters = getattr(active.index, "counters", None)
        if counters is not None:
            grow(evictions, status.by_rule(counters.evictions))
            grow(tokens, status.by_rule(counters.evicted_tokens))
            digest.set(metrics.digest_value(active.index.victim_digest))
            for rule, (held_tokens, _) in active.index.protected_tokens().items():
                protected.labels(rule, *values).set(held_tokens)
        for name, exposed in traffic.items():
            if grown := getattr(active.traffic, name) - seen_traffic.get(name, 0):
                exposed.inc(grown)
                seen_traffic[name] = getattr(active.traffic, name)
        if (hints := getattr(active.index, "hints", None)) is not None:
            for key, count in hints.counts.items():
                if grown := count - seen_hints.get(key, 0):
                    hinted.labels(*key, *values).inc(grown)
                    seen_hints[key] = count
        if (ghosts := getattr(active.index, "ghosts", None)) is not None:
            grow(reused, status.by_rule(ghosts.reused))
            grow(reused_tokens, status.by_rule(ghosts.reused_tokens))
            for name, metric in metrics.HISTOGRAMS.items():
                counted = getattr(ghosts, name)
                if name not in histograms:
                    histograms[name] = _Growing(make(Histogram, metric, buckets=counted.bounds).labels(*values))
                histograms[name].follow(counted)
        grow(faults, status.fallbacks(active))

    gauges = {
        key: make(Gauge, metric, multiprocess_mode="mostrecent").labels(*values)
        for key, metric in metrics.FRAGMENTATION.items()
    }

    def measured(figures: Mapping[str, Any]) -> None:
        for key, gauge in gauges.items():
            gauge.set(figures[key] or 0)
        follow()

    ghosts = make(Gauge, metrics.SHADOW_HITS, multiprocess_mode="mostrecent")
    shown: set[tuple[str, str, str]] = set()

    def update_shadows(shadows: dict[str, Any] | None) -> None:
        found = metrics.shadow_hits(shadows)
        for labels in shown - found.keys():  # a series cannot be taken out of the shared directory
            ghosts.labels(*labels, *values).set(float("nan"))
        for labels, share in found.items():
            ghosts.labels(*labels, *values).set(share)
        shown.update(found)

    def update_allocator(active: ActivePolicy) -> None:
        if active.allocator is not None:
            grow(misused, active.allocator.faults)

    active.on_evict, active.on_measure = update, measured
    active.on_allocator_fault, active.on_shadows = update_allocator, update_shadows


class _Growing:
    """A histogram that follows counts kept elsewhere. To observe each value again would cost more than to keep them,
    and prometheus_client has no public way to add counts: its buckets are looked up by their usual name."""

    def __init__(self, exposed: Any) -> None:
        self._buckets, self._sum = exposed._buckets, exposed._sum
        self._counts = [0] * len(self._buckets)
        self._total = 0.0

    def follow(self, counted: Any) -> None:
        for at, count in enumerate(counted.counts):
            if grown := count - self._counts[at]:
                self._buckets[at].inc(grown)
                self._counts[at] = count
        if grown_total := counted.total - self._total:
            self._sum.inc(grown_total)
            self._total = counted.total


def start_for(active: ActivePolicy, scheduler: Any) -> None:
    """Start the metrics where SGLang itself reports scheduler metrics: with --enable-metrics, on the first rank."""
    server_args, ranks = scheduler.server_args, probe.ranks(scheduler)
    if not probe.resolved(server_args, "enable_metrics"):
        return
    if ranks.pop("attn_tp_rank") and not probe.resolved(server_args, "enable_metrics_for_all_schedulers"):
        return
    start(active, {name: str(rank) for name, rank in ranks.items()})
