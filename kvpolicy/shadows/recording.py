"""Writes the live traffic as a trace of the format `recorded`: lengths, times and numbers of pages.

A page's number says when it was first seen in this recording and nothing of what is in it: there is no text to guess.
Cache salts and sessions are numbered likewise, but for salts that the running policy names.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Hashable, Iterator, Sequence
from typing import Any

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
        are_hashes: bool = True,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        """``are_hashes``: a page names its prefix. Raises OSError."""
        self.path = path
        self.rows = self.bytes = 0
        self.is_full = False
        self._engine, self._page_tokens, self._are_hashes = engine, page_tokens, are_hashes
        self._named, self._max_bytes = named_salts, max_bytes
        self._start_ms: int | None = None
        self._numbers: dict[Hashable, int] = {}
        self._salts: dict[str, str] = {}
        self._sessions: dict[str, str] = {}
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
            row["cache_salt"] = salt if salt in self._named else self._salts.setdefault(salt, f"#{len(self._salts)}")
        if session is not None:
            row["session_id"] = self._sessions.setdefault(session, f"#{len(self._sessions)}")
        if record.priority is not None:
            row["priority"] = record.priority
        if record.lora is not None:
            row["lora"] = record.lora
        line = json.dumps(row, separators=(",", ":")) + "\n"
        self._file.write(line)
        self.rows += 1
        self.bytes += len(line)
        self.is_full = self.bytes >= self._max_bytes

    def end(self) -> None:
        """Give the file its name. Raises OSError."""
        self._file.close()
        os.replace(self.path + ".part", self.path)

    def _numbered(self, namespace: Hashable, full: Sequence[Hashable]) -> Iterator[int]:
        numbers, above = self._numbers, -1
        for page in full:
            key = (namespace, page) if self._are_hashes else (namespace, above, page)
            above = numbers.setdefault(key, len(numbers))
            yield above


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
