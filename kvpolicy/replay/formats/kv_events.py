"""KV-cache event streams of SGLang and vLLM, one batch a row: which blocks were stored, not who asked for them.

A batch is ``[ts, [event, ...], dp_rank]`` or ``{"ts", "events"}``; an event an object with ``type`` or the older tagged
array. A stored block names its parent, so each store gives back one prompt: the parent's path and the new blocks.
Stores that grow the same path within two seconds are one request (chunked prefill, decoding). What hit completely
stored nothing and is invisible here: a replay of events shows less reuse than there was. Source:
vllm/distributed/kv_events.py, sglang/srt/disaggregation/kv_events.py.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from kvpolicy.eviction.base import RequestInfo
from kvpolicy.replay.formats.base import Format
from kvpolicy.replay.pages import number_of
from kvpolicy.replay.requests import Request, TraceInfo

__all__ = ["KvEvents"]

_STORED, _REMOVED, _CLEARED = "BlockStored", "BlockRemoved", "AllBlocksCleared"
_ARRAY_FIELDS = ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium")
_GROWS_S = 2.0


@dataclass(slots=True)
class _Growing:
    """A request whose path may still grow."""

    arrival_s: float
    last_s: float
    blocks: list[Hashable]
    info: RequestInfo


class KvEvents(Format):
    name = "kv-events"
    summary = "KV-cache events of SGLang or vLLM: [ts, [BlockStored, BlockRemoved, ...]]"

    @classmethod
    def matches(cls, row: Any) -> bool:
        if isinstance(row, list):
            return len(row) >= 2 and isinstance(row[1], list)
        return isinstance(row, dict) and ("events" in row or row.get("type") in (_STORED, _REMOVED, _CLEARED))

    def start(self, first: Any) -> TraceInfo:
        self.info = TraceInfo(self.name, self.block_tokens(_first_block_size(first), 16))
        self.info.notes.append("events show what was stored: requests that hit completely are missing from this replay")
        self._parent: dict[Hashable, Hashable | None] = {}  # of every block that is resident now
        self._growing: dict[Hashable, _Growing] = {}  # by the last block of the path
        self._first_s: float | None = None
        return self.info

    def row(self, row: Any) -> Iterable[Request]:
        at_s, events = self._batch(row)
        ready = [self._close(tail) for tail, g in list(self._growing.items()) if at_s - g.last_s > _GROWS_S]
        for event in events:
            kind = event.get("type")
            if event.get("medium") not in (None, "GPU"):
                continue  # another tier's copy
            if kind == _STORED:
                self._stored(event, at_s)
            elif kind == _REMOVED:
                for block in self._hashes(event):
                    self._parent.pop(block, None)
            elif kind == _CLEARED:
                self._parent.clear()
            else:
                raise self.lines.fail(f"unknown event '{kind}' (known: {_STORED}, {_REMOVED}, {_CLEARED})")
        return ready

    def finish(self) -> Iterator[Request]:
        for tail in list(self._growing):
            yield self._close(tail)

    def _stored(self, event: dict[str, Any], at_s: float) -> None:
        size = event.get("block_size")
        if size != self.info.block_tokens:
            raise self.lines.fail(f"block_size {size!r}, but this trace is read with {self.info.block_tokens}")
        hashes = self._hashes(event)
        if not hashes:
            return
        above = event.get("parent_block_hash")
        parent = None if above is None else self._block(above)
        growing = self._growing.pop(parent, None) if parent is not None else None
        if growing is None:
            lora = event.get("lora_name") or event.get("lora_id")
            info = RequestInfo(
                cache_salt=event.get("cache_salt"),
                session_id=event.get("session_id"),
                lora=None if lora is None else str(lora),
            )
            growing = _Growing(at_s, at_s, self._path(parent), info)
        for block in hashes:
            self._parent[block] = parent
            growing.blocks.append(block)
            parent = block
        growing.last_s = at_s
        self._growing[parent] = growing

    def _path(self, block: Hashable | None) -> list[Hashable]:
        path: list[Hashable] = []
        while block is not None and block in self._parent and len(path) < 1 << 24:
            path.append(block)
            block = self._parent[block]
        if block is not None:
            path.append(block)  # stored before this stream began
        path.reverse()
        return path

    def _close(self, tail: Hashable) -> Request:
        growing = self._growing.pop(tail)
        if self._first_s is None:
            self._first_s = growing.arrival_s
        arrival_ms = max(0, int((growing.arrival_s - self._first_s) * 1000))
        return Request(arrival_ms, len(growing.blocks) * self.info.block_tokens, 0, growing.blocks, None, growing.info)

    def _batch(self, row: Any) -> tuple[float, list[dict[str, Any]]]:
        if isinstance(row, list):
            stamp, events = row[0], row[1] if len(row) > 1 else None
        elif "events" in row:
            stamp, events = row.get("ts"), row["events"]
        else:
            stamp, events = row.get("ts", 0.0), [row]
        if isinstance(stamp, bool) or not isinstance(stamp, int | float):
            raise self.lines.fail(f"the batch's time is {stamp!r}, expected seconds")
        if not isinstance(events, list):
            raise self.lines.fail("the batch holds no list of events")
        return float(stamp), [self._event(event) for event in events]

    def _event(self, event: Any) -> dict[str, Any]:
        if isinstance(event, dict):
            return event
        if isinstance(event, list) and event and isinstance(event[0], str):
            return {"type": event[0], **dict(zip(_ARRAY_FIELDS, event[1:], strict=False))}
        raise self.lines.fail("an event is an object with 'type', or an array that begins with it")

    def _hashes(self, event: dict[str, Any]) -> list[Hashable]:
        hashes = event.get("block_hashes")
        if not isinstance(hashes, list):
            raise self.lines.fail(f"'{event.get('type')}' without a list of block_hashes")
        return [self._block(block) for block in hashes]

    def _block(self, value: Any) -> Hashable:
        """A block's hash, a number, a text or bytes as a list, as something equal in every run."""
        if isinstance(value, str):
            return number_of(value)
        if isinstance(value, list) and set(map(type, value)) <= {int}:
            return tuple(value)
        if not isinstance(value, int):
            raise self.lines.fail(f"a block hash is a {type(value).__name__}, expected a number, a string or bytes")
        return value


def _first_block_size(row: Any) -> object:
    events = row[1] if isinstance(row, list) else row.get("events", [row])
    for event in events if isinstance(events, list) else []:
        if isinstance(event, dict) and event.get("type") == _STORED:
            return event.get("block_size")
        if isinstance(event, list) and len(event) > 4 and event[0] == _STORED:
            return event[4]
    return None
