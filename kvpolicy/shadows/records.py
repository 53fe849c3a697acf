"""What a scheduler tells of one finished request, and what the ghosts make of it: pages, equal where prefixes are."""

from __future__ import annotations

from array import array
from hashlib import blake2b
from typing import Any, NamedTuple

from kvpolicy.eviction.base import RequestInfo
from kvpolicy.eviction.envelope import Action, Envelope

__all__ = ["Pages", "Record", "plain_hints"]


class Record(NamedTuple):
    """One request, as it goes over the pipe: plain values only."""

    arrival_ms: int  # of any clock that does not go back
    finished_ms: int  # of the same clock
    input_tokens: int
    output_tokens: int
    hit_tokens: int  # that the engine found in its cache
    cache_salt: str | None
    priority: int | None
    session_id: str | None
    lora: str | None
    content: bytes  # token ids as 64-bit integers, or 64-bit hashes of prefixes, of what the engine may keep
    hints: tuple[tuple[Any, ...], ...] = ()  # :func:`plain_hints`

    @property
    def info(self) -> RequestInfo:
        """What policies may know of it: one object a request, since hints are told apart by theirs."""
        envelope = Envelope(tuple(Action(*fields) for fields in self.hints)) if self.hints else None
        return RequestInfo(self.cache_salt, self.priority, self.session_id, self.lora, envelope)


def plain_hints(envelope: Envelope | None) -> tuple[tuple[Any, ...], ...]:
    """A request's hints as plain values, those of each :class:`Action` in its order: no more than an envelope may hold.

    Without those that could not be read: they ask for nothing, and say why in the client's words.
    """
    if envelope is None:
        return ()
    return tuple(
        (action.action_id, action.name, action.ttl_ms, action.tokens, action.of, action.class_name)
        for action in envelope.actions
        if not action.fault
    )


class Pages:
    """Cuts a record's content into pages. ``content`` is "tokens" or "hashes" (one a page, of the prefix up to it).

    Tokens of pages of one token are their own pages, since a path through a tree names its prefix; other pages are
    known by a hash of the prefix under a key that this process alone has.
    """

    def __init__(self, content: str, page_tokens: int, key: bytes) -> None:
        self.page_tokens = page_tokens
        self.are_hashes = content == "hashes" or page_tokens > 1
        self._is_hashed = content == "hashes"
        self._key = key

    def of(self, record: Record) -> array[int]:
        """The full pages of prompt and output."""
        pages = array("q")
        if self._is_hashed or self.page_tokens == 1:
            pages.frombytes(record.content)
            return pages
        data, step = memoryview(record.content), 8 * self.page_tokens
        state: Any = blake2b(digest_size=8, key=self._key)
        digests = []
        for at in range(0, len(data) // step * step, step):
            state.update(data[at : at + step])
            digests.append(state.digest())
        pages.frombytes(b"".join(digests))
        return pages
