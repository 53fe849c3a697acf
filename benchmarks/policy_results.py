"""Policy x trace x capacity under one fixed protocol: writes policies/RESULTS.md.

    python benchmarks/policy_results.py               # about two minutes on one core
    python benchmarks/policy_results.py --stdout      # print the page instead of writing it

LRU and the greedy clairvoyant are computed on the same rows in the same run. The page depends on nothing but the
traces and the code: no times, no machine.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kvpolicy.eviction.algorithms.registry import ALGORITHMS
from kvpolicy.language.library import shipped
from kvpolicy.replay.cost import saved
from kvpolicy.replay.interleave import Interleaving
from kvpolicy.replay.policies import from_result, load
from kvpolicy.replay.recommend import FIT_SHARE
from kvpolicy.replay.run import Settings, replay
from kvpolicy.replay.table import tokens_text
from kvpolicy.replay.trace import Trace

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "policies" / "RESULTS.md"
CLAIRVOYANT = "clairvoyant"


@dataclass(frozen=True, slots=True)
class Workload:
    """One trace under the protocol; ``aim`` is (capacity, share of LRU's distance to the clairvoyant to close)."""

    name: str
    file: str
    capacities: tuple[int, ...]  # tokens
    aim: tuple[int, float]
    sessions: int | None = None


@dataclass(slots=True)
class Figures:
    """One policy at one capacity, over the last 40 % of the requests and over all; shares, 0 to 1."""

    last: float
    all: float
    pairs_last: float
    pairs_all: float


@dataclass(slots=True)
class Result:
    """All figures of one workload, by capacity and policy; the clairvoyant is among the policies."""

    workload: Workload
    heading: str
    notes: list[str]
    figures: dict[tuple[int, str], Figures] = field(default_factory=dict)

    def gap_closed(self, capacity: int, policy: str) -> float:
        """Share of the distance from LRU to the clairvoyant over the last 40 %; negative below LRU."""
        lru, most = self.figures[capacity, "lru"].last, self.figures[capacity, CLAIRVOYANT].last
        return (self.figures[capacity, policy].last - lru) / (most - lru)


WORKLOADS = (
    Workload(
        "agentic", "agentic_sessions_400.jsonl.gz", (500_000, 1_000_000, 2_000_000, 4_000_000), (1_000_000, 0.45), 200
    ),
    Workload(
        "conversation",
        "mooncake_conversation_first_half.jsonl.gz",
        (1_000_000, 2_000_000, 4_000_000),
        (2_000_000, 0.15),
    ),
    Workload("synthetic", "mooncake_synthetic.jsonl.gz", (1_000_000, 2_000_000, 4_000_000), (2_000_000, 0.20)),
)

INTRODUCTION = """\
# Results

Which policy finds how much, on three traces. Written by `python benchmarks/policy_results.py`; a test holds the
figures true. Real traffic differs: `kvpolicy replay` and `kvpolicy recommend` answer for yours
([docs/replay.md](../docs/replay.md)).

One protocol for all: agentic are the first 200 sessions of the file, their starts exponential with mean 30 s, seed 7,
rows later than 3,600 s after the last start dropped; the other two files whole. Units are tree nodes, as in SGLang
(`node`). A request locks its path only while it is inserted; nothing is decoded; a row longer than the pool keeps the
prefix that fits. `lru` and the clairvoyant (single pages, farthest next use first, with bypass: nobody can hit more)
run on the same rows in the same run.

No parameter was fitted to the last 40 % of any trace. Built-in orders have their default parameters.
"""

NOT_REACHED = """\
"""


def policies() -> list[str]:
    """The built-in orders with their default parameters, then the shipped files (stock_lru is lru)."""
    return [*ALGORITHMS, *(name for name in shipped() if name not in ALGORITHMS and name != "stock_lru")]


def measure(workload: Workload, names: Sequence[str], capacities: Sequence[int]) -> Result:
    """Replay one workload under the protocol."""
    trace = Trace(str(ROOT / "traces" / workload.file), interleaving=Interleaving(max_sessions=workload.sessions))
    done = replay(trace, [from_result(load(name), name) for name in names], Settings(tuple(capacities)))
    inputs = done.input_tokens
    cut = int(len(inputs) * FIT_SHARE)
    heading = (
        f"{done.requests:,} requests, {tokens_text(sum(inputs))} input tokens, "
        f"{tokens_text(done.distinct_tokens or 0)} of them distinct; pages of {done.page_tokens} tokens; digest {done.digest}"
    )
    result = Result(workload, heading, done.notes)
    columns = [(run.capacity_tokens, run.policy, run.hit_tokens) for run in done.runs]
    columns += [(bound.capacity_tokens or 0, bound.name, bound.hit_tokens) for bound in done.bounds]
    for capacity, name, hits in columns:
        last, whole = saved(inputs[cut:], hits[cut:]), saved(inputs, hits)
        result.figures[capacity, name] = Figures(last.linear, whole.linear, last.quadratic, whole.quadratic)
    return result


def render(results: Sequence[Result], names: Sequence[str]) -> str:
    """The page."""
    lines = [INTRODUCTION, "## The aims", "", *_aims(results), "", NOT_REACHED]
    for result in results:
        lines += [f"## {result.workload.name}", "", f"`traces/{result.workload.file}`: {result.heading}.", ""]
        lines += [f"- {note}" for note in result.notes]
        lines += ["", "Hit rate, %: over the last 40 % of the requests (over all).", "", *_table(result, names, _hit)]
        lines += ["", "Prefill saved, % of query-key pairs: last 40 % (all).", "", *_table(result, names, _pairs), ""]
    return "\n".join(lines).rstrip() + "\n"


def _aims(results: Sequence[Result]) -> list[str]:
    lines = [
        "| trace, capacity | lru | clairvoyant | best policy | hit rate | gap closed | aim |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in results:
        capacity, share = result.workload.aim
        names = [name for at, name in result.figures if at == capacity and name not in (CLAIRVOYANT, "lru")]
        best = max(names, key=lambda name: result.figures[capacity, name].last)
        lru, found, most = (result.figures[capacity, name].last for name in ("lru", best, CLAIRVOYANT))
        closed = result.gap_closed(capacity, best)
        verdict = "reached" if closed >= share else "**not reached**"
        lines.append(
            f"| {result.workload.name}, {tokens_text(capacity)} | {100 * lru:.2f} | {100 * most:.2f} | {best} "
            f"| {100 * found:.2f} | {100 * closed:.0f} % | {100 * share:.0f} %: {verdict} |"
        )
    return lines


def _table(result: Result, names: Sequence[str], cell: Callable[[Figures], tuple[float, float]]) -> list[str]:
    """One row a policy, one column a capacity; the best policy of a column is bold."""
    capacities = result.workload.capacities
    best = {at: max(cell(result.figures[at, name])[0] for name in names) for at in capacities}
    lines = [f"| policy | {' | '.join(map(tokens_text, capacities))} |", "|---|" + "---|" * len(capacities)]
    for name in [*names, CLAIRVOYANT]:
        cells = []
        for capacity in capacities:
            last, whole = cell(result.figures[capacity, name])
            mark = "**" if name != CLAIRVOYANT and last == best[capacity] else ""
            cells.append(f"{mark}{100 * last:.2f}{mark} ({100 * whole:.2f})")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _hit(figures: Figures) -> tuple[float, float]:
    return figures.last, figures.all


def _pairs(figures: Figures) -> tuple[float, float]:
    return figures.pairs_last, figures.pairs_all


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stdout", action="store_true", help="print the page instead of writing policies/RESULTS.md")
    args = parser.parse_args()
    names = policies()
    results = []
    for workload in WORKLOADS:
        print(f"{workload.name} ...", file=sys.stderr, flush=True)
        results.append(measure(workload, names, workload.capacities))
    page = render(results, names)
    if args.stdout:
        sys.stdout.write(page)
    else:
        PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
