"""Mooncake's traces (FAST '25): one request a row, one hash id a block of 512 tokens.

``{"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [...]}``; a row may carry its own
``block_size``, as copies made for simulators do. Source: kvcache-ai/Mooncake, FAST25-release/traces.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvpolicy.eviction.base import RequestInfo
from kvpolicy.replay.formats import fields
from kvpolicy.replay.formats.base import Format
from kvpolicy.replay.requests import NOBODY, Request, TraceInfo

__all__ = ["Mooncake"]


class Mooncake(Format):
    name = "mooncake"
    summary = "Mooncake: timestamp (ms), input_length, output_length, hash_ids of 512 tokens"

    @classmethod
    def matches(cls, row: Any) -> bool:
        return isinstance(row, dict) and {"timestamp", "input_length", "hash_ids"} <= row.keys()

    def start(self, first: Any) -> TraceInfo:
        self.info = TraceInfo(self.name, self.block_tokens(first.get("block_size"), 512))
        return self.info

    def row(self, row: Any) -> Iterable[Request]:
        input_tokens, hints = fields.count(row, "input_length", self.lines), fields.hints(row)
        request = Request(
            arrival_ms=fields.milliseconds(row, "timestamp", self.lines),
            input_tokens=input_tokens,
            output_tokens=fields.count(row, "output_length", self.lines, default=0),
            blocks=fields.blocks(row, "hash_ids", self.lines, input_tokens, self.info.block_tokens),
            info=NOBODY if hints is None else RequestInfo(hints=hints),
        )
        return (request,)
