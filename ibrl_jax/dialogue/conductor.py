"""Gathers what the dialogues ask of the engines, and runs the engines when nobody else can go on.

Every dialogue is a coroutine. It is *live* from its first turn to its last, and *waits* while an
engine or an endpoint owes it an answer. When all live dialogues wait and some engine has work,
there is a *tick*: each engine that has work makes one step, side by side, each in a thread of its
own. Then whoever has an answer goes on, in the order of asking, and what they ask for joins the
next tick:

```
tick           1        2        3        4
engine 0       a b c    b c      d e      d a        two dialogues a, b, c / d, e that speak first
engine 1       d e      a d e    a b c    b c        on either side: both engines have work
```

With local policies alone what an engine takes in a step depends on who asked before whom and on the
lengths of turns, never on the clock; so the make-up of every batch, and with it every bit of the
result, is the same in each run. With an endpoint in a seat, a reply that comes in late joins the
next tick, and nobody waits for the slowest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from ibrl_jax.sampler.types import Completion, Request

T = TypeVar("T")


class Sampler(Protocol):
    """What the conductor needs of an engine."""

    @property
    def busy(self) -> bool:
        """Whether a request is on its way; not one whose slot was given back."""
        ...

    def submit(self, request: Request) -> int:
        """Put a request in line, and give its ticket."""
        ...

    def step(self) -> Sequence[tuple[int, Completion]]:
        """Work on those in line; the tickets and completions of those that came to an end."""
        ...


@dataclass(eq=False, slots=True)
class _Asked:
    """A request, and who waits for its completion."""

    engine: Sampler
    request: Request
    future: asyncio.Future[Completion]
    ticket: int = -1  # of the engine, once it is in line there


class Conductor:
    """One stage of dialogues. Use it inside one event loop."""

    def __init__(self) -> None:
        self._live = 0
        self._waiting = 0
        self._ticking = False
        self._asked: list[_Asked] = []  # in the order of asking
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
        self._asked.append(_Asked(engine, request, future))
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
        if self._asked and not self._ticking and self._waiting >= self._live:
            self._ticking = True
            task = asyncio.get_running_loop().create_task(self._tick())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _tick(self) -> None:
        self._forget_cancelled()
        answers: dict[int, Completion | BaseException] = {}  # by the identity of who asked
        for asked in self._asked:
            if asked.ticket < 0:
                try:
                    asked.ticket = asked.engine.submit(asked.request)
                except Exception as error:
                    answers[id(asked)] = error
        engines = {id(asked.engine): asked.engine for asked in self._asked}
        at_work = [engine for engine in engines.values() if engine.busy]
        loop = asyncio.get_running_loop()
        steps = [loop.run_in_executor(self._threads, engine.step) for engine in at_work]
        results = await asyncio.gather(*steps, return_exceptions=True)
        for engine, result in zip(at_work, results, strict=True):
            theirs = [asked for asked in self._asked if asked.engine is engine]
            if isinstance(result, BaseException):  # it has forgotten all that was in line
                answers |= {id(asked): result for asked in theirs if asked.ticket >= 0}
            else:
                done = dict(result)
                answers |= {id(a): done[a.ticket] for a in theirs if a.ticket in done}
        self._ticking = False
        # In the order of asking, so that what follows does not depend on which engine was faster.
        answered = [asked for asked in self._asked if id(asked) in answers]
        self._asked = [asked for asked in self._asked if id(asked) not in answers]
        for asked in answered:
            self._waiting -= 1
            answer = answers[id(asked)]
            if asked.future.cancelled():
                continue
            if isinstance(answer, BaseException):
                asked.future.set_exception(answer)
            else:
                asked.future.set_result(answer)
        self._forget_cancelled()
        self._consider()  # nobody may have been answered, and others may have asked meanwhile

    def _forget_cancelled(self) -> None:
        """Who is gone has given its slot back, and the engine passes it over."""
        gone = [asked for asked in self._asked if asked.future.cancelled()]
        if gone:
            self._waiting -= len(gone)
            self._asked = [asked for asked in self._asked if not asked.future.cancelled()]
