"""A policy prepared in slices, while the cache goes on living, is the policy that was built at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from kvpolicy.eviction import CompiledEviction, KeyChange, RequestInfo
from kvpolicy.eviction.envelope import Action, Envelope
from kvpolicy.live import preparation as module
from kvpolicy.live.off import Retirement, records_only
from kvpolicy.live.preparation import Both, Preparation
from kvpolicy.live.twins import TwinIndex
from tests.eviction.policies import compiled
from tests.eviction.tree import Node, Tree

POOL_TOKENS = 100
KEPT = {"name": "kept", "match": "hits >= 1", "retain": {"weight": 4, "ttl": "20s"}}
POLICIES: dict[str, CompiledEviction] = {
    "lru": compiled("lru"),
    "lfu": compiled("lfu"),
    "mru": compiled("mru"),
    "hits": compiled(score="hits"),
    "decay": compiled(score="log1p(hits) - 0.1 * idle_requests"),
    "rules": compiled("lru", rules=[KEPT, {"name": "deep", "match": "depth_tokens > 6", "retain": {"weight": 2}}]),
    "tenants": compiled(score="hits", tenants={"by": "cache_salt", "cap": "30%", "floor": "5%"}),
    "both": compiled("lru", rules=[KEPT], tenants={"by": "cache_salt", "floor": "10%"}),
}
SALTS = (None, "a", "b")


class TreeUnits:
    """What an adapter knows of the tree."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree

    def units(self) -> Iterator[Node]:
        stack = list(self.tree.root.children)
        while stack:
            yield (node := stack.pop())
            stack.extend(node.children)

    def parent(self, node: Node) -> Node | None:
        return None if node.parent is self.tree.root else node.parent

    def size_tokens(self, node: Node) -> int:
        return node.size

    def count_units(self, node: Node) -> int:
        return 1

    def depth_tokens(self, node: Node, above_tokens: int) -> int:
        return above_tokens + node.size

    def content_key(self, node: Node) -> int | None:
        return None

    def is_evictable(self, node: Node) -> bool:
        return self.tree.is_evictable(node)


def prepared_at_once(after: CompiledEviction, before: Any, tree: Tree) -> Any:
    """The index over what is there now, nothing happening meanwhile."""
    preparation = Preparation(after, before, TreeUnits(tree))
    while preparation.step(1_000):
        pass
    assert preparation.fault is None
    return preparation.index


def victims(tree: Tree, index: Any) -> list[str]:
    before, tree.index = tree.index, index
    try:
        return [node.name for node in tree.next_victims()]
    finally:
        tree.index = before


class Swapping(RuleBasedStateMachine):
    """A cache whose policy is swapped again and again, at any moment of a preparation."""

    @initialize(
        name=st.sampled_from(sorted(POLICIES)),
        units=st.lists(
            st.tuples(st.integers(0, 50), st.integers(1, 6), st.sampled_from(SALTS)), min_size=8, max_size=16
        ),
    )
    def start(self, name: str, units: list[tuple[int, int, str | None]]) -> None:
        self.tree = Tree(POLICIES[name].make_index(POOL_TOKENS))
        for at, size, salt in units:
            self.tree.insert(None if at % 2 else self._node(at), size, RequestInfo(cache_salt=salt))
        self.preparation: Preparation | None = None
        self.after: CompiledEviction | None = None
        self.retirement: Retirement | None = None
        self.was_bare = False

    def _node(self, at: int) -> Node | None:
        nodes = self.tree.nodes
        return nodes[at % len(nodes)] if nodes else None

    @rule(at=st.integers(0, 50), size=st.integers(1, 6), salt=st.sampled_from(SALTS), is_root=st.booleans())
    def insert(self, at: int, size: int, salt: str | None, is_root: bool) -> None:
        if len(self.tree.nodes) < 25:
            self.tree.insert(None if is_root else self._node(at), size, RequestInfo(cache_salt=salt))

    @rule(at=st.integers(0, 50), lock=st.booleans(), seconds=st.sampled_from([0.0, 1.0, 9.0]))
    def touch(self, at: int, lock: bool, seconds: float) -> None:
        if (node := self._node(at)) is not None:
            self.tree.touch(node, lock=lock, seconds=seconds)
            self.tree.index.touched(node)

    @rule(at=st.integers(0, 50), size=st.integers(1, 5))
    def split(self, at: int, size: int) -> None:
        node = self._node(at)
        if node is not None and node.size > size and not node.locks:
            self.tree.split(node, size)

    @rule(tokens=st.integers(1, 5))
    def evict(self, tokens: int) -> None:
        self.tree.evict(tokens)

    @rule(at=st.integers(0, 50))
    def lock(self, at: int) -> None:
        if (node := self._node(at)) is not None:
            self.tree.lock(node)

    @rule(at=st.integers(0, 50))
    def unlock(self, at: int) -> None:
        node = self._node(at)
        if node is not None and all(above.locks for above in self.tree.path(node)):
            self.tree.unlock(node)

    @rule(name=st.sampled_from(sorted(POLICIES)), again=st.integers(0, 3))
    def prepare(self, name: str, again: int) -> None:
        if self.preparation is not None and again:
            return
        self._abandon()
        before = self.tree.index
        self.after, self.was_bare = POLICIES[name], not before.needs_metadata
        self.preparation = Preparation(self.after, before, TreeUnits(self.tree))
        self.tree.index = Both(before, self.preparation, self._abandon)  # type: ignore[assignment]

    @rule(units=st.integers(1, 8))
    def step(self, units: int) -> None:
        if self.preparation is not None:
            self.preparation.step(units)
        if self.retirement is not None:
            self.retirement.step(units)

    @rule(now=st.integers(0, 3))
    def abandon(self, now: int) -> None:
        if not now:
            self._abandon()

    def _abandon(self) -> None:
        if self.preparation is not None:
            self.tree.index = self.tree.index.before  # type: ignore[attr-defined]
            self.preparation = None

    @rule(now=st.integers(0, 2))
    def commit(self, now: int) -> None:
        preparation, after = self.preparation, self.after
        if preparation is None or now:
            return
        while preparation.step(3):
            pass
        assert preparation.fault is None
        assert after is not None
        before, index = self.tree.index.before, preparation.index  # type: ignore[attr-defined]
        if not self.was_bare or not index.needs_metadata:  # else what happened meanwhile is known to it alone
            at_once = prepared_at_once(after, before, self.tree)
            assert victims(self.tree, index) == victims(self.tree, at_once)
        evicted = before.victim_digest
        index.succeed(before)
        self.tree.index, self.preparation = index, None
        self.retirement = Retirement(before, keeps_handles=False)
        assert index.victim_digest == evicted

    @rule(now=st.integers(0, 3))
    def off(self, now: int) -> None:
        if now:
            return
        self._abandon()
        before = self.tree.index
        self.tree.index = records_only(before)
        metas = [before.meta(node) for node in self.tree.nodes]
        assert [self.tree.index.meta(node) for node in self.tree.nodes] == metas
        self.retirement = Retirement(before, keeps_handles=True)

    @invariant()
    def nothing_is_lost(self) -> None:
        index = self.tree.index
        index.check()
        deciding = index.before if isinstance(index, Both) else index
        is_off = type(getattr(deciding, "inner", deciding)._algorithm).__name__ == "_NoAlgorithm"
        assert len(index) == (0 if is_off else len(self.tree.evictable()))
        if isinstance(deciding, TwinIndex):
            assert set(deciding.twins) == set(self.tree.nodes)
        if self.preparation is not None and self.preparation.is_ready:
            prepared = self.preparation.index
            prepared.check()
            assert len(prepared) == len(self.tree.evictable())
            if isinstance(prepared, TwinIndex):
                assert set(prepared.twins) == set(self.tree.nodes)


def test_a_swap_at_any_moment_loses_nothing_and_orders_as_if_built_at_once() -> None:
    run_state_machine_as_test(Swapping, settings=settings(max_examples=80, stateful_step_count=60, deadline=None))


@pytest.mark.parametrize("event", ["add", "insert", "remove"])
def test_the_machine_notices_an_event_that_is_missed(event: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Preparation, event, lambda self, *_: None)
    searching = settings(
        max_examples=500,
        stateful_step_count=60,
        deadline=None,
        phases=[Phase.generate],
        database=None,
        derandomize=True,
    )
    with pytest.raises((AssertionError, KeyError)):
        run_state_machine_as_test(Swapping, settings=searching)


@pytest.mark.parametrize("is_missed", [False, True])
def test_hits_between_two_slices_count(is_missed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of units that the new index has already, and of such that it has not; ``is_missed``: the fault put in."""
    if is_missed:
        monkeypatch.setattr(Preparation, "touch", lambda self, *_: None)
    tree = grown(POLICIES["hits"])
    before = tree.index
    preparation = Preparation(POLICIES["hits"], before, TreeUnits(tree))
    tree.index = Both(before, preparation, lambda: None)  # type: ignore[assignment]
    preparation.step(20)
    known = [node for node in tree.nodes if node in preparation.index.twins]
    unknown = [node for node in tree.nodes if node not in preparation.index.twins]
    assert len(known) == len(unknown) == 20
    for node in (known[3], unknown[5], known[3]):
        tree.touch(node)
    while preparation.step(7):
        pass
    at_once = prepared_at_once(POLICIES["hits"], before, tree)
    assert (victims(tree, preparation.index) == victims(tree, at_once)) != is_missed


@pytest.mark.parametrize("is_missed", [False, True])
def test_what_was_cut_before_its_turn_comes_in(is_missed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The walk knows of the lower half alone, and that is gone when it comes to it."""
    if is_missed:
        monkeypatch.setattr(Preparation, "_remember", lambda self, upper: None)
    tree = grown(POLICIES["lru"], 10)
    before = tree.index
    preparation = Preparation(POLICIES["hits"], before, TreeUnits(tree))
    tree.index = Both(before, preparation, lambda: None)  # type: ignore[assignment]
    preparation.step(2)
    lower = tree.next_victims()[0]
    assert lower not in preparation.index.twins
    upper = tree.split(lower, 1)
    while lower in tree.nodes:
        tree.evict(1)
    assert upper in tree.nodes
    while preparation.step(3):
        pass
    assert preparation.fault is None
    assert (set(preparation.index.twins) == set(tree.nodes)) != is_missed
    assert (len(preparation.index) == len(tree.evictable())) != is_missed


def grown(policy: CompiledEviction, units: int = 40) -> Tree:
    tree = Tree(policy.make_index(10_000))
    for at in range(units):
        tree.insert(size=2, request=RequestInfo(cache_salt=SALTS[at % 3]))
    return tree


def swapped(tree: Tree, after: CompiledEviction) -> Any:
    before = tree.index
    index = prepared_at_once(after, before, tree)
    index.succeed(before)
    tree.index = index
    return index


def test_hits_ages_and_tenants_carry_over() -> None:
    tree = grown(POLICIES["rules"])
    tree.touch(tree.nodes[3])
    tree.touch(tree.nodes[3])
    before = {node: tree.index.meta(node) for node in tree.nodes}
    index = swapped(tree, POLICIES["tenants"])
    for node, old in before.items():
        new = index.meta(node)
        assert new is not old
        assert old is not None
        for name in ("hits", "birth_seq", "birth_ms", "touch_seq", "touch_ms", "reuse_gap_s", "cache_salt", "order"):
            assert getattr(new, name) == getattr(old, name), name


def test_what_is_left_of_a_ttl_carries_over() -> None:
    tree = grown(POLICIES["rules"], 5)
    kept = tree.nodes[2]
    tree.touch(kept)
    tree.arrive(12)
    index = swapped(tree, compiled("lfu", rules=[KEPT]))  # the same rule by name and ttl
    assert index.is_protected(kept)
    tree.arrive(7)
    index.begin()
    index.end()
    assert index.is_protected(kept)
    tree.arrive(1)
    index.begin()
    index.end()
    assert not index.is_protected(kept)


def test_a_rule_that_left_the_policy_protects_no_more_and_a_new_one_does_from_the_last_touch_on() -> None:
    tree = grown(POLICIES["hits"], 5)
    tree.touch(tree.nodes[1])
    assert swapped(tree, POLICIES["rules"]).is_protected(tree.nodes[1])
    assert not swapped(tree, POLICIES["hits"]).is_protected(tree.nodes[1])
    tree.arrive(25)
    assert not swapped(tree, POLICIES["rules"]).is_protected(tree.nodes[1])  # its 20 s are over


def hinting(**hints: Any) -> CompiledEviction:
    return compiled("lru", hints={"allow": ["retain", "demote", "class"], "classes": ["a"], "budget": 0.3, **hints})


def test_hints_carry_over_as_far_as_the_next_policy_allows_them() -> None:
    tree = Tree(hinting().make_index(POOL_TOKENS))
    actions = Action("r", "retain", ttl_ms=100_000), Action("d", "demote"), Action("c", "class", class_name="a")
    kept, demoted, named = (tree.insert(size=4, request=RequestInfo(hints=Envelope((each,)))) for each in actions)
    tree.insert(size=4)
    tree.arrive(40)
    assert victims(tree, swapped(tree, hinting())) == victims(tree, tree.index)
    index = tree.index
    assert (index.rule_of(kept), index.meta(demoted).is_demoted, index.meta(named).hint_class) == ("(hints)", True, "a")
    assert index.hints is not None
    assert [index.hints.recent[name].outcome for name in "rdc"] == ["accepted"] * 3
    report = index.hints.recent["r"]
    assert (report.hold.held_tokens, report.hold.most_tokens) == (4, 4)
    index.check()
    tree.arrive(56)  # 100 s after it was asked for, less three requests of a second each
    index.begin()
    index.end()
    assert index.is_protected(kept)
    tree.arrive(1)
    index.begin()
    index.end()
    assert not index.is_protected(kept)
    assert index.hints.counts["retain", "expired"] == 1


def test_hints_that_the_next_policy_does_not_allow_end_with_the_swap() -> None:
    tree = Tree(hinting().make_index(POOL_TOKENS))
    for each in (Action("d", "demote"), Action("r", "retain", ttl_ms=100_000)):
        tree.insert(size=4, request=RequestInfo(hints=Envelope((each,))))
    demoted, kept = tree.nodes
    index = swapped(tree, hinting(max_ttl_ms=10_000))
    assert index.meta(kept).hold_expiry_ms == index.clock.now_ms + 10_000
    for after in (hinting(allow=["class"]), POLICIES["rules"]):
        index = swapped(tree, after)
        assert not index.is_protected(kept)
        assert not index.meta(demoted).is_demoted
        assert index.meta(kept).hold is None
        tree.index.check()


class Broken(Exception):
    pass


def test_a_policy_that_fails_on_the_cache_never_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = grown(POLICIES["rules"])
    preparation = Preparation(POLICIES["hits"], tree.index, TreeUnits(tree))

    class NoAdding(type(preparation.index.inner._order)):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(lambda handle: 0, KeyChange.GROWS)

        def add(self, handle: Any) -> Any:
            raise Broken("no")

    monkeypatch.setattr(preparation.index.inner, "_order", NoAdding())
    before = victims(tree, tree.index)
    both = Both(tree.index, preparation, lambda: None)
    tree.index = both  # type: ignore[assignment]
    while preparation.step(10):
        pass
    assert preparation.fault is not None
    assert "Broken" in preparation.fault
    assert not preparation.is_ready
    assert victims(tree, tree.index) == before


@pytest.mark.parametrize("event", ["insert", "touch", "remove", "add", "reset"])
def test_a_fault_of_the_new_policy_never_reaches_the_running_one(event: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = grown(POLICIES["rules"])
    preparation = Preparation(POLICIES["hits"], tree.index, TreeUnits(tree))
    tree.index = Both(tree.index, preparation, lambda: None)  # type: ignore[assignment]
    while preparation.step(10):
        pass

    def fail(*_: Any) -> None:
        raise Broken("no")

    monkeypatch.setattr(preparation, event, fail)
    tree.insert(size=2)
    tree.touch(tree.nodes[0])
    assert len(tree.evict(4)) == 2
    tree.index.reset()
    assert preparation.fault == "Broken: no"
    assert not preparation.is_ready


def test_a_preparation_whose_client_is_gone_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOST_AFTER_REQUESTS", 20)
    tree = grown(POLICIES["rules"])
    before = tree.index
    preparation = Preparation(POLICIES["hits"], before, TreeUnits(tree))
    tree.index = Both(before, preparation, lambda: setattr(tree, "index", before))  # type: ignore[assignment]
    preparation.step(5)
    for _ in range(20):
        tree.insert(size=2)
    tree.evict(2)
    assert isinstance(tree.index, Both)
    tree.insert(size=2)
    tree.evict(2)
    assert tree.index is before
    tree.index.check()
