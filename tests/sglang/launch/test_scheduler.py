"""What the scheduler's hooks say is a convenience: where an engine is not as expected, it serves all the same."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kvpolicy_sglang.scheduler import _Child

from kvpolicy.runtime import status
from kvpolicy.runtime.active import ActivePolicy
from kvpolicy.runtime.carry import Carried
from tests.inside.activation import activate


@pytest.fixture
def active() -> ActivePolicy:
    found = activate("sglang", {"rules": [{"name": "a", "retain": {"weight": 1}}]})
    found.pool_tokens = 100
    return found


@pytest.fixture
def child(active: ActivePolicy) -> _Child:
    child = _Child(Carried("", {}, "", ""))
    child.active = active
    return child


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What is measured of the slots of a scheduler that these tests do not have."""
    figures = {"free_runs": 3}
    monkeypatch.setattr("kvpolicy_sglang.scheduler.fragmentation.measure", lambda _scheduler: figures)
    return figures


SCHEDULER = SimpleNamespace(
    token_to_kv_pool_allocator=SimpleNamespace(available_size=lambda: 60),
    tree_cache=SimpleNamespace(evictable_size=lambda: 30),
)


def test_the_block_is_added(child: _Child, active: ActivePolicy, runs: dict[str, Any]) -> None:
    result = SimpleNamespace(internal_state={})
    measured: list[dict[str, Any]] = []
    active.on_measure = measured.append
    child._state(result, SCHEDULER)
    assert result.internal_state["kvpolicy"]["pool_tokens"] == 100
    assert result.internal_state["kvpolicy"]["occupancy"] == status.occupancy(100, 60, 30)
    assert result.internal_state["kvpolicy"]["fragmentation"] == runs
    assert measured == [runs]
    assert active.fallbacks == {}


def test_a_block_that_cannot_be_made_says_so(child: _Child, active: ActivePolicy, runs: dict[str, Any]) -> None:
    result = SimpleNamespace(internal_state={})
    active.index = object()
    child._state(result, None)
    assert set(result.internal_state["kvpolicy"]) == {"error", "fragmentation", "occupancy"}


def test_a_state_without_a_place_for_the_block(child: _Child, active: ActivePolicy, runs: dict[str, Any]) -> None:
    child._state(SimpleNamespace(), SCHEDULER)
    assert active.fallbacks == {"status": 1}


def test_slots_whose_runs_cannot_be_counted(child: _Child, active: ActivePolicy) -> None:
    result = SimpleNamespace(internal_state={})
    child._state(result, SCHEDULER)
    assert result.internal_state["kvpolicy"]["fragmentation"] is None
    assert result.internal_state["kvpolicy"]["pool_tokens"] == 100
    assert active.fallbacks == {"fragmentation": 1}


def test_occupancy_that_fails_is_counted_and_of_several_pools_is_not_one_number(
    child: _Child, active: ActivePolicy, runs: dict[str, Any]
) -> None:
    result = SimpleNamespace(internal_state={})
    several = SimpleNamespace(evictable_size=lambda: (30, 10))
    child._state(result, SimpleNamespace(**{**vars(SCHEDULER), "tree_cache": several}))
    assert result.internal_state["kvpolicy"]["occupancy"] is None
    assert active.fallbacks == {}
    child._state(result, None)
    assert result.internal_state["kvpolicy"]["occupancy"] is None
    assert active.fallbacks == {"occupancy": 1}


def test_a_scheduler_that_does_not_tell_its_longest_request(child: _Child, active: ActivePolicy) -> None:
    child._say_room(SimpleNamespace())
    assert active.fallbacks == {"room": 1}
