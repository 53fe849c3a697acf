"""Every expectation holds where it should and fails where it should, saying what was there instead."""

from __future__ import annotations

import pytest

from .conftest import LRU

#: steps that all hold, in a pool of 64 tokens under the policy of conftest
HOLDS = [
    ["sys:16/a:8 hit none", "sys/b:8 hit sys", "sys/b hit all", "sys/b/c:4 hit 24", "sys/b/c hit c"],
    ["sys:16/a:8", "resident: [sys, sys/a]"],
    ["a:32", "b:32", "c:32", "evicted: [a]", "absent: [a]"],
    ["a:32 priority=-1", "absent: [a]", "resident_tokens: 0"],
    ["a:16 x2", "protected: {a: hot}", "+10s b:8", "unprotected: [a, b]"],
    ["a:8", "b:8", "c:8", "a", "next: [b, c, a]"],
    ["a:8", "flood 3x8", "b:8", "next: [a, flood, b]"],
    ["a:16 x2", "flood 9x16", "evicted_tokens: {hot: 0, unprotected: 96}"],
    ["a:16 x2", "b:64", "evicted_tokens: {hot: 16, unprotected: 0}"],
    ["a:16 tenant=x", "b:8", "tenant_tokens: {x: 16, nobody: 8}"],
    ["a:16", 'resident_tokens: "<= 16"', 'resident_tokens: ">= 16"', 'resident_tokens: "< 17"'],
    ["a:32 for 10s", "+9s b:64", "resident: [a]", "+1s b hit 32", "evicted: [a]"],
    ["a:8 -> out:8", "a/out hit all", "a/out/more:4 hit out"],
    ["a:8 x3 every 4s", "+8s b:8", "protected: {a: hot}", "+2s b", "unprotected: [a]"],
]


@pytest.mark.parametrize("steps", HOLDS, ids=[" | ".join(steps) for steps in HOLDS])
def test_it_holds(failures, steps: list[str]) -> None:
    assert failures(*steps) == []


#: steps, expected, part of what was there
FAILS = [
    (["a:16", "b:64", "a hit all"], "hit 16 tokens (all)", "hit 0 tokens; a was evicted, unprotected, by `b:64` (line"),
    (["a:16 hit 16"], "hit 16 tokens", "hit 0 tokens"),
    (["a:16", "b:64", "resident: [a]"], "a is in the cache", "0 of its 16 tokens are; a was evicted, unprotected"),
    (["a:16", "evicted: [a]"], "a was evicted", "a is in the cache"),
    (["a:16 priority=-1", "evicted: [a]"], "a was evicted", "it was never there as a whole"),
    (["a:16", "absent: [a]"], "a is not in the cache", "a is in the cache"),
    (["a:16", "protected: {a: hot}"], "a is protected by hot", "unprotected"),
    (["a:16 x2", "unprotected: [a]"], "a is in the cache and unprotected", "protected by hot"),
    (["a:16", "b:64", "unprotected: [a]"], "a is in the cache and unprotected", "0 of its 16 tokens are"),
    (["a:8", "b:8", "next: [b, a]"], "next to go: b, a", "next to go: a, b"),
    (["a:16", "b:64", "evicted_tokens: {unprotected: 0}"], "0 unprotected tokens evicted", "16"),
    (["a:16 x2", "b:64", 'evicted_tokens: {hot: "< 16"}'], "< 16 tokens protected by hot evicted", "16"),
    (["a:16 tenant=x", "tenant_tokens: {x: 8}"], "x holds 8 tokens", "16"),
    (["a:16", "resident_tokens: 8"], "8 tokens in the cache", "16"),
]


@pytest.mark.parametrize(("steps", "expected", "got"), FAILS, ids=[" | ".join(case[0]) for case in FAILS])
def test_it_fails_and_says_why(failures, steps: list[str], expected: str, got: str) -> None:
    ((found_expected, found_got),) = failures(*steps)
    assert found_expected == expected
    assert got in found_got


def test_by_node_a_leaf_goes_whole_and_by_page_its_tail(outcomes) -> None:
    by_node, by_page = outcomes("a:32", "b:48", "absent: [a]", head="pool: 64\n    granularity: both", policy=LRU)
    assert (by_node.granularity, by_node.failures) == ("node", [])
    (failure,) = by_page.failures
    assert failure.got.startswith("16 of its 32 tokens are")
    assert (failure.line, failure.col) == (11, 18)


def test_a_prefix_ends_with_its_last_whole_page(failures) -> None:
    head = "pool: 64\n    page_size: 16"
    assert failures("sys:24/a:8", "sys/b:8 hit 16", "resident: [sys, sys/a]", head=head) == []


def test_asking_for_the_next_victims_changes_nothing(failures) -> None:
    steps = ["a:16 x2", "b:16", "next: [b, a]", "resident: [a, b]", "evicted_tokens: {unprotected: 0, hot: 0}"]
    assert failures(*steps) == []
