"""What is remembered of evictions, and what is said of a miss."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tree import ANYBODY, Node, Tree

from kvpolicy.eviction import EvictionIndex
from kvpolicy.eviction.ghosts import Ghosts, Histogram
from kvpolicy.eviction.metadata_index import MetadataIndex
from policies import compiled


class Clock:
    """A machine's clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def explaining(pool_tokens: int = 1000, **policy: Any) -> tuple[Tree, Ghosts, Clock]:
    tree = Tree(replace(compiled(**policy), explains=True).make_index(pool_tokens))
    ghosts, clock = tree.index.ghosts, Clock()
    assert ghosts is not None
    ghosts.now_s = clock
    return tree, ghosts, clock


def test_a_miss_is_explained() -> None:
    rules = [{"name": "kept", "match": "hits >= 1", "retain": {"weight": 2}}]
    tree, ghosts, clock = explaining(score="hits", rules=rules)
    kept = tree.insert(name="kept", size=32, content_key=1)
    tree.touch(kept)
    tree.insert(name="other", size=16, content_key=2)
    clock.now_s += 5
    assert [node.name for node in tree.evict(48)] == ["other", "kept"]
    clock.now_s += 4.25
    tree.insert(size=48, content_key=3)
    assert not ghosts.misses, "never seen before"
    tree.insert(size=48, content_key=1)
    (miss,) = ghosts.misses
    ghost = miss.first
    assert (ghost.rule, ghost.score, ghost.cutoff, ghost.hits, ghost.idle_requests) == ("kept", 1.0, 1.0, 1, 1)
    assert (miss.tokens, miss.units, miss.start_tokens) == (32, 1, 0)
    assert (miss.age_s, miss.age_requests) == (4.25, 2)
    assert miss.wanted_tokens == 32, "what was evicted from then on"
    assert (ghosts.reused, ghosts.reused_tokens) == ({"kept": 1}, {"kept": 32})
    assert ghosts.age_s.total == 10
    assert ghosts.hits.counts[:2] == [1, 1]
    assert ghosts.away_s.total == 4.25
    assert ghosts.away_requests.total == 2
    assert len(ghosts) == 1, "it is resident again"
    tree.insert(size=16, content_key=2)
    assert ghosts.misses[-1].first.rule == ""
    assert ghosts.misses[-1].first.score == 0.0
    assert ghosts.misses[-1].first.cutoff == 1.0, "the last victim of its walk"
    assert ghosts.misses[-1].wanted_tokens == 48


def test_units_that_return_one_below_the_other_are_one_miss() -> None:
    tree, ghosts, _ = explaining(policy="gdsf")
    top = tree.insert(size=16, content_key=1)
    middle = tree.insert(top, size=16, content_key=2)
    tree.insert(middle, size=16, content_key=3)
    tree.evict(32)
    middle = tree.insert(top, size=16, content_key=2)
    tree.insert(middle, size=16, content_key=3)
    (miss,) = ghosts.misses
    assert (miss.tokens, miss.units, miss.start_tokens, miss.wanted_tokens) == (32, 2, 16, 32)
    tree.evict(1)
    tree.insert(middle, size=16, content_key=3)
    assert len(ghosts.misses) == 2, "another request, another miss"


def test_a_unit_may_hold_what_several_held_before() -> None:
    tree, ghosts, _ = explaining(policy="gdsf")
    top = tree.insert(size=16, content_key=1)
    tree.insert(top, size=16, content_key=2)
    tree.evict(32)
    whole = tree.insert(size=48, content_key=1)
    assert ghosts.found_tokens == 16
    assert ghosts.asked(whole.kvp, 2, ghosts.found_tokens) == 16
    assert ghosts.asked(whole.kvp, 4, 32) == 0
    (miss,) = ghosts.misses
    assert (miss.tokens, miss.units, miss.start_tokens, miss.wanted_tokens) == (32, 2, 0, 32)


def test_units_of_a_run_are_remembered_one_by_one() -> None:
    """An engine's handle may stand for several units, which may come back in other runs."""
    tree, ghosts, clock = explaining(policy="gdsf")
    index = tree.index
    run, other = Node("run", None, 16), Node("other", None, 16)
    index.clock.arrive()
    index.insert(run, None, ANYBODY, 16, 64, content_key=1, units=4)
    index.add(run)
    index.begin()
    assert index.pop() is run
    index.evicted(run, 48, 64, units=3)
    ghosts.name([2, 3, 4])
    index.trim(run, 3, 2)
    index.end()
    assert (len(ghosts), ghosts.age_s.counts[0]) == (3, 3)
    clock.now_s += 2
    index.clock.arrive()
    index.insert(other, run, ANYBODY, 16, 64, content_key=2, units=3, following=[3, 9])
    (miss,) = ghosts.misses
    assert (miss.tokens, miss.units, miss.start_tokens, miss.wanted_tokens) == (32, 2, 16, 48)
    last = Node("last", None, 16)
    index.insert(last, other, ANYBODY, 16, 80, content_key=4)
    assert (miss.tokens, miss.units, len(ghosts), ghosts.fault) == (48, 3, 0, "")
    assert ghosts.reused_tokens == {"": 48}


def test_the_memory_is_bounded_and_the_oldest_go_first() -> None:
    tree, ghosts, _ = explaining(policy="gdsf")
    ghosts.capacity = 8
    for key in range(1000):
        tree.insert(content_key=key)
        tree.evict(1)
        assert len(ghosts) <= 8
    tree.insert(content_key=991)
    assert not ghosts.misses
    tree.insert(content_key=992)
    assert len(ghosts.misses) == 1
    for _ in range(200):  # misses are bounded too
        tree.evict(1)
        tree.insert(content_key=992)
    assert len(ghosts.misses) == ghosts.misses.maxlen


def test_a_flush_is_no_eviction() -> None:
    tree, ghosts, _ = explaining(policy="gdsf")
    tree.insert(content_key=1)
    tree.evict(1)
    tree.index.reset()
    tree.insert(content_key=1)
    assert not ghosts.misses


def test_only_where_it_is_asked_for() -> None:
    assert compiled("gdsf").make_index(10).ghosts is None
    assert type(compiled("lru").make_index(10)) is EvictionIndex
    plain = replace(compiled("lru"), explains=True)
    assert plain.needs_metadata
    assert not plain.orders_by_metadata
    assert isinstance(plain.make_index(10), MetadataIndex)


@pytest.mark.parametrize(
    "policy", [{"policy": "lru"}, {"policy": "gdsf"}, {"score": "log1p(hits) / (1 + idle_requests)"}]
)
def test_remembering_changes_no_victim(policy: dict[str, Any]) -> None:
    def victims(explains: bool) -> list[str]:
        tree = Tree(replace(compiled(**policy), explains=explains).make_index(100))
        for step in range(300):
            if step % 3 and tree.nodes:
                tree.touch(tree.nodes[step * 7 % len(tree.nodes)])
            else:
                tree.insert(
                    tree.nodes[step % len(tree.nodes)] if step % 2 and tree.nodes else None, content_key=step % 40
                )
            if len(tree.nodes) > 20:
                tree.evict(3)
        return [node.name for node in tree.victims]

    assert victims(True) == victims(False)
    assert len(victims(True)) > 20


@pytest.mark.parametrize("where", ["_score_of", "now_s"])
def test_a_fault_ends_the_memory_and_nothing_else(where: str) -> None:
    tree, ghosts, _ = explaining(policy="gdsf")
    tree.insert(content_key=1)
    tree.evict(1)

    def fails(*_: Any) -> float:
        raise RuntimeError("injected")

    setattr(ghosts, where, fails)
    tree.insert(content_key=2)
    assert [type(node) for node in tree.evict(1)] == [Node]
    tree.insert(content_key=1)
    assert ghosts.fault == "RuntimeError: injected"
    assert len(ghosts) == 0
    assert tree.index.counters.fallbacks == 0


def test_a_histogram_counts_up_to_and_with_its_bounds() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0, 1, 1.5, 2, 3):
        histogram.add(value)
    assert histogram.counts == [2, 2, 1]
    assert histogram.total == 7.5
