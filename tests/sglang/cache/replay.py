"""Replay one generated stream of requests on the real cache under a policy, with or without an injected fault.

Run by `test_replay.py` in subprocesses. Requests arrive with stamps, salts and priorities, hit what is cached, insert,
and evict under pressure; after each call the cache must have met the demand and its tree must be sound. Prints the
victim digest after every eviction, so that two processes can be compared call by call.

    python replay.py --fault none [--fault METHOD@N ...] [--steps 800] [--skew-ms 0] [--seed 1]
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

from activation import activate
from differential import Side, default_kind
from harness import attach
from kvpolicy_sglang.cache_time import read_stamp, stamp

from kvpolicy.eviction.algorithms import score
from kvpolicy.runtime.status import fallbacks

POLICY: dict[str, Any] = {
    "score": "log1p(hits) / (1 + idle_requests)",
    "rules": [
        {"name": "gold", "match": "request.priority == 2", "retain": {"weight": 4, "ttl": "40s", "budget": "30%"}},
        {"name": "hot", "match": "hits >= 2", "retain": {"weight": 2, "budget": "20%"}},
    ],
    "tenants": {"by": "cache_salt", "floor": "2%", "cap": "60%", "max_floors": 4},
}


class PolicySide(Side):
    """A side whose inserts belong to requests, as the scheduler's do."""

    def __init__(self, page: int, capacity: int) -> None:
        self.policy = activate("sglang", POLICY)
        super().__init__(default_kind(), "lru", page, capacity, ours=False)

    def stock(self, params: Any = None) -> Any:
        self.built = attach(self.policy, self.params, super().stock)
        return self.built.cache

    def request(self, tokens: list[int], salt: str, priority: int, arrival_ms: int) -> None:
        """One request, from its arrival at the tokenizer to the caching of its prompt."""
        guard, metadata = self.built.guard, self.built.metadata
        assert guard is not None
        assert metadata is not None
        sent = SimpleNamespace(sampling_params=SimpleNamespace(custom_params=None))
        stamp(sent, arrival_ms)
        _, arrived_ms = read_stamp(sent)
        assert sent.sampling_params.custom_params is None
        guard.arrive(arrived_ms)
        match = self.match(tokens)
        req = SimpleNamespace(
            origin_input_ids=tokens,
            cache_salt=salt,
            priority=priority,
            last_node=match.last_device_node,
            cache_protected_len=self.matched_len(match),
        )
        metadata.enter(req)
        try:
            self.insert(tokens, priority)
        finally:
            metadata.leave()


def inject(side: PolicySide, fault: str) -> None:
    """Make `METHOD@N` raise from its N-th call on, three times in a row: a fault that goes away again.

    Methods are the index's own; `key` is the score's, `metadata.METHOD` one of the code around the index.
    """
    name, _, nth = fault.partition("@")
    where, _, method = name.rpartition(".")
    target: Any = side.built.metadata if where == "metadata" else side.built.guard.index
    setattr(target, method, failing(getattr(target, method), name, int(nth)))


def failing(original: Callable[..., Any], name: str, nth: int) -> Callable[..., Any]:
    calls = 0

    def faulty(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if nth <= calls < nth + 3:
            raise ZeroDivisionError(f"injected into {name}")
        return original(*args, **kwargs)

    return faulty


@contextmanager
def failing_score(fault: str) -> Iterator[None]:
    """`key@N`: the score itself fails. Orders are made with it, hence before the index is."""
    make_rank, make_ranks = score._rank, score._ranks
    nth = int(fault.partition("@")[2])
    score._rank = lambda evaluate, clock: make_rank(failing(evaluate, "key", nth), clock)
    score._ranks = lambda evaluate, clock: make_ranks(failing(evaluate, "key", nth), clock)
    try:
        yield
    finally:
        score._rank, score._ranks = make_rank, make_ranks


def run(fault: str, steps: int, seed: int, skew_ms: int) -> dict[str, Any]:
    page, capacity = 4, 4 * 150
    with failing_score(fault) if fault.startswith("key@") else nullcontext():
        side = PolicySide(page, capacity)
    index = side.built.guard.index
    if fault != "none" and not fault.startswith("key@"):
        inject(side, fault)
    rng = random.Random(seed)
    stems = [[rng.randrange(1, 60) for _ in range(page * rng.randrange(1, 8))] for _ in range(10)]
    now_ms, digests, short = skew_ms, [], 0
    for _ in range(steps):
        now_ms += rng.randrange(0, 400)
        late_ms = now_ms - rng.choice([0, 0, 0, 5000])  # stamps of several tokenizers arrive out of order
        prompt = rng.choice(stems) + [rng.randrange(1, 60) for _ in range(page * rng.randrange(0, 5))]
        before = side.evictable()
        side.request(prompt, rng.choice(["a", "b", "c"]), rng.choice([0, 0, 1, 2]), late_ms)
        if rng.random() < 0.3:
            before, demand = side.evictable(), page * rng.randrange(1, 12)
            freed = side.evict(demand)
            short += freed < min(demand, before)
            digests.append(f"{index.victim_digest:016x}")
        sound(side)
    return {
        "fault": fault,
        "digests": digests,
        "short": short,
        "fallbacks": fallbacks(side.policy),
        "evictions": index.counters.evictions,
        "free and cached": side.allocator.available_size() + side.evictable(),
        "capacity": capacity,
    }


def sound(side: PolicySide) -> None:
    """The engine's leaf set holds exactly the unlocked leaves of its tree."""
    cache = side.cache
    root = cache.root_node if side.kind == "RadixCache" else cache.tree_core.root_node
    leaves = cache.evictable_leaves if side.kind == "RadixCache" else cache.tree_core.evictable_device_leaves
    found, pending = set(), list(root.children.values())
    while pending:
        node = pending.pop()
        pending += node.children.values()
        if not node.children:
            found.add(node)
    assert found == leaves, "the set of evictable leaves is not the tree's"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", action="append", required=True)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--skew-ms", type=int, default=0)
    args = parser.parse_args()
    for fault in args.fault:
        print(json.dumps(run(fault, args.steps, args.seed, args.skew_ms)), flush=True)


if __name__ == "__main__":
    main()
