"""A policy that fails costs its order for that call and a count, never a block, a request or an exception."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from driver import Driver, random_run
from kvpolicy_vllm import cache_guard
from kvpolicy_vllm.cache_units import CachedUnits

from kvpolicy.eviction import EvictionIndex
from kvpolicy.eviction.algorithms.lfu import LFU

LFU_POLICY = {
    "policy": "lfu",
    "rules": [{"name": "hot", "match": "hits >= 1", "retain": {"weight": 2, "budget": "20%"}}],
}


def now_and_then(original: Any, every: int) -> Any:
    calls = 0

    def fails(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls % every == 0:
            raise RuntimeError("injected")
        return original(*args, **kwargs)

    return fails


@pytest.mark.parametrize("method", ["cached", "hit", "freed", "taken", "victims"])
def check_a_fault_of_ours_is_survived(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CachedUnits, method, now_and_then(getattr(CachedUnits, method), 15))
    driver = Driver(40, LFU_POLICY)
    random_run(driver, 1, 400)
    assert driver.active is not None
    assert sum(driver.active.fallbacks.values()) > 1
    assert driver.active.core == "kvpolicy"
    assert driver.active.index.victims > 20, "the policy did not come back after its faults"


def check_a_fault_in_the_order_is_survived_by_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LFU, "key", now_and_then(LFU.key, 40))
    monkeypatch.setattr(EvictionIndex, "check", lambda self: None)  # it asks for keys too
    driver = Driver(40, {"policy": "lfu"})
    random_run(driver, 1, 400, drops=False)
    assert driver.active is not None
    assert driver.active.index.counters.fallbacks > 0
    assert not driver.active.fallbacks


def check_a_policy_that_always_fails_is_retired(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setattr(cache_guard, "MAX_FAULTS", 4)
    monkeypatch.setattr(CachedUnits, "victims", now_and_then(CachedUnits.victims, 1))
    driver, stock = Driver(40, {"policy": "lfu"}), Driver(40, "stock")
    with caplog.at_level(logging.ERROR, "kvpolicy"):
        served = random_run(driver, 1, 400, copies=False, drops=False)
    assert driver.active is not None
    assert driver.active.core == "engine"
    assert "failed 5 times" in driver.active.core_reason
    assert sum(driver.active.fallbacks.values()) == 5
    assert "vLLM's own order serves from now on" in caplog.text
    assert served == random_run(stock, 1, 400, copies=False, drops=False), "it was not vLLM's order that served"


def check_a_retired_policy_refuses_no_admission(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_guard, "MAX_FAULTS", 1)
    driver = Driver(40, {"policy": "lfu", "rules": [{"name": "none", "match": "depth_tokens >= 0", "admit": "never"}]})
    prompt = list(range(64))
    driver.serve(prompt)
    assert driver.resident(prompt) == 0, "the rule did not refuse while the policy ran"
    for _ in range(2):
        driver.pool.guard.lost()
        driver.pool.guard._is_stale = False
    assert driver.pool.guard.is_retired
    driver.serve(prompt)
    assert driver.resident(prompt) > 0


@pytest.mark.parametrize(
    "lie",
    ["in use", "null", "stale", "parent"],
)
def check_a_false_victim_is_refused(lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the index proposes is looked at before it is handed out."""
    driver = Driver(12, {"policy": "lfu"})
    prompt, running = list(range(33)), driver.request(list(range(100, 133)))
    driver.serve(prompt)
    driver.start(running)
    units = driver.pool.guard.units
    used = units.runs[driver.pool.blocks[driver.manager.get_block_ids(running.request_id)[0][0]].block_hash]
    leaf = next(run for run in units.runs.values() if run.is_free and not run.children)
    parent = units.runs.cut(leaf, 1)
    if lie == "null":
        used.blocks[-1] = driver.pool.null_block
        used.is_free = True
    if lie == "stale":
        leaf.hashes[-1], proposal = b"another content", leaf
    else:
        proposal = {"in use": used, "null": used, "parent": parent}[lie]
    pop, proposals = EvictionIndex.pop, [proposal]
    monkeypatch.setattr(EvictionIndex, "pop", lambda self: proposals.pop() if proposals else pop(self))
    blocks = units.victims(1)
    assert not proposals, "the false victim was never proposed"
    assert all(block.ref_cnt == 0 and not block.is_null for block in blocks)
    assert all(block is not proposal.blocks[-1] for block in blocks)
