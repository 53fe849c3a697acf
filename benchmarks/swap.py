"""How long a live swap holds up the scheduler: its slices, the change-over, and taking the old index apart.

    python benchmarks/swap.py                                     # 100,000 leaves, every pair below
    python benchmarks/swap.py --leaves 41000 --pairs lru:gdsf --repeats 9
    python benchmarks/swap.py --pairs lru:gdsf --units 260        # the same slices in every repeat

A flat tree of evictable leaves under the first policy, churned (see eviction_index.py). Then a swap to the second one
as a server does it, 20 touches through lock and unlock between two slices, which both indexes are fed:

``slice ms``   the longest slice, in brackets the median one, and how many were above 5 ms
``commit ms``  the change-over, the longest of all repeats
``retire ms``  the longest slice taken apart, the end of the old index included
``gc ms``      the longest pause of Python's garbage collector during the swap, which is not in the figures before; and
               the one full collection that is due afterwards, of everything that is not frozen
``slices``     of both kinds; one is done between two steps. Their sizes go by the time that the last one took
``cpu s``      of all of them
``touch us``   lock + unlock of one leaf: before, while both indexes are fed, and after

Times are CPU times of the thread. What lives at the start is frozen, as SGLang and vLLM can do once they are up. With
``--units`` slices have so many units instead of going by time; each counts with the least time that it took in all
repeats, so that other work on the machine, which costs caches, shows less.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from eviction_index import UNIT_TOKENS, Leaf, Pool, cpu_name, loop_ms, policies

from kvpolicy.eviction import CompiledEviction
from kvpolicy.live.off import Retirement
from kvpolicy.live.preparation import Both, Preparation
from kvpolicy.live.slices import FIRST_UNITS, CollectionsPutOff, next_units

PAIRS = ("lru:lru", "lru:rules+tenants", "rules+tenants:gdsf", "gdsf:rules+tenants", "rules+tenants:lru")
TOUCHES = 20
MS, US = 1e3, 1e6


class FlatUnits:
    """The leaves of a pool, all below the root."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    def units(self) -> Iterator[Leaf]:
        yield from list(self.pool.leaves)

    def parent(self, leaf: Leaf) -> None:
        return None

    def size_tokens(self, leaf: Leaf) -> int:
        return UNIT_TOKENS

    def count_units(self, leaf: Leaf) -> int:
        return 1

    def depth_tokens(self, leaf: Leaf, above_tokens: int) -> int:
        return UNIT_TOKENS

    def content_key(self, leaf: Leaf) -> int:
        return leaf.place

    def is_evictable(self, leaf: Leaf) -> bool:
        return True


class Collector:
    """How long Python's garbage collector ran."""

    def __init__(self) -> None:
        self.total_s = self.longest_s = self._start_s = 0.0
        gc.callbacks.append(self)

    def __call__(self, phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            self._start_s = time.thread_time()
            return
        took_s = time.thread_time() - self._start_s
        self.total_s += took_s
        self.longest_s = max(self.longest_s, took_s)


COLLECTOR = Collector()


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    start, collected = time.thread_time(), COLLECTOR.total_s
    result = run()
    return time.thread_time() - start - (COLLECTOR.total_s - collected), result


def touches(pool: Pool) -> float:
    return timed(lambda: [pool.use(pool.rng.choice(pool.leaves)) for _ in range(TOUCHES)])[0] / TOUCHES


def slices(of: Preparation | Retirement, fixed: int | None = None) -> Iterator[float]:
    """Seconds of one after the other, each of as many units as the last one's time says, or of ``fixed``."""
    units, more = FIRST_UNITS, True
    while more:
        if fixed is not None and isinstance(of, Preparation):
            units = fixed
        took, more = timed(lambda: of.step(units))  # noqa: B023
        yield took
        if isinstance(of, Retirement) or not of.was_cut_short:
            units = next_units(units, took)


def swap(
    first: CompiledEviction, second: CompiledEviction, leaves: int, fixed: int | None = None
) -> dict[str, list[float]]:
    pool = Pool(first, leaves)
    gc.collect()
    gc.freeze()
    COLLECTOR.longest_s = 0.0
    times: dict[str, list[float]] = {name: [] for name in ("slice", "commit", "retire", "before", "during", "after")}
    times["before"] += [touches(pool) for _ in range(200)]
    collections = CollectionsPutOff()
    collections.start()
    took, preparation = timed(lambda: Preparation(second, pool.index, FlatUnits(pool)))
    pool.index = Both(pool.index, preparation, lambda: None)  # type: ignore[assignment]
    times["slice"].append(took)
    for took in slices(preparation, fixed):
        collections.go_on()
        times["slice"].append(took)
        times["during"].append(touches(pool))
    assert preparation.is_ready, preparation.fault

    def commit() -> Retirement:
        both: Any = pool.index
        both.preparation.index.succeed(both.before)
        pool.index = both.preparation.index
        return Retirement(both.before, keeps_handles=False)

    took, retirement = timed(commit)
    times["commit"].append(took)
    pool.metadata = pool.index.needs_metadata
    del preparation  # it knows the old index
    for took in slices(retirement):
        collections.go_on()
        times["retire"].append(took)
    times["gc"] = [COLLECTOR.longest_s]
    collections.end()
    times["after"] += [touches(pool) for _ in range(200)]
    COLLECTOR.longest_s = 0.0
    gc.collect()
    times["full"] = [COLLECTOR.longest_s]
    gc.unfreeze()
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--leaves", type=int, default=100_000)
    parser.add_argument("--pairs", default=",".join(PAIRS), help="first:second, separated by commas")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--units", type=int, help="of every slice")
    args = parser.parse_args()
    print(f"{cpu_name()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; Python {platform.python_version()}")
    print(f"python {shlex.join(sys.argv)}")
    print(f"1M loop turns: {loop_ms():.0f} ms (about 40 on an idle current core)")
    known = policies()
    header = f"{'swap':<28}{'slice ms':>20}{'commit ms':>11}{'retire ms':>11}{'gc ms':>12}{'slices':>8}{'cpu s':>7}"
    header += "   touch us"
    print(f"\n{args.leaves} leaves, {args.repeats} repeats\n{header}")
    for pair in args.pairs.split(","):
        first, second = pair.split(":")
        runs = [swap(known[first], known[second], args.leaves, args.units) for _ in range(args.repeats)]
        if args.units is None:
            all_slices, of_swaps = [took for run in runs for took in run["slice"]], args.repeats
        else:
            all_slices, of_swaps = [min(same) for same in zip(*(run["slice"] for run in runs), strict=True)], 1
        commit, retire, collected, full = (
            max(took for run in runs for took in run[name]) * MS for name in ("commit", "retire", "gc", "full")
        )
        count = len(runs[0]["slice"]) + len(runs[0]["retire"])
        cost = [
            statistics.median([took for run in runs for took in run[name]]) * US
            for name in ("before", "during", "after")
        ]
        long = sum(took > 0.005 for took in all_slices) / of_swaps
        shown = f"{max(all_slices) * MS:.2f} ({statistics.median(all_slices) * MS:.2f}) {long:.1f}"
        cpu_s = sum(took for run in runs for name in ("slice", "retire") for took in run[name]) / args.repeats
        print(
            f"{pair:<28}{shown:>20}{commit:>11.2f}{retire:>11.2f}{f'{collected:.1f} / {full:.0f}':>12}{count:>8}"
            f"{cpu_s:>7.1f}   " + " / ".join(f"{c:.1f}" for c in cost)
        )


if __name__ == "__main__":
    main()
