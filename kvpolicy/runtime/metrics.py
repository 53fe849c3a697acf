"""The names, help texts and buckets of the `kvpolicy_*` metrics: equal on every engine, so that one dashboard fits all.

How they reach the engine's `/metrics` is the adapter's affair. Every metric also carries LABELS.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = [
    "ALLOCATOR_FAULTS",
    "EVICTED_TOKENS",
    "EVICTIONS",
    "EVICT_SECONDS",
    "FALLBACKS",
    "FRAGMENTATION",
    "HINTS",
    "HISTOGRAMS",
    "INFO",
    "LABELS",
    "PROTECTED",
    "REUSED",
    "REUSED_TOKENS",
    "SECONDS_BUCKETS",
    "SHADOW_HITS",
    "TRAFFIC",
    "VICTIM_DIGEST",
    "Metric",
    "digest_value",
    "shadow_hits",
]


class Metric(NamedTuple):
    """One metric; a counter is named without the `_total` that Prometheus appends."""

    name: str
    help: str
    labels: tuple[str, ...] = ()  # besides LABELS


#: Where a scheduler stands.
LABELS = ("tp_rank", "pp_rank", "dp_rank")

INFO = Metric("kvpolicy_info", "The policy in force; always 1.", ("policy", "digest", "core"))
EVICTIONS = Metric("kvpolicy_evictions", "Evicted cache units by the rule that last held them.", ("rule",))
EVICTED_TOKENS = Metric("kvpolicy_evicted_tokens", "Evicted tokens by the rule that last held them.", ("rule",))
FALLBACKS = Metric("kvpolicy_fallbacks", "Calls served in the engine's order after a fault.", ("reason",))
ALLOCATOR_FAULTS = Metric(
    "kvpolicy_allocator_faults", "Slots or pages that the allocator's guard found misused, and repaired.", ("kind",)
)
REUSED = Metric(
    "kvpolicy_evicted_before_reuse", "Cache units that were asked for again after their eviction, by rule.", ("rule",)
)
REUSED_TOKENS = Metric(
    "kvpolicy_evicted_before_reuse_tokens", "Tokens computed again because they had been evicted, by rule.", ("rule",)
)
#: By the name in :class:`kvpolicy.eviction.ghosts.Ghosts` and in the status; where evictions are remembered.
HISTOGRAMS = {
    "age_s": Metric("kvpolicy_evicted_age_seconds", "Age of cache units at their eviction."),
    "hits": Metric("kvpolicy_evicted_hits", "Hits of cache units at their eviction."),
    "away_s": Metric("kvpolicy_reuse_after_eviction_seconds", "Time from an eviction until its content came back."),
    "away_requests": Metric(
        "kvpolicy_reuse_after_eviction_requests", "Requests from an eviction until its content came back."
    ),
}
HINTS = Metric(
    "kvpolicy_hints", "Hints of requests by action (retain, ...) and what became of them.", ("action", "outcome")
)
PROTECTED = Metric("kvpolicy_protected_tokens", "Cached tokens that a rule protects now.", ("rule",))
#: By the key in the status's `traffic`; where the policy keeps metadata.
TRAFFIC = {
    "requests": Metric("kvpolicy_requests", "Requests that looked their prompt up in the cache."),
    "prompt_tokens": Metric("kvpolicy_prompt_tokens", "Tokens of their prompts."),
    "hit_tokens": Metric("kvpolicy_hit_tokens", "Of those, tokens found in the cache."),
    "short_prompts": Metric("kvpolicy_short_prompts", "Prompts shorter than a page, which are never cached."),
    "salted_requests": Metric("kvpolicy_salted_requests", "Requests with a cache_salt."),
    "new_salts": Metric("kvpolicy_new_salts", "Of those, with a salt not seen before."),
}
SHADOW_HITS = Metric(
    "kvpolicy_shadow_hit_ratio",
    "Share of prompt tokens that the ghost of a policy found, as of the last status; active: 1 for the one that runs.",
    ("policy", "digest", "active"),
)
EVICT_SECONDS = Metric("kvpolicy_evict_seconds", "Duration of one eviction call.")
VICTIM_DIGEST = Metric(
    "kvpolicy_victim_digest",
    "Low 48 bits of the running hash over all victims: equal on all tensor-parallel ranks of a replica.",
)
#: By the status's key; as of the last time a status was asked for: nothing is measured in a step.
FRAGMENTATION = {
    "free_runs": Metric("kvpolicy_free_runs", "Contiguous runs of free pages, as of the last status."),
    "longest_free_run_pages": Metric("kvpolicy_longest_free_run_pages", "Pages in the longest one of them."),
    "runs_per_request": Metric("kvpolicy_runs_per_request", "Contiguous runs of a running request's slots, mean."),
    "index_entries": Metric("kvpolicy_index_entries", "Entries of running requests in the attention index table."),
}

#: Upper bounds in seconds. An eviction call takes from tens of microseconds (an index) to a good tenth of a second (a
#: heap over 100k leaves).
SECONDS_BUCKETS = (2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 5e-2, 0.2, 1.0)


def digest_value(victim_digest: int) -> int:
    """The part of a victim digest that a gauge, which is a float, holds exactly."""
    return victim_digest & (1 << 48) - 1


def shadow_hits(shadows: Mapping[str, Any] | None) -> dict[tuple[str, str, str], float]:
    """By the labels of SHADOW_HITS, out of a status's `shadows`."""
    if not shadows or shadows.get("active") is None:
        return {}
    rows = [(shadows["active"], "1"), *((row, "0") for row in shadows["shadows"])]
    return {(row["name"], row["digest"][:12], active): row["saved_linear"] for row, active in rows}
