"""The ghost process: `python -m kvpolicy.shadows.process SOCKET BOARD PARENT`, with file descriptors and a process id.

It lives as long as its scheduler holds the other end of the socket, and gives way to it.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from typing import Any

from .ghosts import Ghosts, Pool
from .pipe import Board, Receiver
from .recording import Recording
from .records import Record

__all__ = ["Worker", "main"]

#: How old a report may get while requests come without a pause.
REPORT_S = 0.5
#: How often an idle process looks whether its scheduler is still there.
LOOK_S = 2.0


class Worker:
    """Acts on messages; what it found is in :meth:`report`."""

    def __init__(self) -> None:
        self._key = os.urandom(32)
        self._ghosts: Ghosts | None = None
        self._recording: Recording | None = None
        self.fault = ""

    def handle(self, message: Any) -> None:
        """A record is a tuple, anything else a control message. Never raises."""
        try:
            if isinstance(message, tuple):
                self._serve(Record(*message))
            else:
                self._control(message)
        except Exception as error:
            self._fail(f"{type(error).__name__}: {error}")

    def _serve(self, record: Record) -> None:
        ghosts = self._ghosts
        if ghosts is None or self.fault:
            return
        full = ghosts.pages.of(record)
        if self._recording is not None:
            self._recording.add(record, full)
        ghosts.serve(record, full)

    def _control(self, message: dict[str, Any]) -> None:
        operation = message["op"]
        if operation == "start":
            self.fault = ""
            self._ghosts = Ghosts(Pool(**message["pool"]), self._key)
            self._ghosts.start(json.loads(message["active"]), json.loads(message["shadows"]))
            gc.collect()
        elif operation == "record":
            self._start_recording(message["path"])
        elif operation == "end_record" and self._recording is not None:
            self._recording.end()
            self._recording = None

    def _start_recording(self, path: str) -> None:
        ghosts = self._ghosts
        assert ghosts is not None
        tenants = (ghosts.active.get("eviction") or {}).get("tenants") or {}
        hints = ghosts.active.get("hints") or {}
        pool = ghosts.pool
        self._recording = Recording(
            path,
            pool.engine,
            pool.page_tokens,
            frozenset(tenants.get("named") or ()),
            named_classes=frozenset(hints.get("classes") or ()),
            are_hashes=ghosts.pages.are_hashes,
        )

    def _fail(self, why: str) -> None:
        """A fault ends the ghosts: what they say from then on would be wrong."""
        self.fault = self.fault or why
        print(f"kvpolicy: the shadow policies stopped: {why}", file=sys.stderr, flush=True)

    def report(self) -> dict[str, Any]:
        recording = self._recording
        return {
            **(self._ghosts.report() if self._ghosts is not None else {}),
            "fault": self.fault or None,
            "recorded_requests": recording.rows if recording is not None else None,
            "recording_is_full": recording.is_full if recording is not None else None,
        }


def main(arguments: list[str]) -> int:
    socket_fd, board_fd, parent = map(int, arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # meant for the server, whose end is ours too
    with suppress(OSError):
        os.nice(10)
    gc.disable()  # nodes are freed when they are removed; see Windows
    with socket.socket(fileno=socket_fd) as sock:
        sock.setblocking(True)
        _run(Worker(), Receiver(sock), Board(board_fd), parent)
    return 0


def _run(worker: Worker, receiver: Receiver, board: Board, parent: int) -> None:
    is_new, written_s = True, 0.0
    while True:
        is_waiting = bool(select.select([receiver.socket], [], [], 0)[0])
        if is_new and (not is_waiting or time.monotonic() - written_s > REPORT_S):
            board.write(json.dumps(worker.report()).encode())
            is_new, written_s = False, time.monotonic()
        if not is_waiting and not select.select([receiver.socket], [], [], LOOK_S)[0]:
            if os.getppid() != parent:
                return
            continue
        messages = receiver.receive()
        if messages is None:
            return
        for message in messages:
            worker.handle(message)
            is_new = True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
