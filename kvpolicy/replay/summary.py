"""From a replay's raw counts to the figures of a report: one row a policy and capacity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kvpolicy.replay.cost import ModelCost, Saved, saved
from kvpolicy.replay.run import Bound, Replay, Run

__all__ = ["Row", "bound_row", "rows", "to_json"]


@dataclass(frozen=True, slots=True)
class Row:
    """Figures of one policy at one capacity; rates are shares of the input tokens, 0 to 1."""

    policy: str
    capacity_tokens: int | None
    hit_tokens: int
    hit_rate: float
    hit_rate_last_half: float | None  # over the second half of the requests: the cache is warm
    saved_linear: float
    saved_quadratic: float | None
    saved_flops: float | None
    is_bound: bool = False
    evicted_tokens: int | None = None
    evicted_before_reuse_tokens: int | None = None  # asked for later; would have hit in an infinite cache
    refused_tokens: int | None = None
    truncated_tokens: int | None = None
    idle_at_eviction_s: tuple[float | None, float | None] | None = None  # median, 90 %
    reuse_gap_s: tuple[float | None, float | None] | None = None
    evict_us_per_victim: float | None = None
    victims: int | None = None
    evict_calls: int | None = None
    fallbacks: int = 0
    evicted_tokens_by_rule: dict[str, int] | None = None


def rows(replay: Replay, model: ModelCost | None = None) -> list[Row]:
    """Capacity by capacity: the policies as given, then the clairvoyant; the infinite cache last."""
    table: list[Row] = []
    for capacity in replay.settings.capacities:
        table += [_run_row(replay, run, model) for run in replay.runs if run.capacity_tokens == capacity]
        bound = replay.bound("clairvoyant", capacity)
        if bound is not None:
            table.append(bound_row(replay, bound, model))
        most = replay.optimum_tokens.get(capacity)
        if most is not None:
            share = most / (sum(replay.input_tokens) or 1)
            table.append(Row("optimum", capacity, most, share, None, share, None, None, is_bound=True))
    infinite = replay.bound("infinite")
    if infinite is not None:
        table.append(bound_row(replay, infinite, model))
    return table


def bound_row(replay: Replay, bound: Bound, model: ModelCost | None = None) -> Row:
    hit, half, cost = _rates(replay.input_tokens, bound.hit_tokens, model)
    return Row(
        bound.name,
        bound.capacity_tokens,
        hit,
        cost.linear,
        half,
        cost.linear,
        cost.quadratic,
        cost.flops,
        is_bound=True,
    )


def _run_row(replay: Replay, run: Run, model: ModelCost | None) -> Row:
    stats = run.stats
    hit, half, cost = _rates(replay.input_tokens, stats.hit_tokens, model)
    infinite = replay.bound("infinite")
    lost = None if infinite is None else sum(infinite.hit_tokens) - hit
    idle, gap = stats.idle_at_eviction, stats.reuse_gap
    return Row(
        policy=run.policy,
        capacity_tokens=run.capacity_tokens,
        hit_tokens=hit,
        hit_rate=cost.linear,
        hit_rate_last_half=half,
        saved_linear=cost.linear,
        saved_quadratic=cost.quadratic,
        saved_flops=cost.flops,
        evicted_tokens=stats.evicted_tokens,
        evicted_before_reuse_tokens=lost,
        refused_tokens=stats.refused_tokens,
        truncated_tokens=stats.truncated_tokens,
        idle_at_eviction_s=(idle.quantile_s(0.5), idle.quantile_s(0.9)),
        reuse_gap_s=(gap.quantile_s(0.5), gap.quantile_s(0.9)),
        evict_us_per_victim=1e6 * stats.evict_s / stats.victims if stats.victims else None,
        victims=stats.victims,
        evict_calls=stats.evict_calls,
        fallbacks=stats.fallbacks,
        evicted_tokens_by_rule=stats.evicted_by_rule,
    )


def _rates(inputs: Sequence[int], hits: Sequence[int], model: ModelCost | None) -> tuple[int, float, Saved]:
    half = len(inputs) // 2
    late = sum(inputs[half:])
    return sum(hits), (sum(hits[half:]) / late if late else 0.0), saved(inputs, hits, model)


def to_json(replay: Replay, model: ModelCost | None = None) -> dict[str, Any]:
    """The whole report for machines. Times depend on the machine; everything else is a function of the arguments."""
    return {
        "trace": replay.trace,
        "format": replay.format,
        "requests": replay.requests,
        "input_tokens": sum(replay.input_tokens),
        "distinct_tokens": replay.distinct_tokens,
        "digest": replay.digest,
        "block_tokens": replay.block_tokens,
        "page_tokens": replay.page_tokens,
        "granularity": replay.settings.granularity,
        "locked": "while running" if replay.settings.hold_running else "while inserted",
        "model": model.name if model is not None else None,
        "notes": replay.notes,
        "rows": [asdict(row) for row in rows(replay, model)],
    }
