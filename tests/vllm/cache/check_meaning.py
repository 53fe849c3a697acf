"""What the words of a policy mean in vLLM's pool, one by one. The full comparison is with replay (check_replay.py)."""

from __future__ import annotations

from typing import Any

import pytest
from driver import Driver

SECOND = 1000
HOT = {"name": "hot", "match": "hits >= 1", "retain": {"weight": 8, "ttl": "60s", "budget": "50%"}}


def prompt(number: int, blocks: int = 2) -> list[int]:
    return [*range(number * 1000, number * 1000 + 16 * blocks), 1]


def flood(driver: Driver, at_ms: int, times: int = 3) -> None:
    """One-off prompts of `times` the pool."""
    for number in range(100, 100 + times * (driver.pool.num_gpu_blocks // 3 + 1)):
        driver.serve(prompt(number), arrival_ms=at_ms)


@pytest.mark.parametrize(
    ("eviction", "later_ms", "survives"),
    [
        ({"rules": [HOT]}, 30 * SECOND, True),
        ({"rules": [HOT]}, 61 * SECOND, False),  # after its ttl
        ({"rules": [{**HOT, "retain": {"weight": 8, "budget": "3%"}}]}, SECOND, False),  # over budget
        ({"policy": "lru", "core": "kvpolicy"}, SECOND, False),  # without the rule
    ],
)
def check_retain(eviction: dict[str, Any], later_ms: int, survives: bool) -> None:
    driver = Driver(24, eviction)
    driver.serve(prompt(1), arrival_ms=0)
    driver.serve(prompt(1), arrival_ms=SECOND)
    flood(driver, SECOND + later_ms)
    assert driver.resident(prompt(1)) == (32 if survives else 0)


def check_protection_is_soft() -> None:
    driver = Driver(8, {"rules": [{"name": "all", "match": "depth_tokens > 0", "retain": {"weight": 8}}]})
    for number in range(20):
        driver.serve(prompt(number, 6))
    assert driver.resident(prompt(19, 6)) == 96


def check_admit_never_leaves_nothing() -> None:
    driver = Driver(24, {"rules": [{"name": "no", "match": "request.priority < 0", "admit": "never"}]})
    driver.serve(prompt(1))
    before = driver.pool.get_num_free_blocks()
    request = driver.request([*prompt(1)[:-1], *prompt(2, 4)], priority=-1)
    assert driver.start(request) == 32, "it may use what is there"
    for token in range(40):
        driver.decode(request, token)
    driver.finish(request)
    assert len(driver.pool.cached_block_hash_to_block) == 2
    assert driver.pool.get_num_free_blocks() == before
    driver.check()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, None), ({"priority": 3}, 3), ({"priority": 0}, None), ({"kvpolicy_priority": 0}, 0),
        ({"kvpolicy_priority": 4, "priority": 1}, 4), ({"kvpolicy_priority": 99}, 5), ({"kvpolicy_priority": ""}, None),
        ({"kvpolicy_priority": True}, None), ({"kvpolicy_priority": 2.5, "priority": 1}, 1), ({"priority": 99}, 5),
    ],
)  # fmt: skip
def check_priority_is_read_and_clamped(given: dict[str, Any], expected: int | None) -> None:
    driver = Driver(24, {"policy": "priority"}, hints={"max_priority": 5})
    driver.serve(prompt(1), **given)
    metas = [unit.kvp for unit in driver.pool.guard.units.runs.values()]
    assert [meta.priority for meta in metas] == [expected, expected]


def check_a_request_counts_once() -> None:
    """However often it is looked up while it waits, and however often it is preempted and matches its own blocks."""
    driver = Driver(24, {"policy": "gdsf"})
    driver.serve(prompt(1))
    request = driver.request(prompt(1))
    for _ in range(5):
        driver.manager.get_computed_blocks(request)
    driver.start(request)
    for _ in range(3):
        driver.preempt(request)
        driver.start(request)
    driver.finish(request)
    units = driver.pool.guard.units
    assert [unit.kvp.hits for unit in units.runs.values()] == [1, 1]
    assert units.index.clock.request_seq == 2


def check_a_first_run_that_is_preempted_hits_nothing() -> None:
    driver = Driver(24, {"policy": "gdsf"})
    request = driver.request(prompt(1))
    driver.start(request)
    driver.preempt(request)
    assert driver.start(request) == 32
    driver.finish(request)
    assert [unit.kvp.hits for unit in driver.pool.guard.units.runs.values()] == [0, 0]


def check_what_units_know() -> None:
    driver = Driver(24, {"policy": "gdsf"})
    request = driver.request([*range(20)], salt="gold", arrival_ms=7000)
    driver.start(request)
    for token in range(30):
        driver.decode(request, token)
    driver.finish(request)
    first, second, third = (unit.kvp for unit in driver.pool.guard.units.runs.values())
    assert [meta.depth_tokens for meta in (first, second, third)] == [16, 32, 48]
    assert [meta.is_output for meta in (first, second, third)] == [False, True, True]
    assert {meta.cache_salt for meta in (first, second, third)} == {"gold"}
    assert second.birth_ms == 1_007_000
    assert driver.active is not None
    assert driver.active.pool_tokens == 24 * 16


def check_blocks_are_one_handle_until_they_differ() -> None:
    rule = {"name": "head", "match": "depth_tokens <= 32 and hits >= 1", "retain": {"weight": 2}}
    driver = Driver(24, {"rules": [rule]})
    prompt = list(range(97))  # six blocks and a token
    driver.serve(prompt)
    units = driver.pool.guard.units

    def runs() -> list[tuple[int, int, int, int]]:
        return [(len(run.blocks), run.kvp.depth_tokens, run.kvp.hits, run.kvp.rule) for run in units.runs.each()]

    assert runs() == [(6, 96, 0, -1)]
    driver.serve([*prompt[:64], *range(900, 920)])  # as far as the fourth block, and a block of its own
    assert runs() == [(2, 32, 1, 0), (2, 64, 1, -1), (2, 96, 0, -1), (1, 80, 0, -1)]
    (first, second, third, other) = units.runs.each()
    assert [run.parent for run in (first, second, third, other)] == [None, first, second, second]
    assert first.kvp.order < second.kvp.order < third.kvp.order < other.kvp.order
    assert [run.children for run in (first, second, third, other)] == [1, 2, 0, 0]
    driver.check()


def check_policy_time_never_goes_back() -> None:
    driver = Driver(24, {"policy": "gdsf"})
    clock = driver.pool.guard.units.index.clock
    seen = []
    for arrival_ms in (5000, 9000, 2000, 9500):
        driver.serve(prompt(1), arrival_ms=arrival_ms)
        seen.append(clock.now_ms - 1_000_000)
    assert seen == [5000, 9000, 9000, 9500]
