"""Mooncake's traces (FAST '25): one request a row, one hash id a block of 512 tokens.

``{"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [...]}``; a row may carry its own
``block_size``, as copies made for simulators do. Source: kvcache-ai/Mooncake, FAST25-release/traces.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvpolicy.replay.formats import fields
from kvpolicy.replay.formats.base import Format, Options, Rows
from kvpolicy.replay.lines import Lines
from kvpolicy.replay.requests import Request, TraceInfo

__all__ = ["Mooncake"]

_BLOCK_TOKENS = 512


class Mooncake(Format):
    name = "mooncake"
    summary = "Mooncake: timestamp (ms), input_length, output_length, hash_ids at 512 tokens"

    def matches(self, row: dict[str, Any]) -> bool:
        return "hash_ids" in row and "input_length" in row and "timestamp" in row

    def info(self, first: dict[str, Any], options: Options) -> TraceInfo:
        stated = first.get("block_size")
        return TraceInfo(self.name, options.get("block_tokens") or (stated if type(stated) is int else _BLOCK_TOKENS))

    def read(self, rows: Rows, lines: Lines, info: TraceInfo, options: Options) -> Iterator[Request]:
        for row in rows:
            input_tokens = fields.count(row, "input_length", lines)
            yield Request(
                arrival_ms=fields.milliseconds(row, "timestamp", lines),
                input_tokens=input_tokens,
                output_tokens=fields.count(row, "output_length", lines, default=0),
                blocks=fields.blocks(row, "hash_ids", lines, input_tokens, info.block_tokens),
            )
