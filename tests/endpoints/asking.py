"""How the client's tests ask: what they want, and in which order a server answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from ibrl_jax.endpoints import Answer, Endpoint, EndpointSettings
from tests.endpoints.fault_server import Asked, FaultServer, Reply

Make = Callable[..., EndpointSettings]
Serve = Callable[..., FaultServer]


class Verdict(BaseModel):
    model_config = ConfigDict(extra="forbid")

    score: float = Field(ge=0, le=1)


GOOD = '{"score": 0.5}'
HI = [{"role": "user", "content": "hi"}]


def in_order(*replies: Reply) -> Callable[[Asked], Reply]:
    """The n-th request gets the n-th reply, later ones the last."""
    return lambda asked: replies[min(asked.number, len(replies) - 1)]


def chat(settings: EndpointSettings, **more: Any) -> Answer[Any]:
    return chats(settings, [more])[0]


def chats(
    settings: EndpointSettings, calls: Iterable[dict[str, Any]], endpoint: Endpoint | None = None
) -> list[Answer[Any]]:
    """Calls one after the other, over one connection."""

    async def go() -> list[Answer[Any]]:
        used = endpoint or Endpoint(settings)
        try:
            ask: Callable[..., Any] = used.chat
            return [await ask(**({"messages": HI} | call)) for call in calls]
        finally:
            await used.aclose()

    return asyncio.run(go())
