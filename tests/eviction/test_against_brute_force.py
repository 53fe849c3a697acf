"""Every victim of the index against brute force, over random operations of an engine: matches, locks, splits."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from naive import Twin
from tree import Node, Tree

from kvpolicy.eviction import CompiledEviction, RequestInfo
from policies import compiled

POOL_TOKENS = 60
RULES = [
    {
        "name": "hot",
        "match": "hits >= 2 and depth_tokens <= 10",
        "retain": {"weight": 8, "ttl": "20s", "budget": "20%"},
    },
    {"name": "paid", "match": "request.priority >= 2", "retain": {"weight": 2}, "priority": 7},
    {"name": "quick", "match": "reuse_gap_s > 0 and reuse_gap_s < 4", "retain": {"weight": 4, "budget": "30%"}},
]
TENANTS = {"floor": "10%", "cap": "40%", "max_floors": 2, "named": {"gold": {"floor": "20%"}, "free": {"cap": "10%"}}}

POLICIES: dict[str, CompiledEviction] = {
    **{name: compiled(name) for name in ("lru", "lfu", "fifo", "filo", "mru", "slru", "priority")},
    "stable score": compiled(score="hits / size_tokens"),
    "falling score": compiled(score="depth_tokens - 3 * hits"),
    "decaying score": compiled(score="hits - 0.25 * idle_requests"),
    "dynamic score": compiled(score="(1 + hits) / (1 + idle_requests)"),
    "lru with rules": compiled("lru", rules=RULES),
    "lru with tenants": compiled("lru", tenants=TENANTS),
    "mru with rules and tenants": compiled("mru", rules=RULES, tenants=TENANTS),
    "score with rules and tenants": compiled(score="hits / size_tokens", rules=RULES, tenants=TENANTS),
    "dynamic score with rules and tenants": compiled(
        score="(1 + hits) / (1 + idle_requests)", rules=RULES, tenants=TENANTS
    ),
    "dynamic score that a touch lowers, with tenants": compiled(
        score="(depth_tokens - 3 * hits) / (1 + idle_requests)", tenants=TENANTS
    ),
}

requests = st.builds(
    RequestInfo,
    cache_salt=st.sampled_from([None, "gold", "free", "other", "third"]),
    priority=st.sampled_from([None, -1, 0, 2]),
)
picks = st.integers(0, 10**6)


class Engine(RuleBasedStateMachine):
    policy: CompiledEviction
    victims = 0  # of all examples of one run

    def __init__(self) -> None:
        super().__init__()
        self.tree = Tree(Twin(self.policy, POOL_TOKENS))
        self.locked: list[Node] = []

    def node(self, pick: int) -> Node:
        return self.tree.nodes[pick % len(self.tree.nodes)]

    @rule(pick=picks, size=st.integers(1, 6), request=requests, seconds=st.integers(0, 9))
    def insert(self, pick: int, size: int, request: RequestInfo, seconds: int) -> None:
        choices: list[Node | None] = [None, *self.tree.nodes]
        self.tree.insert(choices[pick % len(choices)], size, request, seconds=seconds)

    @precondition(lambda self: self.tree.nodes)
    @rule(pick=picks, lock=st.booleans(), request=requests, seconds=st.integers(0, 9))
    def touch(self, pick: int, lock: bool, request: RequestInfo, seconds: int) -> None:
        self.tree.touch(self.node(pick), request, lock=lock, seconds=seconds)

    @precondition(lambda self: any(node.size > 1 for node in self.tree.nodes))
    @rule(pick=picks, at=picks)
    def split(self, pick: int, at: int) -> None:
        long = [node for node in self.tree.nodes if node.size > 1 and node.locks == 0]
        if long:
            node = long[pick % len(long)]
            self.tree.split(node, 1 + at % (node.size - 1))

    @precondition(lambda self: self.tree.nodes)
    @rule(pick=picks)
    def lock(self, pick: int) -> None:
        node = self.node(pick)
        self.locked.append(node)
        self.tree.lock(node)

    @precondition(lambda self: self.locked)
    @rule(pick=picks)
    def unlock(self, pick: int) -> None:
        self.tree.unlock(self.locked.pop(pick % len(self.locked)))

    @rule(tokens=st.integers(1, 30), sweeps=st.booleans())
    def evict(self, tokens: int, sweeps: bool) -> None:
        evictable = self.evictable_tokens()
        victims = self.tree.evict(tokens, sweeps=sweeps)
        type(self).victims += len(victims)
        freed = sum(node.size for node in victims)
        assert freed >= min(tokens, evictable), "a need within the evictable tokens was not met"

    @rule(most=st.integers(0, 5))
    def propose_without_evicting(self, most: int) -> None:
        """Popped units that the engine does not free are offered again in the next walk."""
        index = self.tree.index
        index.begin()
        for _ in range(most):
            if index.pop() is None:
                break
        index.end()

    @invariant()
    def agrees_with_brute_force(self) -> None:
        self.tree.index.check()
        index = self.tree.index.real  # type: ignore[attr-defined]
        for name, (held_tokens, _) in index.protected_tokens().items():
            units = [node for node in self.tree.nodes if node.kvp is not None and index.rule_of(node) == name]
            assert held_tokens == sum(node.size for node in units), "a rule's own tokens were miscounted"

    def evictable_tokens(self) -> int:
        """All but what is locked, or above something locked."""
        return sum(node.size for node in self.tree.nodes if node.locks == 0)


def run(policy: CompiledEviction, examples: int, steps: int) -> int:
    """The number of victims that were compared, each where it was named (see `naive.Twin`)."""
    machine: Any = type("Engine", (Engine,), {"policy": policy})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
    return int(machine.victims)


@pytest.mark.parametrize("name", POLICIES)
def test_victims_are_brute_forces(name: str) -> None:
    assert run(POLICIES[name], examples=60, steps=60) > 150


def test_a_wrong_key_is_noticed() -> None:
    """The comparison has teeth: an index that orders by another key than the policy's fails it."""
    lru, fifo = compiled("lru"), compiled("fifo")

    class WrongTwin(Twin):
        def __init__(self, _: CompiledEviction, pool_tokens: int) -> None:
            super().__init__(lru, pool_tokens)
            self.naive.compiled = fifo

    tree = Tree(WrongTwin(lru, POOL_TOKENS))
    first, _ = tree.insert(), tree.insert()
    tree.touch(first)
    with pytest.raises(AssertionError, match="brute force says"):
        tree.evict(1)
