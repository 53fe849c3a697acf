"""Between a scheduler and its ghost process: records one way, through a socket that never makes the scheduler wait; the
report the other way, on a board in shared memory that the scheduler reads when somebody asks.

Both ends are of one interpreter, hence `marshal`.
"""

from __future__ import annotations

import marshal
import os
import socket
import struct
import zlib
from collections.abc import Iterator
from typing import Any

__all__ = ["MAX_BACKLOG_BYTES", "Board", "Receiver", "Sender"]

#: What waits on the scheduler's side at most; a record that does not fit any more is dropped.
MAX_BACKLOG_BYTES = 16 * 1024 * 1024

_LENGTH = struct.Struct("<I")


class Sender:
    """The scheduler's end. Nothing here waits."""

    def __init__(self, sock: socket.socket, max_backlog_bytes: int = MAX_BACKLOG_BYTES) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._backlog = bytearray()
        self._max_backlog_bytes = max_backlog_bytes

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits on this side."""
        return not self._backlog

    def put(self, message: Any, *, is_control: bool = False) -> bool:
        """Send, or keep for later; False where there is no room. A control message always has room.

        Raises:
            OSError: the other end is gone.
        """
        data = marshal.dumps(message)
        backlog = self._backlog
        if not is_control and len(backlog) + len(data) > self._max_backlog_bytes:
            self.flush()
            if len(backlog) + len(data) > self._max_backlog_bytes:
                return False
        backlog += _LENGTH.pack(len(data))
        backlog += data
        self.flush()
        return True

    def flush(self) -> None:
        """Send what the socket takes now. Raises OSError where the other end is gone."""
        backlog = self._backlog
        try:
            while backlog:
                del backlog[: self._socket.send(backlog)]
        except BlockingIOError:
            pass

    def close(self) -> None:
        self._socket.close()


class Receiver:
    """The ghost process's end."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self._data = bytearray()

    def receive(self) -> Iterator[Any] | None:
        """The messages that are complete with what is there now; waits for some. None: the other end is closed."""
        data = self.socket.recv(1 << 20)
        if not data:
            return None
        self._data += data
        return self._messages()

    def _messages(self) -> Iterator[Any]:
        data, at = self._data, 0
        while len(data) - at >= _LENGTH.size:
            stop = at + _LENGTH.size + _LENGTH.unpack_from(data, at)[0]
            if len(data) < stop:
                break
            yield marshal.loads(memoryview(data)[at + _LENGTH.size : stop])
            at = stop
        del data[:at]


class Board:
    """The latest text that one process wrote, for another to read at any time without waiting.

    Two places are written in turn, each with a checksum: one of them is whole whenever the other is being written.
    """

    _HEAD = struct.Struct("<QII")  # number of the text, bytes, checksum
    _PLACE_BYTES = 256 * 1024

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._number = 0

    @classmethod
    def create(cls) -> Board:
        fd = os.memfd_create("kvpolicy-shadows")
        os.ftruncate(fd, 2 * cls._PLACE_BYTES)
        return cls(fd)

    def write(self, text: bytes) -> None:
        """Raises ValueError for one that does not fit."""
        if len(text) > self._PLACE_BYTES - self._HEAD.size:
            raise ValueError(f"a report of {len(text)} bytes")
        self._number += 1
        head = self._HEAD.pack(self._number, len(text), zlib.crc32(text))
        os.pwrite(self.fd, head + text, self._number % 2 * self._PLACE_BYTES)

    def read(self) -> bytes | None:
        """The latest whole text; None before the first."""
        found: tuple[int, bytes] | None = None
        for place in range(2):
            data = os.pread(self.fd, self._PLACE_BYTES, place * self._PLACE_BYTES)
            number, size, checksum = self._HEAD.unpack_from(data)
            text = data[self._HEAD.size : self._HEAD.size + size]
            if number and zlib.crc32(text) == checksum and (found is None or number > found[0]):
                found = number, text
        return None if found is None else found[1]

    def close(self) -> None:
        os.close(self.fd)
