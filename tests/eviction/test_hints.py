"""Hints: what requests ask for themselves, clamped to what the policy allows."""

from __future__ import annotations

import logging
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from tree import Node, Tree

from kvpolicy.eviction import RequestInfo
from kvpolicy.eviction.envelope import Action, ActionName, Envelope, read_envelope
from policies import compiled

ALL: dict[str, Any] = {
    "allow": ["retain", "demote", "expire", "class"], "classes": ["agent"], "budget": 0.3, "max_ttl_ms": 600_000,
}  # fmt: skip
AGENTS = {"name": "agents", "match": "request.hint_class == 'agent'", "retain": {"weight": 4}}


def tree_of(rules: list[dict[str, Any]] | None = None, pool_tokens: int = 100, **hints: Any) -> Tree:
    return Tree(compiled("lru", rules=rules, hints={**ALL, **hints}).make_index(pool_tokens))


def asking(name: ActionName, action_id: str = "a", session_id: str | None = None, **words: Any) -> RequestInfo:
    return RequestInfo(session_id=session_id, hints=Envelope((Action(action_id, name, **words),)))


def retain(
    ttl_s: float | None = None, action_id: str = "a", session_id: str | None = None, **words: Any
) -> RequestInfo:
    ttl_ms = None if ttl_s is None else int(ttl_s * 1000)
    return asking("retain", action_id, session_id, ttl_ms=ttl_ms, **words)


def names(nodes: list[Node]) -> str:
    return " ".join(node.name for node in nodes)


def order(tree: Tree) -> str:
    tree.index.check()
    return names(tree.next_victims())


def counts(tree: Tree) -> dict[str, int]:
    assert tree.index.hints is not None
    return {f"{action} {outcome}": count for (action, outcome), count in tree.index.hints.counts.items()}


def report(tree: Tree, action_id: str = "a") -> Any:
    assert tree.index.hints is not None
    return tree.index.hints.recent[action_id]


def wait(tree: Tree, seconds: float) -> None:
    tree.arrive(seconds)


# -- retain ------------------------------------------------------------------------------------------------------------


def test_a_retained_unit_goes_after_the_others_until_its_ttl_is_over() -> None:
    tree = tree_of()
    tree.insert(name="kept", request=retain(100))
    tree.insert(name="plain")
    assert order(tree) == "plain kept"
    assert (report(tree).outcome, report(tree).hold.held_tokens) == ("accepted", 1)
    wait(tree, 100)
    assert order(tree) == "kept plain"
    assert (report(tree).hold.held_tokens, report(tree).hold.end) == (0, "expired")
    assert counts(tree) == {"retain accepted": 1, "retain expired": 1}


def test_need_is_met_from_what_is_retained() -> None:
    tree = tree_of()
    tree.insert(name="kept", request=retain(100))
    assert names(tree.evict(1)) == "kept"
    assert (report(tree).hold.held_tokens, report(tree).hold.end) == (0, "evicted")
    assert tree.index.counters.evictions == {"(hints)": 1}


def test_without_a_ttl_it_is_five_minutes_or_what_the_policy_allows() -> None:
    for max_ttl_ms, seconds in ((600_000, 300), (60_000, 60)):
        tree = tree_of(max_ttl_ms=max_ttl_ms)
        tree.insert(name="kept", request=retain())
        assert (report(tree).outcome, report(tree).hold.ttl_ms) == ("accepted", seconds * 1000)


def test_a_longer_ttl_than_allowed_is_clamped_and_said() -> None:
    tree = tree_of()
    tree.insert(name="kept", request=retain(601))
    assert (report(tree).outcome, report(tree).hold.ttl_ms) == ("clamped", 600_000)
    assert report(tree).why == "ttl 601 s is above hints.max_ttl"


def test_the_ttl_counts_from_the_last_request_that_asks() -> None:
    tree = tree_of()
    kept = tree.insert(name="kept", request=retain(100))
    tree.insert(name="plain")
    wait(tree, 90)
    tree.touch(kept, retain(100, "again"))
    wait(tree, 50)
    tree.touch(kept)  # asks for nothing
    wait(tree, 40)
    tree.touch(tree.insert(name="other"))
    assert order(tree).endswith("kept")
    assert (report(tree).hold.end, report(tree).hold.held_tokens) == ("taken over by another retain", 0)
    assert report(tree, "again").hold.held_tokens == 1
    wait(tree, 10)
    assert not order(tree).endswith("kept")


def test_a_shorter_retain_does_not_shorten_a_longer_one() -> None:
    tree = tree_of()
    kept = tree.insert(name="kept", request=retain(500))
    tree.insert(name="plain")
    tree.touch(kept, retain(1, "short"))
    wait(tree, 100)
    assert order(tree) == "plain kept"


def test_budget_over_which_the_first_to_go_lose_it() -> None:
    tree = tree_of()
    for number in range(4):
        tree.insert(name=f"n{number}", size=10, request=retain(100, f"a{number}"))
    tree.insert(name="plain")
    assert order(tree) == "n0 plain n1 n2 n3"
    assert tree.index.protected_tokens()["(hints)"] == (30, 30)
    assert report(tree, "a0").hold.end == "over budget"


def test_a_path_longer_than_the_budget_is_not_retained_and_costs_nobody_theirs() -> None:
    tree = tree_of()
    tree.insert(name="kept", size=10, request=retain(100, "kept"))
    tree.insert(name="giant", size=31, request=retain(100, "giant"))
    assert order(tree) == "giant kept"
    assert (report(tree, "giant").hold.held_tokens, report(tree, "giant").hold.end) == (0, "over budget")


def test_up_to_so_many_tokens() -> None:
    tree = tree_of()
    head = tree.insert(name="head", size=6, request=retain(100, tokens=7))
    request = retain(100, "b", tokens=7)
    middle = tree.insert(head, name="middle", size=6, request=request)
    tree.insert(middle, name="tail", size=6, request=request)
    assert (report(tree).hold.held_tokens, report(tree, "b").hold.held_tokens) == (6, 6)
    lower = middle
    upper = tree.split(middle, 1)  # of 7 tokens with the head: the rest is out of reach
    assert report(tree, "b").hold.held_tokens == 1
    assert (tree.index.rule_of(upper), tree.index.rule_of(lower)) == ("(hints)", "")
    tree.index.check()


def test_halves_of_a_split_are_both_held() -> None:
    tree = tree_of()
    tree.split(tree.insert(name="kept", size=6, request=retain(100)), 2)
    assert report(tree).hold.held_tokens == 6
    tree.index.check()


# -- the policy's rules go before --------------------------------------------------------------------------------------


def test_weight_puts_hints_among_the_rules() -> None:
    rules = [{"name": name, "match": f"request.priority == {at}", "retain": {"weight": 2 * at}} for at, name in
             ((1, "low"), (2, "high"))]  # fmt: skip
    tree = tree_of(rules, weight=3.0)
    tree.insert(name="high", request=RequestInfo(priority=2))
    tree.insert(name="hinted", request=retain(100))
    tree.insert(name="low", request=RequestInfo(priority=1))
    tree.insert(name="plain")
    assert order(tree) == "plain low hinted high"


def test_where_a_rule_retains_the_hint_waits_its_turn() -> None:
    rule = {"name": "short", "match": "request.priority == 1", "retain": {"weight": 5, "ttl_ms": 10_000}}
    tree = tree_of([rule])
    request = RequestInfo(priority=1, hints=retain(100).hints)
    kept = tree.insert(name="kept", request=request)
    tree.insert(name="plain")
    assert tree.index.rule_of(kept) == "short"
    assert report(tree).hold.held_tokens == 0
    wait(tree, 20)
    assert order(tree) == "plain kept"
    assert tree.index.rule_of(kept) == "(hints)"
    wait(tree, 90)
    assert order(tree) == "kept plain"


def test_a_rule_without_retain_leaves_the_hint_alone() -> None:
    tree = tree_of([{"name": "all", "priority": 3}])
    kept = tree.insert(name="kept", request=retain(100))
    tree.insert(name="plain")
    assert tree.index.meta(kept).priority == 3  # type: ignore[union-attr]
    assert order(tree) == "plain kept"


# -- demote, expire, class ---------------------------------------------------------------------------------------------


def test_a_demoted_unit_goes_first_until_somebody_else_uses_it() -> None:
    tree = tree_of()
    tree.insert(name="old")
    once = tree.insert(name="once", request=asking("demote"))
    assert order(tree) == "once old"
    assert report(tree).demoted_tokens == 1
    tree.touch(once)
    assert order(tree) == "old once"
    tree.touch(once, asking("demote", "b"))
    assert order(tree) == "once old"
    assert not tree.index.is_protected(tree.insert(name="plain"))


def test_demote_does_not_reach_what_is_protected() -> None:
    tree = tree_of([AGENTS])
    agents = tree.insert(name="agents", request=asking("class", class_name="agent"))
    kept = tree.insert(name="kept", request=retain(100, "r"))
    tree.insert(name="plain")
    for node in (agents, kept):
        tree.touch(node, asking("demote", node.name))
    assert order(tree) == "plain kept agents"
    wait(tree, 100)
    assert order(tree) == "kept plain agents"  # its time is over: now it goes first


def test_expire_ends_holds_of_its_own_session_or_of_the_one_it_names() -> None:
    tree = tree_of()
    mine, theirs = tree.insert(name="mine", size=2, request=retain(100, "m", "s1")), tree.insert(name="theirs")
    tree.touch(theirs, retain(100, "t", "s2"))
    tree.insert(name="plain")
    for node in (mine, theirs):
        tree.touch(node, asking("expire", f"end {node.name}", "s1"))
    assert order(tree) == "mine plain theirs"
    assert (report(tree, "m").hold.end, report(tree, "t").hold.held_tokens) == ("ended by an expire", 1)
    tree.touch(theirs, asking("expire", "by name", of="t"))
    assert order(tree) == "mine theirs plain"
    assert report(tree, "t").hold.held_tokens == 0


def test_a_class_is_known_to_rules_at_insertion_touch_and_admission() -> None:
    out = {"name": "out", "match": "request.hint_class == 'out' and depth_tokens > 0", "admit": "never"}
    tree = tree_of([out, AGENTS], classes=["agent", "out"])
    made = tree.insert(name="made", request=asking("class", class_name="agent"))
    used = tree.insert(name="used")
    tree.touch(used, asking("class", "b", class_name="agent"))
    tree.touch(made)  # without a class: keeps the one that it has
    assert (tree.index.rule_of(made), tree.index.rule_of(used)) == ("agents", "agents")
    assert not tree.index.admit(asking("class", "c", class_name="out"), 5, 5)
    assert tree.index.admit(asking("class", "d", class_name="agent"), 5, 5)


def test_a_class_that_the_policy_does_not_name_is_refused() -> None:
    tree = tree_of([AGENTS])
    node = tree.insert(name="node", request=asking("class", class_name="boss"))
    assert tree.index.meta(node).hint_class is None  # type: ignore[union-attr]
    assert (report(tree).outcome, report(tree).why) == ("refused", "hints.classes does not name it")


# -- what is not allowed, or makes no sense ----------------------------------------------------------------------------


def test_only_what_the_policy_allows() -> None:
    for allowed in ALL["allow"]:
        tree = tree_of(allow=[allowed])
        for name in ALL["allow"]:
            words = {"class_name": "agent"} if name == "class" else {}
            tree.touch(tree.insert(), asking(name, name, **words))
        refused = [name for name in ALL["allow"] if report(tree, name).outcome == "refused"]
        assert refused == [name for name in ALL["allow"] if name != allowed]
        assert counts(tree)[f"{allowed} accepted"] == 1
        tree.index.check()


def test_without_a_hints_section_nothing_is_looked_at() -> None:
    for hints in ({}, {"allow": []}):
        index = compiled("lru", rules=[{"name": "all", "priority": 1}], hints=hints).make_index(100)
        tree = Tree(index)
        tree.insert(name="first", request=retain(100))
        tree.insert(name="second", request=asking("demote"))
        assert order(tree) == "first second"
        assert index.hints is None
        assert "(hints)" not in index.protected_tokens()


def test_what_cannot_be_read_is_counted_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    tree = tree_of()
    bad = read_envelope({"actions": [{"action_type": "kv.retain", "action_version": "1", "payload": {"ttl": "x"}}]})
    with caplog.at_level(logging.WARNING, "kvpolicy"):
        for envelope in (read_envelope("{"), bad, bad):
            tree.insert(request=RequestInfo(hints=envelope))
    assert counts(tree) == {"envelope ignored": 1, "retain ignored": 1}
    assert len(caplog.records) == 1
    assert tree.index.counters.fallbacks == 0


def test_one_of_a_kind_an_envelope_but_for_retains() -> None:
    tree = tree_of()
    two = Envelope((Action("a", "demote"), Action("b", "demote")))
    tree.insert(request=RequestInfo(hints=two))
    assert (report(tree, "a").outcome, report(tree, "b").outcome) == ("accepted", "refused")


@pytest.mark.parametrize("order_given", [1, -1])
def test_of_several_retains_the_one_that_lasts_longest_has_the_unit(order_given: int) -> None:
    tree = tree_of()
    head_and_all = Action("head", "retain", ttl_ms=500_000, tokens=2), Action("all", "retain", ttl_ms=100_000)
    request = RequestInfo(hints=Envelope(head_and_all[::order_given]))
    head = tree.insert(name="head", size=2, request=request)
    tail = tree.insert(head, name="tail", size=2, request=request)
    assert (report(tree, "head").hold.held_tokens, report(tree, "all").hold.held_tokens) == (2, 2)
    wait(tree, 200)
    assert order(tree) == "tail"
    tree.index.begin()
    assert (tree.index.rule_of(head), tree.index.rule_of(tail)) == ("(hints)", "")


def test_a_request_counts_once_however_many_units_it_has() -> None:
    tree = tree_of()
    request = retain(100)
    at = None
    for _ in range(3):
        at = tree.insert(at, size=2, request=request)
    assert tree.index.admit(request, 6, 6)
    assert counts(tree) == {"retain accepted": 1}
    assert report(tree).hold.held_tokens == 6


def test_the_latest_are_reported_and_no_more() -> None:
    tree = tree_of()
    for number in range(100):
        tree.insert(request=asking("demote", str(number)))
    assert tree.index.hints is not None
    assert list(tree.index.hints.recent) == [str(number) for number in range(36, 100)]


def test_a_flush_ends_every_hold() -> None:
    tree = tree_of()
    tree.insert(request=retain(100))
    tree.index.reset()
    assert (report(tree).hold.held_tokens, report(tree).hold.end) == (0, "flushed")


# -- whatever comes ----------------------------------------------------------------------------------------------------

OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["insert", "touch", "split", "evict", "wait", "lock", "unlock"]),
        st.integers(0, 30),
        st.sampled_from(["", "retain", "demote", "expire", "class", "both"]),
        st.integers(1, 900),
    ),
    max_size=40,
)


@settings(deadline=None)
@given(OPERATIONS, st.sampled_from([None, 1, 7]), st.booleans())
def test_clamps_and_budgets_hold_whatever_comes(operations: Any, tokens: int | None, has_rules: bool) -> None:
    """No hold outlives ``max_ttl``, none are above the budget, what is reported as held is held, need is met, and two
    ranks agree."""
    rules = [{"name": "some", "match": "depth_tokens <= 3", "retain": {"weight": 2, "ttl_ms": 5000}}, AGENTS]
    digests = []
    for _ in range(2):
        tree = tree_of(rules if has_rules else None, pool_tokens=40)
        for number, (what, which, asks, amount) in enumerate(operations):
            actions: list[Action] = []
            if asks in ("retain", "both"):
                actions.append(Action(f"r{number}", "retain", ttl_ms=amount * 1000, tokens=tokens))
            if asks in ("demote", "expire", "both"):
                actions.append(Action(f"d{number}", "demote" if asks == "both" else asks))
            if asks == "class":
                actions.append(Action(f"c{number}", "class", class_name="agent"))
            request = RequestInfo(hints=Envelope(tuple(actions)) if actions else None)
            node = tree.nodes[which % len(tree.nodes)] if tree.nodes else None
            if what == "insert" or node is None:
                tree.insert(node if which % 3 == 0 else None, 1 + amount % 9, request)
            elif what == "touch":
                tree.touch(node, request, lock=bool(which % 2))
            elif what == "split" and node.size > 1:
                tree.split(node, 1 + amount % (node.size - 1))
            elif what == "evict":
                want = 1 + amount % 9
                free = sum(each.size for each in tree.evictable())
                assert sum(each.size for each in tree.evict(want)) >= min(want, free)
            elif what == "wait":
                tree.arrive(amount)
            elif what == "lock":
                tree.lock(node)
            elif what == "unlock" and node.locks and not node.children:
                tree.unlock(node)
            _check(tree)
        assert tree.index.counters.fallbacks == 0
        digests.append((tree.index.victim_digest, order(tree)))
    assert digests[0] == digests[1]


def _check(tree: Tree) -> None:
    index = tree.index
    index.check()
    now_ms = index.clock.now_ms
    for node in tree.nodes:
        meta = index.meta(node)
        assert meta is not None
        if meta.hold_expiry_ms is not None:
            assert meta.hold_expiry_ms <= now_ms + 600_000
        if index.rule_of(node) == "(hints)":
            assert meta.expiry_ms is not None
            assert meta.hold is not None
    held, budget_tokens = index.protected_tokens()["(hints)"]
    assert budget_tokens is not None
    assert held <= budget_tokens <= 12
    assert index.hints is not None
    reported = sum(each.hold.held_tokens for each in index.hints.recent.values() if each.hold is not None)
    assert reported == held
