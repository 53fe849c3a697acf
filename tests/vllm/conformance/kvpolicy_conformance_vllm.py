"""A pytest plugin for vLLM's own unit tests: every block pool that a test builds gets kvpolicy's eviction.

`pytest -p kvpolicy_conformance_vllm --kvpolicy-swap WHAT --kvpolicy-report FILE TESTS`, with vLLM on the path:

- `stock`: nothing is swapped; the column to compare with.
- `order`: vLLM's order (lru), from our index.
- `rules`: the same order, with rules that hold nobody back. Every block is stamped, every hit counted and every
  admission decided, and the victims must still be the same.
- `wrong`: the policy's victims go before blocks that hold nothing, a fault that the tests must see.

A server leaves pools of several KV cache groups to the engine; here those are swapped too. The report is one JSON
object: the outcome of each test, and what was swapped.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from activation import activate
from conformance_report import IDLE_RULES, add_options, begin

_EVICTION: dict[str, dict[str, Any]] = {
    "order": {"policy": "lru", "core": "kvpolicy"},
    "rules": {"policy": "lru", **IDLE_RULES},
    "wrong": {"policy": "mru"},
}


class Swap:
    """Puts our pool in place of vLLM's, everywhere, and counts what it did."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.built = 0
        self.actives: list[Any] = []

    def install(self) -> None:
        from kvpolicy_vllm.cache_hooks import patch, serve_pool
        from kvpolicy_vllm.cache_pool import PolicyBlockPool, PolicyQueue
        from vllm.v1.core import block_pool, kv_cache_coordinator, single_type_kv_cache_manager

        def attach(pool: Any) -> None:
            self.built += 1
            if pool.enable_caching:
                active = activate("vllm", _EVICTION[self.what])
                pool.block_tokens = pool.hash_block_size
                active.pool_tokens = (pool.num_gpu_blocks - 1) * pool.block_tokens
                serve_pool(active, pool, pool.block_tokens)
                self.actives.append(active)

        class SwappedBlockPool(PolicyBlockPool):  # type: ignore[misc]
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(*args, **kwargs)
                attach(self)

        if self.what == "wrong":
            PolicyQueue._count_empty = lambda queue, most: 0
        patch()
        for module in (block_pool, kv_cache_coordinator, single_type_kv_cache_manager):
            module.BlockPool = SwappedBlockPool

    def figures(self) -> dict[str, Any]:
        fallbacks: Counter[str] = Counter()
        for active in self.actives:
            fallbacks.update(active.fallbacks)
            if survived := active.index.counters.fallbacks:
                fallbacks["policy"] += survived
        return {
            "built": self.built,
            "attached": len(self.actives),
            "evict calls": sum(active.evict_calls for active in self.actives),
            "victims": sum(active.index.victims for active in self.actives),
            "fallbacks": fallbacks,
        }


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser, *_EVICTION)


def pytest_configure(config: pytest.Config) -> None:
    begin(config, Swap)
