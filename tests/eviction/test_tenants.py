"""Tenants: floors and caps by cache_salt."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis import given, settings
from tree import Node, Tree

from kvpolicy.eviction import RequestInfo
from policies import compiled

POOL_TOKENS = 100


def tree_of(tenants: dict[str, Any], rules: list[dict[str, Any]] | None = None) -> Tree:
    return Tree(compiled("lru", tenants=tenants, rules=rules).make_index(POOL_TOKENS))


def fill(tree: Tree, salt: str | None, units: int, hits: int = 1, size: int = 1) -> list[Node]:
    nodes = [tree.insert(size=size, request=RequestInfo(salt)) for _ in range(units)]
    for node in nodes:
        for _ in range(hits):
            tree.touch(node, RequestInfo(salt))
    return nodes


def tokens(tree: Tree, salt: str | None) -> int:
    return sum(node.size for node in tree.nodes if node.kvp.cache_salt == salt)


def test_a_floor_holds_while_another_tenant_exceeds_its_own() -> None:
    tree = tree_of({"floor": "10%"})
    fill(tree, "old", 10)
    fill(tree, "new", 30)
    tree.evict(20)
    assert (tokens(tree, "old"), tokens(tree, "new")) == (10, 10)
    tree.evict(5)
    assert (tokens(tree, "old"), tokens(tree, "new")) == (5, 10), "both are within their floors: least recently used"


def test_a_tenant_without_a_hit_holds_no_floor() -> None:
    tree = tree_of({"floor": "10%"})
    fill(tree, "old", 10, hits=0)
    fill(tree, "new", 30)
    tree.evict(10)
    assert tokens(tree, "old") == 0


def test_floors_go_to_the_tenants_with_most_hit_tokens() -> None:
    tree = tree_of({"floor": "10%", "max_floors": 1})
    fill(tree, "early", 5)
    later = fill(tree, "late", 5)
    tree.evict(5)
    assert (tokens(tree, "early"), tokens(tree, "late")) == (5, 0), "equal hits: the first keeps its floor"
    later = fill(tree, "late", 5)  # forgotten with its last unit, it starts over
    tree.touch(later[0], RequestInfo("late"))
    tree.evict(5)
    assert (tokens(tree, "early"), tokens(tree, "late")) == (0, 5)


def test_above_its_cap_a_tenant_loses_its_own_first() -> None:
    tree = tree_of({"cap": "40%"})
    fill(tree, "small", 10)
    fill(tree, "big", 60)
    tree.evict(15)
    assert (tokens(tree, "small"), tokens(tree, "big")) == (10, 45), "small is the least recently used"
    tree.evict(10)
    assert (tokens(tree, "small"), tokens(tree, "big")) == (5, 40), "at its cap big is a tenant like any other"


def test_a_cap_lets_idle_room_be_used() -> None:
    tree = tree_of({"cap": "10%"})
    fill(tree, "only", 90)
    assert tree.index.admit(RequestInfo("only"), 1, 1)
    assert tokens(tree, "only") == 90


def test_no_salt_is_one_tenant_and_named_ones_have_shares_of_their_own() -> None:
    tree = tree_of({"floor": "5%", "max_floors": 0, "named": {"gold": {"floor": "20%"}, "free": {"cap": "5%"}}})
    fill(tree, "gold", 20)
    fill(tree, None, 20)
    fill(tree, "free", 20)
    tree.evict(15)
    assert (tokens(tree, "gold"), tokens(tree, None), tokens(tree, "free")) == (20, 20, 5)
    tree.evict(20)
    assert (tokens(tree, "gold"), tokens(tree, None), tokens(tree, "free")) == (20, 0, 5)


def test_classes_come_before_protection_and_protection_before_recency() -> None:
    keep = {"name": "keep", "match": "request.priority > 0", "retain": {"weight": 1}}
    tree = tree_of({"cap": "20%", "named": {"within": {"floor": "50%"}}}, [keep])
    within = fill(tree, "within", 1)[0]
    plain = tree.insert(request=RequestInfo("plain"))
    capped = tree.insert(size=11, request=RequestInfo("capped", 1))
    capped_too = tree.insert(size=11, request=RequestInfo("capped"))
    kept = tree.insert(request=RequestInfo("plain", 1))
    # Popping does not free: the capped tenant stays over its cap for the whole walk.
    assert tree.next_victims() == [capped_too, capped, plain, kept, within]
    # Freed, its first unit brings it below.
    assert tree.evict(100) == [capped_too, plain, capped, kept, within]


def test_under_a_dynamic_score_a_tenant_left_idle_does_not_keep_its_old_key() -> None:
    """Its first unit was last compared when it was popular; nothing touched the tenant since."""
    score = "(1 + hits) / (1 + idle_requests)"
    tree = Tree(compiled(score=score, tenants={"cap": "90%"}).make_index(POOL_TOKENS))
    fill(tree, "popular", 1, hits=4)
    fill(tree, "other", 2, hits=0)
    tree.evict(1)  # compares the two
    assert tokens(tree, "popular") == 1
    for _ in range(1000):
        tree.index.clock.arrive()
    fill(tree, "other", 1, hits=0)
    tree.index.clock.arrive()
    tree.evict(2)  # the other's old unit, and then: 5/1001 against 1/2
    assert (tokens(tree, "popular"), tokens(tree, "other")) == (0, 1)


def test_forgotten_tenants_leave_nothing_behind() -> None:
    tree = tree_of({"floor": "1%", "max_floors": 2})
    for number in range(500):
        fill(tree, f"user{number}", 1, hits=number % 3)
        tree.evict(1)
    index: Any = tree.index
    assert len(index._tenants._tenants) <= 2, "at most the floor holders"
    assert len(index._partitions._partitions) <= 2
    tree.index.check()


salts = st.sampled_from(["a", "b", "c", "d", None])


@settings(deadline=None, derandomize=True)
@given(st.lists(st.tuples(salts, st.integers(1, 5), st.integers(0, 10**6), st.booleans()), max_size=80))
def test_floors_and_caps_hold(steps: list[tuple[str | None, int, int, bool]]) -> None:
    """Nobody loses within its floor while another exceeds its own, nor below a cap while one is above."""
    tree = tree_of({"floor": "10%", "cap": "30%", "max_floors": 2, "named": {"a": {"floor": "20%"}}})
    index: Any = tree.index
    for salt, size, pick, touch in steps:
        if touch and tree.nodes:
            node = tree.nodes[pick % len(tree.nodes)]
            tree.touch(node, RequestInfo(node.kvp.cache_salt))
        else:
            own = [node for node in tree.nodes if node.kvp.cache_salt == salt]
            tree.insert([None, *own][pick % (len(own) + 1)], size, RequestInfo(salt))
        while sum(node.size for node in tree.nodes) > POOL_TOKENS // 2:
            owned = {s: tokens(tree, s) for s in ["a", "b", "c", "d", None]}
            floor = {s: 20 if s == "a" else 10 for s in owned if index._tenants.get(s).holds_floor}
            assert len(floor.keys() - {"a"}) <= 2
            loser = tree.evict(1)[0].kvp.cache_salt
            over_cap = [s for s in owned if s != "a" and owned[s] > 30]
            if over_cap:
                assert loser in over_cap
            elif any(owned[s] > floor.get(s, 0) for s in owned):
                assert owned[loser] > floor.get(loser, 0)
            index.check()
