"""Rules: who is protected, until when, within which budget, and what protection does to the order."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given, settings
from tree import Node, Tree

from kvpolicy.eviction import RequestInfo
from kvpolicy.eviction.metadata_index import MetadataIndex
from policies import compiled

PAID, FREE = RequestInfo(priority=1), RequestInfo(priority=0)
KEEP_PAID = {"name": "paid", "match": "request.priority > 0", "retain": {"weight": 8}}


def tree_of(rules: list[dict], policy: str | None = "lru", pool_tokens: int = 100, **words) -> Tree:
    return Tree(compiled(policy, rules=rules, **words).make_index(pool_tokens))


def names(nodes: list[Node]) -> str:
    return " ".join(node.name for node in nodes)


def used_tokens(tree: Tree) -> dict[str, int]:
    assert isinstance(tree.index, MetadataIndex)
    assert tree.index._rules is not None
    counted = tree.index.protected_tokens()
    return {rule: budget_tokens for rule, (_, budget_tokens) in counted.items() if budget_tokens is not None}


def test_unprotected_units_go_first_then_by_weight_then_by_score() -> None:
    tree = tree_of([KEEP_PAID, {"name": "deep", "match": "depth_tokens >= 5", "retain": {"weight": 2}}])
    tree.insert(size=1, request=PAID, name="paid")
    tree.insert(size=5, name="deep1")
    tree.insert(size=6, name="deep2")
    tree.insert(size=1, name="plain")
    assert names(tree.evict(100)) == "plain deep1 deep2 paid"


def test_rules_of_equal_weight_share_a_level() -> None:
    tree = tree_of([KEEP_PAID, {"name": "deep", "match": "depth_tokens >= 5", "retain": {"weight": 8}}])
    for i, size in enumerate([5, 1, 5, 1]):
        tree.insert(size=size, request=PAID if size == 1 else FREE, name=f"n{i}")
    assert names(tree.evict(100)) == "n0 n1 n2 n3"


def test_the_first_matching_rule_wins_even_without_retain() -> None:
    tree = tree_of([{"name": "long", "match": "size_tokens > 5", "priority": -1}, KEEP_PAID])
    tree.insert(size=6, request=PAID, name="long")
    tree.insert(size=1, request=PAID, name="short")
    assert names(tree.evict(100)) == "long short"
    assert tree.index.counters.evictions == {"": 1, "paid": 1}
    assert tree.index.counters.evicted_tokens == {"": 6, "paid": 1}


def test_a_rule_may_match_at_a_later_touch() -> None:
    tree = tree_of([{"name": "hot", "match": "hits >= 2", "retain": {"weight": 1}}])
    hot, cold = tree.insert(name="hot"), tree.insert(name="cold")
    tree.touch(hot)
    tree.touch(cold)
    assert names(tree.next_victims()) == "hot cold"
    tree.touch(hot, lock=False)  # an evictable unit moves between levels
    assert names(tree.next_victims()) == "cold hot"


def test_ttl_counts_from_the_last_matching_touch() -> None:
    tree = tree_of([{"name": "paid", "match": "reuse_gap_s < 50", "retain": {"weight": 1, "ttl": "60s"}}])
    kept = tree.insert(name="kept", seconds=0)
    tree.touch(kept, seconds=40)  # matches: protected until 100 s
    tree.touch(kept, seconds=59)  # smoothed gap 44.75 s: matches, until 159 s
    tree.touch(kept, seconds=100)  # too slow: no match, runs out on its own; it is 199 s now
    tree.insert(name="other", seconds=0)
    assert kept.kvp.rule == -1
    kept = tree.insert(name="again", seconds=0)
    assert kept.kvp.rule == 0
    tree.arrive(59.9)
    tree.index.begin()
    assert kept.kvp.rule == 0
    tree.arrive(0.1)
    assert kept.kvp.rule == 0, "protection ends when somebody looks, at the latest when a walk begins"
    tree.index.begin()
    assert kept.kvp.rule == -1
    tree.index.check()


def test_without_ttl_a_touch_that_no_rule_matches_ends_the_protection() -> None:
    tree = tree_of([{"name": "quick", "match": "reuse_gap_s < 10", "retain": {"weight": 1}}])
    node = tree.insert()
    tree.touch(node, seconds=5)
    assert node.kvp.rule == 0
    tree.touch(node, seconds=100)
    assert node.kvp.rule == -1


def test_a_budget_sheds_the_lowest_scores_first() -> None:
    rule = {"name": "paid", "match": "request.priority > 0", "retain": {"weight": 1, "budget": "10%"}}
    tree = tree_of([rule], None, score="hits")
    nodes = [tree.insert(size=4, request=PAID, name=name) for name in "abc"]
    assert [node.kvp.rule for node in nodes] == [-1, 0, 0], "12 tokens of 10: the oldest of equal scores is shed"
    tree.touch(nodes[0], PAID)
    assert [node.kvp.rule for node in nodes] == [0, -1, 0], "its next matching touch takes it in again"
    assert used_tokens(tree) == {"paid": 8}


def test_every_token_of_a_path_counts_once() -> None:
    rule = {"name": "leaf", "match": "depth_tokens == 9", "retain": {"weight": 1, "budget": "20%"}}
    tree = tree_of([rule])
    root = tree.insert(size=5, name="root")
    leaves = [tree.insert(root, 4, name=name) for name in "ab"]
    assert used_tokens(tree) == {"leaf": 5 + 4 + 4}
    tree.insert(root, 4, name="c")
    assert used_tokens(tree) == {"leaf": 17}
    tree.insert(root, 4, name="d")
    assert [leaf.kvp.rule for leaf in leaves] == [-1, 0]
    assert used_tokens(tree) == {"leaf": 17}
    tree.split(leaves[1], 2)
    assert used_tokens(tree) == {"leaf": 17}, "a split moves no token"
    tree.evict(10**6)
    assert used_tokens(tree) == {"leaf": 0}


def test_a_path_longer_than_the_budget_costs_others_nothing() -> None:
    rule = {"name": "all", "retain": {"weight": 1, "budget": "10%"}}
    tree = tree_of([rule])
    small = tree.insert(size=6)
    giant = tree.insert(size=11)
    assert (small.kvp.rule, giant.kvp.rule) == (0, -1)


def test_a_split_copies_the_protection_and_all_metadata() -> None:
    rule = {"name": "paid", "match": "request.priority > 0", "retain": {"weight": 1, "ttl": "60s", "budget": "50%"}}
    tree = tree_of([rule])
    lower = tree.insert(size=6, request=RequestInfo("salt", 3, "session", "lora"), is_output=True)
    tree.touch(lower, seconds=4)
    upper = tree.split(lower, 2)
    copied = "rule expiry_ms hits touch_ms birth_seq cache_salt priority session_id lora is_output"
    for name in copied.split():
        assert getattr(upper.kvp, name) == getattr(lower.kvp, name), name
    assert (upper.kvp.size_tokens, upper.kvp.depth_tokens) == (2, 2)
    assert (lower.kvp.size_tokens, lower.kvp.depth_tokens) == (4, 6)
    assert (lower.kvp.parent, upper.kvp.parent) == (upper, None)
    assert upper.kvp.order != lower.kvp.order
    tree.index.check()


def test_admission_is_refused_by_the_first_match_only() -> None:
    keep = {"name": "gold", "match": "request.cache_salt == 'gold'", "retain": {"weight": 1}}
    never = {"name": "opted-out", "match": "request.priority < 0 or depth_tokens > 50", "admit": "never"}
    index = compiled("lru", rules=[keep, never]).make_index(100)
    assert index.admit(RequestInfo(priority=0), 10, 10)
    assert index.admit(RequestInfo(), 10, 10), "an absent priority is not below 0"
    assert not index.admit(RequestInfo(priority=-1), 10, 10)
    assert not index.admit(RequestInfo(), 51, 10)
    assert index.admit(RequestInfo("gold", -1), 10, 10), "the rule above wins"
    assert compiled("lru", rules=[keep]).make_index(100).admit(RequestInfo(priority=-1), 10, 10)


def test_admission_sees_the_clamped_priority() -> None:
    never = {"name": "bulky", "match": "request.priority >= 9", "admit": "never"}
    assert compiled("lru", rules=[never], max_priority=5).make_index(100).admit(RequestInfo(priority=9), 10, 10)
    assert not compiled("lru", rules=[never]).make_index(100).admit(RequestInfo(priority=9), 10, 10)


def test_priority_of_a_rule_stands_in_for_the_requests() -> None:
    rules = [{"name": "outputs", "match": "is_output", "priority": 9}]
    tree = tree_of(rules, "priority", max_priority=5)
    tree.insert(request=RequestInfo(priority=100), name="clamped")
    tree.insert(request=RequestInfo(priority=4), name="four")
    tree.insert(name="none")
    tree.insert(name="output", is_output=True)
    assert names(tree.evict(100)) == "none four clamped output"


def test_a_rule_lowers_a_priority_in_place() -> None:
    rules = [{"name": "worn", "match": "hits >= 1", "priority": -5}]
    tree = tree_of(rules, None, score="request.priority if request.priority is not None else 0")
    node, other = tree.insert(request=RequestInfo(priority=9)), tree.insert(request=RequestInfo(priority=1))
    assert tree.next_victims() == [other, node]
    tree.touch(node, lock=False)
    assert (node.kvp.priority, node.kvp.request_priority) == (-5, 9)
    assert tree.next_victims() == [node, other]
    tree.index.check()


steps = st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 8), st.integers(0, 3), st.booleans()), max_size=60)


@settings(deadline=None, derandomize=True)
@given(steps)
def test_one_rules_survivors_never_take_anothers_budget(steps: list[tuple[int, int, int, bool]]) -> None:
    """However much of rule ``greedy`` is protected, what ``modest`` protects within its own budget stays protected."""
    greedy = {"name": "greedy", "match": "request.priority == 1", "retain": {"weight": 9, "budget": "30%"}}
    modest = {"name": "modest", "match": "request.priority == 2", "retain": {"weight": 1, "budget": "20%"}}
    tree = tree_of([greedy, modest])
    lonely = tree.insert(size=15, request=RequestInfo(priority=2))
    for pick, size, priority, touch in steps:
        node = tree.nodes[pick % len(tree.nodes)]
        if touch and node is not lonely:
            tree.touch(node, RequestInfo(priority=priority % 2))
        elif node is not lonely or priority != 2:
            tree.insert(None if node is lonely else node, size, RequestInfo(priority=priority % 2))
        used = used_tokens(tree)
        assert used["greedy"] <= 30
        assert used["modest"] <= 20
        assert lonely.kvp.rule == 1
        tree.index.check()
    if (total := sum(node.size for node in tree.nodes)) > 50:
        tree.evict(total - 50)
        assert lonely in tree.nodes, "at most 30 + 15 tokens are protected: the need is met from the unprotected"
