"""Tells shadow policies of SGLang's finished requests: what they asked for, what they found, what they leave behind.

The engine's own call that caches a finished request is listened to, on the cache that serves, from the moment on that
somebody asks for shadows or a recording.
"""

from __future__ import annotations

import functools
import time
from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvpolicy.shadows.feed import Feed
from kvpolicy.shadows.records import Record, plain_hints

from .cache_requests import is_health_check, state_of

if TYPE_CHECKING:
    from kvpolicy.runtime.active import ActivePolicy

    from .cache_hooks import Built

__all__ = ["ShadowSeat"]


class ShadowSeat:
    """A scheduler's feed, made with the first message."""

    def __init__(self, active: ActivePolicy, built: Built, rank: int) -> None:
        """``rank``: the data-parallel one."""
        self._active, self._built, self._rank = active, built, rank
        self._feed: Feed | None = None

    def handle(self, message: dict[str, Any]) -> None:
        if self._feed is None:
            self._feed = Feed(self._active, "sglang", "tokens", int(self._built.context.params.page_size), self._rank)
            _listen(self._built.cache, self._feed, self._built.lora_name)
        self._feed.handle(message)

    def to_json(self) -> dict[str, Any] | None:
        """None: nobody ever asked."""
        return None if self._feed is None else self._feed.to_json()


def _listen(cache: Any, feed: Feed, lora_name: Callable[[str], str]) -> None:
    name = "checkpoint" if hasattr(cache, "checkpoint") else "cache_finished_req"  # 0.5.23, and before
    stock = getattr(cache, name)

    @functools.wraps(stock)
    def caching(req: Any, *args: Any, **kwargs: Any) -> Any:
        if feed.is_open:
            began_s = time.perf_counter()
            try:
                record = _describe(req, kwargs, lora_name)
            except Exception:
                feed.fault("a finished request could not be described")
            else:
                if record is not None:
                    feed.put(record, began_s)
        return stock(req, *args, **kwargs)

    setattr(cache, name, caching)


def _describe(req: Any, kwargs: dict[str, Any], lora_name: Callable[[str], str]) -> Record | None:
    """None for what is no request of a client's, is not finished, or whose prompt is not cached to its end."""
    if not req.finished() or not kwargs.get("is_insert", True) or is_health_check(req):
        return None
    prompt, output = req.origin_input_ids, req.output_ids
    kept = kwargs.get("kv_len_to_handle", kwargs.get("up_to"))  # tokens with KV, by what the engine calls it
    if kept is None:
        kept = len(prompt) + max(0, len(output) - 1)
    if kept < len(prompt):
        return None
    tokens = array("q", prompt)
    tokens += array("q", output)
    del tokens[kept:]
    state = state_of(req, lora_name)
    info, now_s = state.info, time.perf_counter()
    entered_s = req.time_stats.wait_queue_entry_time or now_s  # of the same clock
    return Record(
        int(entered_s * 1000),
        int(now_s * 1000),
        state.prompt_tokens,
        len(output),
        int(req.cached_tokens),
        info.cache_salt,
        info.priority,
        info.session_id,
        info.lora,
        tokens.tobytes(),
        plain_hints(info.hints),
    )
