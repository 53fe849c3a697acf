"""`kvpolicy_*` in SGLang's `/metrics`: evictions by rule, evicted tokens, fallbacks, evict seconds, policy info.

The scheduler writes into prometheus_client's multiprocess directory, which SGLang's HTTP process serves. The client
must not be imported before SGLang has named that directory, hence the import inside :func:`start`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import probe, status
from .active import ActivePolicy

__all__ = ["start"]

# An eviction call takes from tens of microseconds (an index) to a good tenth of a second (a heap over 100k leaves).
_SECONDS = (2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 5e-2, 0.2, 1.0)


def start(active: ActivePolicy, labels: Mapping[str, str]) -> None:
    """Create the metrics of this scheduler and let each eviction call update them."""
    from prometheus_client import Counter, Gauge, Histogram

    names, values = tuple(labels), tuple(labels.values())
    Gauge(
        "kvpolicy_info",
        "The policy in force; always 1.",
        ("policy", "digest", "core", *names),
        multiprocess_mode="mostrecent",
    ).labels(active.name, active.digest[:12], active.core, *values).set(1)
    evictions = Counter("kvpolicy_evictions", "Evicted cache units by the rule that last held them.", ("rule", *names))
    tokens = Counter("kvpolicy_evicted_tokens", "Evicted tokens by the rule that last held them.", ("rule", *names))
    faults = Counter("kvpolicy_fallbacks", "Calls served in the engine's order after a fault.", ("reason", *names))
    seconds = Histogram("kvpolicy_evict_seconds", "Duration of one eviction call.", names, buckets=_SECONDS)
    digest = Gauge(
        "kvpolicy_victim_digest",
        "Low 48 bits of the running hash over all victims: equal on all tensor-parallel ranks of a replica.",
        names,
        multiprocess_mode="mostrecent",
    ).labels(*values)
    observe_seconds = seconds.labels(*values).observe
    seen: dict[tuple[Counter, str], int] = {}

    def grow(counter: Counter, counts: Mapping[str, int]) -> None:
        """Our counts are totals, prometheus counters take increments."""
        for label, total in counts.items():
            if grown := total - seen.get((counter, label), 0):
                counter.labels(label, *values).inc(grown)
                seen[counter, label] = total

    def update(active: ActivePolicy, elapsed_s: float) -> None:
        observe_seconds(elapsed_s)
        counters = getattr(active.index, "counters", None)
        if counters is not None:
            grow(evictions, status.by_rule(counters.evictions))
            grow(tokens, status.by_rule(counters.evicted_tokens))
            digest.set(active.index.victim_digest & (1 << 48) - 1)  # a gauge is a float: 53 bits are exact
        grow(faults, status.fallbacks(active))

    active.on_evict = update


def start_for(active: ActivePolicy, scheduler: Any) -> None:
    """Start the metrics where SGLang itself reports scheduler metrics: with --enable-metrics, on the first rank."""
    server_args, ranks = scheduler.server_args, probe.ranks(scheduler)
    if not probe.resolved(server_args, "enable_metrics"):
        return
    if ranks.pop("attn_tp_rank") and not probe.resolved(server_args, "enable_metrics_for_all_schedulers"):
        return
    start(active, {name: str(rank) for name, rank in ranks.items()})
