"""Cost of the engine's own calls on its prefix cache, with a policy attached, beside stock: evict, touch, insert.

    python benchmarks/evict_call.py --leaves 1000,5000,20000 --pages 16,1
    python benchmarks/evict_call.py --sides stock,lru --leaves 100000 --pages 16

Sides: ``stock`` (the engine's lru on its Python tree), ``stock rust`` where this SGLang has that core, and our
policies on the Python tree. All use the same allocator and see the same operations. Each tree is filled, churned (as
many random touches as leaves, 100,000 at most, then a tenth evicted and replaced), and measured with its pool full:

``evict 1``, ``evict 100``   one ``cache.evict()`` that takes that many leaves, slots returned to the allocator, in us
``touch``                    match, lock, unlock of one resident prompt, in us; ours includes counting the hit
``insert``                   one new leaf, slots already allocated, in us

Each figure is the median of CPU time of the thread (smallest), then its ratio to stock's median: 0.10 is a tenth.
"""

from __future__ import annotations

import argparse
import gc
import statistics

import torch
from engine_caches import CLOCK, POLICIES, Tree, has_rust, print_machine

BATCH = 50  # touches or inserts timed together

Figure = tuple[float, float]  # median and smallest, us


def _summary(seconds: list[float], operations: int) -> Figure:
    return statistics.median(seconds) / operations * 1e6, min(seconds) / operations * 1e6


def evict_us(tree: Tree, leaves: int, budget_s: float) -> Figure:
    """Median over calls of ``leaves`` leaves, with some touches before each; the pool is filled again after it."""
    figures: list[float] = []
    spent_s = 0.0
    while len(figures) < 5 or (spent_s < budget_s and len(figures) < 150):
        for prompt in tree.some_prompts(20):
            tree.touch(prompt, tree.request())
        start = CLOCK()
        freed = tree.evict(leaves)
        seconds = CLOCK() - start
        assert freed >= leaves
        figures.append(seconds)
        spent_s += seconds
        tree.fill(leaves)
    return _summary(figures, 1)


def touch_us(tree: Tree, budget_s: float) -> Figure:
    figures: list[float] = []
    while len(figures) < 5 or (sum(figures) < budget_s and len(figures) < 100):
        pairs = [(prompt, tree.request()) for prompt in tree.some_prompts(BATCH)]
        start = CLOCK()
        for prompt, request in pairs:
            tree.touch(prompt, request)
        figures.append(CLOCK() - start)
    return _summary(figures, BATCH)


def insert_us(tree: Tree, budget_s: float) -> Figure:
    figures: list[float] = []
    while len(figures) < 5 or (sum(figures) < budget_s and len(figures) < 100):
        tree.evict(BATCH)
        work = [(tree.new_prompt(), tree.slots(), tree.request()) for _ in range(BATCH)]
        start = CLOCK()
        for prompt, slots, request in work:
            tree.insert(prompt, slots, request)
        figures.append(CLOCK() - start)
        tree.prompts += [prompt for prompt, _, _ in work]
    return _summary(figures, BATCH)


def measure(side: str, page: int, leaves: int, budget_s: float) -> list[Figure]:
    tree = Tree(side, page, leaves)
    tree.fill(leaves)
    tree.churn(leaves)
    gc.collect()
    row = [
        evict_us(tree, 1, budget_s),
        evict_us(tree, 100, budget_s),
        touch_us(tree, budget_s),
        insert_us(tree, budget_s),
    ]
    tree.check()
    return row


def main() -> None:
    known = ["stock", *(["stock rust"] if has_rust() else []), *POLICIES]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--sides",
        default=",".join(known),
        help=f"of {', '.join(known)} (stock is always measured); lru+slots: with our slot allocator too; lru+why: with "
        "evictions remembered",
    )
    parser.add_argument("--leaves", default="1000,5000,20000,41000,100000")
    parser.add_argument("--pages", default="16,1")
    parser.add_argument("--budget-s", type=float, default=0.4, help="CPU seconds a figure (at least 5 calls)")
    args = parser.parse_args()
    sides = [side for side in args.sides.split(",") if side != "stock"]
    torch.set_num_threads(1)
    print_machine()
    columns = ("evict 1", "evict 100", "touch", "insert")
    print(f"{'page':>4} {'leaves':>9}  {'side':14}" + "".join(f"{name:>24}" for name in columns))
    for page in map(int, args.pages.split(",")):
        for leaves in map(int, args.leaves.split(",")):
            stock: list[Figure] = []
            for side in ["stock", *sides]:
                row = measure(side, page, leaves, args.budget_s)
                stock = stock or row
                pairs = zip(row, stock, strict=True)
                cells = [f"{us:,.0f} ({least:,.0f}) {us / base:.3f}" for (us, least), (base, _) in pairs]
                print(f"{page:4} {leaves:9,}  {side:14}" + "".join(f"{cell:>24}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
