"""vLLM's order through our index, against vLLM: the same blocks handed out, the same hits, block number by block
number."""

from __future__ import annotations

import pytest
from driver import Driver, random_run
from kvpolicy_vllm.cache_units import CachedUnits

from kvpolicy.eviction import EvictionIndex
from kvpolicy.eviction.metadata_index import MetadataIndex

NOBODY = {
    "rules": [
        {"name": "nobody", "match": "request.priority == 77", "retain": {"weight": 4, "ttl": "600s", "budget": "50%"}},
        {"name": "no-one", "match": "request.priority == -77", "admit": "never"},
        {"name": "all", "match": "depth_tokens > 0", "retain": {"weight": 1}},
    ]
}
ORDERS = {
    "lru, vLLM's queue": {"policy": "lru"},
    "no eviction": {},
    "lru, our index": {"policy": "lru", "core": "kvpolicy"},
    "lru, idle rules": {"policy": "lru", **NOBODY},
}
OTHERS = {
    **{name: {"policy": name} for name in ("lfu", "fifo", "filo", "mru", "slru", "priority", "tlru", "gdsf")},
    **{name: {"policy": name} for name in ("s3fifo", "sieve", "hit_density", "reuse_rate", "adaptive")},
    "score": {"score": "log1p(hits) / (1 + idle_requests)"},
    "rules": {"rules": [{"name": "r", "match": "hits >= 1", "retain": {"weight": 3, "ttl": "30s", "budget": "30%"}}]},
    "tenants": {"tenants": {"by": "cache_salt", "floor": "10%", "cap": "50%"}},
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("seed", range(6))
def check_vllms_order(order: str, seed: int) -> None:
    stock, ours = Driver(40, "stock"), Driver(40, ORDERS[order])
    # Blocks that lose their content while they are free go first with us; vLLM leaves them where they are.
    expected = random_run(stock, seed, 400, copies=False, drops=False)
    assert random_run(ours, seed, 400, copies=False, drops=False) == expected
    assert ours.evicted == stock.evicted
    assert len(stock.evicted) > 50
    assert ours.active is not None
    assert not ours.active.fallbacks


def check_another_order_is_noticed() -> None:
    stock, ours = Driver(40, "stock"), Driver(40, {"policy": "mru"})
    assert random_run(ours, 1, 400, copies=False, drops=False) != random_run(stock, 1, 400, copies=False, drops=False)


@pytest.mark.parametrize("order", [*OTHERS, "lru, our index", "lru, idle rules"])
@pytest.mark.parametrize("seed", range(4))
def check_any_order_keeps_the_pool_whole(order: str, seed: int) -> None:
    ours = Driver(40, {**ORDERS, **OTHERS}[order])
    random_run(ours, seed, 500)
    assert ours.active is not None
    assert ours.active.core == "kvpolicy"
    # Where the engine drops contents in use, a free block can be the parent of one in use; vLLM's order serves then.
    assert set(ours.active.fallbacks) <= {"lost"}
    assert ours.active.fallbacks["lost"] <= 3
    assert not ours.active.index.counters.fallbacks
    assert ours.active.index.victims > 20


@pytest.mark.parametrize("order", OTHERS)
@pytest.mark.parametrize("seed", range(2))
def check_runs_go_as_blocks_alone_do(order: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more blocks than a sampled order looks at."""
    runs = Driver(160, OTHERS[order])
    got = random_run(runs, seed, 400, drops=False)
    monkeypatch.setattr(EvictionIndex, "takes_runs", False)
    monkeypatch.setattr(MetadataIndex, "takes_runs", False)
    alone = Driver(160, OTHERS[order])
    assert random_run(alone, seed, 400, drops=False) == got
    assert alone.evicted == runs.evicted
    assert len(set(alone.pool.guard.units.runs.values())) == len(alone.pool.guard.units.runs)


@pytest.mark.parametrize("order", OTHERS)
def check_nothing_falls_back(order: str) -> None:
    ours = Driver(40, OTHERS[order])
    random_run(ours, 11, 500, drops=False)
    assert ours.active is not None
    assert not ours.active.fallbacks


@pytest.mark.parametrize("fault", ["children", "copies", "taken"])
def check_a_broken_count_is_noticed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`Driver.check` sees it when the units miss what the pool did."""
    broken = {"children": "_add_child", "copies": "_add_copy", "taken": "taken"}[fault]
    monkeypatch.setattr(CachedUnits, broken, lambda *_: None)
    with pytest.raises(AssertionError):
        random_run(Driver(40, {"policy": "lfu"}), 1, 500)


def check_events_are_vllms() -> None:
    def events(driver: Driver) -> list[str]:
        random_run(driver, 3, 300, copies=False, drops=False)
        return [repr(event) for event in driver.manager.take_events()]

    stock = events(Driver(40, "stock", events=True))
    assert len(stock) > 100
    assert events(Driver(40, ORDERS["lru, idle rules"], events=True)) == stock


def check_surplus_copies_go_first() -> None:
    """A prompt that ends at a block's end leaves its last block twice; the spare copy goes before any content."""
    driver = Driver(8, {"policy": "lfu"})
    prompt, other = list(range(32)), list(range(100, 132))
    driver.serve(other)
    driver.serve(prompt)
    driver.serve(prompt)
    assert driver.pool.guard.units.surplus
    driver.serve(list(range(200, 264)))  # 4 blocks: 3 unused ones and the spare
    assert driver.resident([*prompt, 1]) == 32
    assert driver.resident([*other, 1]) == 32
