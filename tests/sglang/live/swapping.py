"""A real prefix cache whose policy is swapped again and again between policies that all order as stock lru does, beside
a stock cache on the same stream: the victims are the same throughout. In the SGLang found on PYTHONPATH.

    python swapping.py --page 16 --seed 1 [--forget]     # --forget: a fault, a prepared index misses what is added
"""

from __future__ import annotations

import argparse
import json
import random
from types import SimpleNamespace
from typing import Any

import harness
from activation import activate
from differential import Side, default_kind
from kvpolicy_sglang.cache_live import CacheSeat

from kvpolicy.live.preparation import Both, Preparation
from kvpolicy.live.swap import LiveSwap
from kvpolicy.live.twins import TwinIndex

NEVER = [{"name": "never", "match": "hits >= 1000000", "retain": {"weight": 2, "ttl": "5s"}}]
SHORT = [{"name": "short", "match": "hits >= 1000000", "retain": {"weight": 2, "budget": "1%"}}]
#: All of them lru in effect, with ever more or less kept beside; None: off.
WAYS: list[dict[str, Any] | None] = [
    {"policy": "lru"},
    {"policy": "lru", "rules": NEVER},
    {"core": "auto", "rules": SHORT},
    None,
    {"policy": "lru", "tenants": {"by": "cache_salt"}},
]


class Swapped(Side):
    """Our side, with a seat for swaps."""

    def __init__(self, page: int, capacity: int) -> None:
        super().__init__(default_kind(), "lru", page, capacity, ours=True)
        assert BUILT
        scheduler = SimpleNamespace(token_to_kv_pool_allocator=self.allocator, ps=SimpleNamespace())
        self.guard = BUILT[-1].guard
        seat = CacheSeat(self.active, BUILT[-1], scheduler)
        self.swap = seat.swap = LiveSwap(seat, "sglang")
        self.swap.slice_units = 5

    def start(self, way: dict[str, Any] | None) -> None:
        flat = {key: value for key, value in self.active.flat.items() if key != "eviction"}
        self.swap.handle(
            {"op": "prepare", "off": True} if way is None else {"op": "prepare", "flat": {**flat, "eviction": way}}
        )
        assert self.swap.answer.kind in ("preparing", "ready"), self.swap.answer

    def go_on(self) -> None:
        """One message more."""
        if self.swap.answer.kind == "ready":
            self.swap.handle({"op": "commit", "digest": self.swap.answer.digest})
            assert self.swap.answer.kind == "applied", self.swap.answer
        elif self.swap.answer.more:
            self.swap.handle({"op": "continue"})
            assert self.swap.answer.kind in ("preparing", "ready", "applied"), self.swap.answer

    def check(self) -> None:
        core = getattr(self.cache, "tree_core", self.cache)
        leaves = core.evictable_device_leaves if hasattr(core, "evictable_device_leaves") else core.evictable_leaves
        index = self.guard.index
        index.check()
        prepared = index.preparation if isinstance(index, Both) else None
        deciding = index.before if isinstance(index, Both) else index
        assert len(deciding) == (0 if self.guard.is_off else len(leaves))
        nodes = set(_nodes(core.root_node))
        if isinstance(deciding, TwinIndex):
            assert set(deciding.twins) == nodes
        if prepared is not None and prepared.is_ready:
            assert len(prepared.index) == len(leaves)
            if isinstance(prepared.index, TwinIndex):
                assert set(prepared.index.twins) == nodes
                assert all(
                    twin.kvp.depth_tokens == _depth(node, core.root_node) for node, twin in prepared.index.twins.items()
                )


def _nodes(root: Any) -> list[Any]:
    found, stack = [], list(root.children.values())
    while stack:
        found.append(node := stack.pop())
        stack.extend(node.children.values())
    return found


def _depth(node: Any, root: Any) -> int:
    depth = 0
    while node is not root:
        depth, node = depth + len(node.key), node.parent
    return depth


BUILT: list[Any] = []


def build(params: Any, policy: str, factory: Any, _explains: bool) -> tuple[Any, Any]:
    active = activate("sglang", {"policy": policy})
    BUILT.append(harness.attach(active, params, factory))
    return BUILT[-1].cache, active


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--page", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--forget", action="store_true")
    args = parser.parse_args()
    if args.forget:
        Preparation.add = lambda self, unit: None  # type: ignore[method-assign]
    harness.build_ours = build
    rng, page = random.Random(args.seed), args.page
    capacity = page * 120
    ours, stock = Swapped(page, capacity), Side(default_kind(), "lru", page, capacity, ours=False)
    sides = (stock, ours)
    stems = [[rng.randrange(1, 50) for _ in range(page * rng.randrange(1, 6))] for _ in range(12)]
    locks: list[list[Any]] = []
    for at in range(args.steps):
        stem = rng.choice(stems)
        prompt = [*stem, *(rng.randrange(50, 90) for _ in range(page * rng.randrange(0, 4)))]
        kind = rng.random()
        if kind < 0.5:
            assert len({side.insert(prompt, 0) for side in sides}) == 1
        elif kind < 0.7:
            assert len({side.matched_len(side.match(prompt)) for side in sides}) == 1
        elif kind < 0.8 and len(locks) < 4:
            locks.append([side.lock(prompt) for side in sides])
        elif kind < 0.9 and locks:
            for side, lock in zip(sides, locks.pop(rng.randrange(len(locks))), strict=True):
                side.unlock(lock)
        elif kind < 0.995:
            tokens = page * rng.randrange(1, 6)
            assert len({side.evict(tokens) for side in sides}) == 1
        elif not locks:
            for side in sides:
                side.reset()
        if rng.random() < 0.02:
            ours.start(WAYS[rng.randrange(len(WAYS))])
        elif rng.random() < 0.4:
            ours.go_on()
        if at % 50 == 0:
            ours.check()
            assert ours.victims == stock.victims, f"step {at}"
            assert ours.allocator.available_size() == stock.allocator.available_size()
    same = ours.victims == stock.victims
    facts = {"same": same, "victims": len(stock.victims), "swaps": ours.swap.swaps}
    print(json.dumps({**facts, "fallbacks": dict(ours.active.fallbacks), "has_metadata": ours.guard.needs_metadata}))


if __name__ == "__main__":
    main()
