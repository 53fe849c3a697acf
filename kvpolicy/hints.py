"""For clients and gateways: hints as the envelope that servers with a policy read. Standard library only.

    body = with_hints(body, from_cache_control(body), engine="sglang")

What a server does with them is its policy's to say (``hints:``): without that they are not looked at.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

__all__ = ["action", "envelope", "from_cache_control", "with_hints", "without_cache_control"]

PROTOCOL_VERSION, ACTION_VERSION = "0.1", "1.0"
_DEFAULT_TTL, _TTLS_S = "5m", {"5m": 300, "1h": 3600}


def action(name: Literal["retain", "demote", "expire", "class"], action_id: str, /, **payload: Any) -> dict[str, Any]:
    """One action: ``retain`` (``ttl``: text like ``5m`` or seconds; ``tokens``: of the prompt's beginning), ``demote``,
    ``expire`` (``of``: the action_id of a retain), ``class`` (``name``). ``action_id`` is what reports call it."""
    return {
        "action_id": action_id,
        "action_type": f"kv.{name}",
        "action_version": ACTION_VERSION,
        "payload": payload,
    }


def envelope(*actions: dict[str, Any], message_id: str | None = None) -> dict[str, Any]:
    """The envelope of one request."""
    return {
        "protocol_version": PROTOCOL_VERSION,
        "message_id": message_id or uuid.uuid4().hex,
        "actions": list(actions),
    }


def from_cache_control(
    body: Mapping[str, Any],
    count_tokens: Callable[[Mapping[str, Any]], int] | None = None,
    *,
    action_id: str | None = None,
) -> dict[str, Any] | None:
    """The envelope that Anthropic's ``cache_control`` marks in a request's body ask for; ``None``: there is no mark.

    A mark ``{"type": "ephemeral", "ttl": "5m" | "1h"}`` stands on a tool, a system block, a message or one of its
    blocks, or on the body itself, and asks for the prompt up to there, in the order tools, system, messages.

    ``count_tokens`` gives the tokens of a body that ends with a mark, as the server's chat template makes them: one
    retain for each mark then. Without it one retain covers the whole request for the longest ttl of all marks.
    """
    name = action_id or uuid.uuid4().hex
    marks = [(ttl, cut) for ttl, cut in _marks(body)]
    if not marks:
        return None
    if count_tokens is None:
        return envelope(action("retain", name, ttl=max((ttl for ttl, _ in marks), key=_TTLS_S.__getitem__)))
    actions = []
    for at, (ttl, cut) in enumerate(marks):
        given = {"ttl": ttl} if cut is None else {"ttl": ttl, "tokens": max(1, count_tokens(cut))}
        actions.append(action("retain", name if len(marks) == 1 else f"{name}.{at}", **given))
    return envelope(*actions)


def without_cache_control(body: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the body without the marks, for servers that refuse them."""
    stripped = _stripped(body)
    assert isinstance(stripped, dict)
    return stripped


def with_hints(
    body: Mapping[str, Any], hints: Mapping[str, Any] | None, engine: Literal["sglang", "vllm"]
) -> dict[str, Any]:
    """A copy of an OpenAI-style body that carries the envelope where that engine passes it on in every version."""
    carrying = dict(body)
    if hints is None:
        return carrying
    if engine == "sglang":
        carrying["custom_params"] = {**(body.get("custom_params") or {}), "kv_hints": dict(hints)}
    else:  # values of vllm_xargs are texts and numbers
        carrying["vllm_xargs"] = {**(body.get("vllm_xargs") or {}), "kv_hints": json.dumps(hints)}
    return carrying


def _marks(body: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """``(ttl, the body up to there)`` of each mark; ``None``: all of it."""
    kept = {key: value for key, value in body.items() if key not in ("tools", "system", "messages")}
    tools, system, messages = (_list(body.get(key)) for key in ("tools", "system", "messages"))
    for at, tool in enumerate(tools):
        if ttl := _ttl(tool):
            yield ttl, {**kept, "tools": tools[: at + 1], "messages": []}
    if "tools" in body:
        kept["tools"] = body["tools"]
    for at, block in enumerate(system):
        if ttl := _ttl(block):
            yield ttl, {**kept, "system": system[: at + 1], "messages": []}
    if "system" in body:
        kept["system"] = body["system"]
    for at, message in enumerate(messages):
        content, before = _list(message.get("content") if isinstance(message, Mapping) else None), messages[:at]
        for end, block in enumerate(content):
            if ttl := _ttl(block):
                yield ttl, {**kept, "messages": [*before, {**message, "content": content[: end + 1]}]}
        if ttl := _ttl(message):
            yield ttl, {**kept, "messages": [*before, message]}
    if ttl := _ttl(body):
        yield ttl, None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _ttl(block: Any) -> str | None:
    mark = block.get("cache_control") if isinstance(block, Mapping) else None
    if not isinstance(mark, Mapping) or mark.get("type") != "ephemeral":
        return None
    ttl = mark.get("ttl") or _DEFAULT_TTL
    return ttl if ttl in _TTLS_S else _DEFAULT_TTL


def _stripped(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _stripped(inner) for key, inner in value.items() if key != "cache_control"}
    if isinstance(value, list):
        return [_stripped(inner) for inner in value]
    return value
