"""The bounds against exhaustive search, and every policy against the bounds, on small random cases."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvpolicy.replay.clairvoyant import TraceRecord, clairvoyant
from kvpolicy.replay.optimum import optimum
from kvpolicy.replay.requests import Request

from .conftest import serve, simulator

prompts = st.text("ab", min_size=1, max_size=4)
cases = st.lists(prompts, min_size=1, max_size=7)


def record_of(requests: list[str], page_tokens: int = 1, lengths: list[int] | None = None) -> TraceRecord:
    record = TraceRecord(page_tokens)
    for at, prompt in enumerate(requests):
        tokens = lengths[at] if lengths else len(prompt) * page_tokens
        record.add(Request(at, tokens, 0, list(prompt)), len(prompt), list(prompt))
    return record


def best_by_search(requests: list[str], capacity: int) -> int:
    """The most hit pages of any cache of whole prefixes: every set of resident prefixes is tried each time."""
    paths = [frozenset(p[: i + 1] for i in range(len(p))) for p in requests]

    @cache
    def best(at: int, resident: frozenset[str]) -> int:
        if at == len(paths):
            return 0
        hit = 0
        while hit < len(requests[at]) and requests[at][: hit + 1] in resident:
            hit += 1
        nodes = resident | paths[at]
        return hit + max(best(at + 1, kept) for kept in prefix_closed(nodes, capacity))

    return best(0, frozenset())


def prefix_closed(nodes: frozenset[str], capacity: int) -> list[frozenset[str]]:
    """Every prefix-closed subset of at most ``capacity`` nodes."""
    found = {frozenset[str]()}
    for node in sorted(nodes, key=len):
        found |= {s | {node} for s in found if len(s) < capacity and (len(node) == 1 or node[:-1] in s)}
    return list(found)


@settings(max_examples=60, deadline=None)
@given(cases, st.integers(1, 4))
def test_the_clairvoyant_is_the_best_there_is(requests: list[str], capacity: int) -> None:
    record = record_of(requests)
    paths = record.paths()
    best = best_by_search(requests, capacity)
    assert sum(clairvoyant(record, paths, capacity)) == best
    assert optimum(record, paths, capacity) == best


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text("abc", min_size=1, max_size=6), min_size=1, max_size=25), st.integers(1, 9))
def test_the_flow_bound_is_the_greedy_result_where_pages_are_equal(requests: list[str], capacity: int) -> None:
    record = record_of(requests)
    paths = record.paths()
    assert optimum(record, paths, capacity) == sum(clairvoyant(record, paths, capacity))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.text("ab", min_size=1, max_size=4), st.integers(1, 4)), min_size=1, max_size=20),
    st.integers(1, 6),
)
def test_the_flow_bound_is_not_below_the_greedy_where_last_pages_are_partly_filled(
    rows: list[tuple[str, int]], pages: int
) -> None:
    requests = [prompt for prompt, _ in rows]
    lengths = [(len(prompt) - 1) * 4 + last for prompt, last in rows]
    record = record_of(requests, 4, lengths)
    paths = record.paths()
    most = optimum(record, paths, pages * 4)
    assert most is not None
    assert most >= sum(clairvoyant(record, paths, pages * 4))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.text("abc", min_size=1, max_size=6), min_size=1, max_size=25),
    st.integers(1, 9),
    st.sampled_from(["lru", "lfu", "fifo", "mru", "gdsf", "s3fifo", "chat", "agentic"]),
    st.sampled_from(["node", "page"]),
)
def test_no_policy_beats_the_clairvoyant(requests: list[str], capacity: int, policy: str, granularity: str) -> None:
    record = record_of(requests)
    most = sum(clairvoyant(record, record.paths(), capacity))
    sim = simulator(policy, capacity, granularity)
    hits = [serve(sim, prompt, at) for at, prompt in enumerate(requests)]
    sim.check()
    sim.index.check()
    assert sum(hits) <= most
    assert all(hit <= bound for hit, bound in zip(hits, record.infinite_hit_tokens, strict=True))


def test_a_known_case_where_lru_loses_everything() -> None:
    """A loop one page longer than the pool: LRU never hits; two of three pages kept hit twice in each later round."""
    requests = ["a", "b", "c"] * 5
    record = record_of(requests)
    sim = simulator("lru", 2)
    assert sum(serve(sim, prompt, at) for at, prompt in enumerate(requests)) == 0
    assert sum(clairvoyant(record, record.paths(), 2)) == 8


def test_a_case_that_is_not_small_has_no_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvpolicy.replay.optimum.MAX_INTERVALS", 3)
    record = record_of(["a", "b"] * 4)
    assert optimum(record, record.paths(), 1) is None
