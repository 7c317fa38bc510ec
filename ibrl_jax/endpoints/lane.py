"""What an endpoint holds in one event loop: its connection, its places and its pace.

None of these may outlive their loop, so they are made by the first call inside it, closed when
it ends, and made anew if a later call comes from another loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from ibrl_jax.endpoints.settings import EndpointSettings
from ibrl_jax.endpoints.wire import Wire


class Lane:
    """Made inside a running loop."""

    def __init__(self, settings: EndpointSettings) -> None:
        self.loop = asyncio.get_running_loop()
        self.wire = Wire(settings)
        self.places = asyncio.Semaphore(settings.concurrency)
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
