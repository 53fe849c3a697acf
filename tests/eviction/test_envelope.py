"""Reading what a client sent as its hints: every shape that the engines carry, and nothing that hurts a server."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import hypothesis.strategies as st
import pytest
from hypothesis import given

from kvpolicy.eviction.envelope import ACTIONS, Action, Envelope, read_envelope


def envelope(*actions: dict[str, Any]) -> dict[str, Any]:
    return {"protocol_version": "0.1", "message_id": "m", "actions": list(actions)}


def action(kind: str, action_id: str = "a", version: str = "1.0", **payload: Any) -> dict[str, Any]:
    return {"action_id": action_id, "action_type": kind, "action_version": version, "payload": payload}


class Typed(NamedTuple):
    """As msgspec gives it: attributes, the payload plain."""

    action_id: str
    action_type: str
    action_version: str
    payload: dict[str, Any]


class TypedEnvelope(NamedTuple):
    protocol_version: str
    message_id: str
    actions: list[Typed]


ALL = (
    Action("r", "retain", ttl_ms=300_000, tokens=4096),
    Action("d", "demote"),
    Action("e", "expire", of="r"),
    Action("c", "class", class_name="agent"),
)
WRITTEN = (
    action("kv.retain", "r", ttl="5m", tokens=4096),
    action("kv.demote", "d"),
    action("kv.expire", "e", "1", of="r"),
    action("kv.class", "c", "1.7", name="agent"),
)


@pytest.mark.parametrize(
    "sent",
    [
        envelope(*WRITTEN),
        json.dumps(envelope(*WRITTEN)),
        TypedEnvelope("0.1", "m", [Typed(**each) for each in WRITTEN]),
        {"actions": WRITTEN},
    ],
    ids=["plain", "text", "typed", "actions alone"],
)
def test_every_shape_reads_alike(sent: Any) -> None:
    found = read_envelope(sent)
    assert found is not None
    assert (found.actions, found.fault) == (ALL, "")


def test_nothing_is_nothing() -> None:
    assert read_envelope(None) is read_envelope("") is None


def test_an_envelope_equals_only_itself() -> None:
    assert Envelope(ALL) != Envelope(ALL)


def test_what_others_implement_is_passed_over() -> None:
    found = read_envelope(envelope(action("kv.fetch", block_hashes=[1]), action("retain"), action("kv.demote")))
    assert found is not None
    assert [each.name for each in found.actions] == ["demote"]


@pytest.mark.parametrize(
    ("sent", "ttl_ms"),
    [("1h", 3_600_000), (300, 300_000), (0.5, 500), ("250ms", 250), (None, None)],
)
def test_times(sent: Any, ttl_ms: int | None) -> None:
    found = read_envelope(envelope(action("kv.retain", ttl=sent)))
    assert found is not None
    assert found.actions[0].ttl_ms == ttl_ms


FAULTS: list[tuple[dict[str, Any], str]] = [
    (action("kv.retain", ttl=0), "ttl"),
    (action("kv.retain", ttl=-1), "ttl"),
    (action("kv.retain", ttl="0s"), "ttl"),
    (action("kv.retain", ttl="soon"), "ttl"),
    (action("kv.retain", ttl=True), "ttl"),
    (action("kv.retain", ttl=float("nan")), "ttl"),
    (action("kv.retain", ttl=float("inf")), "ttl"),
    (action("kv.retain", tokens=0), "tokens"),
    (action("kv.retain", tokens="many"), "tokens"),
    (action("kv.retain", version="2.0"), "version 1"),
    (action("kv.class"), "name is no text"),
    (action("kv.class", name=3), "name is no text"),
    (action("kv.expire", of=3), "of is no text"),
    ({**action("kv.demote"), "payload": [1]}, "payload"),
]


@pytest.mark.parametrize(("sent", "fault"), FAULTS)
def test_a_fault_concerns_one_action_alone(sent: dict[str, Any], fault: str) -> None:
    found = read_envelope(envelope(sent, action("kv.demote", "good")))
    assert found is not None
    assert not found.fault
    bad, good = found.actions
    assert fault in bad.fault
    assert good == Action("good", "demote")


@pytest.mark.parametrize(
    ("sent", "fault"),
    [
        ("{", "no JSON"),
        ("[" * 5000, "no JSON"),
        ("x" * 20_000, "characters"),
        (5, "no list of actions"),
        ({"actions": 5}, "no list of actions"),
        ({"actions": "kv.retain"}, "no list of actions"),
        ({"actions": [5]}, "without action_type"),
        ({"actions": [{}] * 17}, "more than 16"),
    ],
)
def test_what_cannot_be_read_at_all(sent: Any, fault: str) -> None:
    found = read_envelope(sent)
    assert found is not None
    assert fault in found.fault
    assert not found.actions


def test_an_object_that_raises() -> None:
    class Trap:
        @property
        def actions(self) -> Any:
            raise ZeroDivisionError

    assert read_envelope(Trap()) is not None


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
ACTION_LIKE = st.fixed_dictionaries(
    {},
    optional={
        "action_id": ANYTHING,
        "action_type": st.sampled_from([f"kv.{name}" for name in ACTIONS]) | ANYTHING,
        "action_version": st.just("1.0") | ANYTHING,
        "payload": st.fixed_dictionaries({}, optional=dict.fromkeys(("ttl", "tokens", "of", "name"), ANYTHING))
        | ANYTHING,
    },
)


@given(ANYTHING | st.fixed_dictionaries({"actions": st.lists(ACTION_LIKE, max_size=4) | ANYTHING}) | st.text())
def test_no_client_can_raise(sent: Any) -> None:
    found = read_envelope(sent)
    for each in found.actions if found is not None else ():
        assert each.name in ACTIONS
        assert each.ttl_ms is None or 0 < each.ttl_ms <= 2**53
        assert each.tokens is None or 0 < each.tokens <= 2**53
