"""Envelopes that clients make, and Anthropic's cache_control as one; what a server reads of them."""

from __future__ import annotations

from typing import Any

import pytest

from kvpolicy.eviction.envelope import Action, read_envelope
from kvpolicy.hints import action, envelope, from_cache_control, with_hints, without_cache_control

SHORT, LONG = {"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}


def text(words: str, mark: dict[str, str] | None = None) -> dict[str, Any]:
    return {"type": "text", "text": words, **({"cache_control": mark} if mark else {})}


BODY: dict[str, Any] = {
    "model": "m",
    "tools": [{"name": "a"}, {"name": "b", "cache_control": LONG}],
    "system": [text("you are", LONG), text("helpful")],
    "messages": [
        {"role": "user", "content": "hello"},
        {"role": "user", "content": [text("a document", SHORT), text("a question")]},
    ],
}


def read(hints: Any) -> tuple[Action, ...]:
    found = read_envelope(hints)
    assert found is not None
    assert not found.fault
    return found.actions


def test_without_a_tokenizer_all_of_it_for_the_longest_time() -> None:
    assert read(from_cache_control(BODY, action_id="x")) == (Action("x", "retain", ttl_ms=3_600_000),)


def test_with_a_tokenizer_each_mark_up_to_where_it_stands() -> None:
    seen: list[dict[str, Any]] = []

    def count(cut: Any) -> int:
        seen.append(cut)
        return 100 * len(seen)

    found = read(from_cache_control(BODY, count, action_id="x"))
    assert [(each.action_id, each.ttl_ms, each.tokens) for each in found] == [
        ("x.0", 3_600_000, 100), ("x.1", 3_600_000, 200), ("x.2", 300_000, 300),
    ]  # fmt: skip
    tools, system, messages = seen
    assert (tools["tools"], tools["messages"], "system" in tools) == (BODY["tools"], [], False)
    assert (system["tools"], system["system"]) == (BODY["tools"], BODY["system"][:1])
    assert messages["system"] == BODY["system"]
    assert messages["messages"] == [
        BODY["messages"][0],
        {"role": "user", "content": BODY["messages"][1]["content"][:1]},
    ]


@pytest.mark.parametrize(
    ("body", "ttl_ms"),
    [
        ({"messages": [], "cache_control": SHORT}, 300_000),
        ({"messages": [{"role": "user", "content": "x", "cache_control": LONG}]}, 3_600_000),
        ({"messages": [{"role": "user", "content": [text("x", {"type": "ephemeral", "ttl": "9d"})]}]}, 300_000),
    ],
)
def test_where_a_mark_may_stand(body: dict[str, Any], ttl_ms: int) -> None:
    (found,) = read(from_cache_control(body))
    assert (found.ttl_ms, found.tokens) == (ttl_ms, None)


def test_no_mark_no_hint() -> None:
    for body in ({}, without_cache_control(BODY), {"messages": "x", "tools": 5, "system": "you are"}):
        assert from_cache_control(body) is None
        assert with_hints(body, None, "sglang") == body
    assert "cache_control" not in str(without_cache_control(BODY))


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_carried_beside_what_the_client_gave(engine: Any) -> None:
    hints = envelope(action("demote", "d"), action("expire", "e", of="r"), action("class", "c", name="agent"))
    where = {"sglang": "custom_params", "vllm": "vllm_xargs"}[engine]
    body = with_hints({"prompt": "x", where: {"own": 1}}, hints, engine)
    assert (body["prompt"], body[where]["own"]) == ("x", 1)
    assert read(body[where]["kv_hints"]) == (
        Action("d", "demote"), Action("e", "expire", of="r"), Action("c", "class", class_name="agent"),
    )  # fmt: skip
    if engine == "vllm":
        assert isinstance(body[where]["kv_hints"], str)
