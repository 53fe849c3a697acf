"""Metrics of the engines' own that we read or show: each with its name on every engine, as a scrape exposes it."""

from __future__ import annotations

from collections.abc import Iterable

from .client import Sample

__all__ = ["BY_MEANING", "HIT_TOKENS", "LOOKED_UP_TOKENS", "NAMES", "POOL_USAGE", "RUNNING", "WAITING", "total"]

#: Prompt tokens looked up in the prefix cache, and those found there.
LOOKED_UP_TOKENS = ("sglang:prompt_tokens_total", "vllm:prefix_cache_queries_total")
HIT_TOKENS = ("sglang:cached_tokens_total", "vllm:prefix_cache_hits_total")
#: Share of the KV pool that running requests hold.
POOL_USAGE = ("sglang:token_usage", "vllm:kv_cache_usage_perc")
RUNNING = ("sglang:num_running_reqs", "vllm:num_requests_running")
WAITING = ("sglang:num_queue_reqs", "vllm:num_requests_waiting")

BY_MEANING = (LOOKED_UP_TOKENS, HIT_TOKENS, POOL_USAGE, RUNNING, WAITING)
NAMES = frozenset(name for alike in BY_MEANING for name in alike)


def total(samples: Iterable[Sample], names: Iterable[str]) -> float | None:
    """The sum over all labels of whichever of the names is there; None: none is."""
    wanted = set(names)
    values = [sample.value for sample in samples if sample.name in wanted]
    return sum(values) if values else None
