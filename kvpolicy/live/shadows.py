"""The HTTP side of shadow policies and recordings, the same for every engine: what is asked for, and the way to the
schedulers and back.

Answers are ``(status, JSON)`` as in :mod:`kvpolicy.live.server`. A recording is written by the ghost processes into a
private folder that this process names, and is answered with; a caller never names a path.
"""

from __future__ import annotations

import asyncio
import json
import logging
import tempfile
import time
from pathlib import Path
from typing import Any, Protocol

from kvpolicy.language import has_errors, load_text
from kvpolicy.language.dump import dump

from .server import MAX_BODY_BYTES, Result, uncut

__all__ = ["MAX_RECORD_S", "ShadowChannel", "ShadowDesk"]

logger = logging.getLogger("kvpolicy")

#: The longest recording; one that grows too large ends earlier.
MAX_RECORD_S = 3600.0
#: How long a ghost process that is behind may take to finish its file.
FINISH_S = 60.0


class ShadowChannel(Protocol):
    """The way to the schedulers of every data-parallel group."""

    engine: str

    async def shadow(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        """One message to all of them; the `shadows` of each one's status afterwards."""


class ShadowDesk:
    """Takes requests for the shadows of one server."""

    def __init__(self, channel: ShadowChannel) -> None:
        self._channel = channel
        self._over: asyncio.Future[None] | None = None  # of the recording under way: done when it shall end

    async def shadows(self, body: bytes) -> Result:
        """``{"add": [flattened policies]}``, whose ghosts start beside those there are, or ``{"clear": true}``."""
        asked = _parsed(body)
        if not isinstance(asked, dict):
            return asked
        if asked.get("clear") is True:
            return await self._tell({"op": "shadow_clear"})
        flats = asked.get("add")
        if not isinstance(flats, list) or not flats:
            return 400, {"error": "`add` is a list of flattened policies: kvpolicy shadow add makes one"}
        checked: list[dict[str, Any]] = []
        for number, flat in enumerate(flats):
            found = self._checked(flat, number)
            if isinstance(found, tuple):
                return found
            checked.append(found)
        return await self._tell({"op": "shadow_add", "policies": checked})

    def _checked(self, flat: Any, number: int) -> dict[str, Any] | Result:
        if not isinstance(flat, dict) or "extends" in flat:
            return 400, {"error": f"`add[{number}]` is no flattened policy without `extends`"}
        try:
            result = load_text(dump(flat).encode(), f"<policy {number}>", self._channel.engine)
        except Exception as error:  # what no file can hold: a number for a key, a surrogate
            return 400, {"error": f"policy {number} cannot be written as a file: {type(error).__name__}"}
        if has_errors(result.diagnostics) or result.policy is None:
            diagnostics = [d.to_json() for d in result.diagnostics]
            return 400, {"error": f"policy {number} has errors", "diagnostics": diagnostics}
        return result.flat

    async def record(self, body: bytes) -> Result:
        """``{"for_s": seconds}``: answers when they are over, with each data-parallel group's trace. ``{"end": true}``:
        the recording under way is over. So it is when its caller goes away."""
        asked = _parsed(body)
        if not isinstance(asked, dict):
            return asked
        if asked.get("end") is True:
            return self._end()
        for_s = asked.get("for_s")
        if isinstance(for_s, bool) or not isinstance(for_s, (int, float)) or not 0 < for_s <= MAX_RECORD_S:
            return 400, {"error": f"`for_s` is a number of seconds up to {MAX_RECORD_S:g}"}
        if self._over is not None:
            return 409, {"error": "another recording is under way"}
        self._over = asyncio.get_running_loop().create_future()
        try:
            with tempfile.TemporaryDirectory(prefix="kvpolicy-record-", ignore_cleanup_errors=True) as folder:
                recording = asyncio.ensure_future(self._record(Path(folder), for_s, self._over))
                try:
                    return await asyncio.shield(recording)
                except asyncio.CancelledError:
                    self._end()
                    await uncut(recording)  # the ghost processes write their files to the end
                    raise
        finally:
            self._over = None

    def _end(self) -> Result:
        if self._over is None:
            return 409, {"error": "no recording is under way"}
        if not self._over.done():
            self._over.set_result(None)
        return 200, {"ended": True}

    async def _record(self, folder: Path, for_s: float, over: asyncio.Future[None]) -> Result:
        status, answer = await self._tell({"op": "shadow_record", "path": str(folder / "trace")})
        if status != 200:
            return status, answer
        start_s = time.monotonic()
        await asyncio.wait({over}, timeout=for_s)
        ran_s = time.monotonic() - start_s
        engines = await self._channel.shadow({"op": "shadow_end_record"})
        deadline_s = time.monotonic() + FINISH_S
        files = {int(engine["rank"]): folder / f"trace-{engine['rank']}" for engine in engines}
        while not all(file.exists() for file in files.values()):
            if why := [engine["ended"] for engine in engines if engine["state"] == "dead"]:
                return 500, {"error": "; ".join(why), "why": why}
            if time.monotonic() > deadline_s:
                return 500, {
                    "error": f"no trace within {FINISH_S:g} s: a scheduler is far behind, or on another machine than "
                    "this server's HTTP process, and cannot hand it a file"
                }
            await asyncio.sleep(0.1)
            engines = await self._channel.shadow({"op": "shadow_look"})
        return 200, {
            "engine": self._channel.engine,
            "ran_s": round(ran_s, 3),
            "engines": [
                {
                    "rank": engine["rank"],
                    "dropped_requests": engine["dropped_requests"],
                    "trace": files[int(engine["rank"])].read_text(encoding="ascii"),
                }
                for engine in sorted(engines, key=lambda engine: int(engine["rank"]))
            ],
        }

    async def _tell(self, message: dict[str, Any]) -> Result:
        try:
            engines = await self._channel.shadow(message)
        except Exception as error:
            logger.exception("kvpolicy: the schedulers could not be told of shadow policies")
            return 500, {"error": f"{type(error).__name__}: {error}"}
        if not engines:
            return 500, {"error": "no scheduler answered"}
        if why := [engine["refused"] for engine in engines if engine["refused"]]:
            return 422, {"error": "; ".join(why), "why": why}
        return 200, {"engines": engines}


def _parsed(body: bytes) -> dict[str, Any] | Result:
    if len(body) > MAX_BODY_BYTES:
        return 413, {"error": f"the body is larger than {MAX_BODY_BYTES // 1024} KiB"}
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        return 400, {"error": "the body is no JSON"}
    return asked if isinstance(asked, dict) else (400, {"error": "the body is no JSON object"})
