"""Qwen Bailian usage traces: one chat turn a row, one hash id a block of 16 tokens, times in seconds.

``{"chat_id", "parent_chat_id" (-1: first turn), "timestamp": s, "input_length", "output_length", "type", "turn",
"hash_ids"}``; each row holds its full context. Source: alibaba-edu/qwen-bailian-usagetraces-anon.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvpolicy.replay.formats import fields
from kvpolicy.replay.formats.base import Format
from kvpolicy.replay.requests import Request, TraceInfo

__all__ = ["Bailian"]


class Bailian(Format):
    name = "bailian"
    summary = "Qwen Bailian: chat_id, parent_chat_id, timestamp (s), hash_ids of 16 tokens"

    @classmethod
    def matches(cls, row: Any) -> bool:
        return isinstance(row, dict) and {"chat_id", "timestamp", "hash_ids"} <= row.keys()

    def start(self, first: Any) -> TraceInfo:
        self.info = TraceInfo(self.name, self.block_tokens(first.get("block_size"), 16))
        return self.info

    def row(self, row: Any) -> Iterable[Request]:
        input_tokens = fields.count(row, "input_length", self.lines)
        request = Request(
            arrival_ms=fields.milliseconds(row, "timestamp", self.lines, scale=1000.0),
            input_tokens=input_tokens,
            output_tokens=fields.count(row, "output_length", self.lines, default=0),
            blocks=fields.blocks(row, "hash_ids", self.lines, input_tokens, self.info.block_tokens),
        )
        return (request,)
