"""SGLang's request log: ``--log-requests --log-requests-level 3 --log-requests-format json``.

Every line is ``[time] {"timestamp", "event": "request.received" | "request.finished", "rid", "obj", "out"}``; other
lines of a server's output in between are passed over. Requests are replayed in the order in which they were received,
each with its output once it is finished. Levels 0 and 1 leave the prompts out, level 2 cuts them at 2,048 tokens.
Source: srt/utils/request_logger.py, the same from 0.5.16 to 0.5.23.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kvpolicy.eviction.base import RequestInfo
from kvpolicy.eviction.envelope import Envelope
from kvpolicy.replay.formats import fields
from kvpolicy.replay.formats.base import Format
from kvpolicy.replay.formats.tokens import make_request
from kvpolicy.replay.requests import Request, TraceInfo
from kvpolicy.replay.tokenizer import Tokenizer, load_tokenizer

__all__ = ["SGLangLog"]

_EVENTS = ("request.received", "request.finished")
_HELP = "start SGLang with --log-requests --log-requests-level 3 --log-requests-format json"


@dataclass(slots=True)
class _Open:
    """A request that was received; ``request`` once it is finished."""

    rid: str
    arrival_s: float
    obj: dict[str, Any]
    line: int
    request: Request | None = None


class SGLangLog(Format):
    name = "sglang-log"
    summary = "SGLang --log-requests-level 3 --log-requests-format json: request.received, request.finished"

    @classmethod
    def matches(cls, row: Any) -> bool:
        return isinstance(row, dict) and row.get("event") in (*_EVENTS, "request.received.openai")

    def start(self, first: Any) -> TraceInfo:
        self.info = TraceInfo(self.name, 1, has_outputs=True)
        self._order: deque[_Open] = deque()
        self._open: dict[str, _Open] = {}
        self._first_s: float | None = None
        self._tokenizer: Tokenizer | None = None
        return self.info

    def row(self, row: Any) -> Iterable[Request]:
        event = row.get("event")
        if event not in _EVENTS:
            return ()
        rid, obj = row.get("rid"), row.get("obj")
        if not isinstance(rid, str):
            if isinstance(rid, list):
                raise self.lines.fail("a batch of prompts in one request: its rows cannot be told apart in this log")
            raise self.lines.fail("no 'rid' in this row")
        if not isinstance(obj, dict):
            raise self.lines.fail("no 'obj' in this row")
        at_s = self._seconds(row)
        if self._first_s is None:
            self._first_s = at_s
        if event == "request.received":
            opened = _Open(rid, at_s, obj, self.lines.line)
            self._open[rid] = opened
            self._order.append(opened)
            return ()
        out = row.get("out")
        if not isinstance(out, dict):
            raise self.lines.fail("'request.finished' without 'out'")
        known = self._open.pop(rid, None)
        if known is None:  # the log began while it ran
            took_s = out.get("meta_info", {}).get("e2e_latency", 0.0) or 0.0
            known = _Open(rid, at_s - took_s, obj, self.lines.line)
            self._order.appendleft(known)
        known.request = self._request(known, out, at_s)
        return self._ready()

    def finish(self) -> Iterator[Request]:
        for opened in self._order:  # received, never finished: aborted, or the log was cut
            yield opened.request or self._request(opened, {}, opened.arrival_s)

    def _ready(self) -> list[Request]:
        ready = []
        while self._order and self._order[0].request is not None:
            request = self._order.popleft().request
            assert request is not None
            ready.append(request)
        return ready

    def _request(self, opened: _Open, out: dict[str, Any], end_s: float) -> Request:
        obj, lines = opened.obj, self.lines
        if isinstance(obj.get("input_ids"), list):
            prompt = fields.tokens(obj, "input_ids", lines)
        elif isinstance(obj.get("text"), str):
            prompt = self._encode(obj["text"])
        else:
            raise lines.fail("the log holds neither 'input_ids' nor 'text' of this request", _HELP)
        meta = out.get("meta_info") if isinstance(out.get("meta_info"), dict) else {}
        assert isinstance(meta, dict)
        stated = meta.get("prompt_tokens")
        if isinstance(stated, int) and isinstance(obj.get("input_ids"), list) and stated != len(prompt):
            raise lines.fail(f"the prompt has {stated} tokens, but {len(prompt)} of them are in the log", _HELP)
        output: list[int] = []
        if isinstance(out.get("output_ids"), list):
            output = fields.tokens(out, "output_ids", lines)
        elif isinstance(out.get("text"), str) and out["text"] and self.options.get("tokenizer"):
            output = self._encode(out["text"])
        session = obj.get("session_params")
        info = RequestInfo(
            cache_salt=fields.text(obj, "cache_salt", lines) or fields.text(obj, "extra_key", lines) or None,
            priority=fields.integer(obj, "priority", lines),
            session_id=session.get("id") if isinstance(session, dict) else fields.text(obj, "session_id", lines),
            lora=obj["lora_path"] if isinstance(obj.get("lora_path"), str) else None,
            hints=fields.hints(obj) or _hints_in(obj.get("sampling_params")),
        )
        duration_ms = max(0, int((end_s - opened.arrival_s) * 1000))
        return make_request(self._relative_ms(opened.arrival_s), prompt, output, info, duration_ms)

    def _encode(self, text: str) -> list[int]:
        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(self.options.get("tokenizer"))
        return self._tokenizer.encode(text)

    def _seconds(self, row: dict[str, Any]) -> float:
        stamp = row.get("timestamp")
        try:
            return datetime.fromisoformat(stamp).timestamp() if isinstance(stamp, str) else float(stamp)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            raise self.lines.fail(f"'timestamp' is {stamp!r}, expected a date and time") from None

    def _relative_ms(self, at_s: float) -> int:
        return max(0, int((at_s - (self._first_s or 0.0)) * 1000))


def _hints_in(params: object) -> Envelope | None:
    custom = params.get("custom_params") if isinstance(params, dict) else None
    return fields.hints(custom) if isinstance(custom, dict) else None
