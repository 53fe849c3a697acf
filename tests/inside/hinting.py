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
    kept, head, over, agent, stranger, unreadable, long, crowd = 40, 41, 42, 43, 44, 45, 46, (47, 48, 49)
    client.empty()

    ask(over, hints=retain("over", ttl="5m"))
    ask(over, hints=envelope("expire", "done", of="over"))
    ask(kept, envelope=retain("kept", ttl="5m"))
    ask(head, hints=retain("head", ttl=300, tokens=HEAD_TOKENS))
    ask(agent, hints=envelope("class", "agent", name="agent"))
    ask(stranger, hints=envelope("class", "stranger", name="stranger"))
    seen["unreadable"] = [ask(unreadable, hints={"actions": 5}) for _ in range(2)]
    client.pass_time(290)
    flood()
    seen["retained by a hint"] = ask(kept)
    seen["its first tokens"] = ask(head)
    seen["hint expired by name"] = ask(over)
    seen["of a class"] = [ask(agent), ask(stranger)]

    client.pass_time(20)
    ask(long, hints=retain("long", ttl="2h"))
    flood()
    seen["hint after its ttl"] = ask(kept)
    seen["clamped, before"] = ask(long)

    client.pass_time(MAX_TTL_S + 10)
    for number in crowd:
        ask(number, hints=retain(f"crowd {number}"))
    flood()
    seen["clamped, after"] = ask(long)
    seen["retained over budget"] = [ask(number) for number in crowd]

    client.empty()
    older, demoted = (50, 51, 52), 53
    for number in older:
        ask(number)
    ask(demoted, hints=envelope("demote", "one-off"))
    client.flood_some(2)
    client.flood_some(2)
    seen["demoted"] = [ask(older[1]), ask(demoted)]
    return seen


# -- what it must see --------------------------------------------------------------------------------------------------


def assert_hints(seen: dict[str, Any], status: dict[str, Any], cached_tokens: int) -> None:
    """`status`: the block `hints` of the scheduler's status, afterwards."""
    assert seen["unreadable"] == [0, cached_tokens]
    assert seen["retained by a hint"] == cached_tokens
    assert seen["its first tokens"] == HEAD_TOKENS
    assert seen["hint expired by name"] == 0
    assert seen["of a class"] == [cached_tokens, 0]
    assert seen["hint after its ttl"] == 0
    assert (seen["clamped, before"], seen["clamped, after"]) == (cached_tokens, 0)
    first, _, last = seen["retained over budget"]
    assert (first, last) == (0, cached_tokens)
    assert seen["demoted"] == [cached_tokens, 0]

    assert status["counts"] == {
        "envelope": {"ignored": 2},
        "retain": {"accepted": 6, "clamped": 1, "expired": 3},
        "demote": {"accepted": 1},
        "expire": {"accepted": 1},
        "class": {"accepted": 1, "refused": 1},
    }
    latest = {hint["action_id"]: hint for hint in status["latest"]}
    assert (latest["long"]["outcome"], latest["long"]["ttl_s"]) == ("clamped", MAX_TTL_S)
    assert latest["long"]["ended"] == latest["kept"]["ended"] == latest["head"]["ended"] == "expired"
    assert latest["kept"]["most_held_tokens"] == cached_tokens
    assert latest["head"]["most_held_tokens"] == HEAD_TOKENS
    assert latest["over"]["ended"] == "ended by an expire"
    assert latest["crowd 47"]["ended"] == "over budget"
    assert latest["one-off"]["demoted_tokens"] == cached_tokens
