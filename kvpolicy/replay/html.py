"""A replay as one self-contained page: plots, the map of who wins where, and the table. No script, nothing to load."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import pairwise

from kvpolicy.replay.cost import ModelCost
from kvpolicy.replay.plot import COLOURS, Line, line_chart
from kvpolicy.replay.run import Replay
from kvpolicy.replay.summary import Row, rows
from kvpolicy.replay.table import tokens_text

__all__ = ["render_html"]

_BOUND_COLOUR = "#808080"
_BINS = 60  # points of a plot over time

_STYLE = """
:root { color-scheme: light dark; --text: #1b1b1b; --soft: #666; --line: #ddd; --back: #fff; --best: #e8f3ec; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e8e8e8; --soft: #a0a0a0; --line: #444; --back: #16181b; --best: #1d3327; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); max-width: 1100px;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; } h3 { font-size: 1rem; }
p.note { color: var(--soft); margin: .2rem 0; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(460px, 1fr)); gap: 1rem; }
figure { margin: 0; } figcaption { font-weight: 600; }
svg { width: 100%; height: auto; } svg text { fill: var(--text); font-size: 11px; } svg text.series { font-size: 12px; }
svg .grid { stroke: var(--line); } svg .tick, svg .axis { fill: var(--soft); }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid var(--line); text-align: right; }
th:nth-child(2), td:nth-child(2) { text-align: left; }
tr.bound { color: var(--soft); } tr.best { background: var(--best); }
table.map td, table.map th { text-align: left; } table.map td { border: 2px solid var(--back); color: #fff; }
.scroll { overflow-x: auto; }
"""


def render_html(replays: Sequence[Replay], model: ModelCost | None = None) -> str:
    """The whole page, UTF-8 text."""
    policies = list(dict.fromkeys(run.policy for replay in replays for run in replay.runs))
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(policies)}
    body = ["<h1>Replay of KV-cache policies</h1>"]
    if len(policies) > 1:
        body += ["<h2>Who wins where</h2>", _regime_map(replays, colours)]
    for replay in replays:
        body += _trace(replay, colours, model)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Replay of KV-cache policies</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def _regime_map(replays: Sequence[Replay], colours: dict[str, str]) -> str:
    """One cell a trace and capacity: who hits most over the last half, and the lead over lru (or over the last)."""
    capacities = sorted({capacity for replay in replays for capacity in replay.settings.capacities})
    head = "".join(f"<th>{tokens_text(capacity)}</th>" for capacity in capacities)
    lines = [f'<div class="scroll"><table class="map"><tr><th>trace</th>{head}</tr>']
    for replay in replays:
        cells = []
        for capacity in capacities:
            found = [row for row in rows(replay) if row.capacity_tokens == capacity and not row.is_bound]
            if not found:
                cells.append("<td></td>")
                continue
            best = max(found, key=_late)
            against = next((row for row in found if row.policy in ("lru", "stock_lru")), min(found, key=_late))
            lead = 100 * (_late(best) - _late(against))
            text = (
                escape(best.policy)
                if best is against
                else f"{escape(best.policy)} +{lead:.1f} on {escape(against.policy)}"
            )
            cells.append(f'<td style="background:{colours[best.policy]}">{text}</td>')
        lines.append(f"<tr><th>{escape(_short(replay.trace))}</th>{''.join(cells)}</tr>")
    return "\n".join([*lines, "</table></div>"])


def _trace(replay: Replay, colours: dict[str, str], model: ModelCost | None) -> list[str]:
    table = rows(replay, model)
    parts = [
        f"<h2>{escape(_short(replay.trace))}</h2>",
        f'<p class="note">{replay.requests:,} requests, {tokens_text(sum(replay.input_tokens))} input tokens, pages of '
        f"{replay.page_tokens} tokens, evicted by {escape(replay.settings.granularity)}; digest {replay.digest}</p>",
        *(f'<p class="note">{escape(note)}</p>' for note in replay.notes),
        '<div class="plots">',
        _figure("Hit rate over the last half, by capacity", _over_capacity(replay, table, colours)),
    ]
    for capacity in replay.settings.capacities:
        title = f"Hit rate over time, {tokens_text(capacity)} tokens"
        parts.append(_figure(title, _over_time(replay, capacity, colours, title)))
    return [*parts, "</div>", _table(table, replay)]


def _figure(title: str, plot: str) -> str:
    return f"<figure><figcaption>{escape(title)}</figcaption>\n{plot}</figure>"


def _over_capacity(replay: Replay, table: Sequence[Row], colours: dict[str, str]) -> str:
    capacities = sorted(replay.settings.capacities)
    place = {capacity: float(i) for i, capacity in enumerate(capacities)}
    lines = []
    for name in [*dict.fromkeys(run.policy for run in replay.runs), "clairvoyant"]:
        points = [
            (place[row.capacity_tokens], _late(row))
            for row in table
            if row.policy == name and row.capacity_tokens is not None
        ]
        if points:
            lines.append(Line(name, sorted(points), colours.get(name, _BOUND_COLOUR), name not in colours))
    infinite = next((row for row in table if row.policy == "infinite"), None)
    if infinite is not None:
        lines.append(Line("infinite", [(x, _late(infinite)) for x in place.values()], _BOUND_COLOUR, True))
    ticks = [(x, tokens_text(capacity)) for capacity, x in place.items()]
    return line_chart("Hit rate over the last half, by capacity", "pool, tokens", lines, ticks)


def _over_time(replay: Replay, capacity: int, colours: dict[str, str], title: str) -> str:
    series = [(run.policy, run.hit_tokens) for run in replay.runs if run.capacity_tokens == capacity]
    bound = replay.bound("clairvoyant", capacity)
    if bound is not None:
        series.append((bound.name, bound.hit_tokens))
    edges = [replay.requests * i // _BINS for i in range(_BINS + 1)]
    spans = [(a, b) for a, b in pairwise(edges) if b > a]
    start_ms = min(replay.arrival_ms, default=0)
    lines = []
    for name, hits in series:
        points = []
        for a, b in spans:
            tokens = sum(replay.input_tokens[a:b])
            minute = (replay.arrival_ms[(a + b) // 2] - start_ms) / 60000
            points.append((minute, sum(hits[a:b]) / tokens if tokens else 0.0))
        lines.append(Line(name, points, colours.get(name, _BOUND_COLOUR), name not in colours))
    last = max((x for line in lines for x, _ in line.points), default=1.0) or 1.0
    ticks = [(last * i / 4, f"{last * i / 4:.3g}") for i in range(5)]
    return line_chart(title, "minutes", lines, ticks)


def _table(table: Sequence[Row], replay: Replay) -> str:
    head = ["capacity", "policy", "hit", "last half", "saved quadratic", "FLOPs saved", "evicted", "lost reuse"]
    lines = ['<div class="scroll"><table><tr>' + "".join(f"<th>{cell}</th>" for cell in head) + "</tr>"]
    for row in table:
        peers = [r for r in table if r.capacity_tokens == row.capacity_tokens and not r.is_bound]
        is_best = not row.is_bound and len(peers) > 1 and _late(row) == max(map(_late, peers))
        kind = ' class="bound"' if row.is_bound else ' class="best"' if is_best else ""
        cells = [
            "any" if row.capacity_tokens is None else tokens_text(row.capacity_tokens),
            escape(row.policy),
            *(_percent(x) for x in (row.hit_rate, row.hit_rate_last_half, row.saved_quadratic, row.saved_flops)),
            "" if row.evicted_tokens is None else tokens_text(row.evicted_tokens),
            "" if row.evicted_before_reuse_tokens is None else tokens_text(row.evicted_before_reuse_tokens),
        ]
        lines.append(f"<tr{kind}>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return "\n".join([*lines, "</table></div>"])


def _late(row: Row) -> float:
    return row.hit_rate_last_half or 0.0


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.2f}%"


def _short(path: str) -> str:
    return path.replace("\\", "/").rsplit("/", 1)[-1]
