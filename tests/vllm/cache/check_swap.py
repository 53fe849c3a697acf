"""Another order in a pool that serves: nothing is evicted by the swap, and what was known of the contents stays."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from driver import Driver, random_run
from kvpolicy_vllm import cache_guard
from kvpolicy_vllm.cache_live import PoolSeat

from kvpolicy.live.swap import Candidate, LiveSwap

ORDERS: list[dict[str, Any]] = [
    {"policy": "lru"},
    {"policy": "lfu"},
    {"policy": "gdsf", "rules": [{"name": "hot", "match": "hits >= 1", "retain": {"weight": 2, "budget": "20%"}}]},
    {"score": "log1p(hits) / (1 + idle_requests)", "tenants": {"by": "cache_salt", "cap": "60%"}},
]


def to(
    driver: Driver, eviction: dict[str, Any], meanwhile: Callable[[], None] = lambda: None, units: int = 256
) -> None:
    """Slice by slice, as messages do it, with something in between."""
    assert driver.active is not None
    config = driver.manager.kv_cache_config
    swap = LiveSwap(PoolSeat(driver.active, driver.pool, None, config), "vllm")
    swap.slice_units = units
    flat = {**driver.active.flat, "eviction": eviction}
    more = swap.handle({"op": "prepare", "flat": flat, "source": "test"})
    while more:
        meanwhile()
        more = swap.handle({"op": "continue"})
    assert swap.answer.kind == "ready", swap.answer
    swap.handle({"op": "commit", "digest": Candidate.of(flat, "test", "vllm").digest})
    assert swap.answer.kind == "applied", swap.answer
    while swap.handle({"op": "continue"}):
        pass


@pytest.mark.parametrize(("first", "second"), itertools.permutations(range(len(ORDERS)), 2))
def check_a_swap_under_load(first: int, second: int) -> None:
    driver = Driver(40, ORDERS[first])
    for round_ in range(3):
        random_run(driver, round_, 120)
        cached = len(driver.pool.cached_block_hash_to_block)
        free = driver.pool.get_num_free_blocks()
        to(driver, ORDERS[second if round_ % 2 == 0 else first])
        assert len(driver.pool.cached_block_hash_to_block) == cached
        assert driver.pool.get_num_free_blocks() == free
        driver.check()
    random_run(driver, 9, 200)
    assert driver.active is not None
    assert set(driver.active.fallbacks) <= {"lost"}


@pytest.mark.parametrize("ahead_share", [0, 1 / 8])
@pytest.mark.parametrize(("first", "second"), itertools.permutations(range(len(ORDERS)), 2))
def check_a_swap_while_requests_come_and_go(
    first: int, second: int, ahead_share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_guard, "AHEAD_SHARE", ahead_share)  # of need, which else only large pools are evicted
    driver = Driver(40, ORDERS[first])
    random_run(driver, 1, 120)
    seeds = itertools.count(100)
    for round_ in range(4):
        to(driver, ORDERS[second if round_ % 2 == 0 else first], lambda: random_run(driver, next(seeds), 3), units=4)
        driver.check()
        random_run(driver, round_, 60)
    assert driver.active is not None
    assert set(driver.active.fallbacks) <= {"lost"}


def check_an_apply_that_is_abandoned_leaves_vllms_queue() -> None:
    driver = Driver(40, {"policy": "lru"})
    random_run(driver, 1, 120)
    assert driver.active is not None
    swap = LiveSwap(PoolSeat(driver.active, driver.pool, None, driver.manager.kv_cache_config), "vllm")
    swap.slice_units = 4
    assert swap.handle({"op": "prepare", "flat": {**driver.active.flat, "eviction": {"policy": "lfu"}}})
    swap.handle({"op": "continue"})
    random_run(driver, 2, 20)
    swap.handle({"op": "abort"})
    assert driver.pool.guard is None
    assert type(driver.pool.free_block_queue).__name__ == "FreeKVCacheBlockQueue"
    random_run(driver, 3, 60)


def check_hits_survive_a_swap() -> None:
    driver = Driver(8, {"policy": "lfu"})
    hot, cold = [*range(32), 1], [*range(100, 132), 1]
    for _ in range(3):
        driver.serve(hot)
    driver.serve(cold)
    to(driver, {"policy": "slru"})
    driver.serve(list(range(200, 265)))
    assert driver.resident(hot) == 32
    assert driver.resident(cold) < 32


def check_back_to_vllms_order() -> None:
    """Age is kept all along in vLLM's own list, so its order is there at once."""
    driver, stock = Driver(40, {"policy": "lfu"}), Driver(40, "stock")
    for each in (driver, stock):
        for number in range(10):
            each.serve([*range(number * 1000, number * 1000 + 48), 1])  # no pressure yet: the same blocks
    to(driver, {"policy": "lru"})
    assert driver.active is not None
    assert driver.active.core == "engine"
    assert random_run(driver, 5, 300, copies=False) == random_run(stock, 5, 300, copies=False)


def check_contents_of_before_are_adopted() -> None:
    """From vLLM's order, where nobody kept a tree: hits teach the parents, and a chain still goes from its end."""
    driver = Driver(16, {"policy": "lru"})
    prompts = [[*range(number * 1000, number * 1000 + 64), 1] for number in range(3)]
    for prompt in prompts:
        driver.serve(prompt)
    to(driver, {"policy": "lfu"})
    driver.serve(prompts[0])
    driver.check()
    driver.serve(list(range(9000, 9065)))  # five blocks, four of them free without content
    assert driver.resident(prompts[0]) == 64
    assert driver.resident(prompts[1]) == 48, "not the last block of the oldest chain went"
    assert driver.resident(prompts[2]) == 64
