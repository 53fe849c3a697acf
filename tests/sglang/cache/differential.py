"""Same operations, same victims: stock's cache beside ours, in the SGLang found on PYTHONPATH.

Run by `test_differential.py` in one subprocess a version. Both caches see one stream of matches, inserts, priorities,
locks, evictions and resets; after every eviction the evicted keys must be equal, in order. The engine's own classes run
on the CPU; nothing is mocked.

    python differential.py --policy lru --page 1 --steps 4000 --seed 1 [--capacity 600] [--flood LEAVES]
    python differential.py --policy lru --page 1 --examples 20     # streams drawn and shrunk by hypothesis
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import traceback
from array import array
from collections.abc import Iterable
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sglang.srt.mem_cache import base_prefix_cache as base
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.utils import _EVICTION_POLICY_FACTORIES


def make_params(policy: str, page: int, capacity: int) -> CacheInitParams:
    from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator

    cpu = "cpu"
    if page == 1:
        allocator = TokenToKVPoolAllocator(
            size=capacity, dtype=torch.float16, device=cpu, kvcache=None, need_sort=False
        )
    else:
        allocator = PagedTokenToKVPoolAllocator(
            size=capacity, page_size=page, dtype=torch.float16, device=cpu, kvcache=None, need_sort=False
        )
    return CacheInitParams(
        disable=False,
        req_to_token_pool=None,
        token_to_kv_pool_allocator=allocator,
        page_size=page,
        eviction_policy=policy if policy in _EVICTION_POLICY_FACTORIES else "lru",
    )


class Side:
    """One cache with its own allocator and victim log; `attach` puts our index into it."""

    def __init__(
        self,
        kind: str,
        policy: str,
        page: int,
        capacity: int,
        ours: bool,
        core: str = "python",
        by_slots: bool = False,
        sessions: bool = False,
        explains: bool = False,
    ) -> None:
        self.kind = kind
        self.page = page
        self.core = core
        self.by_slots = by_slots
        self.params = make_params(policy, page, capacity)
        if sessions:
            self.params.enable_session_radix_cache = True
        self.allocator = self.params.token_to_kv_pool_allocator
        self.victims: list[tuple[int, ...]] = []
        self.active: Any = None
        if ours:
            from harness import build_ours

            self.cache, self.active = build_ours(self.params, policy, self.stock, explains)
            if os.environ.get("KVPOLICY_TEST_DEAF"):
                self.cache.tree_core.components[0]._kvp_offer_again = lambda node: None
        else:
            self.cache = self.stock()
        self._watch()

    def stock(self, params: Any = None) -> Any:
        params = self.params if params is None else params
        if self.kind == "RadixCache":
            from sglang.srt.mem_cache.radix_cache import RadixCache

            return RadixCache(params)
        from sglang.srt.mem_cache.unified_cache.components import ComponentType
        from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

        params.tree_components = (ComponentType.FULL,)
        if hasattr(params, "tree_core_backend") and params.tree_core_backend is None:
            params.tree_core_backend = self.core
        return UnifiedRadixCache(params)

    def _watch(self) -> None:
        """Log each deleted node by its path's tokens; beside a Rust core, each freed segment by its slots."""
        if self.core == "rust" or self.by_slots:
            free_segment = self.allocator.free_segment

            def watched_free(indices: Any, *, start_pos: int) -> None:
                self.victims.append(tuple(indices.tolist()))
                free_segment(indices, start_pos=start_pos)

            self.allocator.free_segment = watched_free
            return
        target = self.cache if self.kind == "RadixCache" else self.cache.tree_core
        name = "_delete_leaf" if self.kind == "RadixCache" else "_remove_leaf_from_parent"
        delete = getattr(target, name)

        def watched(node: Any) -> None:
            path: list[int] = []
            cur = node
            while cur.parent is not None:
                path[:0] = list(cur.key.token_ids)[: len(cur.key)]
                cur = cur.parent
            self.victims.append(tuple(path))
            delete(node)

        setattr(target, name, watched)

    # -- operations --

    def key(self, tokens: list[int]) -> Any:
        return RadixKey(array("q", tokens), None)

    def match(self, tokens: list[int]) -> Any:
        return self.cache.match_prefix(base.MatchPrefixParams(key=self.key(tokens)))

    def insert(self, tokens: list[int], priority: int) -> int:
        """Insert, taking fresh slots for what is not cached; returns the tokens already cached."""
        have = self.matched_len(self.match(tokens))
        need = len(tokens) - have
        if need > self.allocator.available_size():
            self.evict(need - self.allocator.available_size())
        if need > self.allocator.available_size():
            return -1
        have = self.matched_len(self.match(tokens))
        prefix = self.prefix_indices(tokens, have)
        slots = self.allocator.alloc(len(tokens) - have) if len(tokens) > have else torch.empty(0, dtype=torch.int64)
        value = torch.cat([prefix, slots.to(torch.int64)])
        params = base.InsertParams(key=self.key(tokens), value=value, priority=priority)
        if hasattr(params, "prev_prefix_len"):
            params.prev_prefix_len = have
        self.cache.insert(params)
        return have

    def matched_len(self, result: Any) -> int:
        return result.device_prefix_len if hasattr(result, "device_prefix_len") else len(result.device_indices)

    def prefix_indices(self, tokens: list[int], have: int) -> Any:
        result = self.match(tokens)
        if hasattr(result, "device_indices"):
            return result.device_indices
        return self.cache.path_device_indices(result.last_device_node)

    def lock(self, tokens: list[int]) -> Any:
        node = self.match(tokens).last_device_node
        return node, self.cache.inc_lock_ref(node)

    def unlock(self, lock: Any) -> None:
        node, result = lock
        if hasattr(result, "to_dec_params") and self.kind != "RadixCache":
            self.cache.dec_lock_ref(node, result.to_dec_params())
        else:
            self.cache.dec_lock_ref(node)

    def refer(self, session_id: str, tokens: list[int]) -> None:
        """What a finished request of an open session does: its session refers to the node its insert ended on."""
        core = self.cache.tree_core
        node = core.node_by_id(self.match(tokens).last_device_node)
        for component in core.components:
            component.register_session_leaf(session_id, node)

    def release(self, session_id: str) -> None:
        """Close a session."""
        for component in self.cache.tree_core.components:
            component.release_session(session_id)

    def evict(self, tokens: int) -> int:
        return self.cache.evict(base.EvictParams(num_tokens=tokens)).num_tokens_evicted

    def reset(self) -> None:
        self.cache.reset()
        self.allocator.clear()

    def evictable(self) -> int:
        size = self.cache.evictable_size()
        return size if isinstance(size, int) else size[0]


def run(
    kind: str,
    policy: str,
    page: int,
    steps: Iterable[int],
    seed: int,
    capacity: int,
    flood: int = 0,
    core: str = "python",
    ours: str = "",
    sessions: int = 0,
) -> dict[str, Any]:
    """One stream: each step is a number that all its choices follow from, so that any part of a stream is one too."""
    rng = random.Random(seed)
    rust = core == "rust"
    has_sessions = sessions > 0
    stock_side = Side(kind, policy, page, capacity, False, core, sessions=has_sessions)
    if rust and type(stock_side.cache.tree_core).__name__ != "RustUnifiedTreeCore":
        raise SystemExit("the engine did not choose its Rust core here")
    sides = [stock_side, Side(kind, ours or policy, page, capacity, True, by_slots=rust, sessions=has_sessions)]
    stems = [[rng.randrange(1, 50) for _ in range(page * rng.randrange(1, 6))] for _ in range(12)]
    locks: list[list[Any]] = []
    evictions = 0

    def prompt() -> list[int]:
        stem = rng.choice(stems)
        stem = stem[: page * rng.randrange(1, len(stem) // page + 1)]
        return stem + [rng.randrange(1, 50) for _ in range(page * rng.randrange(0, 4))]

    def both(what: str, *args: Any) -> list[Any]:
        return [getattr(side, what)(*args) for side in sides]

    def agree(step: int, what: str, results: list[Any]) -> None:
        ours, stock = sides[1].victims, sides[0].victims
        if ours != stock or results[0] != results[1]:
            at = next(
                (i for i, (a, b) in enumerate(zip(stock, ours, strict=False)) if a != b), min(len(stock), len(ours))
            )
            raise SystemExit(
                f"step {step} {what}: stock {results[0]} ours {results[1]}; victim {at} of {len(stock)}/{len(ours)}: "
                f"stock {stock[at : at + 1]} ours {ours[at : at + 1]}"
            )

    for i in range(flood):  # many leaves: distinct first tokens, then touched in another order
        both("insert", [1000 + i] * page, rng.randrange(0, 3))
    if flood:
        for i in rng.sample(range(flood), flood // 3):
            both("match", [1000 + i] * page)
    for step, choices in enumerate(steps):
        rng = random.Random(choices)
        if has_sessions and rng.random() < 0.3:
            session_id = f"session-{rng.randrange(sessions)}"
            both("refer", session_id, prompt()) if rng.random() < 0.7 else both("release", session_id)
        roll = rng.random()
        if roll < 0.30:
            agree(step, "insert", both("insert", prompt(), rng.randrange(0, 3)))
        elif roll < 0.60:
            tokens = [1000 + rng.randrange(flood)] * page if flood and rng.random() < 0.5 else prompt()
            both("match", tokens)
        elif roll < 0.72:
            locks.append(both("lock", prompt()))
        elif roll < 0.84 and locks:
            held = locks.pop(rng.randrange(len(locks)))
            for side, lock in zip(sides, held, strict=True):
                side.unlock(lock)
        elif roll < 0.998:
            evictions += 1
            agree(step, "evict", both("evict", page * rng.randrange(1, 8)))
        else:
            for held in locks:
                for side, lock in zip(sides, held, strict=True):
                    side.unlock(lock)
            locks.clear()
            both("reset")
        sizes = both("evictable")
        if sizes[0] != sizes[1]:
            raise SystemExit(f"step {step}: evictable tokens differ: {sizes}")
    stock, ours = (side.allocator.available_size() for side in sides)
    if stock != ours:
        raise SystemExit(f"free slots differ at the end: stock {stock}, ours {ours}")
    active = sides[1].active
    return {
        "policy": policy,
        "page": page,
        "victims": len(sides[1].victims),
        "evictions": evictions,
        "fallbacks": dict(active.fallbacks),
        "evict_calls": active.evict_calls,
        "core": active.core,
    }


def default_kind() -> str:
    """The cache this SGLang gives a plain model: told by a module that came with the change, as the adapter does."""
    try:
        from sglang.srt.mem_cache.unified_cache.components.full import FullComponent  # noqa: F401
    except ImportError:
        return "RadixCache"
    return "UnifiedRadixCache"


def search(kind: str, policy: str, page: int, examples: int, ours: str, sessions: int) -> dict[str, Any]:
    """Streams drawn by hypothesis; a difference is shrunk to the fewest steps before it is reported."""
    steps = 0

    phases = [Phase.generate] if ours else [*Phase]  # a difference that is there on purpose need not be shrunk
    checks = [*HealthCheck]

    @settings(
        max_examples=examples,
        phases=phases,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=checks,
    )
    @given(st.lists(st.integers(0, 1 << 16), min_size=120, max_size=400))
    def differ(stream: list[int]) -> None:
        nonlocal steps
        steps += len(stream)
        try:
            run(kind, policy, page, stream, 1, page * 120, ours=ours, sessions=sessions)
        except SystemExit as difference:  # hypothesis shrinks failures, not exits
            raise AssertionError(str(difference)) from None

    try:
        differ()
    except AssertionError as difference:
        traceback.print_exc()  # with the stream, which may be long: the difference is said after it, once more
        raise SystemExit(str(difference)) from None
    return {"policy": policy, "page": page, "examples": examples, "steps": steps}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", default="")
    parser.add_argument("--policy", action="append", required=True)
    parser.add_argument("--page", type=int, action="append", required=True)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--examples", type=int, default=0, help="let hypothesis draw that many streams instead")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--capacity", type=int, default=0)
    parser.add_argument("--flood", type=int, default=0)
    parser.add_argument("--ours", default="", help="another policy on our side: the results must then differ")
    parser.add_argument("--sessions", type=int, default=0, help="so many sessions refer to nodes, and close")
    parser.add_argument("--stock-core", choices=["python", "rust"], default="python")
    args = parser.parse_args()
    kind = args.kind or default_kind()
    for policy in args.policy:
        for page in args.page:
            capacity = args.capacity or page * (120 + args.flood)
            if args.examples:
                print(json.dumps(search(kind, policy, page, args.examples, args.ours, args.sessions)), flush=True)
                continue
            draw = random.Random(args.seed)
            steps = [draw.getrandbits(32) for _ in range(args.steps)]
            result = run(
                kind, policy, page, steps, args.seed, capacity, args.flood, args.stock_core, args.ours, args.sessions
            )
            print(json.dumps(result), flush=True)


if __name__ == "__main__":
    sys.exit(main())
