"""What a benchmark found, for people and as JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from kvpolicy.bench.base import Traffic, Window
from kvpolicy.bench.run import Outcome
from kvpolicy.bench.statistics import LEVEL, Ratio, compare

__all__ = ["FIGURES", "Report", "Setting", "render", "report_of", "verdict"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One column of the engine's result that is compared."""

    words: str
    of: Callable[[Window], float]
    higher_is_better: bool = False


FIGURES: dict[str, Figure] = {
    "throughput": Figure("output tokens/s", lambda w: w.output_tokens_per_s, higher_is_better=True),
    "ttft": Figure("TTFT ms, mean", lambda w: w.ttft_ms),
    "ttft_p99": Figure("TTFT ms, p99", lambda w: w.ttft_p99_ms),
    "tpot": Figure("TPOT ms, mean", lambda w: w.tpot_ms),
}


@dataclass(frozen=True, slots=True)
class Setting:
    """What was compared, and how."""

    names: tuple[str, str]  # what A and B are
    engine: str
    model: str
    traffic: Traffic
    change: str  # "hot", "restart" or "url"
    seed: int
    judged_by: str  # of FIGURES


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that is said of one run; ``ratios`` by the names of FIGURES, None where nothing can be said."""

    a: Outcome
    b: Outcome
    setting: Setting
    ratios: dict[str, Ratio | None]

    @property
    def verdict(self) -> str:
        return verdict(self.ratios[self.setting.judged_by], FIGURES[self.setting.judged_by].words)

    def to_json(self) -> dict[str, Any]:
        setting = self.setting
        judged = self.ratios[setting.judged_by]
        return {
            "engine": setting.engine,
            "model": setting.model,
            "change": setting.change,
            "seed": setting.seed,
            "traffic": asdict(setting.traffic),
            "sides": {
                label: {
                    "name": name,
                    "kv_tokens": side.kv_tokens,
                    "hit_rate": _hit_rate(side.windows),
                    **{key: _mean(side.windows, figure) for key, figure in FIGURES.items()},
                    "windows": [asdict(window) for window in side.windows],
                }
                for label, name, side in zip("AB", setting.names, (self.a, self.b), strict=True)
            },
            "level": LEVEL,
            "ratios": {key: ratio and {**asdict(ratio), "winner": ratio.winner} for key, ratio in self.ratios.items()},
            "judged_by": setting.judged_by,
            "winner": judged and judged.winner,
            "verdict": self.verdict,
        }


def report_of(a: Outcome, b: Outcome, setting: Setting) -> Report:
    """Compare the windows of both sides, round by round."""
    ratios = {
        key: compare(
            [figure.of(window) for window in a.windows],
            [figure.of(window) for window in b.windows],
            higher_is_better=figure.higher_is_better,
        )
        for key, figure in FIGURES.items()
    }
    return Report(a, b, setting, ratios)


def verdict(ratio: Ratio | None, words: str) -> str:
    """One sentence on the figure that was chosen before the run."""
    if ratio is None:
        return f"No verdict: {words} was not measured on both sides in at least two rounds."
    if ratio.winner is None:
        shows = (
            f"One of {ratio.seen_from:.2f}x would have shown" if ratio.seen_from < 2 else "These show next to nothing"
        )
        return (
            f"No difference larger than noise: B {_interval(ratio)} by {words}. "
            f"{shows}; more rounds, or longer windows, show smaller ones."
        )
    if ratio.winner == "A":
        ratio = Ratio(1 / ratio.value, 1 / ratio.high, 1 / ratio.low, ratio.rounds)
        return f"A is faster: {_interval(ratio)} by {words}."
    return f"B is faster: {_interval(ratio)} by {words}."


_CHANGES = {
    "hot": "one server, its policy changed before each window",
    "restart": "a server started for each window",
    "url": "two servers",
}


def render(report: Report) -> str:
    """The table and the verdict, with a final newline."""
    setting, rounds = report.setting, len(report.a.windows)
    traffic = setting.traffic
    tokens = f"{traffic.input_tokens:,} own"
    if traffic.shared_tokens:
        groups = f" in {traffic.groups} groups" if traffic.groups > 1 else ""
        tokens = f"{traffic.shared_tokens:,} shared{groups} + {tokens}"
    pace = "all at once" if traffic.rate is None else f"{traffic.rate:g} a second"
    if traffic.concurrency is not None:
        pace += f", {traffic.concurrency} at a time"
    what = f"{traffic.requests} requests of {tokens} + {traffic.output_tokens:,} output tokens, {pace}"
    if traffic.extra:
        what = f"requests by {' '.join(traffic.extra)}"
    lines = [
        f"A  {setting.names[0]}",
        f"B  {setting.names[1]}",
        f"{setting.engine}, {setting.model}: {_CHANGES[setting.change]}",
        f"{rounds} rounds of {what} (seed {setting.seed})",
        "",
        f"{'':<17} {'A':>12} {'B':>12}   B is better by",
    ]
    for key, figure in FIGURES.items():
        ratio = report.ratios[key]
        values = [_number(_mean(side.windows, figure)) for side in (report.a, report.b)]
        lines.append(f"{figure.words:<17} {values[0]:>12} {values[1]:>12}   {_interval(ratio) if ratio else '-'}")
    rates = [_hit_rate(side.windows) for side in (report.a, report.b)]
    shown = ["-" if rate is None else f"{rate:.1%}" for rate in rates]
    lines.append(f"{'prefix hit rate':<17} {shown[0]:>12} {shown[1]:>12}")
    pools = ["-" if side.kv_tokens is None else f"{side.kv_tokens:,}" for side in (report.a, report.b)]
    lines.append(f"{'KV tokens':<17} {pools[0]:>12} {pools[1]:>12}")
    lines += ["", report.verdict]
    return "\n".join(lines) + "\n"


def _interval(ratio: Ratio) -> str:
    low, high = (f"{end:.2f}" if end < 100 else ">100" for end in (ratio.low, ratio.high))
    return f"{ratio.value:.2f}x [{low}, {high}]"


def _mean(windows: Sequence[Window], figure: Figure) -> float | None:
    """The geometric mean, so that the sides' means have the ratio that is shown; None where a value is no figure."""
    values = [figure.of(window) for window in windows]
    if not values or any(not (value > 0 and math.isfinite(value)) for value in values):
        return None
    return math.exp(fmean(map(math.log, values)))


def _hit_rate(windows: Sequence[Window]) -> float | None:
    rates = [window.hit_rate for window in windows if window.hit_rate is not None]
    return fmean(rates) if rates else None


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}" if value >= 100 else f"{value:.2f}"
