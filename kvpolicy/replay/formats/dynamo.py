"""Dynamo's agentic Mooncake rows: Mooncake plus who waits for whom.

``request_id, session_id, input_length, output_length, hash_ids, timestamp, wait_for[], delay, tool_wait_ms``, times in
milliseconds. A row with a timestamp arrives then. One without arrives ``delay + tool_wait_ms`` after the last row that
it waits for arrived: how long that one took is the simulated server's to say, and no server is simulated here. Source:
ai-dynamo/dynamo, dynamo-data-gen (AgenticMooncakeRow).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvpolicy.eviction.base import RequestInfo
from kvpolicy.replay.formats import fields
from kvpolicy.replay.formats.base import Format
from kvpolicy.replay.requests import Request, TraceInfo

__all__ = ["Dynamo"]


class Dynamo(Format):
    name = "dynamo"
    summary = "Dynamo agentic Mooncake: request_id, session_id, wait_for, tool_wait_ms, hash_ids"

    @classmethod
    def matches(cls, row: Any) -> bool:
        return isinstance(row, dict) and {"request_id", "hash_ids"} <= row.keys()

    def start(self, first: Any) -> TraceInfo:
        self.info = TraceInfo(self.name, self.block_tokens(first.get("block_size"), 512))
        self._arrival: dict[str, int] = {}  # of rows that others may wait for
        self._guessed = False
        return self.info

    def row(self, row: Any) -> Iterable[Request]:
        lines = self.lines
        name = fields.text(row, "request_id", lines) or ""
        tokens_key = "input_length" if "input_length" in row else "input_tokens"
        input_tokens = fields.count(row, tokens_key, lines)
        request = Request(
            arrival_ms=self._arrives(row),
            input_tokens=input_tokens,
            output_tokens=fields.count(row, "output_length", lines, default=0),
            blocks=fields.blocks(row, "hash_ids", lines, input_tokens, self.info.block_tokens),
            info=RequestInfo(
                session_id=fields.text(row, "session_id", lines),
                priority=fields.integer(row, "priority", lines),
                hints=fields.hints(row),
            ),
        )
        self._arrival[name] = request.arrival_ms
        return (request,)

    def _arrives(self, row: dict[str, Any]) -> int:
        for key in ("timestamp", "not_before_ms", "created_time"):
            if row.get(key) is not None:
                return fields.milliseconds(row, key, self.lines)
        awaited = row.get("wait_for") or []
        if not isinstance(awaited, list):
            raise self.lines.fail("'wait_for' is no list of request ids")
        missing = next((name for name in awaited if name not in self._arrival), None)
        if missing is not None:
            raise self.lines.fail(f"waits for '{missing}', which no earlier row is")
        if not self._guessed:
            self._guessed = True
            self.info.notes.append("rows without a timestamp arrive as soon as what they wait for could have ended")
        pause = sum(fields.milliseconds(row, key, self.lines) for key in ("delay", "tool_wait_ms") if row.get(key))
        return max((self._arrival[name] for name in awaited), default=0) + pause
