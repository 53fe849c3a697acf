"""``adaptive``: lru until something better has shown itself, and again when it is better no more."""

from __future__ import annotations

import random
from collections import OrderedDict
from typing import Any

import pytest
from tree import Node, Tree

from kvpolicy.eviction import PolicyClock
from kvpolicy.eviction.algorithms import adaptive
from kvpolicy.eviction.algorithms.adaptive import Adaptive, Shadow
from kvpolicy.eviction.algorithms.reuse_rate import Content
from kvpolicy.eviction.heap import LazyHeap
from policies import compiled

POOL_TOKENS = 40


class Cache:
    """Prompts of one unit each, by number, in a pool of ``POOL_TOKENS`` tokens."""

    def __init__(self, policy: str = "adaptive", with_keys: bool = True) -> None:
        self.tree = Tree(compiled(policy).make_index(POOL_TOKENS))
        self.algorithm: Any = self.tree.index._algorithm
        self.with_keys = with_keys
        self.nodes: dict[int, Node] = {}
        self.hits = 0

    def ask(self, prompt: int) -> None:
        node = self.nodes.get(prompt)
        if node is not None and node in self.tree.nodes:
            self.hits += 1
            self.tree.touch(node)
            return
        if len(self.tree.nodes) >= POOL_TOKENS:
            self.tree.evict(1)
        self.nodes[prompt] = self.tree.insert(content_key=prompt if self.with_keys else None)


def loop(cache: Cache, rounds: int, size: int = 60, base: int = 0) -> None:
    """A loop larger than the pool: recency finds nothing in it."""
    for _ in range(rounds):
        for prompt in range(size):
            cache.ask(base + prompt)


def drift(cache: Cache, prompts: int, base: int) -> None:
    """Each prompt is asked for a few times in short succession and never again: recency is right."""
    rng = random.Random(3)
    for at in range(prompts):
        cache.ask(base + at)
        for _ in range(2):
            cache.ask(base + max(0, at - rng.randrange(30)))


def test_it_is_lru_until_it_has_learned() -> None:
    ours, lru = Cache(), Cache("lru")
    rng = random.Random(1)
    for _ in range(300):
        prompt = rng.randrange(10**6)  # hardly ever the same
        ours.ask(prompt)
        lru.ask(prompt)
    assert [node.name for node in ours.tree.victims] == [node.name for node in lru.tree.victims]
    assert len(ours.tree.victims) > 200
    assert not ours.algorithm.by_rate


def test_a_loop_larger_than_the_pool_brings_the_other_order_into_charge() -> None:
    ours, lru = Cache(), Cache("lru")
    loop(ours, 40)
    loop(lru, 40)
    assert lru.hits == 0
    assert ours.algorithm.by_rate
    assert ours.hits > 40 * 60 // 4
    ours.tree.index.check()


def test_lru_comes_back_when_it_is_better() -> None:
    """The learned order is made useless: the duel must notice."""
    ours = Cache()
    loop(ours, 40)
    assert ours.algorithm.by_rate
    ours.algorithm.rates_of = lambda contents: [float(-content.used_seq) for content in contents]  # most recent first
    ours.algorithm.rate_shadow = Shadow(
        adaptive.SampledOrder(ours.algorithm._shadow_rank, ours.algorithm.clock, ours.algorithm._shadow_ranks)
    )
    drift(ours, 3000, base=1000)
    assert not ours.algorithm.by_rate
    assert ours.algorithm.switches >= 2
    ours.tree.index.check()


def test_without_content_keys_lru_stays_in_charge() -> None:
    ours = Cache(with_keys=False)
    loop(ours, 40)
    assert not ours.algorithm.by_rate
    assert ours.algorithm.asked == 0


def test_a_shadow_hits_what_a_cache_of_its_size_would() -> None:
    shadow, contents = Shadow(LazyHeap(lambda content: content.used_seq, adaptive.KeyChange.SHRINKS)), {}
    cache: OrderedDict[int, int] = OrderedDict()
    rng = random.Random(2)
    for seq in range(3000):
        name = min(rng.randrange(80), rng.randrange(80))
        tokens = 1 + name % 5
        content = contents.setdefault(name, Content(name, 0, 0))
        content.used_seq = seq
        expected = cache.pop(name, 0)
        while sum(cache.values()) + tokens > 50:
            cache.popitem(last=False)
        cache[name] = tokens
        assert shadow.use(content, tokens, 50) == expected
        assert shadow.held_tokens == sum(cache.values())
    assert {content.key for content in shadow.tokens} == set(cache)


def test_shadows_are_bounded_and_sampled_alike() -> None:
    algorithm = Adaptive(PolicyClock())
    algorithm._most_tokens = 10**9
    for key in range(20_000):
        algorithm.clock.arrive()
        if algorithm._is_drawn(key):
            algorithm._duel(Content(key, key, 0), 1)
    assert algorithm._sample_bits >= 3
    for shadow in (algorithm.lru_shadow, algorithm.rate_shadow):
        assert 0 < len(shadow.tokens) <= adaptive._SHADOW_CONTENTS + 1
        assert shadow.held_tokens == len(shadow.tokens) == len(shadow.order)
        assert all(algorithm._is_drawn(content.key) for content in shadow.tokens if content.key is not None)


def test_both_orders_hold_the_same_units_whatever_happens() -> None:
    tree = Tree(compiled("adaptive", tenants={"floor": "10%", "cap": "40%"}).make_index(60))
    rng = random.Random(4)
    algorithm: Any = tree.index._algorithm
    for step in range(600):
        algorithm.by_rate = rng.random() < 0.5  # changes of charge at any moment
        if rng.random() < 0.6 or not tree.nodes:
            tree.insert(rng.choice([None, *tree.nodes]), rng.randrange(1, 5), content_key=step)
        else:
            tree.touch(rng.choice(tree.nodes))
        tree.evict(max(0, sum(node.size for node in tree.nodes) - 60))
        tree.index.check()
    assert not tree.index.counters.fallbacks, tree.index.counters.last_fault


@pytest.mark.parametrize("policy", ["reuse_rate", "adaptive"])
def test_a_fresh_start_forgets_everything(policy: str) -> None:
    cache = Cache(policy)
    loop(cache, 10)
    cache.tree.index.reset()
    fresh = Cache(policy)
    ignored = {"clock", "lru_shadow", "rate_shadow"}
    for name, value in vars(fresh.algorithm).items():
        assert name in ignored or vars(cache.algorithm)[name] == value, name
