"""The simulator on hand-sized cases: what hits, what is evicted, what a lock keeps, what does not fit."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvpolicy.eviction.base import RequestInfo
from kvpolicy.replay.policies import from_result, load
from kvpolicy.replay.requests import Request
from kvpolicy.replay.simulator import Eviction, Simulator
from kvpolicy.replay.tree import common_prefix

from .conftest import serve, simulator

GRANULARITIES = pytest.mark.parametrize("granularity", ["node", "page"])


def resident(sim: Simulator) -> set[str]:
    """The paths of all leaves, as strings."""
    found = set()
    for node in sim.tree.walk():
        if not node.children:
            path, at = "", node
            while at.parent is not None:
                path, at = "".join(at.key) + path, at.parent
            found.add(path)
    return found


@GRANULARITIES
def test_a_prefix_hits_and_the_rest_is_inserted(granularity: str) -> None:
    sim = simulator(granularity=granularity)
    assert [serve(sim, p) for p in ("abc", "abd", "abc", "x")] == [0, 2, 3, 0]
    assert resident(sim) == {"abc", "abd", "x"}
    sim.check()


def test_by_node_a_leaf_goes_whole_and_by_page_only_its_tail() -> None:
    by_node, by_page = simulator(capacity=5), simulator(capacity=5, granularity="page")
    for sim in (by_node, by_page):
        serve(sim, "abc")
        serve(sim, "xyz")
    assert resident(by_node) == {"xyz"}
    assert resident(by_page) == {"ab", "xyz"}
    assert (by_node.stats.evicted_tokens, by_page.stats.evicted_tokens) == (3, 1)


@GRANULARITIES
def test_the_parent_becomes_evictable_when_its_last_child_goes(granularity: str) -> None:
    sim = simulator(capacity=4, granularity=granularity)
    for prompt in ("ab", "ac", "wxyz"):
        serve(sim, prompt)
    assert resident(sim) == {"wxyz"}
    sim.check()
    sim.index.check()


@GRANULARITIES
def test_a_row_longer_than_the_pool_keeps_the_prefix_that_fits(granularity: str) -> None:
    sim = simulator(capacity=3, granularity=granularity)
    serve(sim, "abcdef")
    assert resident(sim) == {"abc"}
    assert sim.stats.truncated_tokens == 3
    assert serve(sim, "abcdef") == 3


@GRANULARITIES
def test_a_running_request_keeps_its_path_until_it_ends(granularity: str) -> None:
    sim = simulator(capacity=4, granularity=granularity, hold_running=True)
    serve(sim, "abc", at_ms=0, duration_ms=1000)
    serve(sim, "wxyz", at_ms=500)
    assert "abc" in resident(sim)
    assert sim.stats.truncated_tokens == 3
    serve(sim, "wxyz", at_ms=1000)
    assert resident(sim) == {"wxyz"}


def test_without_holding_a_lock_ends_with_the_insertion() -> None:
    sim = simulator(capacity=4)
    serve(sim, "abc", at_ms=0, duration_ms=1000)
    serve(sim, "wxyz", at_ms=500)
    assert resident(sim) == {"wxyz"}


@GRANULARITIES
def test_namespaces_share_nothing(granularity: str) -> None:
    sim = simulator(granularity=granularity)
    gold, silver = RequestInfo(cache_salt="gold"), RequestInfo(cache_salt="silver")
    assert [serve(sim, "ab", info=gold), serve(sim, "ab", info=silver), serve(sim, "ab", info=gold)] == [0, 0, 2]
    assert serve(sim, "ab", info=RequestInfo(lora="x")) == 0


def content_keys(granularity: str, exact_tokens: bool, *requests: tuple[str, list[int]]) -> dict[tuple[str, int], int]:
    """``content_key`` by tenant and depth of each unit's end."""
    sim = simulator("reuse_rate", 100, granularity, exact_tokens=exact_tokens)
    for tenant, pages in requests:
        request = Request(0, len(pages), 0, pages, None, RequestInfo(cache_salt=tenant or None), None)
        sim.request(request, pages, len(pages), pages)
    metas = [node.kvp for node in sim.tree.walk() if node.kvp is not None]
    return {(meta.cache_salt or "", meta.depth_tokens): meta.content_key for meta in metas}


@GRANULARITIES
@pytest.mark.parametrize("exact_tokens", [False, True])
def test_tenants_with_equal_prompts_have_contents_of_their_own(granularity: str, exact_tokens: bool) -> None:
    keys = content_keys(granularity, exact_tokens, ("", [1, 2]), ("gold", [1, 2]), ("silver", [1, 2]))
    assert None not in keys.values()
    assert len(set(keys.values())) == len(keys) == (3 if granularity == "node" else 6)


@GRANULARITIES
def test_of_real_tokens_a_content_is_all_that_comes_before_it(granularity: str) -> None:
    keys = content_keys(granularity, True, ("", [1, 7, 7, 7]), ("", [2, 7, 7, 7]), ("", [1, 7, 8]))
    assert len(set(keys.values())) == len(keys), "equal tokens after different ones"
    again = content_keys(granularity, True, ("", [1, 7, 7, 7]), ("", [1, 7, 8]))
    assert again == {at: key for at, key in keys.items() if at in again}


def test_contents_are_the_same_in_every_run() -> None:
    """Python's hash of a text is not: what is drawn of the traffic would depend on it."""
    assert content_keys("node", False, ("", [7]), ("gold", [7])) == {("", 1): 7, ("gold", 1): -4518477233605255483}


@GRANULARITIES
def test_outputs_are_kept_and_marked(granularity: str) -> None:
    sim = simulator("agentic", 20, granularity)
    serve(sim, "ab", output="cd")
    assert serve(sim, "abcde") == 4
    marks = {"".join(node.key): node.kvp.is_output for node in sim.tree.walk() if node.kvp is not None}
    assert all(is_output == (key in ("cd", "c", "d")) for key, is_output in marks.items()), marks


@GRANULARITIES
def test_a_leaf_beyond_the_reusable_part_that_gets_a_child_is_evictable_no_more(granularity: str) -> None:
    sim = simulator(granularity=granularity)
    serve(sim, "ab")
    request = Request(0, 2, 1, ["a", "b"], ["a", "b", "c"])
    assert sim.request(request, ["a", "b"], 1, ["a", "b", "c"]) == 1
    assert len(sim.index) == 1
    serve(sim, "stuvwxyz")
    assert resident(sim) == {"stuvwxyz"}


def policy_text(text: str) -> Eviction:
    from kvpolicy.language import load_text

    result = load_text(f"apiVersion: kvpolicy/v1\nkind: KVPolicy\nmetadata: {{name: t}}\n{text}".encode())
    assert result.policy is not None, result.diagnostics
    return from_result(result, "t")


def test_admit_never_leaves_nothing_behind_but_takes_room_while_it_runs() -> None:
    rules = "eviction:\n  policy: lru\n  rules:\n    - {name: batch, match: request.priority < 0, admit: never}\n"
    sim = Simulator(policy_text(rules), 4, 1)
    serve(sim, "abc")
    assert serve(sim, "xyz", info=RequestInfo(priority=-1)) == 0
    assert resident(sim) == set()
    assert sim.stats.refused_tokens == 3
    serve(sim, "ab")
    assert serve(sim, "abz", info=RequestInfo(priority=-1)) == 2, "it may use what is there"


def test_a_retained_prefix_survives_a_flood_and_the_rule_is_counted_when_it_does_not() -> None:
    rules = (
        "eviction:\n  policy: lru\n  rules:\n    - {name: hot, match: hits >= 1, retain: {weight: 2, budget: 50%}}\n"
    )
    ruled, plain = Simulator(policy_text(rules), 8, 1), simulator(capacity=8)
    for prompt in ("abc", "abc", "12", "34", "56", "78"):
        serve(ruled, prompt)
        serve(plain, prompt)
    assert serve(plain, "abc") == 0
    assert serve(ruled, "abc") == 3
    serve(ruled, "stuvwxyz")
    assert resident(ruled) == {"stuvwxyz"}, "protection is soft: what must fit, fits"
    assert ruled.index.counters.evicted_tokens["hot"] == 3


@GRANULARITIES
def test_a_hit_takes_the_place_of_an_older_member_of_a_full_budget(granularity: str) -> None:
    """What is touched counts as the youngest member at once, not by when it was used before."""
    hot = "{name: hot, match: request.priority == 1, retain: {weight: 2, budget: 34%}}"
    sim = Simulator(policy_text(f"eviction:\n  policy: lru\n  rules:\n    - {hot}\n"), 9, 1, granularity)
    asked = RequestInfo(priority=1)
    serve(sim, "abc")
    serve(sim, "xyz", info=asked)
    serve(sim, "abc", info=asked)  # older than xyz until now; the budget holds one of them
    for prompt in ("123", "456", "789"):
        serve(sim, prompt)
    assert serve(sim, "abc") == 3
    assert serve(sim, "xyz") == 0


def test_a_ttl_ends_with_the_trace_s_own_time() -> None:
    hot = "{name: hot, match: hits >= 1, retain: {weight: 2, ttl: 10s, budget: 90%}}"
    rules = f"eviction:\n  policy: lru\n  rules:\n    - {hot}\n"
    sim = Simulator(policy_text(rules), 6, 1)
    serve(sim, "abc", 0)
    serve(sim, "abc", 1000)
    for at, prompt in enumerate(("uv", "wx", "yz")):
        serve(sim, prompt, 2000 + at)
    assert "abc" in resident(sim)
    serve(sim, "12", 11_001)
    assert "abc" not in resident(sim)


def test_watermarks_evict_in_one_batch() -> None:
    batch = policy_text("eviction: {policy: lru}\nallocator: {watermark: {low: 10%, high: 50%}}\n")
    sim = Simulator(batch, 10, 1)
    for prompt in ("ab", "cd", "ef", "gh"):
        serve(sim, prompt)
    assert sim.stats.victims == 0
    serve(sim, "ij")
    assert resident(sim) == {"gh", "ij"}
    assert sim.stats.victims == 3
    assert sim.stats.evict_calls == 1


def test_a_low_mark_of_nothing_batches_and_keeps_no_reserve() -> None:
    batch = policy_text("eviction: {policy: lru}\nallocator: {watermark: {low: 0%, high: 50%}}\n")
    sim = Simulator(batch, 10, 1)
    for prompt in ("ab", "cd", "ef", "gh", "ij"):
        serve(sim, prompt)
    assert sim.stats.evict_calls == 0
    serve(sim, "kl")
    assert resident(sim) == {"ij", "kl"}
    assert sim.stats.evict_calls == 1


RULE = "eviction:\n  policy: lru\n  rules: [{name: kept, match: hits >= 1, retain: {weight: 2, budget: 90%}}]\n"
FLOOR = "eviction:\n  policy: lru\n  tenants: {by: cache_salt, floor: 90%, max_floors: 1}\n"


@pytest.mark.parametrize(
    ("eviction", "left"),
    [(RULE, {"ab", "cd", "ef", "xyz"}), (FLOOR, {"cd", "ef", "gh", "xyz"})],
    ids=["a rule", "a tenant's floor"],
)
def test_what_is_protected_goes_for_a_need_and_never_ahead_of_it(eviction: str, left: set[str]) -> None:
    """The marks ask for all there is; one page is needed. With a floor, all units are protected and the oldest goes."""
    sim = Simulator(policy_text(eviction + "allocator: {watermark: {low: 10%, high: 90%}}\n"), 10, 1)
    for prompt in ("ab", "ab", "cd", "cd", "ef", "ef", "gh"):
        serve(sim, prompt)
    serve(sim, "xyz")
    assert resident(sim) == left
    serve(sim, "0123456789")
    assert resident(sim) == {"0123456789"}, "the need comes first"


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.text("abc", min_size=1, max_size=8), st.text("ab", max_size=3)), min_size=1, max_size=40),
    st.integers(1, 16),
    st.sampled_from(["lru", "slru", "tlru", "hit_density", "long_context", "rag", "multi_tenant"]),
    st.sampled_from(["node", "page"]),
    st.booleans(),
)
def test_invariants_hold_after_every_request(
    requests: list[tuple[str, str]], capacity: int, policy: str, granularity: str, hold: bool
) -> None:
    sim = simulator(policy, capacity, granularity, hold_running=hold)
    for at, (prompt, output) in enumerate(requests):
        info = RequestInfo(cache_salt="xy"[at % 2], priority=at % 3 - 1)
        full = list(prompt + output)
        request = Request(at * 100, len(prompt), len(output), list(prompt), full, info, 250)
        hit = sim.request(request, list(prompt), max(0, len(prompt) - 1), full)
        assert 0 <= hit < len(prompt)
        sim.check()
        sim.index.check()
        leaves = {node for node in sim.tree.walk() if not node.children and not node.lock}
        assert len(sim.index) == len(leaves)
        assert all(leaf in sim.index for leaf in leaves)
    assert sim.index.counters.fallbacks == 0


@given(st.lists(st.integers(0, 2), max_size=20), st.lists(st.integers(0, 2), max_size=20))
def test_common_prefix(left: list[int], right: list[int]) -> None:
    shared = common_prefix(left, right)
    assert left[:shared] == right[:shared]
    assert shared == min(len(left), len(right)) or left[shared] != right[shared]


def test_checks_find_an_over_committed_pool_and_a_broken_tree() -> None:
    sim = simulator(capacity=4)
    serve(sim, "abc")
    sim.tree.pages += 1
    with pytest.raises(AssertionError, match="counted wrong"):
        sim.check()
    sim.tree.pages -= 1
    sim.capacity_pages = 2
    with pytest.raises(AssertionError, match="more resident"):
        sim.check()
    next(sim.tree.walk()).parent.children.clear()  # type: ignore[union-attr]
    with pytest.raises(AssertionError):
        sim.check()


def test_names_that_are_no_policy_are_diagnosed() -> None:
    assert load("no_such_thing").policy is None
    assert load("no_such_thing").unopenable
    assert load("gdsf").policy is not None
