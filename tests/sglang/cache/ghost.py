"""Content that S3-FIFO threw out is known again when it returns, in the SGLang found on PYTHONPATH.

Run by `test_ghost.py`; prints the queue of a prompt at its first insertion, and of a longer one that begins with it
after it was evicted.
"""

from __future__ import annotations

import json
from typing import Any

from differential import Side, default_kind
from sglang.srt.mem_cache.base_prefix_cache import EvictParams


def leaf_of(side: Side, tokens: list[int]) -> Any:
    core = getattr(side.cache, "tree_core", None)
    leaves = side.cache.evictable_leaves if core is None else core.evictable_device_leaves
    return next(node for node in leaves if node.key.token_ids[0] == tokens[0])


def main() -> None:
    side = Side(default_kind(), "s3fifo", 16, 16 * 64, ours=True)
    first, other = list(range(1, 33)), list(range(1001, 1033))
    side.insert(first, 0)
    before = leaf_of(side, first).kvp
    side.insert(other, 0)
    side.cache.evict(EvictParams(num_tokens=32))
    side.insert([*first, *range(33, 49)], 0)
    after = leaf_of(side, first).kvp
    print(
        json.dumps(
            {
                "main at first": before.state.main,
                "main on return": after.state.main,
                "same key": before.content_key == after.content_key,
                "key": after.content_key,
                "fallbacks": dict(side.active.fallbacks),
            }
        )
    )


if __name__ == "__main__":
    main()
