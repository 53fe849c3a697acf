"""JSONL of prompts: token ids, a text, or chat messages (the last two with ``--tokenizer``).

One request a row, under the names that engines and clients use: ``tokens`` | ``input_ids`` | ``prompt_token_ids``, or
``prompt`` | ``text``, or ``messages``; ``output_ids`` | ``output_tokens`` | ``output_token_ids`` (ids) or ``output``
(text); ``timestamp`` (ms) or ``arrival_s``; ``cache_salt``, ``priority``, ``session_id``, ``lora``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvpolicy.eviction.base import RequestInfo
from kvpolicy.replay.formats import fields
from kvpolicy.replay.formats.base import Format
from kvpolicy.replay.requests import Request, TraceInfo
from kvpolicy.replay.tokenizer import Tokenizer, load_tokenizer

__all__ = ["Tokens"]

_IDS = ("tokens", "input_ids", "prompt_token_ids")
_TEXTS = ("messages", "prompt", "text")
_OUTPUT_IDS = ("output_ids", "output_tokens", "output_token_ids")


class Tokens(Format):
    name = "tokens"
    summary = "prompts: tokens | input_ids, or text | messages with --tokenizer; optional output, times, salt"

    @classmethod
    def matches(cls, row: Any) -> bool:
        return isinstance(row, dict) and any(key in row for key in (*_IDS, *_TEXTS))

    def start(self, first: Any) -> TraceInfo:
        has_times = "timestamp" in first or "arrival_s" in first
        self.info = TraceInfo(self.name, 1, has_times=has_times, has_outputs=True)
        if not has_times:
            self.info.notes.append("the rows carry no times: requests are one second apart")
        self._rows = 0
        self._tokenizer: Tokenizer | None = None
        return self.info

    def row(self, row: Any) -> Iterable[Request]:
        lines = self.lines
        prompt = self._ids(row, _IDS) or self._encoded(row)
        output = self._ids(row, _OUTPUT_IDS) or self._text(row.get("output"))
        if row.get("arrival_s") is not None:
            arrival_ms = fields.milliseconds(row, "arrival_s", lines, scale=1000.0)
        elif row.get("timestamp") is not None:
            arrival_ms = fields.milliseconds(row, "timestamp", lines)
        else:
            arrival_ms = self._rows * 1000
        self._rows += 1
        info = RequestInfo(
            cache_salt=fields.text(row, "cache_salt", lines),
            priority=fields.integer(row, "priority", lines),
            session_id=fields.text(row, "session_id", lines),
            lora=fields.text(row, "lora", lines),
            hints=fields.hints(row),
        )
        return (make_request(arrival_ms, prompt, output, info),)

    def _ids(self, row: dict[str, Any], keys: tuple[str, ...]) -> list[int]:
        key = next((key for key in keys if row.get(key) is not None), None)
        return fields.tokens(row, key, self.lines) if key is not None else []

    def _encoded(self, row: dict[str, Any]) -> list[int]:
        key = next((key for key in _TEXTS if row.get(key) is not None), None)
        if key is None:
            raise self.lines.fail(f"no prompt in this row: one of {', '.join((*_IDS, *_TEXTS))}")
        if key == "messages":
            messages = row[key]
            if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
                raise self.lines.fail("'messages' is no list of objects")
            try:
                return self._load().chat(messages)
            except (KeyError, TypeError, ValueError) as error:
                raise self.lines.fail(f"the tokenizer refuses these messages: {error}") from None
        return self._text(fields.text(row, key, self.lines))

    def _text(self, text: object) -> list[int]:
        if text is None:
            return []
        if not isinstance(text, str):
            raise self.lines.fail(f"a {type(text).__name__} where a text is expected")
        return self._load().encode(text)

    def _load(self) -> Tokenizer:
        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(self.options.get("tokenizer"))
        return self._tokenizer


def make_request(
    arrival_ms: int, prompt: list[int], output: list[int], info: RequestInfo, duration_ms: int | None = None
) -> Request:
    """A request of known tokens. The last output token is sampled and never fed back: no KV is computed for it."""
    full = [*prompt, *output[:-1]] if len(output) > 1 else None
    return Request(arrival_ms, len(prompt), len(output), prompt, full, info, duration_ms)
