"""Every order against a slow reference, id for id: golden tables, and streams of calls that hypothesis makes up."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvpolicy.allocators import ORDERS, ORDERS_ON_DEVICE, FreeList, make_free_list

from .reference import Reference

#: Both forms of each order: a GPU's runs on CPU tensors too.
LISTS = {**ORDERS, **{f"{order} on a device": ORDERS_ON_DEVICE[order] for order in ("address", "runs")}}


def ids(*units: int) -> torch.Tensor:
    return torch.tensor(units, dtype=torch.int64)


# Of 8 units the first 6 are taken; 5, 2 and 3 come back in this order, then 3 more are asked for.
GOLDEN = {
    "fifo": [7, 8, 5],
    "lifo": [5, 2, 3],
    "address": [2, 3, 5],
    "runs": [2, 3, 7],  # 2-3 and 7-8 are equally long
}


@pytest.mark.parametrize("name", LISTS)
def test_golden(name: str) -> None:
    free = LISTS[name](8, "cpu")
    assert free.take(6).tolist() == [1, 2, 3, 4, 5, 6]
    free.give(ids(5, 2, 3))
    assert free.available == 5
    assert free.take(3).tolist() == GOLDEN[free.order]
    assert free.available == 2


@pytest.mark.parametrize("name", ["runs", "runs on a device"])
def test_runs_follow_the_requests(name: str) -> None:
    free = LISTS[name](12, "cpu")
    free.take(12)
    free.give(ids(3, 4, 8, 10, 11, 12))
    # The first request ends in 2 and gets 3; the second ends in 7 and gets 8, then, 9 being used, from the longest run;
    # the third shares the last unit of the first, whose neighbour is gone.
    assert free.take_after(ids(2, 7, 2), [1, 2, 1]).tolist() == [3, 8, 10, 11]
    assert free.all_free().tolist() == [4, 12]


@pytest.mark.parametrize("name", LISTS)
def test_sorting_hands_out_ascending(name: str) -> None:
    free = LISTS[name](6, "cpu")
    free.take(6)
    free.give(ids(6, 2, 4, 1))
    free.sort()
    expected = [1, 2, 4, 6]
    assert free.take(4).tolist() == expected  # runs: 1-2 is the longest, and lowest first among the others


@pytest.mark.parametrize("name", LISTS)
def test_what_was_handed_out_does_not_change(name: str) -> None:
    """The engine holds ids for a whole step, while others come back."""
    free = LISTS[name](8, "cpu")
    held = free.take(4)
    before = held.tolist()
    for _ in range(3):
        others = free.take(4)
        free.give(others)
    free.give(held.clone())
    free.take(8)
    assert held.tolist() == before


def test_unknown_order() -> None:
    with pytest.raises(ValueError, match="unknown allocator order 'best'"):
        make_free_list("best", 8, "cpu")


class OrderMachine(RuleBasedStateMachine):
    """One list and its reference under the same calls."""

    kind: type[FreeList]

    @property
    def order(self) -> str:
        return self.kind.order

    @initialize(units=st.integers(1, 48))
    def start(self, units: int) -> None:
        self.units = units
        self.real, self.reference = self.kind(units, "cpu"), Reference(self.order, units)
        self.held: list[int] = []

    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(0, len(self.reference.free)))
        taken = self.real.take(count).tolist()
        assert taken == self.reference.take(count)
        self.held += taken

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def take_after(self, data: st.DataObject) -> None:
        last = data.draw(st.lists(st.sampled_from([*self.held, -1]), max_size=5))
        counts, room = [], len(self.reference.free)
        for _ in last:
            counts.append(data.draw(st.integers(0, min(3, room - sum(counts)))))
        taken = self.real.take_after(ids(*last), counts).tolist()
        assert taken == self.reference.take_after(last, counts)
        self.held += taken

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def give(self, data: st.DataObject) -> None:
        back = data.draw(st.lists(st.sampled_from(self.held), unique=True, max_size=20))
        self.real.give(ids(*back))
        self.reference.give(back)
        self.held = [unit for unit in self.held if unit not in set(back)]

    @rule()
    def sort(self) -> None:
        self.real.sort()
        self.reference.sort()

    @rule(units=st.integers(1, 48))
    def resize(self, units: int) -> None:
        self.units = units
        self.real.resize(units)
        self.reference.resize(units)
        self.held = []

    @rule()
    def clear(self) -> None:
        self.real.clear()
        self.reference.clear()
        self.held = []

    @invariant()
    def nothing_is_lost(self) -> None:
        free = self.real.all_free().tolist()
        assert sorted(free) == sorted(self.reference.free)
        assert self.real.available == len(free)
        assert sorted([*free, *self.held]) == list(range(1, self.units + 1))
        if self.order in ("fifo", "lifo"):
            assert free == self.reference.free


def machine(name: str) -> Any:
    case = type(f"{name.title()}Machine", (OrderMachine,), {"kind": LISTS[name]}).TestCase
    case.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
    return case


TestFifo = machine("fifo")
TestLifo = machine("lifo")
TestAddress = machine("address")
TestRuns = machine("runs")
TestAddressOnDevice = machine("address on a device")
TestRunsOnDevice = machine("runs on a device")
