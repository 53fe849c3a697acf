"""What requests' own hints do on a real engine, under the policy RULES of `keeping`; and nothing where it allows none.

As there: what a client does, and what it must see.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.inside.keeping import Client

HEAD_TOKENS, MAX_TTL_S = 64, 600


def envelope(action: str, action_id: str, **payload: Any) -> dict[str, Any]:
    return {
        "protocol_version": "0.1",
        "message_id": f"message of {action_id}",
        "actions": [
            {"action_id": action_id, "action_type": f"kv.{action}", "action_version": "1.0", "payload": payload}
        ],
    }


def retain(action_id: str, **payload: Any) -> dict[str, Any]:
    return envelope("retain", action_id, **payload)


def under_hints(client: Client) -> dict[str, Any]:
    ask, flood = client.ask, client.flood
    seen: dict[str, Any] = {}
    client.empty()

    ask(40, envelope=retain("kept", ttl="5m"))
    flood()
    seen["retained"] = ask(40)
    client.pass_time(290)
    flood()
    seen["retained within its ttl"] = ask(40)
    client.pass_time(20)
    flood()
    seen["retained after its ttl"] = ask(40)

    ask(41, hints=retain("long", ttl="2h"))
    client.pass_time(MAX_TTL_S - 10)
    flood()
    seen["clamped, before"] = ask(41)
    client.pass_time(20)
    flood()
    seen["clamped, after"] = ask(41)

    for number in (42, 43):
        ask(number, hints=retain(f"crowd-{number}", ttl=300))
    flood()
    seen["over budget"] = [ask(42), ask(43)]

    client.empty()
    ask(44, hints=retain("head", ttl="5m", tokens=HEAD_TOKENS))
    flood()
    seen["its first tokens"] = ask(44)

    ask(45, hints=retain("over", ttl="5m"))
    ask(45, hints=envelope("expire", "done", of="over"))
    flood()
    seen["expired by name"] = ask(45)

    client.empty()
    for number in (46, 47):
        ask(number)
    ask(48, hints=envelope("demote", "one-off"))
    ask(49)
    client.flood_some(2)
    seen["demoted"] = [ask(48), ask(46)]

    ask(50, hints=envelope("class", "agent", name="agent"))
    ask(51, hints=envelope("class", "stranger", name="stranger"))
    flood()
    seen["of a class"] = [ask(50), ask(51)]

    seen["unreadable"] = [ask(52, hints={"actions": 5}), ask(52, hints={"actions": 5})]
    return seen


def not_allowed(client: Client) -> dict[str, Any]:
    client.ask(40, hints=retain("kept", ttl="5m"))
    client.flood(priority=3)
    return {"retained": client.ask(40)}


# -- what it must see --------------------------------------------------------------------------------------------------


def assert_hints(seen: dict[str, Any], status: dict[str, Any], cached_tokens: int) -> None:
    """`status`: the block `hints` of the scheduler's status, afterwards."""
    assert seen["retained"] == seen["retained within its ttl"] == cached_tokens
    assert seen["retained after its ttl"] == 0
    assert (seen["clamped, before"], seen["clamped, after"]) == (cached_tokens, 0)
    assert seen["over budget"] == [0, cached_tokens]
    assert seen["its first tokens"] == HEAD_TOKENS
    assert seen["expired by name"] == 0
    assert seen["demoted"] == [0, cached_tokens]
    assert seen["of a class"] == [cached_tokens, 0]
    assert seen["unreadable"] == [0, cached_tokens]

    counts = status["counts"]
    assert counts["envelope"] == {"ignored": 2}
    assert counts["class"] == {"accepted": 1, "refused": 1}
    assert (counts["demote"], counts["expire"]) == ({"accepted": 1}, {"accepted": 1})
    assert counts["retain"]["clamped"] == 1
    latest = {hint["action_id"]: hint for hint in status["latest"]}
    assert latest["long"]["outcome"] == "clamped"
    assert (latest["long"]["ttl_s"], latest["long"]["ended"]) == (MAX_TTL_S, "expired")
    assert latest["kept"]["most_held_tokens"] == cached_tokens
    assert latest["crowd-42"]["ended"] == "over budget"
    assert latest["over"]["ended"] == "ended by an expire"
    assert latest["one-off"]["demoted_tokens"] == cached_tokens


def assert_not_allowed(seen: dict[str, Any], block: dict[str, Any]) -> None:
    assert seen["retained"] == 0
    assert "hints" not in block
