"""What the cache side keeps of one running request, read off SGLang's `Req` whatever the version."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvpolicy.eviction.base import RequestInfo
from kvpolicy.eviction.envelope import HINTS_KEY, read_envelope

__all__ = ["RequestState", "is_health_check", "state_of"]

_ATTRIBUTE = "_kvp_request"


@dataclass(slots=True)
class RequestState:
    """One request's facts for the policy, and what was already done for it."""

    info: RequestInfo
    prompt_tokens: int
    touched: bool = False  # its prefix hit is counted, once
    admitted: bool | None = None  # None: not decided yet


def state_of(req: Any, lora_name: Callable[[str], str]) -> RequestState:
    """The request's state, made at the first call. `lora_name` turns SGLang's adapter id into the operator's name."""
    state = getattr(req, _ATTRIBUTE, None)
    if state is None:
        state = RequestState(_info(req, lora_name), len(req.origin_input_ids))
        setattr(req, _ATTRIBUTE, state)
    return state


def is_health_check(req: Any) -> bool:
    """Whether the engine asks itself for a token, to see whether it lives: no traffic."""
    return str(getattr(req, "rid", "")).startswith("HEALTH_CHECK")  # sglang.srt.constants, in every version


def _info(req: Any, lora_name: Callable[[str], str]) -> RequestInfo:
    lora_id = getattr(req, "lora_id", None)
    priority = getattr(req, "priority", None)
    # The engine's stand-in for "not given" under --enable-priority-scheduling is as large as integers get; through the
    # Python API, any object may come.
    if not isinstance(priority, int) or abs(priority) >= sys.maxsize:
        priority = None
    return RequestInfo(
        cache_salt=_salt(req, lora_id),
        priority=priority,
        session_id=_text(getattr(req, "session_id", None)),
        lora=None if lora_id is None else lora_name(lora_id),
        hints=read_envelope(_hints(req)),
    )


def _hints(req: Any) -> Any:
    """The request's own envelope where this version carries one (0.5.23), else what stands in `custom_params`."""
    own = getattr(req, HINTS_KEY, None)
    if own is not None:
        return own
    custom = getattr(getattr(req, "sampling_params", None), "custom_params", None)
    return custom.get(HINTS_KEY) if isinstance(custom, dict) else None


def _salt(req: Any, lora_id: str | None) -> str | None:
    if hasattr(req, "cache_salt"):  # 0.5.18 and later keep it apart
        return _text(req.cache_salt)
    # Before, the API's cache_salt and extra_key were one string, to which the engine appends the adapter's id.
    extra = _text(getattr(req, "extra_key", None))
    if extra is not None and lora_id is not None:
        extra = extra.removesuffix(lora_id)
    return extra or None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
