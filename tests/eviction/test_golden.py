"""Each order's victims on one fixed trace, written out: a change of any of these lines is a change of behaviour."""

from __future__ import annotations

import pytest
from tree import Tree

from kvpolicy.eviction import RequestInfo
from kvpolicy.eviction.algorithms.registry import ALGORITHMS
from policies import compiled

#: policy -> all units in the order in which one walk over the whole tree evicts them (``E`` is the upper half of ``e``)
GOLDEN = {
    "lru": "c h b a f d g e E",
    "lfu": "c h a f d g e E b",
    "fifo": "a b c d e E f g h",
    "filo": "h g f e E d c b a",
    "mru": "e E g d f a b h c",
    "slru": "c h a f d g b e E",
    "priority": "c h a f g d e E b",
    "tlru": "c h b g e a f d E",
    "gdsf": "f h c a d e E g b",
    "s3fifo": "a c d f g h b e E",
    "sieve": "c h a b d e f g E",
    "hit_density": "f h a c d b e E g",
    "reuse_rate": "c b g f a h d e E",
    "adaptive": "c h b a f d g e E",
}
PARAMS = {"slru": {"protected_hits": 3}, "tlru": {"threshold_tokens": 4, "next_prompt_tokens": 1}}

#: name, size in tokens, request priority; all directly below the root
UNITS = [
    ("a", 4, None),
    ("b", 2, 3),
    ("c", 2, None),
    ("d", 4, 1),
    ("e", 6, 2),
    ("f", 8, None),
    ("g", 3, None),
    ("h", 3, None),
]


def trace(policy: str) -> Tree:
    """Eight inserts, eight hits of running requests, one match of ``g`` that runs nothing, and a split of ``e``."""
    tree = Tree(compiled(policy, params=PARAMS.get(policy)).make_index(100))
    node = {name: tree.insert(None, size, RequestInfo(priority=priority), name) for name, size, priority in UNITS}
    for name in "bebbafde":
        tree.touch(node[name])
    tree.touch(node["g"], lock=False)
    tree.split(node["e"], 3).name = "E"
    return tree


def test_every_order_has_a_golden_line() -> None:
    assert set(GOLDEN) == set(ALGORITHMS)


@pytest.mark.parametrize("policy", ALGORITHMS)
def test_golden(policy: str) -> None:
    tree = trace(policy)
    tree.index.check()
    victims = " ".join(node.name for node in tree.evict(10**6))
    assert victims == GOLDEN[policy]
    assert len(tree.index) == 0
