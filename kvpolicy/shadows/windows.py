"""What a clairvoyant would have found in a window of requests that is over: replay's, run when the window closes.

A record begins a window earlier than the window it judges, so that the clairvoyant's cache, like the ghosts', is warm.
The first window begins with the ghosts themselves, on empty caches. Windows double until they have their full size, so
that there is something to see early.
"""

from __future__ import annotations

import gc
from collections.abc import Hashable, Sequence
from typing import Any

from kvpolicy.replay.clairvoyant import TraceRecord, clairvoyant
from kvpolicy.replay.requests import Request

__all__ = ["FIRST_WINDOW_REQUESTS", "WINDOW_REQUESTS", "Windows"]

FIRST_WINDOW_REQUESTS, WINDOW_REQUESTS = 128, 4096
#: Distinct pages that close a window early: its memory.
MAX_PAGES = 4_000_000


class Windows:
    """See the module text."""

    def __init__(self, page_tokens: int, pool_tokens: int) -> None:
        self._page_tokens, self._pool_tokens = page_tokens, pool_tokens
        self._max_pages = max(MAX_PAGES, 4 * pool_tokens // page_tokens)
        self._size = FIRST_WINDOW_REQUESTS
        self._current = TraceRecord(page_tokens)  # began a window earlier, but for the first
        self._next = TraceRecord(page_tokens)  # begins with the window
        #: Of the last window that closed: its requests, prompt tokens and the clairvoyant's hit tokens.
        self.closed: dict[str, Any] | None = None

    def add(self, request: Request, reusable: int, full: Sequence[Hashable]) -> bool:
        """Arguments as for `Simulator.request`. Whether the window closed with this request."""
        self._current.add(request, reusable, full)
        self._next.add(request, reusable, full)
        count = len(self._next.input_tokens)
        if count < self._size and self._current.distinct_pages < self._max_pages:
            return False
        hits = clairvoyant(self._current, self._current.paths(), self._pool_tokens)
        self.closed = {
            "requests": count,
            "input_tokens": sum(self._next.input_tokens),
            "hit_tokens": sum(hits[-count:]),
        }
        self._current, self._next = self._next, TraceRecord(self._page_tokens)
        self._size = min(2 * self._size, WINDOW_REQUESTS)
        gc.collect()  # a record's tree is full of cycles, and the collector is off
        return True
