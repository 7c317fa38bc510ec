"""A star of sockets between the processes of a run: who is there, what they say, who is gone.

```
process 0: Hub <── Line of process 0
             ^──── Line of process 1
             ^──── Line of process 2
```

Every process holds a `Line` to the `Hub` of process 0. A line carries a beat a second both ways, so
a process that is killed is known of at once (its connection closes) and one that hangs, or whose
host is cut off, after a set silence; everyone is then told in one sentence who it was. The same
lines carry what the processes exchange in host memory, so that no program on the devices waits for
it.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time

from ibrl_jax.parallel.wire import (
    ASLEEP_SECONDS,
    BEAT_SECONDS,
    GO_ON,
    PARTING_SECONDS,
    Kind,
    Wire,
    framed,
    thread,
)

_FIRST_FRAME_BYTES = 1 << 16  # whoever is no process of ours is not listened to for longer


class Hub:
    """Process 0's end of all lines. It serves from the moment it is made."""

    def __init__(
        self,
        listener: socket.socket,
        count: int,
        welcome: dict[str, int | str],
        *,
        start_seconds: float,
        silence_seconds: float,
    ) -> None:
        """
        Args:
            listener: where the lines come in; closed once all have.
            welcome: what everybody is told when all are there.
            start_seconds: how long to wait until all are there.
            silence_seconds: how long a process may say nothing before it counts as gone.
        """
        self._listener = listener
        self._count = count
        self._welcome = welcome
        self._start_seconds = start_seconds
        self._silence_seconds = silence_seconds
        self._lock = threading.Lock()
        self._wires: dict[int, Wire] = {}
        self._names: dict[int, str] = {}
        self._parts: dict[int, tuple[bytes, bytes]] = {}
        self._left: set[int] = set()
        self._failed = ""  # why the run is over, once it is
        self._changed = threading.Condition(self._lock)
        thread(self._open)

    def close(self) -> None:
        """Wait a little until everyone has left, then close all lines."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._left) == self._count, PARTING_SECONDS)
        for wire in list(self._wires.values()):
            wire.close()

    def _open(self) -> None:
        with self._listener:
            self._gather()
        self._watch()

    def _gather(self) -> None:
        until = time.monotonic() + self._start_seconds
        self._listener.settimeout(0.2)
        while len(self._wires) < self._count:
            if time.monotonic() > until:
                missing = [str(i) for i in range(self._count) if i not in self._wires]
                self._fail(
                    f"process{'es' * (len(missing) > 1)} {', '.join(missing)} of {self._count} did "
                    f"not come within {self._start_seconds:g} s; start the same command on every "
                    "host, each with its own index"
                )
                return
            with contextlib.suppress(TimeoutError):
                connection, _ = self._listener.accept()
                thread(self._greet, Wire(connection))

    def _greet(self, wire: Wire) -> None:
        try:
            kind, payload = wire.receive(_FIRST_FRAME_BYTES)
            hello = json.loads(payload)
            index, count, name = int(hello["index"]), int(hello["count"]), str(hello["name"])
            if kind != Kind.HELLO:
                raise ValueError("no greeting")
        except (OSError, ValueError, KeyError, TypeError):
            wire.close()  # somebody else: not ours to complain about
            return
        with self._lock:
            taken = index in self._wires
            if not taken and count == self._count and not self._failed:
                self._wires[index], self._names[index] = wire, name
            everyone = len(self._wires) == self._count
        if self._failed:
            _refuse(wire, self._failed)
            return
        if taken:
            known = self._names[index]
            _refuse(wire, f"process {index} of {self._count} is there already, on {known}")
            return
        if count != self._count:
            sentence = (
                f"{name} was started as one of {count} processes, process 0 as one of "
                + str(self._count)
            )
            _refuse(wire, sentence)
            self._fail(sentence)
            return
        if everyone:
            names = [self._names[i] for i in range(self._count)]
            ready = json.dumps({**self._welcome, "names": names}).encode()
            for other in self._wires.values():
                other.try_send(Kind.READY, ready)
        self._serve(index, wire)

    def _serve(self, index: int, wire: Wire) -> None:
        """All that one process says, until it leaves."""
        try:
            while True:
                kind, payload = wire.receive()
                if kind == Kind.BEAT:
                    wire.send(Kind.BEAT)
                elif kind == Kind.PART:
                    self._collect(index, payload)
                elif kind == Kind.FAIL:
                    self._fail(f"{self._name(index)} stopped: {payload.decode()}")
                elif kind == Kind.BYE:
                    break
        except OSError:
            at = time.strftime("%H:%M:%S")
            self._fail(f"{self._name(index)} is gone since {at}; {GO_ON}")
        wire.close()
        with self._changed:
            self._left.add(index)
            self._changed.notify_all()

    def _collect(self, index: int, payload: bytes) -> None:
        what, _, data = payload.partition(b"\0")
        with self._lock:
            self._parts[index] = (what, data)
            if len(self._parts) < self._count:
                return
            parts, self._parts = self._parts, {}
        first = parts[0][0]
        for i, (other, _) in parts.items():
            if other != first:
                self._fail(
                    f"the processes are out of step: process 0 is at {first.decode()!r} and "
                    f"process {i} at {other.decode()!r}"
                )
                return
        whole = [piece for i in range(self._count) for piece in framed(parts[i][1])]
        for wire in self._wires.values():  # side by side: nobody waits for one that hangs
            thread(wire.try_send, Kind.WHOLE, *whole)

    def _watch(self) -> None:
        ticked = time.monotonic()
        while len(self._left) < self._count and not self._failed:
            time.sleep(BEAT_SECONDS)
            now = time.monotonic()
            for index, wire in self._wires.items():
                if now - ticked > ASLEEP_SECONDS:
                    wire.heard = now
                elif index not in self._left and now - wire.heard > self._silence_seconds:
                    self._fail(
                        f"{self._name(index)} is gone: nothing was heard of it for "
                        f"{self._silence_seconds:g} s; {GO_ON}"
                    )
            ticked = now

    def _fail(self, sentence: str) -> None:
        """Tell everybody once; process 0 last, since all lines end with it."""
        with self._lock:
            if self._failed:
                return
            self._failed = sentence
        thread(self._tell, sentence)

    def _tell(self, sentence: str) -> None:
        told = sentence.encode()
        wires = dict(self._wires)
        for index, wire in wires.items():
            if index:
                thread(wire.try_send, Kind.FAIL, told)
        with self._changed:
            self._changed.wait_for(lambda: self._left >= set(wires) - {0}, PARTING_SECONDS / 2)
        if 0 in wires:
            wires[0].try_send(Kind.FAIL, told)

    def _name(self, index: int) -> str:
        return f"process {index} of {self._count} ({self._names[index]})"


def _refuse(wire: Wire, sentence: str) -> None:
    wire.try_send(Kind.FAIL, sentence.encode())
    wire.close()
