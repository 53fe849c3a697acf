"""What watermarks are worth on SGLang's own cache: eviction calls and time for the same allocations, beside stock.

    python benchmarks/watermark.py --leaves 5000,20000 --marks 0-1,2-5

A pool full of leaves; then decode steps of a batch, each asking for one token a request (``--batch``), and every step's
slots come back as leaves of the tree. Sides: ``stock`` (the engine's lru on its Python core, exact shortfall), stock
with marks, and our index (``lru``) with and without. All sides do the same steps, interleaved by rounds.
"""

from __future__ import annotations

import argparse
import statistics
from types import SimpleNamespace
from typing import Any

import torch
from engine_caches import CLOCK, LEAF_TOKENS, Tree, print_machine
from kvpolicy_sglang.cache_watermark import EvictAhead
from sglang.srt.mem_cache import common

ROUNDS, STEPS = 5, 200


class Side:
    """One cache; `marks` as shares, or None."""

    def __init__(self, policy: str, marks: tuple[float, float] | None, leaves: int) -> None:
        self.tree = Tree(policy, 1, leaves)
        self.tree.fill(leaves)
        self.calls, self.tokens, self.spent = 0, 0, []
        evict = self.tree.cache.evict

        def counted(params: Any) -> Any:
            self.calls += 1
            return evict(params)

        self.ahead = None
        if marks is not None:
            plan = SimpleNamespace(compiled=SimpleNamespace(allocator=SimpleNamespace(watermark=marks)))
            plan.observe_evict = lambda seconds: None
            self.ahead = EvictAhead(plan, self.tree.cache, self.tree.guard)  # type: ignore[arg-type]
        self.tree.cache.evict = counted
        if hasattr(self.tree.cache, "evict_for_alloc"):
            self.tree.cache.evict_for_alloc = counted

    def step(self, tokens: int) -> None:
        start = CLOCK()
        if self.ahead is None:
            common.evict_from_tree_cache(self.tree.cache, tokens)
        else:
            self.ahead.around(common.evict_from_tree_cache, self.tree.cache, tokens)
        self.spent.append(CLOCK() - start)
        slots = self.tree.allocator.alloc(tokens).to(torch.int64)
        self.tokens += tokens
        for at in range(0, tokens, LEAF_TOKENS):
            part = slots[at : at + LEAF_TOKENS]
            self.tree.insert(self.tree.new_prompt()[: len(part)], part, self.tree.request())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--leaves", default="5000,20000")
    parser.add_argument("--marks", default="0-1,2-5", help="low-high in per cent of the pool")
    parser.add_argument("--batch", type=int, default=64)
    args = parser.parse_args()
    print_machine()
    marks = [tuple(float(share) / 100 for share in pair.split("-")) for pair in args.marks.split(",")]
    print(" leaves  order    marks  calls  tokens a call  us a step  of stock")
    for leaves in map(int, args.leaves.split(",")):
        sides = {(policy, mark): Side(policy, mark, leaves) for policy in ("stock", "lru") for mark in (None, *marks)}
        for _ in range(ROUNDS):
            for side in sides.values():
                for _ in range(STEPS):
                    side.step(args.batch)
        stock = statistics.fmean(sides["stock", None].spent)
        for (policy, mark), side in sides.items():
            mean = statistics.fmean(side.spent)
            name = "none" if mark is None else "-".join(f"{share * 100:g}" for share in mark) + "%"
            each = side.tokens / max(1, side.calls)
            counts = f"{leaves:7} {policy:>6} {name:>8} {side.calls:6} {each:14.0f}"
            print(f"{counts} {mean * 1e6:10.1f} {mean / stock:9.2f}", flush=True)


if __name__ == "__main__":
    main()
