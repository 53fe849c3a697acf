"""Eviction a few blocks ahead of need: what goes early, how much of it, and what never does."""

from __future__ import annotations

from typing import Any

import pytest
from check_differential import ORDERS, OTHERS
from check_meaning import prompt
from driver import BLOCK_TOKENS, Driver, random_run
from kvpolicy_vllm import cache_guard

LRU = {"policy": "lru", "core": "kvpolicy"}
ALL = {**OTHERS, "lru": LRU, "lru, idle rules": ORDERS["lru, idle rules"]}


@pytest.fixture
def eighth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small pools evict a share ahead that only large ones do otherwise."""
    monkeypatch.setattr(cache_guard, "AHEAD_SHARE", 1 / 8)


def fill(driver: Driver) -> None:
    number = 500
    while driver.pool.free_block_queue._count_empty(1):
        number += 1
        driver.serve(prompt(number, 1)[:-1])


def one_block(driver: Driver, number: int) -> None:
    driver.serve(prompt(number, 1)[:-1])


@pytest.mark.parametrize(("blocks", "ahead"), [(40, 0), (254, 0), (255, 1), (1024, 4), (16384, 64), (200_000, 64)])
def check_how_far(blocks: int, ahead: int) -> None:
    assert Driver(blocks, LRU).pool.guard.ahead_blocks == ahead


@pytest.mark.usefixtures("eighth")
def check_one_call_serves_several_requests() -> None:
    driver = Driver(63, LRU)
    fill(driver)
    index = driver.pool.guard.units.index
    assert index.victims == 0
    free = driver.pool.get_num_free_blocks()
    for number in range(8):
        one_block(driver, number)
        assert index.victims == 8
        assert len(driver.evicted) == 8
        assert driver.pool.get_num_free_blocks() == free
        assert driver.pool.free_block_queue._count_empty(20) == 7 - number
        driver.check()
    one_block(driver, 8)
    assert index.victims == 16


@pytest.mark.usefixtures("eighth")
def check_a_need_beyond_it_is_served_exactly() -> None:
    driver = Driver(63, LRU)
    fill(driver)
    driver.serve(prompt(1, 20)[:-1])
    assert driver.pool.guard.units.index.victims == 20
    driver.check()


@pytest.mark.usefixtures("eighth")
@pytest.mark.parametrize("seed", range(4))
def check_what_goes_early_is_what_would_go_next(seed: int) -> None:
    """Where nothing is asked for twice, in the very order in which vLLM evicts."""

    def serve(driver: Driver) -> list[bytes]:
        for number in range(200):
            driver.serve(prompt(number, 1 + number * (seed + 1) % 5))
            driver.check()
        return driver.evicted

    stock, ours = serve(Driver(63, "stock")), serve(Driver(63, LRU))
    assert len(stock) > 300
    assert ours[: len(stock)] == stock
    assert len(ours) <= len(stock) + 8


@pytest.mark.usefixtures("eighth")
@pytest.mark.parametrize(
    "eviction",
    [
        {"rules": [{"name": "kept", "match": 'request.cache_salt == "gold"', "retain": {"weight": 2}}]},
        {"tenants": {"by": "cache_salt", "named": {"gold": {"floor": "90%"}}}},
    ],
    ids=["rule", "floor"],
)
def check_what_is_protected_never_goes_early(eviction: dict[str, Any]) -> None:
    driver = Driver(63, eviction)
    gold = [prompt(100 + number, 1) for number in range(50)]
    for tokens in gold:
        driver.serve(tokens, salt="gold")
    driver.serve(gold[0], salt="gold")  # a floor holds for who hits
    fill(driver)
    index = driver.pool.guard.units.index
    assert index.victims == 0

    def kept() -> int:
        return sum(driver.resident(tokens, salt="gold") for tokens in gold) // BLOCK_TOKENS

    others = 63 - 50
    running = []
    for number in range(others):
        request = driver.request(prompt(number, 1)[:-1])
        assert driver.start(request) == 0
        running.append(request)
        assert kept() == 50, "a protected block went while others were there"
        driver.check()
    assert index.victims == others
    for lost in range(1, 4):  # soft as ever: what is needed goes, one by one
        running.append(driver.request(prompt(200 + lost, 1)[:-1]))
        driver.start(running[-1])
        assert kept() == 50 - lost
    for request in running:
        driver.finish(request)
    driver.check()
    assert driver.active is not None
    assert not driver.active.fallbacks


@pytest.mark.usefixtures("eighth")
def check_spare_copies_go_before_contents() -> None:
    driver = Driver(40, LRU)
    twice = prompt(1, 2)[:-1]  # it ends at a block's end, so its last block is computed and cached a second time
    driver.serve(twice)
    driver.serve(twice)
    other = driver.request(prompt(2, 37)[:-1])
    driver.start(other)
    units = driver.pool.guard.units
    assert (len(units.surplus), len(driver.evicted)) == (2, 0)
    one_block(driver, 3)
    assert not units.surplus
    first, *ahead = driver.evicted
    assert ahead == [first, driver.evicted[2]], "the spare copy, then ahead of need the last block and the one before"
    assert ahead[1] != first
    driver.finish(other)
    driver.check()


@pytest.mark.usefixtures("eighth")
@pytest.mark.parametrize("order", ALL)
@pytest.mark.parametrize("seed", range(2))
def check_any_order_keeps_the_pool_whole(order: str, seed: int) -> None:
    driver = Driver(63, ALL[order])
    random_run(driver, seed, 500, drops=False)
    assert driver.active is not None
    assert driver.active.core == "kvpolicy"
    assert not driver.active.fallbacks
    assert not driver.active.index.counters.fallbacks
    assert driver.active.index.victims > 20


@pytest.mark.usefixtures("eighth")
@pytest.mark.parametrize("order", ["lfu", "rules", "tenants"])
def check_dropped_contents_and_emptied_caches(order: str) -> None:
    driver = Driver(63, OTHERS[order])
    random_run(driver, 5, 600)
    assert driver.active is not None
    assert set(driver.active.fallbacks) <= {"lost"}


@pytest.mark.usefixtures("eighth")
def check_events_tell_of_what_went_early() -> None:
    driver = Driver(63, LRU, events=True)
    fill(driver)
    driver.manager.take_events()
    one_block(driver, 1)
    removed = [event for event in driver.manager.take_events() if type(event).__name__ == "BlockRemoved"]
    assert sum(len(event.block_hashes) for event in removed) == 8


def check_who_got_nothing_is_not_counted() -> None:
    """A request that looked for its prefix and found no room; then another one gets a block."""
    driver = Driver(4, LRU)
    first, second = driver.request(prompt(1, 2)), driver.request(prompt(2, 3))
    driver.start(first)
    assert driver.start(second) is None
    traffic = driver.active.traffic  # type: ignore[union-attr]
    for token in range(BLOCK_TOKENS):
        driver.decode(first, token)
    assert traffic.requests == 1
    driver.finish(first)
    assert driver.start(second) == 0
    assert (traffic.requests, traffic.prompt_tokens) == (2, len(prompt(1, 2)) + len(prompt(2, 3)))
    driver.finish(second)
