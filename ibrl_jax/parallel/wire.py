"""Frames between two processes, and the threads and connections that carry them.

A frame is a byte for its kind, eight for its length, and its bytes.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable
from enum import IntEnum

GO_ON = "the same command, started on every host, goes on from the last checkpoint"

BEAT_SECONDS = 1.0
ASLEEP_SECONDS = 5.0
"""A watcher that ticks this late was itself suspended: it blames nobody."""
PARTING_SECONDS = 5.0
"""How long the last words of a run may take."""

_HEAD = struct.Struct("!BQ")
_LENGTH = struct.Struct("!Q")


class Kind(IntEnum):
    HELLO = 1
    READY = 2
    BEAT = 3
    PART = 4
    WHOLE = 5
    FAIL = 6
    BYE = 7


class Wire:
    """One connection: frames out, frames in, and when anything last came in."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self._sending = threading.Lock()
        self.heard = time.monotonic()

    def send(self, kind: Kind, *parts: bytes) -> None:
        """Raises OSError if the other side is gone."""
        with self._sending:
            self._socket.sendall(_HEAD.pack(kind, sum(len(part) for part in parts)))
            for part in parts:
                self._socket.sendall(part)

    def try_send(self, kind: Kind, *parts: bytes) -> None:
        with contextlib.suppress(OSError):
            self.send(kind, *parts)

    def receive(self, limit: int | None = None) -> tuple[int, bytes]:
        """Raises OSError if the other side is gone, or sends more than `limit` bytes at once."""
        kind, length = _HEAD.unpack(self._read(_HEAD.size))
        if limit is not None and length > limit:
            raise ConnectionError("not a frame")
        return kind, self._read(length)

    def _read(self, count: int) -> bytes:
        into, have = bytearray(count), 0
        while have < count:
            got = self._socket.recv_into(memoryview(into)[have : have + (1 << 20)])
            if not got:
                raise ConnectionError("closed")
            have += got
            self.heard = time.monotonic()
        return bytes(into)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def framed(data: bytes) -> tuple[bytes, bytes]:
    return _LENGTH.pack(len(data)), data


def pieces(payload: bytes) -> list[bytes]:
    pieces, at = [], 0
    while at < len(payload):
        (length,) = _LENGTH.unpack_from(payload, at)
        at += _LENGTH.size
        pieces.append(payload[at : at + length])
        at += length
    return pieces


def connect(address: tuple[str, int], seconds: float) -> socket.socket:
    """A connection, tried again until the time is up. Raises OSError then."""
    until = time.monotonic() + seconds
    while True:
        try:
            made = socket.create_connection(address, timeout=max(0.1, seconds))
            made.settimeout(None)
            return made
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def thread(target: Callable[..., None], *args: object) -> None:
    threading.Thread(target=target, args=args, daemon=True, name=target.__qualname__).start()
