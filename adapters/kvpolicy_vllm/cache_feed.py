"""Tells shadow policies of vLLM's finished requests: the hashes of their blocks, which vLLM computes anyway, and what
they found.

Two methods of the scheduler that serves are listened to, from the moment on that somebody asks for shadows or a
recording.
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any

from kvpolicy.shadows.feed import Feed
from kvpolicy.shadows.records import Record, plain_hints

from .cache_requests import info_of

if TYPE_CHECKING:
    from kvpolicy.runtime.active import ActivePolicy

__all__ = ["ShadowSeat"]

_FOUND = "_kvp_found_tokens"


class ShadowSeat:
    """An engine's feed, made with the first message."""

    def __init__(self, active: ActivePolicy, scheduler: Any) -> None:
        self._active, self._scheduler = active, scheduler
        self._feed: Feed | None = None

    def handle(self, message: dict[str, Any], rank: int) -> None:
        """``rank``: the data-parallel one."""
        if self._feed is None:
            block_tokens = int(self._scheduler.kv_cache_manager.block_pool.block_tokens)
            self._feed = Feed(self._active, "vllm", "hashes", block_tokens, rank)
            _listen(self._scheduler, self._feed, block_tokens)
        self._feed.handle(message)

    def to_json(self) -> dict[str, Any] | None:
        """None: nobody ever asked."""
        return None if self._feed is None else self._feed.to_json()


def _listen(scheduler: Any, feed: Feed, block_tokens: int) -> None:
    manager = scheduler.kv_cache_manager
    look_up, free = manager.get_computed_blocks, scheduler._free_request

    @functools.wraps(look_up)
    def get_computed_blocks(request: Any, *args: Any, **kwargs: Any) -> Any:
        found = look_up(request, *args, **kwargs)
        if feed.is_open and not getattr(request, "num_preemptions", 0):  # after one it finds its own blocks
            try:
                setattr(request, _FOUND, int(found[1]))
            except Exception:
                feed.fault("a request's prefix match could not be read")
        return found

    @functools.wraps(free)
    def free_request(request: Any, *args: Any, **kwargs: Any) -> Any:
        if feed.is_open:
            began_s = time.perf_counter()
            try:
                record = _describe(request, block_tokens)
            except Exception:
                feed.fault("a finished request could not be described")
            else:
                if record is not None:
                    feed.put(record, began_s)
        return free(request, *args, **kwargs)

    manager.get_computed_blocks, scheduler._free_request = get_computed_blocks, free_request


def _describe(request: Any, block_tokens: int) -> Record | None:
    """None for a request whose prompt was not computed to its end, or that began before anybody listened."""
    found_tokens, output_tokens = getattr(request, _FOUND, None), int(request.num_output_tokens)
    if found_tokens is None or not output_tokens:
        return None
    prompt_tokens = int(request.num_prompt_tokens)
    # The last token of an output is sampled and never fed back, so that it has no KV.
    blocks = (prompt_tokens + output_tokens - 1) // block_tokens
    info = info_of(request)
    return Record(
        int(request.arrival_time * 1000),
        time.time_ns() // 1_000_000,
        prompt_tokens,
        output_tokens,
        found_tokens,
        info.cache_salt,
        info.priority,
        info.session_id,
        info.lora,
        b"".join([block_hash[:8] for block_hash in request.block_hashes[:blocks]]),
        plain_hints(info.hints),
    )
