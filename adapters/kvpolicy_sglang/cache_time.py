"""Policy time and request order in SGLang: equal on every rank, moved by arriving requests alone.

SGLang sends no arrival time that all ranks share (each receiver rebases its clock), so the tokenizer process stamps
each request with integer milliseconds of its monotonic clock. The stamp travels in `sampling_params.custom_params`, a
free dict that is serialised and broadcast unchanged in every supported version, and is taken out again before the
engine makes a request of it. The scheduler counts the request and moves the policy clock when it handles it, in the
order all ranks share.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

from kvpolicy.runtime.active import current

from .cache_guard import EvictionGuard

__all__ = ["ARRIVAL_KEY", "install_scheduler", "install_tokenizer", "read_stamp", "stamp"]

ARRIVAL_KEY = "kvpolicy_arrival_ms"

_TOKENIZED = "sglang.srt.managers.tokenizer_manager.TokenizerManager._create_tokenized_object"
_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"


def install_tokenizer(hooks: Any) -> None:
    """Stamp requests in the process that tokenizes them. Only for a policy whose eviction `needs_time`."""
    from sglang.srt.plugins.hook_registry import HookType

    def stamp_created(tokenized: Any, manager: Any, *_args: Any, **_kwargs: Any) -> None:
        # An Engine without a policy may share this process; nobody would take its stamps out again.
        if hasattr(manager.server_args, "_kv_policy"):
            _stamp_safely(tokenized)

    hooks.register(_TOKENIZED, stamp_created, HookType.AFTER)


def install_scheduler(guard_of: Callable[[], EvictionGuard | None], hooks: Any) -> None:
    """Count every arriving request; `guard_of` gives the guard once the cache is built."""
    from sglang.srt.plugins.hook_registry import HookType

    def handle(original: Callable[..., Any], scheduler: Any, recv_req: Any, *args: Any, **kwargs: Any) -> Any:
        stamped = None
        guard = guard_of()
        try:
            stamped, arrival_ms = read_stamp(recv_req)
            if guard is not None:
                guard.arrive(arrival_ms)
        except Exception:
            if guard is not None:
                guard.fault("arrive", "the policy failed to read a request's arrival")
            elif (active := current()) is not None:  # the engine's order serves
                active.note_fallback("arrive", "a request's arrival time could not be taken out")
        try:
            return original(scheduler, recv_req, *args, **kwargs)
        finally:
            if stamped is not None:
                recv_req.sampling_params = stamped  # pipeline stages forward the message after handling it

    hooks.register(f"{_SCHEDULER}.handle_generate_request", handle, HookType.AROUND)
    hooks.register(f"{_SCHEDULER}.handle_embedding_request", handle, HookType.AROUND)


def _stamp_safely(tokenized: Any) -> None:
    """A request without a stamp is served; it only moves no time."""
    try:
        stamp(tokenized)
    except Exception:
        if (active := current()) is not None:
            active.note_fallback("stamp", "a request could not be given its arrival time")


def stamp(tokenized: Any, now_ms: int | None = None) -> None:
    """Put the arrival time into a tokenized request; embedding requests have no carrier and only count."""
    params = getattr(tokenized, "sampling_params", None)
    if params is None or not hasattr(params, "custom_params"):
        return
    arrival_ms = time.monotonic_ns() // 1_000_000 if now_ms is None else now_ms
    given = params.custom_params or {}
    if isinstance(given, dict):  # else it is the client's mistake, and the engine's to answer
        params.custom_params = {**given, ARRIVAL_KEY: arrival_ms}


def read_stamp(recv_req: Any) -> tuple[Any, int | None]:
    """`(the stamped sampling parameters to restore afterwards, arrival in ms)`, both None without a stamp.

    `recv_req` then holds a copy of its parameters as the client gave them, which is what the engine sees.
    """
    params = getattr(recv_req, "sampling_params", None)
    custom = getattr(params, "custom_params", None)
    if not isinstance(custom, dict) or ARRIVAL_KEY not in custom:
        return None, None
    given = {key: value for key, value in custom.items() if key != ARRIVAL_KEY}
    clean = copy.copy(params)
    clean.custom_params = given or None
    recv_req.sampling_params = clean
    arrival_ms = custom[ARRIVAL_KEY]
    return params, arrival_ms if isinstance(arrival_ms, int) and not isinstance(arrival_ms, bool) else None
