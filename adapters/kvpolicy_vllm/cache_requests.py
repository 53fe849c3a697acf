"""What the cache side keeps of one request, read off vLLM's `Request` whatever the version."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from kvpolicy.eviction.base import PolicyClock, RequestInfo
from kvpolicy.eviction.envelope import HINTS_KEY, read_envelope

__all__ = ["PRIORITY_KEY", "RequestState", "info_of", "state_of"]

#: In `vllm_xargs` of a request (`SamplingParams.extra_args`): its priority for the policy alone.
PRIORITY_KEY = "kvpolicy_priority"


@dataclass(slots=True)
class RequestState:
    """One request's facts for the policy, and what was already done for it."""

    info: RequestInfo
    prompt_tokens: int
    is_counted: bool = False  # its prefix match is known, counted once however often it is preempted
    is_served: bool = False  # it got its first blocks, and is counted in the traffic
    matched: list[Any] | None = None  # the blocks of its match, until they are counted
    matched_tokens: int = 0
    is_admitted: bool | None = None  # None: not decided yet


def state_of(request: Any, clock: PolicyClock) -> RequestState:
    """The request's state. Made at the first call, which counts the request's arrival."""
    state: RequestState | None = getattr(request, "_kvp_request", None)
    if state is None:
        state = request._kvp_request = RequestState(info_of(request), int(request.num_prompt_tokens))
        clock.arrive(int(request.arrival_time * 1000))
    return state


def info_of(request: Any) -> RequestInfo:
    """What a policy may know of it."""
    extra_args = getattr(getattr(request, "sampling_params", None), "extra_args", None)  # the client's `vllm_xargs`
    hints = getattr(request, HINTS_KEY, None)  # where this version carries an envelope, its front end may not take one
    priority = getattr(request, "priority", None)
    if not priority or not isinstance(priority, int):  # vLLM cannot tell 0 from not given
        priority = None
    if extra_args:
        given = extra_args.get(PRIORITY_KEY)
        if isinstance(given, int) and not isinstance(given, bool):
            priority = given
        if hints is None:
            hints = extra_args.get(HINTS_KEY)
    salt, lora = getattr(request, "cache_salt", None), getattr(request, "lora_request", None)
    session_id = getattr(request, "session_id", None)
    if salt is None and session_id is None and lora is None and priority is None:
        info = _NOBODY
    else:
        lora_name = None if lora is None else getattr(lora, "lora_name", None)
        info = _shared(_text(salt), priority, _text(session_id), _text(lora_name))
    if hints is not None and (envelope := read_envelope(hints)) is not None:
        return replace(info, hints=envelope)
    return info


_NOBODY = RequestInfo()
#: Requests of one tenant and priority share their facts.
_shared = lru_cache(maxsize=1024)(RequestInfo)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
