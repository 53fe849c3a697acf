"""Agentic sessions (kv-cache-tester): one session a row, its requests as changes to the previous prompt.

A request of agent stream ``a`` keeps the first ``p`` blocks of that stream's previous prompt and appends the blocks
``h``, written as runs ``[start, count, ...]``. Block ids and times are the session's own. Source:
callanjfox/kv-cache-tester.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from kvpolicy.eviction.base import RequestInfo
from kvpolicy.replay.errors import TraceError
from kvpolicy.replay.formats import fields
from kvpolicy.replay.formats.base import Format
from kvpolicy.replay.requests import Request, Session, TraceInfo

__all__ = ["Agentic"]

#: Ids are below this in one session, so that (session number, id) fits one integer.
_SESSION_STRIDE = 1 << 32


class Agentic(Format):
    name = "agentic"
    summary = "agentic sessions: id, block_size, requests[] of t (s), a, in, out, p, h"

    @classmethod
    def matches(cls, row: Any) -> bool:
        return isinstance(row, dict) and {"requests", "block_size"} <= row.keys()

    def start(self, first: Any) -> TraceInfo:
        self.info = TraceInfo(self.name, self.block_tokens(first.get("block_size"), 64), has_sessions=True)
        self.info.notes.append("block ids are local to a session: what sessions share (tools, instructions) is a miss")
        self._sessions = 0
        return self.info

    def row(self, row: Any) -> Iterable[Session]:
        lines = self.lines
        requests = row.get("requests")
        if not isinstance(requests, list):
            raise lines.fail("'requests' is no list")
        block_tokens = fields.count(row, "block_size", lines)
        if block_tokens != self.info.block_tokens:
            raise lines.fail(f"block_size {block_tokens}, but this trace is read with {self.info.block_tokens}")
        # All is checked while its line is the current one; prompts are only built when their turn comes.
        for at, request in enumerate(requests):
            self._check(request, at)
        name = fields.text(row, "id", lines) or str(self._sessions)
        base = self._sessions * _SESSION_STRIDE
        self._sessions += 1
        return (Session(_expand(requests, base, RequestInfo(session_id=name))),)

    def _check(self, request: object, at: int) -> None:
        lines = self.lines
        if not isinstance(request, dict):
            raise lines.fail(f"requests[{at}] is no object")
        try:
            fields.milliseconds(request, "t", lines)
            for key in ("in", "out", "p"):
                fields.count(request, key, lines)
            runs = fields.tokens(request, "h", lines)
        except TraceError as error:
            raise lines.fail(f"requests[{at}]: {error.message}", error.help) from None
        if len(runs) % 2 or any(not 0 <= value < _SESSION_STRIDE for value in runs):
            raise lines.fail(f"requests[{at}]: 'h' holds pairs of start and count, each from 0 to 2^32")


def _expand(requests: list[dict[str, Any]], base: int, info: RequestInfo) -> Iterator[Request]:
    prompts: dict[Any, list[int]] = {}  # last prompt of each agent stream
    for request in requests:
        stream, runs = request.get("a"), request["h"]
        blocks = prompts.get(stream, [])[: request["p"]]
        for start, count in zip(runs[::2], runs[1::2], strict=True):
            blocks.extend(range(base + start, base + start + count))
        prompts[stream] = blocks
        took_s = request.get("api")
        yield Request(
            arrival_ms=int(request["t"] * 1000),
            input_tokens=request["in"],
            output_tokens=request["out"],
            blocks=blocks,
            info=info,
            duration_ms=int(took_s * 1000) if isinstance(took_s, int | float) else None,
        )
