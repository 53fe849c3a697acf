"""The conformance run swaps what it says it swaps, and would see a difference: on a small suite of our own.

SGLang's own tests are no part of this project (docs/conformance.md says how to run them, and what was seen).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tools import conformance
from tools.conformance import run_column
from tools.conformance_columns import Column, new_failures, newly_passed, table

SUITE = """
import unittest
from array import array

import torch
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.test.test_utils import CustomTestCase

if "{default}" == "UnifiedRadixCache":
    from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
    EXTRA = dict(tree_components=(ComponentType.FULL,))
else:
    EXTRA = {{}}


def build(allocator=True):
    if allocator:
        allocator = TokenToKVPoolAllocator(64, torch.float16, "cpu", None, False)
    params = CacheInitParams(
        disable=False, req_to_token_pool=None, token_to_kv_pool_allocator=allocator or None, page_size=1, **EXTRA
    )
    return {default}(params)


class Mini(CustomTestCase):
    def test_evict(self):
        cache = build()
        allocator = cache.token_to_kv_pool_allocator
        for first in (10, 20, 30):
            tokens = array("q", range(first, first + 8))
            cache.insert(InsertParams(key=RadixKey(token_ids=tokens), value=allocator.alloc(8)))
        self.assertEqual(cache.evict(EvictParams(num_tokens=9)).num_tokens_evicted, 16)
        self.assertEqual(allocator.available_size(), 64 - 8)

    def test_without_allocator(self):
        cache = build(allocator=False)
        key = RadixKey(token_ids=array("q", range(8)))
        cache.insert(InsertParams(key=key, value=torch.arange(8)))
        self.assertIsNone(cache.token_to_kv_pool_allocator)
        total = cache.total_size()  # of all kinds of state in the unified cache
        self.assertEqual(total if isinstance(total, int) else total[0], 8)

    def test_that_sees_the_swap(self):
        cache = build()
        leaves = getattr(cache, "tree_core", cache)
        leaves = getattr(leaves, "evictable_device_leaves", getattr(leaves, "evictable_leaves", None))
        self.assertIs(type(leaves), set)


class Absent(CustomTestCase):
    def test_of_another_version(self):
        from sglang.srt.mem_cache.evict_policy import NoSuchStrategy
        self.assertIsNotNone(NoSuchStrategy())
"""
DEFAULT_CACHE = {"0.5.18": "RadixCache", "0.5.20": "UnifiedRadixCache"}


@pytest.mark.engine
@pytest.mark.parametrize("version", DEFAULT_CACHE)
def test_swap(sglang_env: Callable[..., Any], tmp_path: Path, version: str) -> None:
    suite = tmp_path / conformance.FOLDERS[0] / "test_mini.py"
    suite.parent.mkdir(parents=True)
    suite.write_text(SUITE.format(default=DEFAULT_CACHE[version]))
    stock, order, rules, slots = (
        run_column(sglang_env(version), name, [suite], neighbour=True) for name in conformance.COLUMNS
    )

    mini = "test_mini.py::Mini::"
    assert stock.outcomes == {
        f"{mini}test_evict": "passed",
        f"{mini}test_without_allocator": "passed",
        f"{mini}test_that_sees_the_swap": "passed",
        "test_mini.py::Absent::test_of_another_version": "failed",
    }
    assert "NoSuchStrategy" in stock.reasons["test_mini.py::Absent::test_of_another_version"]
    assert stock.swap["built"] == {}
    for ours in (order, rules):
        assert new_failures(stock, ours) == [f"{mini}test_that_sees_the_swap"]
        assert ours.swap["built"] == ours.swap["attached"] == {DEFAULT_CACHE[version]: 3}
        assert ours.swap["victims"] == 2
        assert ours.swap["fallbacks"] == {}
    assert new_failures(stock, slots) == []
    assert slots.swap["built"] == {"TokenToKVPoolAllocator": 2}
    assert slots.swap["units handed out"] > slots.swap["units given back"] > 0


def test_comparison() -> None:
    stock = Column("stock", {"a": "passed", "b": "passed", "c": "failed", "d": "skipped", "e": "passed"})
    ours = Column("order", {"a": "passed", "b": "error", "c": "failed", "d": "passed", "f": "passed"})
    assert new_failures(stock, ours) == ["b", "e", "f"]
    assert newly_passed(stock, ours) == ["d"]


def test_table() -> None:
    stock = Column("stock", {"x.py::a": "passed", "x.py::b": "error", "y.py": "skipped"})
    assert [line.split() for line in table([stock]).splitlines()] == [
        ["passed/failed/skipped", "stock"],
        ["x.py", "1/1/0"],
        ["y.py", "0/0/1"],
        ["total", "1/1/1"],
    ]
