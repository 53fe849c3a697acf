"""The index as an adapter sees it: walks, accounts, faults, reset, and equal answers on every rank."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tree import ANYBODY, Node, Tree

from kvpolicy.eviction import EvictionIndex, KeyChange, RequestInfo
from kvpolicy.eviction.algorithms.registry import ALGORITHMS, make_algorithm
from kvpolicy.eviction.base import PolicyClock
from kvpolicy.language.eviction_words import resolved_params
from kvpolicy.language.vocabulary import EVICTION_POLICIES
from policies import compiled

HERE = Path(__file__).parent


def test_the_registry_is_the_languages_vocabulary() -> None:
    assert list(ALGORITHMS) == list(EVICTION_POLICIES)
    for name in ALGORITHMS:
        make_algorithm(name, resolved_params(name, {}), PolicyClock())
    with pytest.raises(KeyError, match="unknown eviction policy 'lur'"):
        make_algorithm("lur", {}, PolicyClock())


@pytest.mark.parametrize("name", ["lru", "lfu", "fifo", "filo", "mru", "slru", "priority"])
def test_the_engines_own_orders_need_no_metadata(name: str) -> None:
    policy = compiled(name)
    assert not policy.needs_metadata
    assert type(policy.make_index(10)) is EvictionIndex


def test_what_needs_metadata_and_time() -> None:
    assert compiled("gdsf").needs_metadata
    assert compiled("lru", rules=[{"name": "r", "retain": {"weight": 1}}]).needs_metadata
    assert compiled("lru", tenants={"cap": "50%"}).needs_metadata
    assert not compiled("priority").needs_metadata
    assert compiled("priority", max_priority=5).needs_metadata, "the engine's own priority is not clamped"
    assert not compiled(score="hits").needs_time
    assert compiled(score="-idle_s").needs_time
    assert compiled("lru", rules=[{"name": "r", "match": "reuse_gap_s < 1", "retain": {"weight": 1}}]).needs_time
    assert compiled("lru", rules=[{"name": "r", "retain": {"weight": 1, "ttl": "1s"}}]).needs_time
    assert compiled("mru").make_index(10).change is KeyChange.SHRINKS
    assert compiled("lru").make_index(10).change is KeyChange.GROWS


def test_popped_units_are_held_for_the_walk_and_offered_again_after_it() -> None:
    tree = Tree(compiled("lru").make_index(10))
    a, b, c = (tree.insert(name=name) for name in "abc")
    index = tree.index
    index.begin()
    assert [index.pop(), index.pop()] == [a, b]
    index.add(a)  # the engine may say so at any time: it changes nothing
    assert len(index) == 3
    assert index.pop() is c
    assert index.pop() is None
    index.discard(b)
    index.end()
    assert tree.next_victims() == [a, c]


def test_a_parent_becomes_a_candidate_within_the_walk() -> None:
    tree = Tree(compiled("lru").make_index(10))
    parent = tree.insert(name="parent")
    child = tree.insert(parent, name="child")
    other = tree.insert(name="other")
    tree.touch(other)
    assert tree.evict(3) == [child, parent, other]


def test_a_walk_that_was_cut_short_loses_nothing() -> None:
    tree = Tree(compiled("gdsf").make_index(10))
    nodes = [tree.insert() for _ in range(3)]
    tree.index.begin()
    tree.index.pop()
    tree.index.begin()  # no end(): the engine raised in between
    assert [tree.index.pop() for _ in range(3)] == nodes


def test_membership_is_idempotent_and_unknown_units_are_ignored() -> None:
    index = compiled("lru").make_index(10)
    node = Node("n", None, 1)
    index.discard(node)
    index.touched(node)
    index.add(node)
    index.add(node)
    assert len(index) == 1
    assert node in index
    index.discard(node)
    index.discard(node)
    assert len(index) == 0
    assert index.pop() is None


def test_reset_forgets_units_but_not_accounts() -> None:
    rules = [{"name": "all", "retain": {"weight": 1, "budget": "50%"}}]
    tree = Tree(compiled("s3fifo", rules=rules, tenants={"floor": "10%"}).make_index(10))
    for _ in range(6):
        tree.touch(tree.insert())
    tree.evict(1)
    digest, evictions = tree.index.victim_digest, dict(tree.index.counters.evictions)
    tree.index.reset(20)
    assert len(tree.index) == 0
    tree.index.check()
    assert (tree.index.victim_digest, tree.index.counters.evictions) == (digest, evictions)
    assert tree.index.pool_tokens == 20
    fresh = Tree(tree.index)
    assert [fresh.insert() for _ in range(10)] == fresh.evict(100)


@pytest.mark.parametrize("policy", ["lru", "gdsf"])
def test_a_fault_in_a_key_is_answered_in_the_engines_order_and_counted(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = Tree(compiled(policy).make_index(100))
    nodes = [tree.insert(size=4 - i) for i in range(3)]
    tree.touch(nodes[0])

    def fail(*_: Any) -> Any:
        raise ZeroDivisionError("injected")

    with monkeypatch.context() as broken:
        broken.setattr(type(tree.index._order), "pop", fail)
        assert tree.evict(1) == [nodes[1]], "least recently used"
    assert tree.index.counters.fallbacks == 1
    assert tree.index.counters.last_fault == "ZeroDivisionError: injected"
    tree.index.check()
    assert set(tree.evict(100)) == {nodes[0], nodes[2]}


def test_units_whose_key_fails_are_not_lost() -> None:
    tree = Tree(compiled("lru").make_index(100))
    good = tree.insert()
    bad = Node("bad", None, 1)
    bad.last_access_time = None  # type: ignore[assignment]
    tree.index.add(bad)
    assert tree.index.counters.fallbacks == 1
    bad.last_access_time = 5.0
    assert len(tree.index) == 2
    assert tree.next_victims() == [good, bad]


@pytest.mark.parametrize("part", ["match", "hook"])
def test_a_fault_in_a_rule_or_algorithm_costs_that_call_alone(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = [
        {"name": "all", "retain": {"weight": 1}},
        {"name": "never", "match": "request.priority < 0", "admit": "never"},
    ]
    tree = Tree(compiled("s3fifo", rules=rules).make_index(100))
    tree.insert()
    index: Any = tree.index

    def fail(*_: Any) -> Any:
        raise RuntimeError("injected")

    with monkeypatch.context() as broken:
        if part == "match":
            broken.setattr(index._rules, "run", fail)
            broken.setattr(index._rules, "refuses", fail)
        else:
            broken.setattr(index._algorithm, "inserted", fail)
        node = tree.insert()
        assert index.admit(ANYBODY, 1, 1), "a fault admits, as the engine does"
    assert index.counters.fallbacks >= 1
    assert node in index, "evictable, whatever the policy thinks"
    assert len(tree.evict(100)) == 2


def test_rebuild_restores_the_members() -> None:
    tree = Tree(compiled("gdsf", tenants={"cap": "50%"}).make_index(100))
    nodes = [tree.insert(request=RequestInfo(str(i % 2))) for i in range(9)]
    tree.index._order.clear()
    assert tree.index.pop() is None
    tree.index.rebuild(nodes)
    tree.index.check()
    assert tree.next_victims() == nodes


def test_check_finds_a_key_that_was_declared_wrongly() -> None:
    tree = Tree(compiled("mru").make_index(10))
    node = tree.insert()
    node.last_access_time += 1  # and nobody said so
    with pytest.raises(AssertionError, match="without touch"):
        tree.index.check()


def test_the_victim_digest_tells_sequences_apart() -> None:
    def digest(order: list[int], policy: str = "lru") -> int:
        tree = Tree(compiled(policy).make_index(10))
        nodes = [tree.insert() for _ in range(3)]
        for i in order:
            tree.touch(nodes[i])
        tree.index.begin()
        while (node := tree.index.pop()) is not None:
            tree.index.evicted(node, 1, 1, identity=nodes.index(node))
        return tree.index.victim_digest

    assert digest([0, 1, 2]) == digest([0, 1, 2])
    assert digest([0, 1, 2]) != digest([0, 2, 1])
    assert digest([], "gdsf") != digest([0], "gdsf")


SCRIPT = """
import random, sys
sys.path.insert(0, {here!r})
from policies import compiled
from tree import RequestInfo, Tree
from test_against_brute_force import RULES, TENANTS
for policy in ["lru", "s3fifo", "sieve", "gdsf", "hit_density", "reuse_rate", "adaptive"]:
    junk = [object() for _ in range(int(sys.argv[1]))]  # other addresses
    tree = Tree(compiled(policy, rules=RULES, tenants=TENANTS).make_index(400))
    rng = random.Random(7)
    for step in range(1500):
        request = RequestInfo(rng.choice(["gold", "free", "x", None]), rng.choice([None, 0, 3]))
        if rng.random() < 0.5 or not tree.nodes:
            tree.insert(rng.choice([None, *tree.nodes]), rng.randrange(1, 9), request)
        elif rng.random() < 0.9:
            tree.touch(rng.choice(tree.nodes), request)
        elif (node := rng.choice(tree.nodes)).size > 1:
            tree.split(node, 1)
        tree.evict(max(0, sum(n.size for n in tree.nodes) - 400))
    print(policy, tree.index.victims, hex(tree.index.victim_digest), tree.index.counters)
"""


def test_processes_with_other_hash_seeds_and_addresses_choose_the_same_victims() -> None:
    root = HERE.parent.parent
    outputs = []
    for seed in ("0", "4711"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)}
        command = [sys.executable, "-c", SCRIPT.format(here=str(HERE)), seed]
        outputs.append(subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout)
    assert outputs[0] == outputs[1]
    assert outputs[0].count("fallbacks=0") == 7
