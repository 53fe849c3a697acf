"""A replay as text for people."""

from __future__ import annotations

from collections.abc import Sequence

from kvpolicy.replay.cost import ModelCost
from kvpolicy.replay.run import Replay
from kvpolicy.replay.summary import Row, rows

__all__ = ["render_table", "tokens_text"]


def render_table(replay: Replay, model: ModelCost | None = None, times: bool = False) -> str:
    """Heading, notes, and one line a policy and capacity; the best policy of a capacity is marked.

    Without ``times`` the text depends on nothing but the arguments.
    """
    span_s = (max(replay.arrival_ms) - min(replay.arrival_ms)) / 1000 if replay.arrival_ms else 0
    lines = [
        f"{replay.trace}: {replay.requests:,} requests, {tokens_text(sum(replay.input_tokens))} input tokens, "
        f"{span_s / 60:.0f} min ({replay.format}, digest {replay.digest})",
        f"pages of {replay.page_tokens} token{'s' if replay.page_tokens > 1 else ''}, "
        f"evicted by {replay.settings.granularity}; a request locks its path "
        f"{'while it runs' if replay.settings.hold_running else 'while it is inserted'}",
    ]
    if replay.distinct_tokens is not None:
        lines[1] += f"; {tokens_text(replay.distinct_tokens)} distinct tokens"
    lines += [f"note: {note}" for note in replay.notes]
    table = rows(replay, model)
    head = ["capacity", "policy", "hit", "last half", "saved quadratic"]
    if model is not None:
        head.append("FLOPs")
    head += ["evicted", "lost reuse", "idle p50/p90", "gap p50/p90", *(["us/victim"] if times else [])]
    body = [_cells(row, model is not None, times) for row in table]
    best = {
        capacity: max(
            row.hit_rate_last_half or 0.0 for row in table if not row.is_bound and row.capacity_tokens == capacity
        )
        for capacity in replay.settings.capacities
        if replay.runs
    }
    for row, cells in zip(table, body, strict=True):
        is_best = not row.is_bound and row.hit_rate_last_half == best.get(row.capacity_tokens or 0)
        cells[1] = ("* " if is_best and len(replay.runs) > len(best) else "  ") + cells[1]
    lines += ["", *_align(head, body)]
    if any(row.fallbacks for row in table):
        lines.append(
            f"warning: the policy failed {sum(r.fallbacks for r in table)} times; least recently used stood in"
        )
    truncated = [row for row in table if row.truncated_tokens]
    if truncated:
        capacities = sorted({row.capacity_tokens for row in truncated if row.capacity_tokens is not None})
        pools = ", ".join(map(tokens_text, capacities))
        lines.append(f"note: some requests did not fit into {pools}: the prefix that fits was kept")
    return "\n".join(lines) + "\n"


def tokens_text(tokens: int) -> str:
    """A count of tokens as people write it: 512, 20.5k, 2M, 76.9M."""
    for scale, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if tokens >= scale:
            return f"{tokens / scale:.4g}{unit}"
    return str(tokens)


def _cells(row: Row, with_flops: bool, times: bool) -> list[str]:
    cells = [
        "any" if row.capacity_tokens is None else tokens_text(row.capacity_tokens),
        row.policy,
        _percent(row.hit_rate),
        _percent(row.hit_rate_last_half),
        _percent(row.saved_quadratic),
    ]
    if with_flops:
        cells.append(_percent(row.saved_flops))
    if row.is_bound:
        return [*cells, *[""] * (5 if times else 4)]
    cells += [
        tokens_text(row.evicted_tokens or 0),
        "" if row.evicted_before_reuse_tokens is None else tokens_text(row.evicted_before_reuse_tokens),
        _quantiles(row.idle_at_eviction_s),
        _quantiles(row.reuse_gap_s),
    ]
    if times:
        cells.append("" if row.evict_us_per_victim is None else f"{row.evict_us_per_victim:.1f}")
    return cells


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.2f}%"


def _quantiles(pair: tuple[float | None, float | None] | None) -> str:
    if pair is None or pair[0] is None or pair[1] is None:
        return ""
    return f"{_seconds(pair[0])}/{_seconds(pair[1])}"


def _seconds(value: float) -> str:
    return f"{value:.0f}s" if value >= 10 else f"{value:.1f}s"


def _align(head: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(cells[i]) for cells in (head, *body)) for i in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        parts = [
            cell.ljust(w) if i == 1 else cell.rjust(w) for i, (cell, w) in enumerate(zip(cells, widths, strict=True))
        ]
        return "  ".join(parts).rstrip()

    return [line([head[0], f"  {head[1]}", *head[2:]]), *(line(cells) for cells in body)]
