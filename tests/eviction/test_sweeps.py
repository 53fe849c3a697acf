"""Sweeping up a chain (``follow``) gives the victims that passing through the order one by one gives."""

from __future__ import annotations

import random

import pytest
from tree import Node, Tree

from kvpolicy.eviction import CompiledEviction, EvictionIndex, RequestInfo
from kvpolicy.eviction.heap import LazyHeap
from policies import compiled

RULES = [{"name": "hot", "match": "hits >= 2", "retain": {"weight": 8, "ttl": "20s", "budget": "20%"}}]
POLICIES: dict[str, CompiledEviction] = {
    **{name: compiled(name) for name in ("lru", "lfu", "fifo", "filo", "mru", "slru", "priority")},
    **{name: compiled(name) for name in ("tlru", "gdsf", "s3fifo", "sieve", "hit_density", "reuse_rate", "adaptive")},
    "score": compiled(score="hits / depth_tokens"),
    "rules": compiled("lru", rules=RULES),
    "tenants": compiled("lru", tenants={"floor": "10%", "cap": "30%"}),
}
POOL_TOKENS = 60  # few enough units that a sampled order is exact


def victims(index: EvictionIndex, seed: int, sweeps: bool) -> tuple[list[str], int]:
    """Names of the victims of a random run, and how many followed their child."""
    rng, tree, swept = random.Random(seed), Tree(index), 0
    for _ in range(150):
        parent: Node | None = rng.choice([None, *tree.nodes])
        request = RequestInfo(cache_salt=rng.choice("ab"), priority=rng.choice([None, 1, 2]))
        if rng.random() < 0.4 and parent is not None:
            tree.touch(parent, request)
        else:
            parent = tree.insert(parent, 1, request, content_key=rng.randrange(40))
            for _ in range(rng.randrange(3)):
                parent = tree.insert(parent, 1, request, arrives=False, content_key=rng.randrange(40))
        if len(tree.nodes) > 40:
            tree.evict(rng.randrange(1, 9), sweeps=sweeps)
            swept += tree.swept
        index.check()
    return [node.name for node in tree.victims], swept


@pytest.mark.parametrize("name", POLICIES)
def test_a_sweep_changes_no_victim(name: str) -> None:
    swept = 0
    for seed in range(5):
        one_by_one, _ = victims(POLICIES[name].make_index(POOL_TOKENS), seed, sweeps=False)
        in_sweeps, followed = victims(POLICIES[name].make_index(POOL_TOKENS), seed, sweeps=True)
        assert in_sweeps == one_by_one
        swept += followed
    assert swept or name == "filo", "nothing was swept: this compared nothing"


def test_a_wrong_sweep_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    one_by_one, _ = victims(compiled("filo").make_index(POOL_TOKENS), 1, sweeps=False)
    monkeypatch.setattr(LazyHeap, "precedes", lambda self, handle, victim: True)
    assert victims(compiled("filo").make_index(POOL_TOKENS), 1, sweeps=True)[0] != one_by_one
