"""What leaves this machine for an endpoint, and what is let in.

A request goes to the address that the settings name, with the headers below and no others: the
library underneath would add some from variables of the environment that nobody named. A redirect
is not followed, since a prompt would go where nobody sent it. An answer is read up to `LARGEST`
bytes, and no further.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from openai import DefaultAsyncHttpxClient

LARGEST = 16 * 2**20
"""Bytes of a reply that are read; more has no answer that was asked for."""


class TooLarge(Exception):
    """A reply has more than `LARGEST` bytes."""


def open_client(key: str | None) -> DefaultAsyncHttpxClient:
    """The connections of one endpoint. `key` is sent as a bearer's; None sends a placeholder."""
    import openai  # half a second, and most runs ask no endpoint

    headers = {
        "Authorization": f"Bearer {key or 'none'}",
        "Content-Type": "application/json",
        "Accept": "application/json",
        "Accept-Encoding": "identity",  # so that what is counted is what is kept
        "User-Agent": "ibrl_jax",
    }

    class Client(openai.DefaultAsyncHttpxClient):
        """Its `send` reads the whole reply, and raises TooLarge."""

        async def send(self, request: Any, **options: Any) -> Any:
            ours = self.build_request(
                request.method,
                request.url,
                content=request.content,
                headers=headers,
                extensions=request.extensions,
            )
            options["stream"] = True
            reply = await super().send(ours, **options)
            parts: list[bytes] = []
            size = 0
            try:
                async for part in reply.aiter_bytes():
                    size += len(part)
                    if size > LARGEST:
                        raise TooLarge
                    parts.append(part)
            finally:
                await reply.aclose()
            described = ("content-encoding", "content-length", "transfer-encoding")  # as it came
            kept = [(name, text) for name, text in reply.headers.items() if name not in described]
            content = b"".join(parts)
            return type(reply)(reply.status_code, headers=kept, content=content, request=ours)

    return Client(follow_redirects=False)
