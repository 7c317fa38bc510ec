"""Several processes as one run: how they start, share the work, tell each other, and end.

```
with start(settings, os.environ) as hosts:
    mine = hosts.share(matches, key=lambda match: match.draw)
    everyones = hosts.exchange("trajectories", play(mine))      # the same list in every process
```

All processes run the same program and decide the same things from the same data; what only one may
do (writing files) the first does. One process is the same story with nobody to talk to.

A process that ends before the others takes all of them with it: whoever is killed, hangs or stops
for a reason of its own, every other process ends with exit code 2 and one sentence that says which
it was. No process lives on to wait for one that is gone, be it inside a collective or in Python.
"""

from __future__ import annotations

import io
import os
import pickle
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NoReturn, TypeVar

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding

from ibrl_jax.entry import unwritable
from ibrl_jax.errors import UserError
from ibrl_jax.parallel.hub import Hub
from ibrl_jax.parallel.launch import Place, find_place
from ibrl_jax.parallel.line import Line, Relay

T = TypeVar("T")

_PATIENCE_SECONDS = 100.0  # JAX's own, at least: longer than ours, so that ours speaks first
_NEWS_SECONDS = 3.0


@dataclass(frozen=True, kw_only=True)
class HostSettings:
    """How the processes find each other.

    `coordinator`: `host:port` of process 0, or "" for what the launcher's environment says.
    `count`, `index`: processes in all, and which this one is; 0 and -1 for what the environment
    says. `start_seconds`: how long to wait for all of them. `silence_seconds`: how long one may say
    nothing before it counts as gone.
    """

    coordinator: str
    count: int
    index: int
    start_seconds: float
    silence_seconds: float

    def __post_init__(self) -> None:
        if self.start_seconds <= 0 or self.silence_seconds < 5:
            raise UserError(
                f"hosts.start_seconds is {self.start_seconds} and hosts.silence_seconds is "
                f"{self.silence_seconds}; the first must be above 0, the second at least 5"
            )


class Hosts:
    """The processes of a run, seen from one of them. Use it as a context."""

    def __init__(self, index: int, count: int, line: Line | None, hub: Hub | None) -> None:
        self.index, self.count = index, count
        self._line, self._hub = line, hub

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes files and talks to the user."""
        return self.index == 0

    def share(self, items: Sequence[T], key: Callable[[T], object]) -> list[T]:
        """This process's part of `items`; those of one key stay together, in one process.

        The parts are contiguous where equal keys are: everybody's in turn is `items` again. With
        fewer keys than processes, some have nothing.
        """
        groups: dict[object, list[T]] = {}
        for item in items:
            groups.setdefault(key(item), []).append(item)
        low, high = (len(groups) * i // self.count for i in (self.index, self.index + 1))
        return [item for group in list(groups.values())[low:high] for item in group]

    def exchange(self, what: str, value: T) -> list[T]:
        """Everybody's value, by process; values are numbers, texts, arrays and our dataclasses.

        All processes call this in the same order with the same `what`, and wait for each other.
        One that comes with another `what` ends the run with a sentence that names both.
        """
        if self._line is None:
            return [value]
        return [_loads(data) for data in self._line.exchange(what, pickle.dumps(value))]

    def barrier(self, what: str) -> None:
        """Wait until every process is here."""
        self.exchange(what, None)

    def fail(self, sentence: str, code: int, told: str = "") -> NoReturn:
        """End all processes: this one with its sentence, the others with one that repeats it.

        Args:
            code: this process's exit code; the others' is 2.
            told: what the others are told in place of the sentence.
        """
        if self._line is not None:
            self._line.fail(told or sentence)
        _exit(sentence, code)

    def close(self) -> None:
        """Leave when all are done, by an end that all have agreed on; nothing after the first."""
        if self._line is None:
            return
        self.barrier("end")
        jax.distributed.shutdown()
        self._line.close()
        self._line = None
        if self._hub is not None:
            self._hub.close()

    def __enter__(self) -> Hosts:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        del kind, trace
        if self._line is None:
            return
        if error is None:
            self.close()
        elif isinstance(error, UserError):
            self.fail(str(error), 2)
        elif isinstance(error, KeyboardInterrupt):
            self.fail(str(error) or "interrupted", 130)
        elif sentence := unwritable(error):
            self.fail(sentence, 2)
        else:
            # A collective that breaks off because another process is gone is an error here first:
            # the line then brings the sentence that counts, and ends this process.
            time.sleep(_NEWS_SECONDS)
            told = f"a fault ({type(error).__name__}) that its own output tells of"
            self.fail("".join(traceback.format_exception(error)).rstrip(), 1, told)


ALONE = Hosts(0, 1, None, None)
"""A run of one process."""


def start(settings: HostSettings, environ: Mapping[str, str]) -> Hosts:
    """Finds the other processes and joins JAX's runtime with them, before any array is made.

    Does nothing where there is one process alone.

    Raises:
        UserError: they are not all there in time, or do not fit together; this one ends then.
    """
    place = find_place(settings.coordinator, settings.count, settings.index, environ)
    if place.count == 1:
        return Hosts(0, 1, None, None)
    hub = _open_hub(place, settings) if place.index == 0 else None
    line = Line(
        (place.host, place.port),
        place.index,
        place.count,
        start_seconds=settings.start_seconds,
        silence_seconds=settings.silence_seconds,
        end=lambda sentence: _exit(sentence, 2),
    )
    hosts = Hosts(place.index, place.count, line, hub)
    port = int(line.welcome["port"])
    if hub is None:
        port = Relay((place.host, port), settings.start_seconds).port
    # JAX's runtime is reached over loopback, whatever proxy the environment names.
    os.environ["no_grpc_proxy"] = "127.0.0.1"  # noqa: SIM112
    jax.config.update("jax_check_proxy_envs", False)
    jax.config.update("jax_enable_preemption_service", False)  # it would swallow SIGTERM
    try:
        jax.distributed.initialize(
            f"127.0.0.1:{port}",
            place.count,
            place.index,
            initialization_timeout=int(settings.start_seconds) + 1,
            heartbeat_timeout_seconds=int(max(_PATIENCE_SECONDS, 3 * settings.silence_seconds)),
            shutdown_timeout_seconds=60,
            coordinator_bind_address=f"127.0.0.1:{port}" if place.on_loopback else f"[::]:{port}",
        )
    except RuntimeError as error:
        hosts.fail(f"JAX's runtime did not start: {str(error).splitlines()[0]}", 2)
    return hosts


def localise(tree: Any, mesh: Mesh, here: Mesh) -> Any:
    """A whole copy of global arrays for each process, on its own devices; all take part in it.

    Done when it returns, as every program across processes must be before the next one starts: on
    CPUs, two of them in flight can each wait for the other's connections for good.

    Args:
        tree: arrays with named shardings on `mesh`.
        here: this process's block of `mesh`, with the same axes; its copy is sharded over it by the
            same specifications.
    """
    by_process = sorted(mesh.devices.flat, key=lambda device: device.process_index)
    count = len(by_process) // here.devices.size
    grid = np.asarray(by_process, dtype=object).reshape(count, *here.devices.shape)
    axes = ("process", *mesh.axis_names)
    stacked = Mesh(grid, axes, axis_types=(AxisType.Auto,) * len(axes))
    everywhere = jax.tree.map(lambda x: NamedSharding(stacked, x.sharding.spec), tree)
    copies = jax.block_until_ready(jax.jit(_same, out_shardings=everywhere)(tree))

    def local(x: jax.Array) -> jax.Array:
        return jax.make_array_from_single_device_arrays(
            x.shape,
            NamedSharding(here, x.sharding.spec),  # type: ignore[union-attr]
            [shard.data for shard in x.addressable_shards],
        )

    return jax.tree.map(local, copies)


def _same(tree: Any) -> Any:  # one function, so that jit knows it again
    return tree


def _open_hub(place: Place, settings: HostSettings) -> Hub:
    try:
        listener = _listen(place)
    except OSError as error:
        raise UserError(
            f"hosts.coordinator is {place.host}:{place.port} and process 0 cannot open that port "
            f"({error.strerror or error}); choose a free one of its host"
        ) from error
    with socket.create_server(("127.0.0.1", 0)) as free:  # closed again: for JAX's own service
        port = free.getsockname()[1]
    return Hub(
        listener,
        place.count,
        {"port": port},
        start_seconds=settings.start_seconds,
        silence_seconds=settings.silence_seconds,
    )


def _listen(place: Place) -> socket.socket:
    if place.on_loopback:
        return socket.create_server((place.host, place.port))
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", place.port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", place.port))


def _exit(sentence: str, code: int) -> NoReturn:
    """At once, from any thread: finalisers would wait for processes that are gone."""
    if sys.stdout.isatty():
        sys.stdout.write("\x1b[?25h")  # a progress line hides the cursor
    sys.stdout.flush()
    print(sentence, file=sys.stderr, flush=True)
    os._exit(code)


class _Unpickler(pickle.Unpickler):
    """Builds data alone: a frame that names anything else is refused, whoever sent it."""

    _BUILTINS = frozenset({"set", "frozenset", "complex", "bytearray", "slice", "range"})
    _NUMPY = frozenset({"_reconstruct", "scalar", "ndarray", "dtype", "_frombuffer"})

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if module_name == "builtins" and global_name in self._BUILTINS:
            return super().find_class(module_name, global_name)
        if module_name.partition(".")[0] == "numpy" and global_name in self._NUMPY:
            return super().find_class(module_name, global_name)
        if module_name.partition(".")[0] == "ibrl_jax" and "." not in global_name:
            found = super().find_class(module_name, global_name)
            if isinstance(found, type) and found.__module__ == module_name:
                return found
        raise pickle.UnpicklingError(f"{module_name}.{global_name} is no data of ours")


def _loads(data: bytes) -> Any:
    return _Unpickler(io.BytesIO(data)).load()
