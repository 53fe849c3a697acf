"""The decision to evict ahead: its bounds, for any pool and any stream of allocations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpolicy.eviction.watermark import Watermark

pages = st.integers(0, 1000)


@given(pages, pages, pages, pages, pages)
def test_the_demand_has_its_bounds(low: int, more: int, free: int, need: int, evictable: int) -> None:
    mark = Watermark(low, low + more)
    demand = mark.demand_pages(free, need, evictable)
    lacking = max(0, need - free)
    assert demand >= lacking, "an allocation starves"
    assert (demand == 0) == (free - need >= low or demand == lacking == 0)
    if demand > lacking:
        assert free - need < low, "evicted ahead although low is free"
        assert demand <= evictable, "asked for what nobody can give"
        assert free + demand - need <= mark.high_pages, "evicted beyond high"
    elif free - need < low:
        assert evictable <= lacking or lacking >= need + mark.high_pages - free, "not evicted although it could be"


@given(
    st.integers(1, 400),
    st.integers(0, 40),
    st.integers(0, 60),
    st.lists(st.tuples(st.integers(1, 60), st.booleans()), max_size=60),
)
def test_a_pool_under_marks_serves_what_stock_serves(
    pool: int, low: int, more: int, stream: list[tuple[int, bool]]
) -> None:
    """Allocations that end in the cache at once (evictable) or stay in use, against a pool without marks."""
    mark = Watermark.of_pool(low / 100, min(1.0, (low + more) / 100), pool)
    free = [pool, pool]  # with marks, and stock
    cached = [0, 0]
    calls = [0, 0]
    for need, stays in stream:
        for side in (0, 1):
            lacking = max(0, need - free[side])
            wanted = mark.demand_pages(free[0], need, cached[0]) if side == 0 else lacking
            evicted = min(wanted, cached[side])
            calls[side] += wanted > 0
            free[side] += evicted
            cached[side] -= evicted
            if side == 0:
                mark.note(evicted, lacking)
        fits = [side >= need for side in free]
        assert fits[0] == fits[1], "marks refuse, or admit, what stock does not"
        assert free[0] + cached[0] == free[1] + cached[1]
        assert cached[0] <= cached[1], "marks keep more than stock"
        assert cached[1] - cached[0] <= mark.high_pages, "more than high went ahead of need"
        if fits[0]:
            for side in (0, 1):
                free[side] -= need
                cached[side] += 0 if stays else need
    if mark.low_pages == 0:
        assert calls[0] <= calls[1], "room ahead without a reserve only saves calls"


@pytest.mark.parametrize(("share", "pool", "expected"), [(0.29, 100, 29), (0.07, 100, 7), (0.02, 49, 0), (1.0, 7, 7)])
def test_marks_are_whole_pages(share: float, pool: int, expected: int) -> None:
    assert Watermark.of_pool(0.0, share, pool).high_pages == expected


def test_only_what_goes_beyond_the_need_counts_as_ahead() -> None:
    mark = Watermark(0, 10)
    mark.note(4, 4)
    mark.note(3, 4)
    mark.note(14, 4)
    assert (mark.batches, mark.ahead_pages) == (1, 10)
