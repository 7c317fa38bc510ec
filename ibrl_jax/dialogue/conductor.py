"""Gathers what the dialogues ask of the engines, and runs the engines when nobody else can go on.

Every dialogue is a coroutine. It is *live* from its first turn to its last, and *waits* while an
engine or an endpoint owes it an answer. When all live dialogues wait, everything queued runs at
once: the engines side by side, each in a thread of its own, each on all of its requests. With local
policies alone that is lock-step by turns, so the make-up of every batch, and with it every bit of
the result, is the same in each run. With an endpoint in a seat, a reply that comes in late joins
the next batch, and nobody waits for the slowest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Protocol, TypeVar

from ibrl_jax.sampler.types import Completion, Request

T = TypeVar("T")


class Sampler(Protocol):
    """What the conductor needs of an engine."""

    def run(self, requests: Sequence[Request]) -> list[Completion]: ...


class Conductor:
    """One stage of dialogues. Use it inside one event loop."""

    def __init__(self) -> None:
        self._live = 0
        self._waiting = 0
        self._running = False
        self._queue: list[tuple[Sampler, Request, asyncio.Future[Completion]]] = []
        self._threads = ThreadPoolExecutor(thread_name_prefix="engine")
        self._tasks: set[asyncio.Task[None]] = set()

    @contextmanager
    def dialogue(self) -> Iterator[None]:
        """The life of one dialogue."""
        self._live += 1
        try:
            yield
        finally:
            self._live -= 1
            self._consider()

    async def sample(self, engine: Sampler, request: Request) -> Completion:
        """What the engine samples for a request, once it runs."""
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._queue.append((engine, request, future))
        self._waiting += 1
        self._consider()
        return await future

    async def elsewhere(self, answer: Awaitable[T]) -> T:
        """An answer that somebody else owes: an endpoint, a person."""
        self._waiting += 1
        self._consider()
        try:
            return await answer
        finally:
            self._waiting -= 1

    def close(self) -> None:
        self._threads.shutdown()

    def _consider(self) -> None:
        if self._queue and not self._running and self._waiting >= self._live:
            self._running = True
            task = asyncio.get_running_loop().create_task(self._run())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run(self) -> None:
        queue = [entry for entry in self._queue if not entry[2].cancelled()]
        self._waiting -= len(self._queue) - len(queue)
        self._queue = []
        by_engine: dict[int, list[tuple[Sampler, Request, asyncio.Future[Completion]]]] = {}
        for entry in queue:
            by_engine.setdefault(id(entry[0]), []).append(entry)
        loop = asyncio.get_running_loop()
        calls = [
            loop.run_in_executor(
                self._threads, entries[0][0].run, [request for _, request, _ in entries]
            )
            for entries in by_engine.values()
        ]
        results = await asyncio.gather(*calls, return_exceptions=True)
        answers: dict[int, Completion | BaseException] = {}
        for entries, result in zip(by_engine.values(), results, strict=True):
            for index, (_, _, future) in enumerate(entries):
                answers[id(future)] = result if isinstance(result, BaseException) else result[index]
        self._running = False
        # In the order of asking, so that what follows does not depend on which engine was faster.
        for _, _, future in queue:
            self._waiting -= 1
            answer = answers[id(future)]
            if future.cancelled():
                continue
            if isinstance(answer, BaseException):
                future.set_exception(answer)
            else:
                future.set_result(answer)
        self._consider()  # whoever was answered may be gone, and others have asked meanwhile
