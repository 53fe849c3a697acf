"""Blocks to pages: equal prefixes stay equal at every page size, and nothing is invented."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpolicy.replay.errors import TraceUsageError
from kvpolicy.replay.pages import Pager


def test_at_the_trace_s_own_size_the_partly_filled_last_block_is_a_page() -> None:
    assert Pager(512, 512).pages([7, 8], 600) == [7, 8]


def test_larger_pages_join_full_blocks_only() -> None:
    assert Pager(64, 128).pages([1, 2, 3, 4, 5], 300) == [(1, 2), (3, 4)]
    assert Pager(64, 128).pages([1, 2, 3, 4], 255) == [(1, 2)], "the last block is not full"


def test_smaller_pages_divide_a_block() -> None:
    assert Pager(64, 32).pages([1, 2], 100) == [(1, 0), (1, 1), (2, 0)]


def test_tokens_become_pages_and_the_last_token_is_always_computed() -> None:
    pager = Pager(1, 4)
    assert pager.pages([1, 2, 3, 4, 5, 6, 7, 8], 8) == [(1, 2, 3, 4), (5, 6, 7, 8)]
    assert (pager.reusable(2, 8), pager.reusable(2, 9)) == (1, 2)
    assert Pager(64, 64).reusable(2, 128) == 2, "hash rows are taken as they are"


@pytest.mark.parametrize("page", [48, 100, 0])
def test_sizes_that_do_not_divide_are_refused(page: int) -> None:
    with pytest.raises(TraceUsageError, match="must be a multiple"):
        Pager(64, page)


@given(st.lists(st.integers(0, 2), max_size=12), st.lists(st.integers(0, 2), max_size=12), st.sampled_from([1, 2, 4]))
def test_pages_are_equal_exactly_where_prefixes_are(left: list[int], right: list[int], page: int) -> None:
    pager = Pager(1, page)
    for at, (a, b) in enumerate(zip(pager.pages(left, len(left)), pager.pages(right, len(right)), strict=False)):
        assert (a == b) == (left[at * page : (at + 1) * page] == right[at * page : (at + 1) * page])
