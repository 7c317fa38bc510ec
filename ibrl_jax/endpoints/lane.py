"""What an endpoint holds in one event loop: its connection, its places and its pace.

None of these may outlive their loop, so they are made by the first call inside it, closed when
it ends, and made anew if a later call comes from another loop.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncGenerator
from contextvars import ContextVar
from itertools import count

from ibrl_jax.endpoints.settings import EndpointSettings
from ibrl_jax.endpoints.wire import Wire

RANK: ContextVar[int] = ContextVar("rank", default=0)
"""How early a task's calls get a place: those of the lowest rank first, then as they asked.

Set by whoever starts a task that can wait longer than others, for that task alone.
"""


class Places:
    """So many calls at once; who waits comes in by `RANK`, and within one rank in turn."""

    def __init__(self, number: int) -> None:
        self._free = number
        self._asked = count()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []

    async def __aenter__(self) -> None:
        if self._free:
            self._free -= 1
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (RANK.get(), next(self._asked), place))
        try:
            await place
        except asyncio.CancelledError:
            if not place.cancelled():  # it was given at the instant at which nobody wanted it
                self._leave()
            raise

    async def __aexit__(self, *error: object) -> None:
        self._leave()

    def _leave(self) -> None:
        while self._waiting:
            *_, place = heapq.heappop(self._waiting)
            if not place.done():
                place.set_result(None)  # the place goes from hand to hand
                return
        self._free += 1


class Lane:
    """Made inside a running loop."""

    def __init__(self, settings: EndpointSettings) -> None:
        self.loop = asyncio.get_running_loop()
        self.wire = Wire(settings)
        self.places = Places(settings.concurrency)
        self.settled = asyncio.Event()
        """Set whenever a request ends: who waits for budget looks again."""
        rate = settings.requests_per_minute
        self._interval_s = 0.0 if rate is None else 60.0 / rate
        self._next_start = 0.0
        self._held_until = 0.0

        self._life = self._live()

    async def open(self) -> None:
        """From here on the connection closes with its loop, if `aclose` does not come first."""
        await anext(self._life)

    async def aclose(self) -> None:
        await self._life.aclose()

    async def _live(self) -> AsyncGenerator[None, None]:
        """A loop that ends finishes its generators first; this one closes the connection."""
        try:
            yield
        finally:
            await self.wire.aclose()

    async def turn(self) -> None:
        """Wait for this request's place in time: evenly spaced, and after any hold."""
        while True:
            now = self.loop.time()
            start = max(now, self._next_start)
            self._next_start = start + self._interval_s
            if start > now:
                await asyncio.sleep(start - now)
            if self._held_until <= self.loop.time():
                return

    def hold(self, seconds: float) -> None:
        """Let no request start for so long: the server asked all of us to wait."""
        self._held_until = max(self._held_until, self.loop.time() + seconds)
        self._next_start = max(self._next_start, self._held_until)
