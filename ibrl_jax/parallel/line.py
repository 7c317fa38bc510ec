"""One process's end of its line to the hub: the beat, what is exchanged, and the end.

Also the relay that keeps JAX's own runtime from ending the process first.
"""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import threading
import time
from collections.abc import Callable

from ibrl_jax.errors import UserError
from ibrl_jax.parallel.wire import (
    ASLEEP_SECONDS,
    BEAT_SECONDS,
    GO_ON,
    PARTING_SECONDS,
    Kind,
    Wire,
    connect,
    pieces,
    thread,
)


class Line:
    """One process's end of its line."""

    def __init__(
        self,
        address: tuple[str, int],
        index: int,
        count: int,
        *,
        start_seconds: float,
        silence_seconds: float,
        end: Callable[[str], None],
    ) -> None:
        """Connects, and waits until all processes are there: `welcome` is what the hub then says.

        Args:
            end: called, in another thread, with the sentence that says why the run is over.

        Raises:
            UserError: there is no hub, or it will not have this process, or others do not come.
        """
        self._index, self._count = index, count
        self._silence_seconds = silence_seconds
        self._end = end
        self._answers: queue.SimpleQueue[list[bytes] | str] = queue.SimpleQueue()
        self._leaving = self._failing = False
        self._ended = threading.Lock()
        self._told = threading.Event()
        self._wire = _reach(address, start_seconds)
        me = {"index": index, "count": count, "name": socket.gethostname()}
        refusal = f"process 0 of {count} ended before all were there"
        try:
            self._wire.send(Kind.HELLO, json.dumps(me).encode())
            kind, payload = self._wire.receive()
        except OSError as error:
            self._wire.close()
            raise UserError(refusal) from error
        if kind != Kind.READY:
            self._wire.close()
            raise UserError(payload.decode() or refusal)
        self.welcome = json.loads(payload)
        self._first = f"process 0 of {count} ({self.welcome['names'][0]})"
        self._wire.heard = time.monotonic()
        thread(self._read)
        thread(self._beat)

    def exchange(self, what: str, data: bytes) -> list[bytes]:
        """Everybody's `data`, by index. All must ask for the same `what`, in the same order.

        Raises:
            UserError: another process is gone or stopped (where `end` lets this one live on).
        """
        self._wire.try_send(Kind.PART, what.encode(), b"\0", data)
        answer = self._answers.get()
        if isinstance(answer, str):
            raise UserError(answer)
        return answer

    def fail(self, sentence: str) -> None:
        """Tell all others why this process stops; returns once they know, or after a while."""
        self._failing = True
        self._wire.try_send(Kind.FAIL, sentence.encode())
        self._told.wait(PARTING_SECONDS)

    def close(self) -> None:
        """Leave: from now on nobody is missed."""
        self._leaving = True
        self._wire.try_send(Kind.BYE)

    def _read(self) -> None:
        try:
            while True:
                kind, payload = self._wire.receive()
                if kind == Kind.WHOLE:
                    self._answers.put(pieces(payload))
                elif kind == Kind.FAIL:
                    self._over(payload.decode())
                    return
        except OSError:
            if not self._leaving:
                at = time.strftime("%H:%M:%S")
                self._over(f"{self._first} is gone since {at}; {GO_ON}")
        finally:
            self._wire.close()

    def _beat(self) -> None:
        ticked = time.monotonic()
        while not self._leaving and not self._told.is_set():
            self._wire.try_send(Kind.BEAT)
            time.sleep(BEAT_SECONDS)
            now = time.monotonic()
            if now - ticked > ASLEEP_SECONDS:
                self._wire.heard = now
            elif now - self._wire.heard > self._silence_seconds:
                self._over(
                    f"{self._first} is gone: nothing was heard of it for "
                    f"{self._silence_seconds:g} s; {GO_ON}"
                )
                return
            ticked = now

    def _over(self, sentence: str) -> None:
        if not self._ended.acquire(blocking=False):
            return
        self._told.set()
        if not self._failing:
            self._end(sentence)
        self._answers.put(sentence)


class Relay:
    """Passes a loopback port on to a port elsewhere, and stays silent when that is gone.

    JAX's runtime ends a process with a dump of its stack as soon as its connection to the
    coordinator breaks. Behind a relay it meets silence instead, for as long as its own patience
    goes, and the process ends by what its `Line` says.
    """

    def __init__(self, target: tuple[str, int], start_seconds: float) -> None:
        self._target = target
        self._start_seconds = start_seconds
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        thread(self._accept)

    def _accept(self) -> None:
        while True:
            near, _ = self._listener.accept()
            thread(self._connect, near)

    def _connect(self, near: socket.socket) -> None:
        try:
            far = connect(self._target, self._start_seconds)
        except OSError:
            near.close()
            return
        thread(_pass_on, far, near)
        _pass_on(near, far)
        far.close()
        near.close()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    """Until the source ends, of which the sink is told nothing."""
    with contextlib.suppress(OSError):
        while chunk := source.recv(1 << 16):
            sink.sendall(chunk)


def _reach(address: tuple[str, int], seconds: float) -> Wire:
    try:
        return Wire(connect(address, seconds))
    except OSError as error:
        raise UserError(
            f"no process 0 at {address[0]}:{address[1]} within {seconds:g} s "
            f"({error.strerror or error}); start it there, or name the right host and port"
        ) from error
