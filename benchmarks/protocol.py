"""How the bench speaks with its workers: one process an implementation, JSON lines both ways.

A worker lives through the whole bench. Between calls it waits on its standard input, so that it
takes no processor time from the one that is being measured. What its libraries print goes to its
standard error, which the parent keeps in a file.

```
parent                                           worker
Worker("tunix", [python, "-m", ...], env)        serve({"load": load, "generate": generate})
  .call("generate", seed=1)    {"method", "args"}  -> generate(seed=1)
  <- dict                      {"result"} | {"error"}
```

This file needs nothing but the standard library and numpy, since each worker has an environment of
its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

SHOWN = 12
"""Lines of a worker's standard error that a message quotes."""


class WorkerError(RuntimeError):
    """A worker that could not do what it was asked, or that died; the message is its own."""


class Worker:
    """The parent's end: a process that answers calls, one at a time.

    Args:
        name: how messages call it.
        command: the program and its arguments; it calls `serve`.
        env: variables on top of the parent's own.
        log: the file of its standard error; a temporary one if None.
    """

    def __init__(
        self, name: str, command: Sequence[str], env: Mapping[str, str], log: Path | None = None
    ) -> None:
        self.name = name
        self._log: Any = log.open("w+b") if log else tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, **env},
        )

    def call(self, method: str, **args: Any) -> dict[str, Any]:
        """What the worker's handler gives for these arguments.

        Raises:
            WorkerError: with the worker's message, or its last words if it died.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        line = _dumps({"method": method, "args": args})
        try:
            stdin.write(line)
            stdin.flush()
            answer = stdout.readline()
        except BrokenPipeError:
            answer = b""
        if not answer:
            raise WorkerError(f"{self.name} died in '{method}'{self._last_words()}")
        reply = json.loads(answer)
        if "error" in reply:
            raise WorkerError(f"{self.name} could not do '{method}': {reply['error']}")
        return reply["result"]

    def close(self) -> None:
        """End the process; it may have ended already."""
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _last_words(self) -> str:
        code = self._process.wait()
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()[-SHOWN:]
        return "\n".join([f" (exit code {code})", *(f"  {line}" for line in lines)])


def serve(handlers: Mapping[str, Callable[..., dict[str, Any]]]) -> None:
    """Answer calls from standard input until it ends; a handler's error is an answer too."""
    calls, answers = _take_over()
    with calls, answers:
        for line in calls:
            try:
                request = json.loads(line)
                reply = {"result": handlers[request["method"]](**request["args"])}
            except KeyboardInterrupt:
                return
            except Exception as error:
                traceback.print_exc()
                reply = {"error": f"{type(error).__name__}: {error}"}
            answers.write(_dumps(reply))
            answers.flush()


def _take_over() -> tuple[Any, Any]:
    """The pipes to the parent; what else this process prints or reads no longer meets them."""
    calls, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    sys.stdout.flush()
    os.dup2(2, 1)
    return calls, answers


def _dumps(value: Any) -> bytes:
    return (json.dumps(value, default=_plain) + "\n").encode()


def _plain(value: Any) -> Any:
    """Numpy's numbers and arrays, and paths, as JSON has them."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} is nothing that JSON has")
