"""A scheduler's side of shadow policies and recordings: what it tells the ghost process, and what it hears from it.

One object a scheduler, made when somebody first asks for shadows or a recording. Only the scheduler's own thread calls
it. Nothing here waits or raises, and nothing of it goes into a decision.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import time
from typing import Any

from kvpolicy.runtime.active import ActivePolicy

from .pipe import MAX_BACKLOG_BYTES, Board, Sender
from .records import Record

__all__ = ["MAX_SHADOWS", "Feed"]

logger = logging.getLogger("kvpolicy")

MAX_SHADOWS = 8


class Feed:
    """See the module text."""

    def __init__(
        self,
        active: ActivePolicy,
        engine: str,
        content: str,
        page_tokens: int,
        rank: int = 0,
        *,
        max_backlog_bytes: int = MAX_BACKLOG_BYTES,
    ) -> None:
        """``content`` of the records: "tokens" or "hashes", one a page. ``rank``: the data-parallel one."""
        self.is_open = False  # whether anybody wants records: the one thing that each finished request looks at
        self.process: subprocess.Popen[bytes] | None = None
        self.requests = 0  # told to the process that runs now
        self.dropped_requests = 0  # for want of room, or because the process is gone
        self.spent_s = 0.0  # of the scheduler's thread, on those told
        self._active, self._rank = active, rank
        self._pool = {
            "engine": engine,
            "content": content,
            "page_tokens": page_tokens,
            "pool_tokens": active.pool_tokens,
        }
        self._max_backlog_bytes = max_backlog_bytes
        self._sender: Sender | None = None
        self._board: Board | None = None
        self._shadows: list[dict[str, Any]] = []  # flattened
        self._running: tuple[str, bool] = ("", False)  # digest of the policy that the ghosts know as the running one
        self._recording = ""  # the file
        self._started_s = 0.0
        self._refused = ""  # why the last message was
        self._ended = ""  # why the process is no more

    # -- requests --

    def put(self, record: Record, began_s: float) -> None:
        """Tell of one finished request; ``began_s`` of `time.perf_counter`, when the adapter began to describe it."""
        try:
            if self._sender is None:
                self.dropped_requests += 1
                return
            if self._running != (self._active.digest, self._active.is_off):
                self._start_ghosts()  # another policy took over
            if self._sender.put(tuple(record)):
                self.requests += 1
            else:
                self.dropped_requests += 1
            self.spent_s += time.perf_counter() - began_s
        except OSError:
            self.dropped_requests += 1
            self._lost()
        except Exception:
            self.fault("a request could not be told to the shadow policies")

    def fault(self, message: str) -> None:
        """Something of ours failed while a request was described: there are no shadows from now on."""
        self._active.note_fallback("shadows", f"{message}; there are none from now on")
        self._stop()
        self.is_open = False
        self._ended = message

    # -- messages --

    def handle(self, message: dict[str, Any]) -> None:
        """Act on one message; :meth:`to_json` has the answer. Never raises."""
        self._refused = ""
        try:
            operation = message["op"]
            if operation == "shadow_add":
                self._add(message["policies"])
            elif operation == "shadow_clear":
                self._shadows = []
                self._settle()
            elif operation == "shadow_record":
                self._record(message["path"])
            elif operation == "shadow_end_record":
                self._end_record()
        except OSError:
            self._lost()
            self._refused = self._ended
        except Exception as error:
            self.fault("a message to the shadow policies failed")
            self._refused = f"{type(error).__name__}: {error}"

    def _add(self, flats: list[dict[str, Any]]) -> None:
        if len(self._shadows) + len(flats) > MAX_SHADOWS:
            self._refused = f"{len(self._shadows)} shadows run, and at most {MAX_SHADOWS} may: clear them first"
            return
        self._shadows = [*self._shadows, *flats]
        self._settle()

    def _record(self, path: str) -> None:
        if self._recording and not self._ended:
            self._refused = "another recording is under way"
            return
        if self._sender is None:
            self._spawn()
            self._start_ghosts()
        self._recording, self.is_open = f"{path}-{self._rank}", True
        assert self._sender is not None
        self._sender.put({"op": "record", "path": self._recording}, is_control=True)

    def _end_record(self) -> None:
        self._recording = ""
        if self._sender is not None:
            self._sender.put({"op": "end_record"}, is_control=True)
        self.is_open = bool(self._shadows)

    def _settle(self) -> None:
        """Have the process that is wanted, with what is wanted of it."""
        if not self._shadows and not self._recording:
            self._stop()
            self.is_open, self._ended = False, ""
            return
        if self._sender is None:
            self._spawn()
        self._start_ghosts()
        self.is_open = True

    # -- the process --

    def _spawn(self) -> None:
        """A fresh interpreter, so nothing of the engine's state comes along."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * 1024 * 1024)  # as much of it as the system allows
        board = Board.create()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "kvpolicy.shadows.process", str(theirs.fileno()), str(board.fd), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(), board.fd),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        theirs.close()
        self._sender, self._board = Sender(ours, self._max_backlog_bytes), board
        self._ended = ""
        self._recording = ""
        logger.info("kvpolicy: shadow policies run in process %d", self.process.pid)

    def _start_ghosts(self) -> None:
        """All of them, on empty caches."""
        assert self._sender is not None
        active = self._active
        self._running = (active.digest, active.is_off)
        flat = {key: value for key, value in active.flat.items() if not (active.is_off and key in _OFF)}
        start = {"op": "start", "pool": self._pool, "active": json.dumps(flat), "shadows": json.dumps(self._shadows)}
        self.requests = self.dropped_requests = 0
        self.spent_s, self._started_s = 0.0, time.monotonic()
        self._sender.put(start, is_control=True)

    def _lost(self) -> None:
        """The process is gone, though nobody asked it to."""
        code = None if self.process is None else self.process.poll()
        self._stop()
        self._ended = "the ghost process is gone" + ("" if code is None else f" (exit code {code})")
        logger.error(
            "kvpolicy: %s: the shadow policies and the recording have ended; requests go on as before. "
            "`kvpolicy shadow clear`, then `shadow add` starts them again",
            self._ended,
        )

    def _stop(self) -> None:
        """Close our end: the process ends by itself."""
        if self._sender is not None:
            self._sender.close()
        if self._board is not None:
            self._board.close()
        self._sender = self._board = None
        self._recording = ""

    # -- status --

    def to_json(self) -> dict[str, Any]:
        """The status block's `shadows`. Never raises."""
        report: dict[str, Any] = {}
        try:
            if self.process is not None and self.process.poll() is not None and self._sender is not None:
                self._lost()
            if self._sender is not None and self._board is not None:
                self._sender.flush()
                report = json.loads(self._board.read() or b"{}")
                if not self.is_open and self._sender.is_empty:
                    self._stop()  # a recording has ended, and all of it is told
        except OSError:
            self._lost()
        except Exception:
            self.fault("the report of the shadow policies could not be read")
        told = self.requests
        return {
            "rank": self._rank,
            "state": "dead" if self._ended else "running" if self._sender is not None else "none",
            "ended": self._ended or None,
            "refused": self._refused,
            "pid": self.process.pid if self.process is not None and self._sender is not None else None,
            "policies": len(self._shadows),
            "since_s": round(time.monotonic() - self._started_s, 3) if self._sender is not None else None,
            "told_requests": told,
            "dropped_requests": self.dropped_requests,
            "us_per_request": round(1e6 * self.spent_s / told, 1) if told else None,
            "pool_tokens": self._pool["pool_tokens"],
            "page_tokens": self._pool["page_tokens"],
            **report,
        }


#: Sections of a policy that do nothing while it is switched off.
_OFF = ("eviction", "allocator", "hints")
