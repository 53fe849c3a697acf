"""Cost of the eviction index alone: a touch, one victim, and the burst in which every leaf was touched before one
eviction.

    python benchmarks/eviction_index.py                       # all sizes and policies, some minutes
    python benchmarks/eviction_index.py --leaves 41000 --policies lru,gdsf --repeats 9

A flat tree of evictable leaves, churned first: as many random touches as leaves, then a tenth of them evicted and
replaced. Columns, each the median (and in brackets the smallest) of ``--repeats`` rounds:

``cycle us``   lock + unlock: ``discard`` and ``add`` of one leaf, with its new access time, per leaf
``touch us``   ``index.touch``, where the policy keeps metadata
``victim us``  one walk that evicts one leaf (begin, pop, evicted, discard, remove, end), after 20 touches as above
``burst ms``   one such walk after every leaf was touched through lock and unlock
``match ms``   the same after every leaf was touched in place, without a lock

Times are CPU times of the thread, so that other load on the machine counts less; caches are still shared with it.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvpolicy.eviction import CompiledEviction, EvictionIndex, RequestInfo, compile_eviction
from kvpolicy.language.models import Eviction, Rule, Tenants

SIZES = [1_000, 5_000, 20_000, 41_000, 100_000, 1_000_000]
UNIT_TOKENS = 16
WEIGHTS = (1, 2, 4, 8, 16)


def policies() -> dict[str, CompiledEviction]:
    rules = [
        {"name": f"r{i}", "match": f"hits >= {9 - i}", "retain": {"weight": weight, "budget": "10%"}}
        for i, weight in enumerate(WEIGHTS)
    ]
    compiled_rules = tuple(Rule.model_validate(rule) for rule in rules)
    tenants = Tenants.model_validate({"floor": "1%", "cap": "5%", "max_floors": 8})
    return {
        "lru": compile_eviction(Eviction(policy="lru")),
        "gdsf": compile_eviction(Eviction(policy="gdsf")),
        "stable": compile_eviction(Eviction(score="log1p(hits) + 0.001 * depth_tokens")),
        "decay": compile_eviction(Eviction(score="log1p(hits) - 0.001 * idle_requests")),
        "dynamic": compile_eviction(Eviction(score="log1p(hits) / (1 + idle_requests)")),
        "reuse_rate": compile_eviction(Eviction(policy="reuse_rate")),
        "adaptive": compile_eviction(Eviction(policy="adaptive")),
        "rules+tenants": compile_eviction(Eviction(policy="lru", rules=compiled_rules, tenants=tenants)),
    }


class Leaf:
    """The engine's object for one leaf, below the root."""

    __slots__ = ("creation_time", "hit_count", "kvp", "last_access_time", "place", "priority", "request")

    def __init__(self, now: float, request: RequestInfo, place: int) -> None:
        self.place = place  # in the pool's list
        self.last_access_time = self.creation_time = now
        self.hit_count = 1
        self.priority = 0
        self.kvp: Any = None
        self.request = request


class Pool:
    """``leaves`` evictable leaves of ``UNIT_TOKENS`` tokens in an index, all of them evictable all the time."""

    def __init__(self, compiled: CompiledEviction, leaves: int) -> None:
        self.index: EvictionIndex = compiled.make_index(leaves * UNIT_TOKENS)
        self.metadata = compiled.needs_metadata
        self.rng = random.Random(1)
        self.requests = [RequestInfo(cache_salt=f"tenant{i}") for i in range(100)]
        self.now = 0.0
        self.leaves: list[Leaf] = []
        for _ in range(leaves):
            self.insert()
        for _ in range(leaves):
            self.use(self.rng.choice(self.leaves))
        for _ in range(leaves // 10):
            self.replace_victim()

    def insert(self) -> None:
        self.now += 1.0
        self.index.clock.arrive(int(self.now))
        leaf = Leaf(self.now, self.rng.choice(self.requests), len(self.leaves))
        self.leaves.append(leaf)
        depth_tokens = UNIT_TOKENS * self.rng.randrange(1, 100)
        self.index.insert(leaf, None, leaf.request, UNIT_TOKENS, depth_tokens, content_key=int(self.now))
        self.index.add(leaf)

    def use(self, leaf: Leaf) -> None:
        """A request matches the leaf, runs on it and finishes."""
        index = self.index
        index.clock.arrive()
        index.discard(leaf)
        self.now += 1.0
        leaf.last_access_time = self.now
        if self.metadata:
            index.touch(leaf, leaf.request)
        index.add(leaf)

    def evict_one(self) -> Leaf:
        """One walk that frees one leaf."""
        index = self.index
        index.begin()
        leaf: Any = index.pop()
        index.evicted(leaf, UNIT_TOKENS)
        index.discard(leaf)
        if self.metadata:
            index.remove(leaf)
        index.end()
        return leaf

    def replace_victim(self) -> float:
        """Evict one leaf and insert another; the eviction's seconds."""
        start = CLOCK()
        leaf = self.evict_one()
        seconds = CLOCK() - start
        last = self.leaves.pop()
        if last is not leaf:
            self.leaves[leaf.place] = last
            last.place = leaf.place
        self.insert()
        return seconds

    def shuffled(self) -> list[Leaf]:
        leaves = list(self.leaves)
        self.rng.shuffle(leaves)
        return leaves

    # -- what is measured --

    def cycle_us(self) -> float:
        """Lock and unlock, with a new access time in between."""
        leaves = self.shuffled()[:20_000]
        index, now = self.index, self.now
        discard, add = index.discard, index.add
        start = CLOCK()
        for leaf in leaves:
            discard(leaf)
            now += 1.0
            leaf.last_access_time = now
            add(leaf)
        seconds = CLOCK() - start
        self.now = now
        return seconds / len(leaves) * 1e6

    def touch_us(self) -> float:
        """``index.touch`` alone, on evictable leaves."""
        if not self.metadata:
            return float("nan")
        leaves = self.shuffled()[:20_000]
        touch = self.index.touch
        self.index.clock.arrive()
        start = CLOCK()
        for leaf in leaves:
            touch(leaf, leaf.request)
        return (CLOCK() - start) / len(leaves) * 1e6

    def victim_us(self) -> float:
        """The median over 200 victims, with 20 requests before each."""
        seconds = []
        for _ in range(200):
            for _ in range(20):
                self.use(self.rng.choice(self.leaves))
            seconds.append(self.replace_victim())
        return statistics.median(seconds) * 1e6

    def burst_ms(self) -> float:
        for leaf in self.shuffled():
            self.use(leaf)
        return self.replace_victim() * 1e3

    def match_ms(self) -> float:
        index = self.index
        for leaf in self.shuffled():
            self.now += 1.0
            leaf.last_access_time = self.now
            if self.metadata:
                index.touch(leaf, leaf.request)
            else:
                index.touched(leaf)
        return self.replace_victim() * 1e3


#: Seconds of CPU that this thread used.
CLOCK: Callable[[], float] = time.thread_time

COLUMNS = {
    "cycle us": Pool.cycle_us,
    "touch us": Pool.touch_us,
    "victim us": Pool.victim_us,
    "burst ms": Pool.burst_ms,
    "match ms": Pool.match_ms,
}


def main() -> None:
    known = policies()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--leaves", default=",".join(map(str, SIZES)), help="sizes, separated by commas")
    parser.add_argument("--policies", default=",".join(known), help=f"of {', '.join(known)}")
    parser.add_argument("--repeats", type=int, default=5, help="rounds a figure (default 5)")
    args = parser.parse_args()
    print(f"{cpu_name()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; Python {platform.python_version()}")
    print(f"python {shlex.join(sys.argv)}")
    print(f"1M loop turns: {loop_ms():.0f} ms (about 40 on an idle current core)\n")
    print(f"{'policy':14} {'leaves':>9}" + "".join(f"{name:>18}" for name in COLUMNS))
    for name in args.policies.split(","):
        for leaves in map(int, args.leaves.split(",")):
            pool = Pool(known[name], leaves)
            cells = []
            for measure in COLUMNS.values():
                figures = [measure(pool) for _ in range(args.repeats)]
                cells.append(f"{statistics.median(figures):.2f} [{min(figures):.2f}]")
            assert pool.index.counters.fallbacks == 0, pool.index.counters.last_fault
            print(f"{name:14} {leaves:9,}" + "".join(f"{cell:>18}" for cell in cells), flush=True)


def loop_ms() -> float:
    """How fast the interpreter runs here and now."""
    start, total = CLOCK(), 0
    for i in range(1_000_000):
        total += i
    return (CLOCK() - start) * 1e3


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
