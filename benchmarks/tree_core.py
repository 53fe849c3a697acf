"""SGLang 0.5.23: its Rust tree core with stock lru, against its Python tree core with our index and `policy: lru`.

    python benchmarks/tree_core.py --leaves 1000,5000,20000,41000,100000 --page 16

This is the choice behind `eviction.core` (`engine` or `kvpolicy`). A request is a match, a lock and an unlock; a miss
also evicts to make room, and inserts. Half of the requests repeat a resident prompt (``--hits``). Four mixes, each in
CPU us a request (median of batches, smallest in brackets):

``free``      the pool has room: nothing is evicted
``evict 1``   the pool is full, and each miss evicts its own leaf: one eviction call a miss
``evict 8``   the pool is full, and one call makes room for eight misses
``evict 64``  the same for sixty-four, as when a large batch is admitted

Below the table: from how many leaves our index is the faster one, interpolated between the two sizes beside it.
"""

from __future__ import annotations

import argparse
import gc
import math
import statistics

import torch
from engine_caches import CLOCK, Tree, has_rust, print_machine

#: Misses that one eviction call makes room for; None: never evict.
MIXES: dict[str, int | None] = {"free": None, "evict 1": 1, "evict 8": 8, "evict 64": 64}
CORES = {"rust": "stock rust", "ours": "lru"}
BATCH = 128  # requests timed together
ROOM = 16  # batches of room that a tree has besides its leaves, for the mix without pressure


def batch_us(tree: Tree, hit_share: float, misses_per_call: int | None) -> float:
    """CPU us a request over one batch."""
    hits = tree.some_prompts(BATCH)
    work = [prompt if tree.rng.random() < hit_share else None for prompt in hits]
    fresh = [tree.new_prompt() for _ in work]
    misses = 0
    start = CLOCK()
    for hit, new in zip(work, fresh, strict=True):
        if hit is not None:
            tree.touch(hit, None)
            continue
        tree.match(new)
        if misses_per_call is not None and misses % misses_per_call == 0:
            tree.evict(misses_per_call)
        misses += 1
        tree.insert(new, tree.slots(), None)
        tree.touch(new, None)
    seconds = CLOCK() - start
    tree.prompts += [new for hit, new in zip(work, fresh, strict=True) if hit is None]
    return seconds / BATCH * 1e6


def measure(core: str, page: int, leaves: int, hit_share: float, batches: int) -> list[tuple[float, float]]:
    tree = Tree(CORES[core], page, leaves + ROOM * BATCH)
    tree.fill(leaves)
    for prompt in tree.some_prompts(min(leaves, 50_000)):
        tree.touch(prompt, None)
    gc.collect()
    row = []
    for misses_per_call in MIXES.values():
        if misses_per_call is not None:
            tree.fill(ROOM * BATCH)  # the pool is full
        count = batches if misses_per_call is not None else min(batches, ROOM - 1)
        figures = [batch_us(tree, hit_share, misses_per_call) for _ in range(count)]
        row.append((statistics.median(figures), min(figures)))
    tree.check()
    return row


def crossover(sizes: list[int], ratios: list[float]) -> str:
    """The leaves at which the ratio ours/Rust falls to 1."""
    if ratios[0] <= 1:
        return f"from {sizes[0]:,} or fewer leaves"
    for i in range(1, len(sizes)):
        if ratios[i] <= 1:
            low, high = math.log(ratios[i - 1]), math.log(ratios[i])
            share = low / (low - high)
            at = math.exp(math.log(sizes[i - 1]) + share * (math.log(sizes[i]) - math.log(sizes[i - 1])))
            return f"from about {at:,.0f} leaves"
    return f"not up to {sizes[-1]:,} leaves"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--leaves", default="1000,5000,20000,41000,100000")
    parser.add_argument("--page", type=int, default=16)
    parser.add_argument("--hits", type=float, default=0.5, help="share of requests that repeat a resident prompt")
    parser.add_argument("--batches", type=int, default=15, help=f"batches of {BATCH} requests a figure")
    args = parser.parse_args()
    if not has_rust():
        raise SystemExit("this SGLang has no Rust tree core: 0.5.23 has")
    torch.set_num_threads(1)
    print_machine()
    sizes = [int(size) for size in args.leaves.split(",")]
    print(f"{'leaves':>9}  {'core':6}" + "".join(f"{name:>22}" for name in MIXES))
    ratios: dict[str, list[float]] = {name: [] for name in MIXES}
    for leaves in sizes:
        rows = {core: measure(core, args.page, leaves, args.hits, args.batches) for core in CORES}
        for core, row in rows.items():
            cells = [f"{us:,.0f} ({least:,.0f})" for us, least in row]
            print(f"{leaves:9,}  {core:6}" + "".join(f"{cell:>22}" for cell in cells), flush=True)
        for name, (rust, _), (ours, _) in zip(MIXES, rows["rust"], rows["ours"], strict=True):
            ratios[name].append(ours / rust)
        cells = [f"{found[-1]:.2f}" for found in ratios.values()]
        print(f"{'':9}  ratio " + "".join(f"{cell:>22}" for cell in cells), flush=True)
    print()
    for name, found in ratios.items():
        print(f"{name:9} ours is faster {crossover(sizes, found)}")


if __name__ == "__main__":
    main()
