"""Writes the live traffic as a trace of the format `recorded`: lengths, times and numbers of pages.

A page's number says when it was first seen in this recording and nothing of what is in it: there is no text to guess.
Cache salts, sessions and the names in hints are numbered likewise, but for salts and classes that the running policy
names.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Hashable, Iterator, Sequence
from typing import Any

from kvpolicy.eviction.envelope import HINTS_KEY, Action
from kvpolicy.hints import action as written
from kvpolicy.language.units import MAX_DURATION_MS

from .records import Record

__all__ = ["MAX_BYTES", "Recording"]

#: A recording that is longer ends by itself.
MAX_BYTES = 256 * 1024 * 1024


class Recording:
    """One file. It has its name once it is whole."""

    def __init__(
        self,
        path: str,
        engine: str,
        page_tokens: int,
        named_salts: Collection[str] = (),
        *,
        named_classes: Collection[str] = (),
        are_hashes: bool = True,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        """``named_*`` stand as they are. ``are_hashes``: a page names its prefix. Raises OSError."""
        self.path = path
        self.rows = self.bytes = 0
        self.is_full = False
        self._engine, self._page_tokens, self._are_hashes = engine, page_tokens, are_hashes
        self._max_bytes = max_bytes
        self._start_ms: int | None = None
        self._numbers: dict[Hashable, int] = {}
        self._salts, self._classes = _Numbers(named_salts), _Numbers(named_classes)
        self._sessions, self._actions = _Numbers(), _Numbers()
        self._file = open(path + ".part", "w", encoding="ascii", opener=_private)  # noqa: SIM115 -- closed in `end`

    def add(self, record: Record, full: Sequence[Hashable]) -> None:
        """Raises OSError."""
        if self.is_full:
            return
        if self._start_ms is None:
            self._start_ms = record.arrival_ms
        salt, session = record.cache_salt, record.session_id
        namespace = (salt, record.lora)
        numbers = list(self._numbered(namespace, full))
        prompt_pages = record.input_tokens // self._page_tokens
        row: dict[str, Any] = {
            "kvpolicy_record": self._engine,
            "timestamp": max(0, record.arrival_ms - self._start_ms),
            "duration": max(0, record.finished_ms - record.arrival_ms),
            "input_length": record.input_tokens,
            "output_length": record.output_tokens,
            "cached_tokens": record.hit_tokens,
            "block_size": self._page_tokens,
            "hash_ids": numbers[:prompt_pages],
            "output_hash_ids": numbers[prompt_pages:],
        }
        if salt is not None:
            row["cache_salt"] = self._salts[salt]
        if session is not None:
            row["session_id"] = self._sessions[session]
        if record.priority is not None:
            row["priority"] = record.priority
        if record.lora is not None:
            row["lora"] = record.lora
        if record.hints:
            row[HINTS_KEY] = {"actions": [self._hint(Action(*fields)) for fields in record.hints]}
        line = json.dumps(row, separators=(",", ":")) + "\n"
        self._file.write(line)
        self.rows += 1
        self.bytes += len(line)
        self.is_full = self.bytes >= self._max_bytes

    def end(self) -> None:
        """Give the file its name. Raises OSError."""
        self._file.close()
        os.replace(self.path + ".part", self.path)

    def _hint(self, action: Action) -> dict[str, Any]:
        """As a client writes it, with a whole number of milliseconds."""
        payload = {
            "ttl": None if action.ttl_ms is None else f"{min(action.ttl_ms, MAX_DURATION_MS)}ms",
            "tokens": action.tokens,
            "of": None if action.of is None else self._actions[action.of],
            "name": None if action.class_name is None else self._classes[action.class_name],
        }
        given = {key: value for key, value in payload.items() if value is not None}
        return written(action.name, self._actions[action.action_id], **given)

    def _numbered(self, namespace: Hashable, full: Sequence[Hashable]) -> Iterator[int]:
        numbers, above = self._numbers, -1
        for page in full:
            key = (namespace, page) if self._are_hashes else (namespace, above, page)
            above = numbers.setdefault(key, len(numbers))
            yield above


class _Numbers(dict[str, str]):
    """Names as ``#`` and a number, in the order in which they are first asked for."""

    def __init__(self, kept: Collection[str] = ()) -> None:
        super().__init__((name, name) for name in kept)
        self._kept = len(self)

    def __missing__(self, name: str) -> str:
        number = self[name] = f"#{len(self) - self._kept}"
        return number


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
