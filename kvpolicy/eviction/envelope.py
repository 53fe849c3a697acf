"""What a request asks of the cache for itself: the ``kv_hints`` envelope, read from what a client sent.

The shape is that of SGLang and vLLM (``KvHintsEnvelope``: ``protocol_version``, ``message_id``, ``actions``, each with
``action_id``, ``action_type``, ``action_version`` and ``payload``), as an object with those attributes, as plain data,
or as JSON text. Nothing that a client sends raises: what cannot be read is kept as a fault, to be counted.

Actions of other components (``kv.fetch``, ...) travel in the same envelope and are passed over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from kvpolicy.language.units import UnitError, parse_duration_ms

__all__ = ["ACTIONS", "HINTS_KEY", "Action", "ActionName", "Envelope", "read_envelope"]

#: Where the envelope stands in SGLang's ``custom_params``, vLLM's ``vllm_xargs`` and the rows of a trace.
HINTS_KEY = "kv_hints"

ActionName = Literal["retain", "demote", "expire", "class"]
ACTIONS: tuple[ActionName, ...] = get_args(ActionName)

_PREFIX, _MAJOR_VERSION = "kv.", "1"
#: A client's text goes no further than this.
_MOST_ACTIONS, _MOST_CHARACTERS, _MOST_ID_CHARACTERS = 16, 16384, 64
_MOST_MS = 2**53


@dataclass(frozen=True, slots=True)
class Action:
    """One thing asked for. ``fault``: why it cannot be read; it asks for nothing then."""

    action_id: str
    name: ActionName
    ttl_ms: int | None = None  # retain; None: the default
    tokens: int | None = None  # retain: of the request's prefix; None: all of it
    of: str | None = None  # expire: the action_id of the one retain to end; None: those of the session
    class_name: str | None = None  # class
    fault: str = ""


@dataclass(frozen=True, eq=False)
class Envelope:
    """One request's hints; equal only to itself. ``fault``: why all of it cannot be read."""

    actions: tuple[Action, ...] = ()
    fault: str = ""


class _Fault(ValueError):
    """Why something cannot be read."""


def read_envelope(value: Any) -> Envelope | None:
    """What a client sent as its hints; ``None`` for nothing. Never raises."""
    if value is None or value == "":
        return None
    try:
        return Envelope(_actions(value))
    except _Fault as fault:
        return Envelope(fault=str(fault))
    except Exception as fault:  # whatever an object of a client's making does
        return Envelope(fault=type(fault).__name__)


def _actions(value: Any) -> tuple[Action, ...]:
    if isinstance(value, str):
        if len(value) > _MOST_CHARACTERS:
            raise _Fault(f"more than {_MOST_CHARACTERS} characters")
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise _Fault("no JSON") from None
    actions = _get(value, "actions")
    if not isinstance(actions, Sequence) or isinstance(actions, str | bytes):
        raise _Fault("no list of actions")
    if len(actions) > _MOST_ACTIONS:
        raise _Fault(f"more than {_MOST_ACTIONS} actions")
    found: list[Action] = []
    for action in actions:
        kind, version = _get(action, "action_type"), _get(action, "action_version")
        if not isinstance(kind, str):
            raise _Fault("an action without action_type")
        name = kind.removeprefix(_PREFIX)
        if name not in ACTIONS or name == kind:
            continue  # somebody else's
        given = _get(action, "action_id")
        action_id = str(given)[:_MOST_ID_CHARACTERS] if isinstance(given, str | int) else "?"
        found.append(_action(action_id, name, str(version), _get(action, "payload")))
    return tuple(found)


def _action(action_id: str, name: ActionName, version: str, payload: Any) -> Action:
    try:
        if version.partition(".")[0] != _MAJOR_VERSION:
            raise _Fault(f"{_PREFIX}{name} is known in version 1, not {version[:16]}")
        if payload is None:
            payload = {}
        if not isinstance(payload, Mapping):
            raise _Fault("the payload is no object")
        if name == "retain":
            return Action(action_id, name, ttl_ms=_ttl_ms(payload.get("ttl")), tokens=_tokens(payload.get("tokens")))
        if name == "expire":
            return Action(action_id, name, of=_text(payload, "of", is_required=False))
        if name == "class":
            return Action(action_id, name, class_name=_text(payload, "name", is_required=True))
        return Action(action_id, name)
    except _Fault as fault:
        return Action(action_id, name, fault=str(fault))


def _ttl_ms(value: Any) -> int | None:
    """Text with a unit, or a number of seconds."""
    if value is None:
        return None
    if isinstance(value, str):
        try:
            ttl_ms = parse_duration_ms(value[:32])
        except UnitError as error:
            raise _Fault(f"ttl: {error.message}") from None
    elif isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < _MOST_MS / 1000:
        ttl_ms = int(value * 1000)
    else:
        raise _Fault("ttl is neither text like 5m nor a number of seconds")
    if ttl_ms < 1:
        raise _Fault("ttl is not above 0")
    return min(ttl_ms, _MOST_MS)


def _tokens(value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _Fault("tokens is no whole number of at least 1")
    return min(value, _MOST_MS)


def _text(payload: Mapping[Any, Any], key: str, *, is_required: bool) -> str | None:
    value = payload.get(key)
    if value is None and not is_required:
        return None
    if not isinstance(value, str) or not value:
        raise _Fault(f"{key} is no text")
    return value[:_MOST_ID_CHARACTERS]


def _get(owner: Any, key: str) -> Any:
    return owner.get(key) if isinstance(owner, Mapping) else getattr(owner, key, None)
