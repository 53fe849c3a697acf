"""How a preparation is cut into slices, and how an index that was replaced is taken apart."""

from __future__ import annotations

import sys

import pytest

from kvpolicy.live import preparation as module
from kvpolicy.live.off import Retirement
from kvpolicy.live.preparation import Both, Preparation
from kvpolicy.live.slices import LEAST_UNITS
from tests.eviction.tree import Node, Tree
from tests.live.test_preparation import POLICIES, POOL_TOKENS, TreeUnits, grown, swapped


def test_slices_are_counted_in_units() -> None:
    tree = grown(POLICIES["rules"], 1000)
    preparation = Preparation(POLICIES["both"], tree.index, TreeUnits(tree))
    sizes = []
    more = True
    while more:
        at = preparation.examined_units
        more = preparation.step(64)
        sizes.append(preparation.examined_units - at)
    assert max(sizes) == 64
    assert sum(sizes) == 1001


def test_large_dictionaries_grow_one_a_slice_and_in_short_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LARGE_DICT", 300)
    tree = Tree(POLICIES["lru"].make_index(POOL_TOKENS))
    for _ in range(1500):
        tree.insert(None, 1)
    preparation = Preparation(POLICIES["hits"], tree.index, TreeUnits(tree))
    index = preparation.index
    numbers = index.inner._order._numbers
    grown_at, sizes, more = [], [0, 0], True
    while more:
        at, known = preparation.examined_units, len(index.twins)
        more = preparation.step(200)
        before, sizes = sizes, [sys.getsizeof(index.twins), sys.getsizeof(numbers)]
        if known > 300 and before != sizes:
            grown_at.append(known)
            assert before[0] == sizes[0] or before[1] == sizes[1], "both grew in one slice"
            assert preparation.examined_units - at <= LEAST_UNITS
    assert grown_at == [341, 341 + LEAST_UNITS, 682, 682 + LEAST_UNITS, 1365, 1365 + LEAST_UNITS]
    assert len(index) == len(index.twins) == 1500


def test_a_unit_that_goes_before_it_is_offered_stays_gone() -> None:
    class Forgetful(TreeUnits):
        def is_evictable(self, node: Node) -> bool:
            return not node.children  # gone or not

    tree = grown(POLICIES["rules"])
    preparation = Preparation(POLICIES["hits"], tree.index, Forgetful(tree))
    tree.index = Both(tree.index, preparation, lambda: None)  # type: ignore[assignment]
    while preparation.step(3):
        tree.evict(1)
    index = preparation.index
    assert preparation.fault is None
    assert {twin.unit for twin in index.inner.members()} == set(tree.evictable())


def test_an_index_that_was_replaced_is_taken_apart_in_slices() -> None:
    tree = grown(POLICIES["rules"], 100)
    first = swapped(tree, POLICIES["both"])
    swapped(tree, POLICIES["hits"])
    retirement = Retirement(first, keeps_handles=False)
    steps = 1
    while retirement.step(10):
        steps += 1
    assert steps == 11  # the last finds nothing
    assert not first.twins
    assert len(first) == 0
    tree.index.check()
