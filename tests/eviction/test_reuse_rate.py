"""``reuse_rate`` against its definition by brute force, and what it is for."""

from __future__ import annotations

import random
from typing import Any

import pytest
from naive_rate import BUCKETS, NaiveRate, bucket_of, chances, rates, start_of
from tree import Node, Tree

from kvpolicy.eviction.algorithms import reuse_rate
from policies import compiled


def test_buckets_are_quarter_octaves() -> None:
    for ticks in range(5000):
        at = reuse_rate._bucket(ticks)
        assert at == bucket_of(ticks)
        assert start_of(at) <= ticks < start_of(at + 1)
        assert reuse_rate._start(at) == start_of(at)


def test_chances_and_rates_are_what_their_definitions_say() -> None:
    rng = random.Random(5)
    rows = [(0, rng.randrange(BUCKETS), float(rng.randrange(1, 9)), rng.random() < 0.6) for _ in range(300)]
    assumed = [rng.random() / 4 for _ in range(BUCKETS)]
    tables = [[0.0] * BUCKETS, [0.0] * BUCKETS]  # reused, unseen
    for _, at, tokens, hit in rows:
        tables[not hit][at] += tokens
    ours = reuse_rate._chances(*tables, assumed, 7.0)
    assert ours == pytest.approx(chances(rows, assumed, 7.0))
    assert reuse_rate._rates(ours) == pytest.approx(rates(ours))


def test_with_chances_that_fall_the_longest_unused_goes_first() -> None:
    """Before anything is learned it is lru."""
    found = reuse_rate._rates(reuse_rate._ASSUMED)
    assert found == sorted(found, reverse=True)


def drive(seed: int, steps: int, spoil: bool = False) -> int:
    """Random operations; every victim is compared. ``spoil`` makes the index forget a use. The number of victims."""
    rng, victims = random.Random(seed), 0
    tree = Tree(compiled("reuse_rate").make_index(60))
    naive = NaiveRate(tree.index.clock)
    for step in range(steps):
        action = rng.random()
        if action < 0.55 or not tree.nodes:
            parent: Node | None = rng.choice([None, None, *tree.nodes])
            key = rng.choice([None, *range(30)])
            if any(node.kvp.content_key == key for node in tree.nodes):
                key = None  # resident content is not inserted again
            naive.inserted(tree.insert(parent, rng.randrange(1, 6), content_key=key), key)
        elif action < 0.9:
            node = rng.choice(tree.nodes)
            tree.touch(node)
            for each in tree.path(node):
                naive.touched(each)
            if spoil and step > steps // 2:
                node.kvp.state.uses = node.kvp.state.klass = 0
        elif (node := rng.choice(tree.nodes)).size > 1:
            upper = tree.split(node, 1)
            naive.split(upper, node)
        while sum(node.size for node in tree.nodes) > 60:
            expected = min(tree.evictable(), key=naive.key)
            [victim] = tree.evict(1)
            assert victim is expected, f"step {step}: {victim} went, brute force says {expected}"
            naive.removed(victim)
            victims += 1
    tree.index.check()
    assert not tree.index.counters.fallbacks, tree.index.counters.last_fault
    return victims


@pytest.mark.parametrize("seed", range(4))
def test_victims_are_brute_forces(seed: int) -> None:
    assert drive(seed, 250) > 30


def test_a_forgotten_use_is_noticed() -> None:
    with pytest.raises(AssertionError, match="brute force says"):
        drive(0, 250, spoil=True)


def test_what_returns_after_a_pause_outlives_what_has_just_come() -> None:
    """Prompts come back 10 requests later, once. After that, one that is due stays, and newcomers go."""
    tree = Tree(compiled("reuse_rate").make_index(10**6))
    nodes: list[Node] = []
    for step in range(400):
        nodes.append(tree.insert(content_key=step))
        if step >= 10:
            tree.touch(nodes[step - 10])
        if step >= 12:
            tree.evict(1)
    due, fresh = nodes[-9], nodes[-1]
    algorithm: Any = tree.index._algorithm
    assert algorithm.rate(due.kvp.state) > algorithm.rate(fresh.kvp.state)
    order = tree.next_victims()
    assert order.index(fresh) < order.index(due)


def test_ghosts_give_back_uses_and_are_bounded() -> None:
    tree = Tree(compiled("reuse_rate").make_index(100))
    node = tree.insert(content_key=17)
    tree.touch(node)
    tree.evict(1)
    again = tree.insert(content_key=17)
    assert again.kvp.state.uses == 2, "a hit and a return"
    for key in range(100, 5000):
        tree.insert(content_key=key)
        tree.evict(1)
    algorithm: Any = tree.index._algorithm
    assert 0 < len(algorithm.ghosts) <= 1024


def test_what_goes_after_its_tail_returns_in_one_piece() -> None:
    tree = Tree(compiled("reuse_rate").make_index(100))
    head = tree.insert(size=4, content_key=1)
    tree.insert(head, size=2, content_key=2)
    tree.evict(10**6)
    algorithm: Any = tree.index._algorithm
    assert {key: ghost.tokens for key, ghost in algorithm.ghosts.items()} == {1: 6}
