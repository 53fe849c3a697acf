"""What `kvpolicy record` writes: a server's own requests, page by page.

``kvpolicy_record`` (the engine), ``timestamp`` and ``duration`` (ms), ``input_length``, ``output_length``,
``cached_tokens`` (found by the server), ``block_size``, ``hash_ids`` (numbers of the prompt's full pages),
``output_hash_ids`` (of what follows, the page that prompt and output share included), ``cache_salt``, ``priority``,
``session_id``, ``lora``, ``kv_hints`` (an envelope of what the request asked for itself, with numbers for names).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvpolicy.eviction.base import RequestInfo
from kvpolicy.replay.formats import fields
from kvpolicy.replay.formats.base import Format
from kvpolicy.replay.requests import Request, TraceInfo

__all__ = ["Recorded"]


class Recorded(Format):
    name = "recorded"
    summary = "kvpolicy record: a server's own requests, with hash_ids of its pages and what it found"

    @classmethod
    def matches(cls, row: Any) -> bool:
        return isinstance(row, dict) and "kvpolicy_record" in row

    def start(self, first: Any) -> TraceInfo:
        self.info = TraceInfo(self.name, self.block_tokens(first.get("block_size"), 16), has_outputs=True)
        self.info.is_exact = True
        self.info.ahead_pages = 0 if first["kvpolicy_record"] == "vllm" else 1
        return self.info

    def row(self, row: Any) -> Iterable[Request]:
        lines, size = self.lines, self.info.block_tokens
        input_tokens = fields.count(row, "input_length", lines)
        output_tokens = fields.count(row, "output_length", lines)
        if row.get("block_size") not in (None, size):
            raise lines.fail(f"'block_size' is {row['block_size']!r}, the rows before have {size}")
        prompt = fields.blocks(row, "hash_ids", lines, input_tokens, size)
        full = [*prompt, *fields.blocks(row, "output_hash_ids", lines, size + output_tokens, size)]
        info = RequestInfo(
            cache_salt=fields.text(row, "cache_salt", lines),
            priority=fields.integer(row, "priority", lines),
            session_id=fields.text(row, "session_id", lines),
            lora=fields.text(row, "lora", lines),
            hints=fields.hints(row),
        )
        arrival_ms = fields.milliseconds(row, "timestamp", lines)
        duration_ms = fields.milliseconds(row, "duration", lines) if "duration" in row else None
        return (Request(arrival_ms, input_tokens, output_tokens, prompt, full, info, duration_ms),)
