"""The two containers behind every order, and what is particular to single algorithms."""

from __future__ import annotations

import random
import weakref
from typing import Any

import pytest
from tree import Node, Tree

from kvpolicy.eviction import KeyChange, PolicyClock, RequestInfo
from kvpolicy.eviction.heap import LazyHeap
from kvpolicy.eviction.sample import DRAWN, KEPT, SampledOrder
from policies import compiled


class Unit:
    def __init__(self, key: float) -> None:
        self.key = key


def key_of(unit: Unit) -> float:
    return unit.key


@pytest.mark.parametrize("change", [KeyChange.STATIC, KeyChange.GROWS, KeyChange.SHRINKS])
@pytest.mark.parametrize("size", [10, 2000])
def test_a_lazy_heap_always_gives_the_smallest(change: KeyChange, size: int) -> None:
    rng = random.Random(size)
    units = [Unit(rng.random()) for _ in range(size)]
    heap: LazyHeap[Unit] = LazyHeap(key_of, change)
    members: dict[Unit, None] = {}
    for step in range(6 * size):
        unit = rng.choice(units)
        action = rng.random()
        if action < 0.4:
            heap.add(unit)
            members[unit] = None
        elif action < 0.7:
            heap.discard(unit)
            members.pop(unit, None)
        elif change is KeyChange.GROWS or (unit not in members and change is KeyChange.STATIC):
            unit.key += rng.random()
        elif change is KeyChange.SHRINKS:
            unit.key = rng.random()
            heap.touch(unit)
        if step % max(1, size // 20) == 0:
            heap.check()
            expected = min(members, key=key_of) if members else None
            assert heap.pop() is expected
            if expected is not None:
                del members[expected]
            assert len(heap) == len(members)
    drained = [heap.pop() for _ in range(len(heap))]
    assert drained == sorted(members, key=key_of)
    assert heap.pop() is None


def test_dead_entries_are_bounded_and_keep_nothing_alive() -> None:
    heap: LazyHeap[Unit] = LazyHeap(key_of, KeyChange.GROWS)
    units = [Unit(i) for i in range(100)]
    for unit in units:
        heap.add(unit)
    for step in range(20_000):
        unit = units[step * 7 % 100]
        heap.discard(unit)
        unit.key += 1000
        heap.add(unit)
        assert sum(len(generation.heap) for generation in heap._generations) <= 2 * 100 + 64 * 9
    for unit in units:
        heap.discard(unit)
    references = [weakref.ref(unit) for unit in units]
    del unit, units
    assert not any(reference() for reference in references)


def test_a_small_heap_needs_no_tidying_up_at_eviction() -> None:
    """A policy with tenants has hundreds of them, and one eviction may look at each."""
    heap: LazyHeap[Unit] = LazyHeap(key_of, KeyChange.GROWS)
    rng = random.Random(3)
    units = [Unit(rng.random()) for _ in range(100)]
    for unit in units:
        heap.add(unit)
    for unit in rng.choices(units, k=1000):
        heap.discard(unit)
        unit.key += 1
        heap.add(unit)
        assert all(g.heap[0][-1] in g.handles for g in heap._generations if g.heap)
    heap.check()


def test_equal_keys_go_in_the_order_of_arrival() -> None:
    heap: LazyHeap[Unit] = LazyHeap(key_of, KeyChange.STATIC)
    units = [Unit(1) for _ in range(50)]
    for unit in units:
        heap.add(unit)
    assert [heap.pop() for _ in units] == units


def test_a_key_that_moves_with_the_clock_is_no_heaps() -> None:
    with pytest.raises(ValueError, match="SampledOrder"):
        LazyHeap(key_of, KeyChange.DYNAMIC)


def test_a_small_sample_is_exact_and_a_large_one_is_good() -> None:
    clock = PolicyClock()
    rng = random.Random(1)
    units = [Unit(rng.random()) for _ in range(5000)]
    order: SampledOrder[Unit] = SampledOrder(key_of, clock)
    for unit in units:
        order.add(unit)
    by_key = sorted(units, key=key_of)
    rank = {unit: i for i, unit in enumerate(by_key)}
    ranks = []
    for _ in range(200):
        clock.arrive()
        victim = order.pop()
        assert victim is not None
        ranks.append(rank[victim])
    assert sum(ranks) / len(ranks) < 5000 / DRAWN, "on average among the lowest 1/32"
    order.check()
    for unit in units[DRAWN + KEPT :]:
        order.discard(unit)
    order.check()
    left = [unit for unit in units if unit in order]
    assert [order.pop() for _ in left] == sorted(left, key=key_of)
    assert order.pop() is None


def test_a_key_is_evaluated_once_a_request() -> None:
    evaluated: dict[Unit, int] = {}

    def counting(unit: Unit) -> float:
        evaluated[unit] = evaluated.get(unit, 0) + 1
        return unit.key

    clock = PolicyClock()
    rng = random.Random(2)
    units = [Unit(rng.random()) for _ in range(300)]
    order: SampledOrder[Unit] = SampledOrder(counting, clock)
    for unit in units:
        order.add(unit)
    victims = [order.pop() for _ in range(200)]
    order.check()
    assert max(evaluated.values()) == 1
    assert victims[50:] == sorted(victims[50:], key=key_of), "by then every unit is a candidate"
    clock.arrive()
    order.peek()
    assert max(evaluated.values()) == 2


def test_a_sample_is_drawn_anew_when_the_clock_moves() -> None:
    clock = PolicyClock()
    a, b = Unit(1), Unit(2)
    order: SampledOrder[Unit] = SampledOrder(key_of, clock)
    order.add(a)
    order.add(b)
    assert order.peek() == (1, a)
    a.key = 3
    clock.arrive()
    assert order.peek() == (2, b)


def test_a_touch_that_lowers_a_key_is_seen_in_a_small_sample() -> None:
    """The clock stands still between the calls of one step of the engine."""
    order: SampledOrder[Unit] = SampledOrder(key_of, PolicyClock())
    first, other = Unit(1), Unit(2)
    order.add(first)
    order.add(other)
    assert order.peek() == (1, first)
    other.key = 0
    order.touch(other)
    assert order.peek() == (0, other)


def test_gdsf_ages_what_was_popular_once() -> None:
    tree = Tree(compiled("gdsf").make_index(100))
    star = tree.insert(name="star")
    for _ in range(5):
        tree.touch(star)
    for _ in range(5):  # one by one each goes, and raises the inflation by its own key
        tree.insert()
        assert star not in tree.evict(1)
    newcomer = tree.insert()
    tree.touch(newcomer)
    tree.touch(newcomer)
    assert tree.evict(1) == [star], "six uses long ago are worth less than three now"


@pytest.mark.parametrize(("size_exponent", "first"), [(1, "long"), (0, "short")])
def test_gdsf_counts_units_or_tokens(size_exponent: float, first: str) -> None:
    tree = Tree(compiled("gdsf", params={"size_exponent": size_exponent}).make_index(100))
    tree.insert(size=1, name="short")
    tree.touch(tree.insert(size=8, name="long"))  # two requests for 8 tokens: 1/4 a token, or 2
    assert tree.evict(1)[0].name == first


def test_s3fifo_remembers_what_it_threw_out() -> None:
    def survives(content_key: int | None) -> bool:
        tree = Tree(compiled("s3fifo").make_index(100))
        tree.insert(content_key=content_key)
        filler = [tree.insert() for _ in range(3)]
        tree.evict(1)
        again = tree.insert(content_key=content_key)
        assert tree.evict(3) == filler
        newcomer = tree.insert()
        return tree.evict(1) == [newcomer] and again in tree.nodes

    assert survives(content_key=17), "a ghost: straight into the main queue"
    assert not survives(content_key=None)


def test_s3fifos_ghosts_are_bounded() -> None:
    tree = Tree(compiled("s3fifo").make_index(100))
    for key in range(500):
        tree.insert(content_key=key)
        if len(tree.nodes) > 10:
            tree.evict(1)
    algorithm: Any = tree.index._algorithm
    assert 0 < len(algorithm._ghosts) <= 11


def test_tlru_keeps_the_history_after_the_tail_is_gone() -> None:
    params = {"threshold_tokens": 4, "next_prompt_tokens": 0}
    tree = Tree(compiled("tlru", params=params).make_index(100))
    root = tree.insert(size=6, name="root")
    tail = tree.insert(root, size=4, name="tail")
    later = tree.insert(size=20, name="later")
    assert tree.evict(1) == [tail], "of 10 tokens the first 6 suffice"
    assert tree.next_victims() == [root, later], "plain recency: root is still needed"
    assert tree.split(root, 3).kvp.state == 10
    assert tree.next_victims() == [later, root], "the cut touched root; neither half lies beyond what is needed"


def test_hit_density_learns_which_units_are_hit() -> None:
    tree = Tree(compiled("hit_density").make_index(100))

    def life(reused: bool) -> None:
        node = tree.insert(size=1)
        if reused:
            for _ in range(3):
                tree.touch(node)
        for _ in range(3):
            tree.insert(size=1)
        tree.evict(10**6)

    for i in range(700):
        life(reused=i % 2 == 0)
    algorithm: Any = tree.index._algorithm
    density = algorithm.density
    assert density[1][0] > density[0][0], "units hit once are hit again, others mostly are not"
    assert density[0] != sorted(density[0]), "and density falls with age"
    proven, fresh = tree.insert(size=1), tree.insert(size=1)
    tree.touch(proven)
    tree.touch(fresh)
    tree.touch(proven)
    other = tree.insert(size=1)
    assert tree.next_victims()[0] is other


def test_sieve_keeps_visits_while_a_unit_is_locked_or_inner() -> None:
    tree = Tree(compiled("sieve").make_index(100))
    visited, plain = tree.insert(name="visited"), tree.insert(name="plain")
    tree.lock(visited)
    tree.touch(visited, lock=False)
    tree.unlock(visited)
    assert tree.evict(1) == [plain]
    assert tree.evict(1) == [visited]


def test_sieve_goes_on_with_what_its_victim_stood_on() -> None:
    """Where one request brought both and nobody visited it; the hand does not go back for others."""
    tree = Tree(compiled("sieve").make_index(100))

    def prompt(name: str, above: Node | None = None) -> Node:
        tree.arrive()
        for part in "123":
            above = tree.insert(above, name=name + part, arrives=False)
        assert above is not None
        return above

    early, visited, late = prompt("a"), prompt("b"), prompt("c")
    assert early.parent is not None
    tree.insert(early.parent, name="other")  # another request's, on the second unit of the first prompt
    tree.touch(visited, lock=False)
    names = [node.name for node in tree.evict(12)]
    # The hand passes b3, and c goes whole; a2 is behind it then. Of b one in each lap, as each was visited.
    assert names == ["a3", "c3", "c2", "c1", "other", "a2", "a1", "b3", "b2", "b1"]
    assert late not in tree.nodes


@pytest.mark.parametrize("policy", ["gdsf", "s3fifo", "sieve", "hit_density", "reuse_rate", "adaptive", "tlru"])
def test_random_operations_leave_no_unit_behind(policy: str) -> None:
    """Any need is met, members are exactly the evictable leaves, and every invariant holds."""
    rng = random.Random(3)
    tree = Tree(compiled(policy).make_index(80))
    locked: list[Node] = []
    for step in range(800):
        action, request = rng.random(), RequestInfo(priority=rng.randrange(3))
        if action < 0.4 or not tree.nodes:
            tree.insert(rng.choice([None, *tree.nodes]), rng.randrange(1, 6), request, content_key=step % 97)
        elif action < 0.7:
            tree.touch(rng.choice(tree.nodes), request, lock=rng.random() < 0.5)
        elif action < 0.8:
            locked.append(rng.choice(tree.nodes))
            tree.lock(locked[-1])
        elif action < 0.9 and locked:
            tree.unlock(locked.pop(rng.randrange(len(locked))))
        elif (node := rng.choice(tree.nodes)).size > 1 and not node.locks:
            tree.split(node, rng.randrange(1, node.size))
        free = sum(n.size for n in tree.nodes if not n.locks)
        need = min(free, max(0, sum(n.size for n in tree.nodes) - 80))
        assert sum(n.size for n in tree.evict(need)) >= need
        assert set(tree.index._order) == set(tree.evictable())
        tree.index.check()
    assert tree.index.counters.fallbacks == 0
    assert len(tree.victims) > 100
