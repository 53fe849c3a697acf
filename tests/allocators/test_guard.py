"""Every kind of misuse is seen, reported once with the call that did it, counted, and repaired."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvpolicy.allocators import ORDERS, FreeList, make_free_list
from kvpolicy.allocators.guard import Guard

UNITS = 12


class Guarded:
    """A free list used as an adapter uses it."""

    def __init__(self, order: str = "fifo", mode: Any = "full") -> None:
        self.told: list[tuple[str, str | None]] = []
        self.free: FreeList = make_free_list(order, UNITS, "cpu")
        self.guard = Guard(mode, lambda *report: self.told.append(report))
        self.guard.reset(UNITS, self.free.all_free())

    def take(self, count: int) -> list[int]:
        ids: list[int] = self.guard.taken(self.free.take(count), self.free).tolist()
        return ids

    def give(self, *ids: int) -> None:
        self.free.give(self.guard.given(torch.tensor(ids, dtype=torch.int64)))

    def faults(self) -> dict[str, int]:
        return dict(self.guard.faults)

    def assert_sound(self, held: list[int]) -> None:
        free = self.free.all_free().tolist()
        assert sorted([*free, *held]) == list(range(1, UNITS + 1))


@pytest.mark.parametrize("order", ORDERS)
def test_a_unit_freed_twice_is_free_once(order: str) -> None:
    pool = Guarded(order)
    held = pool.take(6)
    pool.give(held[0], held[1])
    pool.give(held[1], held[2])
    pool.give(held[3], held[3], held[4])
    assert pool.faults() == {"double_free": 2}
    pool.assert_sound(held[5:])
    (kind, said), (again, nothing) = pool.told
    assert (kind, again, nothing) == ("double_free", "double_free", None)
    assert said is not None
    assert said.startswith(f"1 unit(s) freed twice ({held[1]}), in give (test_guard.py:")
    assert "test_a_unit_freed_twice_is_free_once" in said


@pytest.mark.parametrize("order", ORDERS)
def test_the_padding_is_never_handed_out(order: str) -> None:
    pool = Guarded(order)
    held = pool.take(4)
    pool.give(0, held[0])
    assert pool.faults() == {"padding_free": 1}
    assert 0 not in pool.take(9)


@pytest.mark.parametrize("order", ORDERS)
def test_ids_of_another_pool_are_dropped(order: str) -> None:
    pool = Guarded(order)
    held = pool.take(4)
    pool.give(held[1], UNITS + 1, -5, 1 << 40)
    assert pool.faults() == {"foreign_free": 3}
    pool.assert_sound([held[0], *held[2:]])


@pytest.mark.parametrize("order", ["fifo", "lifo"])
def test_a_unit_in_use_is_not_handed_out(order: str) -> None:
    """The list holds a unit that somebody uses: only a queue can, the others know what is free by its id."""
    pool = Guarded(order)
    held = pool.take(8)
    pool.free.give(torch.tensor(held[2:3]))  # behind the guard's back
    taken = pool.take(4) + pool.take(0)
    assert not set(taken) & set(held)
    if order == "fifo":  # the bad one is the last in this list, and nothing needed it
        assert pool.faults() == {}
        assert pool.take(0) == []
    else:
        assert pool.faults() == {"use_after_free": 1}
        pool.assert_sound([*held, *taken])


def test_with_nothing_left_the_engine_gets_what_it_would_get() -> None:
    """Refusing would end the server: the engine asked for no more than the list said it has."""
    pool = Guarded("lifo")
    held = pool.take(UNITS)
    pool.free.give(torch.tensor(held[:2]))
    assert pool.take(2) == held[:2]
    assert pool.faults() == {"use_after_free": 2}


def test_sampling_sees_what_stays_wrong() -> None:
    pool = Guarded("fifo", "sampled")
    held = pool.take(4)
    for _ in range(64):
        pool.give(0)
    # Every 16th call is checked; between them the list took the padding, and hand-outs of it are seen too.
    assert pool.faults()["padding_free"] == 4
    assert len(pool.told) == 4
    before = pool.faults()
    for _ in range(40):
        pool.give(*pool.take(1))
    assert sum(pool.faults().values()) > sum(before.values())
    assert held


@pytest.mark.parametrize("order", ORDERS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_no_misuse_breaks_the_list(order: str, data: st.DataObject) -> None:
    """Under the full guard a unit is never with two holders, whatever is freed."""
    pool, held = Guarded(order), set[int]()
    expected = 0
    for _ in range(data.draw(st.integers(1, 25))):
        if data.draw(st.booleans()):
            taken = pool.take(data.draw(st.integers(0, pool.free.available)))
            assert len(set(taken)) == len(taken)
            assert not held & set(taken)
            held |= set(taken)
        else:
            back = data.draw(st.lists(st.integers(-2, UNITS + 2), max_size=8))
            good = set(back) & held
            expected += len(back) - len(good)
            pool.give(*back)
            held -= good
        pool.assert_sound(sorted(held))
    assert sum(pool.faults().values()) == expected
