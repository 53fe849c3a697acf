"""What the scheduler's hooks say is a convenience: where an engine is not as expected, it serves all the same."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from kvpolicy_sglang.scheduler import _Child

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


def test_the_block_is_added(child: _Child, active: ActivePolicy) -> None:
    result = SimpleNamespace(internal_state={})
    child._state(result, None)
    assert result.internal_state["kvpolicy"]["pool_tokens"] == 100
    assert active.fallbacks == {}


def test_a_block_that_cannot_be_made_says_so(child: _Child, active: ActivePolicy) -> None:
    result = SimpleNamespace(internal_state={})
    active.index = object()
    child._state(result, None)
    assert set(result.internal_state["kvpolicy"]) == {"error"}


def test_a_state_without_a_place_for_the_block(child: _Child, active: ActivePolicy) -> None:
    child._state(SimpleNamespace(), None)
    assert active.fallbacks == {"status": 1}


def test_a_scheduler_that_does_not_tell_its_longest_request(child: _Child, active: ActivePolicy) -> None:
    child._say_room(SimpleNamespace())
    assert active.fallbacks == {"room": 1}
