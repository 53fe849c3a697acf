"""Numbers of contents over random operations, in the SGLang found on PYTHONPATH: each equals one computed from scratch,
however the tree was cut meanwhile, and evicted contents are found again by it.

Run by `test_ghost.py`: `contents.py PAGE [--stale]`. With `--stale` the kept hash of a path is copied at splits, as all
other metadata is: the comparison must see it.
"""

from __future__ import annotations

import json
import random
import sys
from array import array
from hashlib import blake2b
from typing import Any

from differential import Side, default_kind
from kvpolicy_sglang import content

from kvpolicy.eviction.metadata_index import MetadataIndex

STEPS = 1500


def from_scratch(node: Any, page: int) -> int:
    tokens = list(node.key.token_ids)[: min(page, len(node.key))]
    namespace = f"{node.key.extra_key}\0{getattr(node.key, 'cache_salt', None)}"
    node = node.parent
    while node.parent is not None:
        tokens = list(node.key.token_ids)[: len(node.key)] + tokens
        node = node.parent
    digest = blake2b(namespace.encode() + array("q", tokens).tobytes(), digest_size=8)
    return int.from_bytes(digest.digest(), "big")


def keep_stale_states() -> None:
    split = MetadataIndex.split

    def stale(self: Any, upper: Any, lower: Any, upper_tokens: int) -> None:
        split(self, upper, lower, upper_tokens)
        upper.kvp.path_state = lower.kvp.path_state

    MetadataIndex.split = stale  # type: ignore[method-assign]


def nodes_of(cache: Any) -> list[Any]:
    core = getattr(cache, "tree_core", cache)
    found, open_nodes = [], [core.root_node]
    while open_nodes:
        children = list(open_nodes.pop().children.values())
        found += children
        open_nodes += children
    return found


def main() -> None:
    page = int(sys.argv[1])
    if "--stale" in sys.argv:
        keep_stale_states()
    rng = random.Random(page)
    side = Side(default_kind(), "gdsf", page, page * 60, ours=True, explains=True)
    ghosts = side.active.index.ghosts
    stems = [[rng.randrange(50) for _ in range(page * 6)] for _ in range(4)]
    wrong = compared = 0
    for _ in range(STEPS):
        stem = rng.choice(stems)
        cut = page * rng.randrange(7)
        if side.allocator.available_size() < 9 * page:
            side.evict(9 * page)
        side.insert(stem[:cut] + [rng.randrange(50) for _ in range(page * rng.randrange(1, 4))], 0)
        for node in nodes_of(side.cache):
            compared += 1
            wrong += content.key_of(node, page) != from_scratch(node, page)
    print(
        json.dumps(
            {
                "wrong": wrong,
                "compared": compared,
                "victims": len(side.victims),
                "again": sum(ghosts.reused.values()),
                "fault": ghosts.fault,
                "several": max((miss.units for miss in ghosts.misses), default=0),
                "fallbacks": dict(side.active.fallbacks),
            }
        )
    )


if __name__ == "__main__":
    main()
