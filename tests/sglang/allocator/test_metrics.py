"""What the guard finds reaches the status and the metrics, once for the log and every time for the counts."""

from __future__ import annotations

import logging
import math
from typing import Any

import pytest
from kvpolicy_sglang import metrics
from kvpolicy_sglang.allocator_hooks import _reporter

from kvpolicy.runtime import status
from kvpolicy.runtime.active import AllocatorState
from tests.inside.activation import activate

RANKS = {"tp_rank": "0", "pp_rank": "0", "dp_rank": "0"}


def find(active: Any, kind: str, message: str | None) -> None:
    """The guard found one more unit of this kind."""
    active.allocator.faults[kind] += 1
    _reporter(active)(kind, message)


def test_faults_are_told_counted_and_exported(caplog: pytest.LogCaptureFixture) -> None:
    prometheus = pytest.importorskip("prometheus_client")
    active = activate("sglang", None, allocator={"order": "lifo", "guard": "full"})
    active.allocator = AllocatorState("kvpolicy", "a test", "lifo", "full")
    metrics.start(active, RANKS)
    with caplog.at_level(logging.ERROR, "kvpolicy"):
        find(active, "double_free", "1 unit(s) freed twice (7), in free")
        find(active, "double_free", None)
        find(active, "padding_free", "1 unit(s) freed")
    assert [record.getMessage() for record in caplog.records] == [
        "kvpolicy: allocator guard: double_free: 1 unit(s) freed twice (7), in free; repaired "
        "(further ones are counted only)",
        "kvpolicy: allocator guard: padding_free: 1 unit(s) freed; repaired (further ones are counted only)",
    ]
    block = status.block(active)["allocator"]
    assert block == {
        "core": "kvpolicy", "reason": "a test", "order": "lifo", "guard": "full",
        "faults": {"double_free": 2, "padding_free": 1},
    }  # fmt: skip
    sample = prometheus.REGISTRY.get_sample_value
    for kind, count in block["faults"].items():
        assert sample("kvpolicy_allocator_faults_total", {"kind": kind, **RANKS}) == count

    # The same metrics show shadow policies, and no longer those that were cleared.
    def hits(name: str, is_active: str) -> float | None:
        labels = {"policy": name, "digest": "ab" * 6, "active": is_active, **RANKS}
        found: float | None = sample("kvpolicy_shadow_hit_ratio", labels)
        return found

    assert active.on_shadows is not None
    rows = [{"name": name, "digest": "ab" * 32, "saved_linear": hit} for name, hit in (("a", 0.5), ("b", 0.25))]
    active.on_shadows({"active": rows[0], "shadows": rows[1:]})
    assert (hits("a", "1"), hits("b", "0")) == (0.5, 0.25)
    active.on_shadows({"active": None, "shadows": []})
    assert math.isnan(hits("b", "0") or 0.0)


def test_metrics_that_fail_do_not_reach_the_scheduler() -> None:
    def broken(_active: Any) -> None:
        raise RuntimeError("no room on the disk")

    active = activate("sglang", None, allocator={"guard": "full"})
    active.allocator = AllocatorState("kvpolicy", "a test", "lifo", "full")
    active.on_allocator_fault = broken
    find(active, "double_free", "1 unit(s) freed twice")
    assert active.on_allocator_fault is None
    assert active.fallbacks == {"metrics": 1}


def test_an_engine_whose_allocator_cannot_be_replaced_shows_none() -> None:
    assert "allocator" not in status.block(activate("sglang", None))
