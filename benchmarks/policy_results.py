"""Policy x trace x capacity under one fixed protocol: writes policies/RESULTS.md.

    python benchmarks/policy_results.py               # about four minutes on one core
    python benchmarks/policy_results.py --stdout      # print the page instead of writing it

LRU and the greedy clairvoyant are computed on the same rows in the same run. The page depends on nothing but the
traces and the code: no times, no machine.
"""

from __future__ import annotations

import argparse
import math
import sys
from array import array
from bisect import bisect_right
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvpolicy.eviction.algorithms.registry import ALGORITHMS
from kvpolicy.eviction.algorithms.spec import Algorithm
from kvpolicy.eviction.base import Handle, KeyChange, Order, PolicyClock
from kvpolicy.eviction.metadata_index import MetadataIndex
from kvpolicy.eviction.sample import SampledOrder
from kvpolicy.language.shipped_policies import shipped
from kvpolicy.replay.cost import saved
from kvpolicy.replay.interleave import Interleaving
from kvpolicy.replay.policies import from_result, load
from kvpolicy.replay.recommend import FIT_SHARE
from kvpolicy.replay.run import Settings, replay
from kvpolicy.replay.simulator import Eviction
from kvpolicy.replay.table import tokens_text
from kvpolicy.replay.trace import Trace

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "policies" / "RESULTS.md"
CLAIRVOYANT = "clairvoyant"
NODES = "clairvoyant by node"


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

Built-in orders have their default parameters. `reuse_rate` and `adaptive` read no file and learn from the requests as
they come; their few constants are round numbers chosen by the hit rates over the first 60 % of the traces (those of the
last 40 % were printed beside them, and not used).
"""

AIMS = """\
Share of the distance from `lru` to the clairvoyant that is closed over the last 40 % of the requests, in brackets.
*clairvoyant by node* knows the future too, but evicts whole nodes, farthest first, and caches every prompt, as the
engine does. It is no bound (it ignores sizes), but it shows what whole nodes cost.
"""

NOT_REACHED = """\
Why agentic and synthetic fall short. Whole nodes cost most: the clairvoyant by node itself closes little more than what
the aims ask for. On agentic a pool of 1M tokens holds seven prompts; each request brings a prompt of 147k tokens on
average, which has to fit before anything is known of it, and the average victim, evicted whole, is 121k tokens, so that
about 150k tokens of the pool lie free. What is left to guess is how soon a session comes back, after 8 to 40 s: its own
past and the length of its prompt explain a sixth of the variance of the logarithm (waits below 60 s); the length of its
output, which a cache is told too late and these traces do not cache, would explain as much again. On synthetic,
documents are asked about at random times; who asks a second time is likely to ask again (85 %), which ghosts see, but
not when.
"""

FLOORS = """\
Hit rate over the last 40 %, mean of all traces and capacities; and where a policy is farthest below `lru`, in points.
"""


def policies() -> list[str]:
    """The built-in orders with their default parameters, then the shipped files (stock_lru is lru)."""
    return [*ALGORITHMS, *(name for name in shipped() if name not in ALGORITHMS and name != "stock_lru")]


class FarthestNode(Algorithm):
    """The node whose end is used farthest from now goes first: what a whole node costs is beyond it, as it is beyond
    every policy that evicts nodes whole."""

    needs_metadata = True
    change = KeyChange.DYNAMIC

    def __init__(self, clock: PolicyClock, uses: Mapping[Hashable, Sequence[int]]) -> None:
        super().__init__(clock)
        self._uses = uses  # page -> the requests that ask for it, ascending from 1

    def make_order(self) -> Order[Handle]:
        return SampledOrder(self.rank, self.clock)

    def rank(self, handle: Any) -> Any:
        uses = self._uses[handle.key[-1]]
        at = bisect_right(uses, self.clock.request_seq)
        return (-uses[at] if at < len(uses) else -math.inf, handle.kvp.order)


def open_workload(workload: Workload) -> Trace:
    return Trace(str(ROOT / "traces" / workload.file), interleaving=Interleaving(max_sessions=workload.sessions))


def farthest_node(workload: Workload) -> Eviction:
    """Reads the trace for what it will ask."""
    uses: dict[Hashable, array[int]] = {}
    for number, request in enumerate(open_workload(workload).requests(), start=1):
        for page in request.blocks:
            uses.setdefault(page, array("i")).append(number)
    return Eviction(NODES, lambda pool_tokens: MetadataIndex(FarthestNode(PolicyClock(), uses), pool_tokens))


def measure(workload: Workload, names: Sequence[str], capacities: Sequence[int], *, with_nodes: bool = True) -> Result:
    """Replay one workload under the protocol; ``with_nodes``: and the clairvoyant that evicts whole nodes."""
    evictions = [from_result(load(name), name) for name in names]
    if with_nodes:
        evictions.append(farthest_node(workload))
    done = replay(open_workload(workload), evictions, Settings(tuple(capacities)))
    inputs = done.input_tokens
    cut = int(len(inputs) * FIT_SHARE)
    heading = (
        f"{done.requests:,} requests, {tokens_text(sum(inputs))} input tokens, "
        f"{tokens_text(done.distinct_tokens or 0)} of them distinct; pages of {done.page_tokens} tokens; "
        f"digest {done.digest}"
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
    lines = [INTRODUCTION, "## The aims", "", AIMS, *_aims(results), "", NOT_REACHED]
    lines += ["## Over all traces and capacities", "", FLOORS, *_floors(results, names), ""]
    for result in results:
        lines += [f"## {result.workload.name}", "", f"`traces/{result.workload.file}`: {result.heading}.", ""]
        lines += [f"- {note}" for note in result.notes]
        lines += ["", "Hit rate, %: over the last 40 % of the requests (over all).", "", *_table(result, names, _hit)]
        lines += ["", "Prefill saved, % of query-key pairs: last 40 % (all).", "", *_table(result, names, _pairs), ""]
    return "\n".join(lines).rstrip() + "\n"


def _aims(results: Sequence[Result]) -> list[str]:
    """Each aim: the clairvoyants, adaptive, and the best policy."""
    lines = [
        f"| trace, capacity | lru | {CLAIRVOYANT} | {NODES} | adaptive | best policy | aim |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in results:
        capacity, share = result.workload.aim
        names = [name for at, name in result.figures if at == capacity and name not in (CLAIRVOYANT, NODES)]
        best = max(names, key=lambda name: result.figures[capacity, name].last)
        verdict = "reached" if result.gap_closed(capacity, best) >= share else "**not reached**"

        def shown(name: str, result: Result = result, capacity: int = capacity) -> str:
            rate, closed = result.figures[capacity, name].last, result.gap_closed(capacity, name)
            return f"{100 * rate:.2f} ({100 * closed:.0f} %)"

        lru = 100 * result.figures[capacity, "lru"].last
        lines.append(
            f"| {result.workload.name}, {tokens_text(capacity)} | {lru:.2f} | {shown(CLAIRVOYANT)} | {shown(NODES)} "
            f"| {shown('adaptive')} | {best}: {shown(best)} | {100 * share:.0f} %: {verdict} |"
        )
    return lines


def _floors(results: Sequence[Result], names: Sequence[str]) -> list[str]:
    """Never far below lru, and the mean: all traces and capacities."""
    lines = ["| policy | mean hit rate | worst against lru | where |", "|---|---|---|---|"]
    places = [(result, capacity) for result in results for capacity in result.workload.capacities]
    table = []
    for name in names:
        rates = [result.figures[capacity, name].last for result, capacity in places]
        against = [
            result.figures[capacity, name].last - result.figures[capacity, "lru"].last for result, capacity in places
        ]
        worst = min(range(len(places)), key=lambda at: against[at])
        where = f"{places[worst][0].workload.name}, {tokens_text(places[worst][1])}"
        table.append((sum(rates) / len(rates), name, against[worst], where))
    for mean, name, worst_gain, where in sorted(table, key=lambda row: (-row[0], row[1])):
        lines.append(f"| {name} | {100 * mean:.2f} | {100 * worst_gain:+.2f} | {where} |")
    return lines


def _table(result: Result, names: Sequence[str], cell: Callable[[Figures], tuple[float, float]]) -> list[str]:
    """One row a policy, one column a capacity; the best policy of a column is bold."""
    capacities = result.workload.capacities
    best = {at: max(cell(result.figures[at, name])[0] for name in names) for at in capacities}
    lines = [f"| policy | {' | '.join(map(tokens_text, capacities))} |", "|---|" + "---|" * len(capacities)]
    for name in [*names, NODES, CLAIRVOYANT]:
        cells = []
        for capacity in capacities:
            last, whole = cell(result.figures[capacity, name])
            mark = "**" if name in names and last == best[capacity] else ""
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
