"""The size of a slice, and the garbage collector during a swap."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from kvpolicy.live import slices
from kvpolicy.live.slices import LEAST_UNITS, MOST_UNITS, SLICE_S, CollectionsPutOff, next_units
from kvpolicy.live.swap import LiveSwap
from tests.live.test_swap import TreeSeat, flat


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[tuple[int, int, int]]:
    before, callbacks = gc.get_threshold(), list(gc.callbacks)
    gc.set_threshold(700, 10, 10)  # other tests leave swaps half done
    gc.callbacks.clear()
    yield gc.get_threshold()
    gc.set_threshold(*before)
    gc.callbacks[:] = callbacks


def test_the_next_slice_goes_by_the_time_of_the_last() -> None:
    assert next_units(100, SLICE_S) == 100
    assert next_units(100, 4 * SLICE_S) == LEAST_UNITS
    assert next_units(400, 2 * SLICE_S) == 200
    assert next_units(100, SLICE_S / 100) == 200  # one quick slice says little
    assert next_units(MOST_UNITS, 0.0) == MOST_UNITS


def test_ranks_bring_in_the_same_units_however_fast_they_are() -> None:
    """Both follow the slower one, from the first slice on, whatever each one has to do."""
    swaps = [LiveSwap(TreeSeat(), "sglang") for _ in range(2)]
    told: list[dict[str, float]] = []

    def gather_slices(own: dict[str, float]) -> list[dict[str, float]]:
        return told if "slice_s" in own else [own]

    for swap in swaps:
        swap._gather = gather_slices  # type: ignore[assignment]
        swap.handle({"op": "prepare", "flat": flat("lfu")})
    counts = []
    for slow_s in (0.0, SLICE_S, 2 * SLICE_S, SLICE_S, SLICE_S):
        told[:] = [{"slice_s": SLICE_S / 3}, {"slice_s": slow_s}] if slow_s else [{"slice_s": 0.0}] * 2
        for swap in swaps:
            swap.handle({"op": "continue"})
        examined = {swap.answer.examined_units for swap in swaps}
        assert len(examined) == 1
        counts += examined
    assert counts == [64, 128, 160, 192, 224]


def test_the_time_of_a_slice_that_was_cut_short_says_nothing_of_the_next() -> None:
    told = []
    swap = LiveSwap(TreeSeat(), "sglang", lambda own: told.append(own) or [own])  # type: ignore[func-returns-value]
    swap.handle({"op": "prepare", "flat": flat("lfu")})
    preparation = swap._preparation
    assert preparation is not None
    swap.handle({"op": "continue"})
    swap.handle({"op": "continue"})
    assert told[-1]["slice_s"] > 0
    preparation._short_of_growth = lambda units: units - 1  # type: ignore[method-assign]
    swap.handle({"op": "continue"})
    swap.handle({"op": "continue"})
    assert told[-1]["slice_s"] == 0


def test_a_rank_with_nothing_to_do_takes_part_in_every_agreement() -> None:
    """Else the others would wait for it."""
    asked = []
    swap = LiveSwap(TreeSeat(), "sglang", lambda own: asked.append(own) or [own])  # type: ignore[func-returns-value]
    for _ in range(3):
        swap.handle({"op": "continue"})
    assert [list(own) for own in asked] == [["slice_s"]] * 3


def test_full_collections_wait_for_the_end_of_a_swap(thresholds: tuple[int, int, int]) -> None:
    swap = LiveSwap(TreeSeat(), "sglang")
    swap.handle({"op": "prepare", "flat": flat("lfu")})
    assert gc.get_threshold() == (*thresholds[:2], slices._NEVER)
    while swap.handle({"op": "continue"}):
        pass
    swap.handle({"op": "commit", "digest": swap.answer.digest})
    assert gc.get_threshold() != thresholds  # the old index is being taken apart
    while swap.handle({"op": "continue"}):
        pass
    assert gc.get_threshold() == thresholds


@pytest.mark.parametrize(
    "message", [{"op": "abort"}, {"op": "commit", "digest": "another"}, {"op": "prepare", "flat": {"kind": "wrong"}}]
)
def test_they_come_back_however_a_swap_ends(thresholds: tuple[int, int, int], message: dict[str, object]) -> None:
    swap = LiveSwap(TreeSeat(), "sglang")
    swap.handle({"op": "prepare", "flat": flat("lfu")})
    swap.handle(message)
    assert gc.get_threshold() == thresholds
    assert swap._collections._collecting not in gc.callbacks


def test_they_come_back_by_themselves(thresholds: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    put_off = CollectionsPutOff()
    put_off.start()
    gc.collect(0)
    assert put_off.holds
    monkeypatch.setattr(slices, "FORGOTTEN_S", -1.0)
    gc.collect(0)
    assert not put_off.holds
    assert gc.get_threshold() == thresholds


def test_what_somebody_else_set_meanwhile_stays() -> None:
    put_off = CollectionsPutOff()
    put_off.start()
    gc.set_threshold(5000, 10, 20)
    put_off.end()
    assert gc.get_threshold() == (5000, 10, 20)


def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    try:
        put_off = CollectionsPutOff()
        put_off.start()
        assert not put_off.holds
    finally:
        gc.enable()
