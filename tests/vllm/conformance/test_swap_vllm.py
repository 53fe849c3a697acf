"""The conformance run on vLLM swaps what it says it swaps, and would see a difference: on a small suite of our own.

vLLM's own tests are no part of this project (docs/conformance.md says how to run them, and what was seen).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tools.conformance_columns import Column, new_failures, report
from tools.conformance_vllm import not_ours, run_column, swapped

SUITE = """
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id


def cached(pool, *names):
    blocks = pool.get_new_blocks(len(names))
    for block, name in zip(blocks, names):
        pool._insert_block_hash(make_block_hash_with_group_id(name * 32, 0), block, 16)
    return blocks


def test_order():
    pool = BlockPool(4, True, 16)
    for name in (b"a", b"b"):
        pool.free_blocks(cached(pool, name))
    assert pool.get_cached_block(b"a" * 32, [0])
    first, second = pool.get_new_blocks(1), pool.get_new_blocks(1)  # the one never used, then the oldest
    assert pool.get_cached_block(b"a" * 32, [0]) is None
    assert pool.get_cached_block(b"b" * 32, [0])


def test_without_caching():
    pool = BlockPool(4, False, 16)
    assert len(pool.get_new_blocks(3)) == 3


def test_that_fails():
    assert False, "on purpose"
"""


@pytest.mark.engine
def test_the_columns(vllm_env: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    suite = tmp_path / "test_mini.py"
    suite.write_text(SUITE)
    stock, order, rules, wrong = (
        run_column(vllm_env(), name, [suite], tmp_path) for name in ("stock", "order", "rules", "wrong")
    )
    assert [stock.outcomes[f"test_mini.py::{name}"] for name in ("test_order", "test_that_fails")] == [
        "passed",
        "failed",
    ]
    for column in (order, rules):
        assert new_failures(stock, column) == []
        assert (column.swap["built"], column.swap["attached"]) == (2, 1)
        assert column.swap["victims"] == 1
    assert report([stock, order, rules], swapped, not_ours) == 0
    assert new_failures(stock, wrong) == ["test_mini.py::test_order"]
    assert report([stock, wrong], swapped, not_ours) == 1
    assert "NEW FAILURE test_mini.py::test_order" in capsys.readouterr().out


def test_nothing_swapped_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    swap = {"built": 1, "attached": 0, "evict calls": 0, "victims": 0, "fallbacks": {}}
    columns = [Column("stock", {"t": "passed"}), Column("order", {"t": "passed"}, swap=swap)]
    assert report(columns, swapped, not_ours) == 1
    assert "NOT OURS" in capsys.readouterr().out
