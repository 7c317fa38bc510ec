"""A chat-completions server on loopback that fails as its script says.

A script is a function from what was asked (`Asked`) to how to answer: `say`, `status`, `hang`,
`reset`, `half_body`, `drip`, `late`, `flood`. The server has a thread of its own and speaks just
enough HTTP/1.1.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Reply = Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One request; `number` counts from 0 in the order of arrival."""

    number: int
    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]

    @property
    def prompt(self) -> str:
        return self.body["messages"][-1]["content"]


Script = Callable[[Asked], Reply]


def completion(
    text: str | None,
    *,
    finish: str = "stop",
    usage: tuple[int, int] | None = (7, 3),
    **message: Any,
) -> dict[str, Any]:
    """The JSON of a chat completion."""
    reply: dict[str, Any] = {
        "id": "c",
        "object": "chat.completion",
        "choices": [
            {
                "index": 0,
                "finish_reason": finish,
                "message": {"role": "assistant", "content": text, **message},
            }
        ],
    }
    if usage is not None:
        reply["usage"] = {"prompt_tokens": usage[0], "completion_tokens": usage[1]}
    return reply


def say(text: str | None, **more: Any) -> Reply:
    return send_json(completion(text, **more))


def send_json(payload: Any, code: int = 200, headers: Mapping[str, str] | None = None) -> Reply:
    return send(json.dumps(payload).encode(), code, headers)


def send(body: bytes, code: int = 200, headers: Mapping[str, str] | None = None) -> Reply:
    async def reply(writer: asyncio.StreamWriter) -> None:
        writer.write(_response(body, code, headers))

    return reply


def flood(code: int = 200) -> Reply:
    """A body without an end, as fast as it is read."""

    async def reply(writer: asyncio.StreamWriter) -> None:
        head = f"HTTP/1.1 {code} Status\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(head.encode())
        chunk = b"40000\r\n" + b" " * 0x40000 + b"\r\n"
        while True:
            writer.write(chunk)
            await writer.drain()

    return reply


def status(code: int, message: str = "no", **headers: str) -> Reply:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return send_json({"error": {"message": message, "code": None}}, code, named)


async def hang(writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(30)


async def reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def half_body(writer: asyncio.StreamWriter) -> None:
    """Half of the promised bytes, then the end of the connection."""
    response = _response(json.dumps(completion("never whole")).encode(), 200, None)
    writer.write(response[: len(response) - 40])
    await writer.drain()
    writer.close()


def late(pause_s: float, reply: Reply, lock: asyncio.Lock | None = None) -> Reply:
    """The same reply after a while; with a lock, one while after another."""

    async def waited(writer: asyncio.StreamWriter) -> None:
        async with lock or contextlib.nullcontext():
            await asyncio.sleep(pause_s)
        await reply(writer)

    return waited


def drip(text: str, pause_s: float) -> Reply:
    """A byte now and then: no read ever times out, the whole does."""

    async def reply(writer: asyncio.StreamWriter) -> None:
        for byte in _response(json.dumps(completion(text)).encode(), 200, None):
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(pause_s)

    return reply


@dataclass
class FaultServer:
    """A context manager; `asked` holds every request, `most_at_once` how many were open."""

    script: Script
    delay_s: float = 0.0
    asked: list[Asked] = field(default_factory=list)
    most_at_once: int = 0

    def __enter__(self) -> FaultServer:
        ready = threading.Event()
        self._open = 0
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)))
        self._thread.start()
        assert ready.wait(10), "the server did not start"
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._done.set)
        self._thread.join(10)
        assert not self._thread.is_alive(), "the server did not stop"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/v1"

    async def _serve(self, ready: threading.Event) -> None:
        self._loop, self._done = asyncio.get_running_loop(), asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0, backlog=512)
        self._port = server.sockets[0].getsockname()[1]
        ready.set()
        await self._done.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._connection(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while not writer.is_closing():
                    asked = await self._read(reader)
                    self._open += 1
                    self.most_at_once = max(self.most_at_once, self._open)
                    try:
                        if self.delay_s:
                            await asyncio.sleep(self.delay_s)
                        await self.script(asked)(writer)
                        await writer.drain()
                    finally:
                        self._open -= 1
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _read(self, reader: asyncio.StreamReader) -> Asked:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        pairs = (line.split(": ", 1) for line in head[1:] if line)
        headers = {name.lower(): value for name, value in pairs}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        asked = Asked(
            number=len(self.asked),
            path=head[0].split(" ")[1],
            headers=headers,
            body=json.loads(body),
        )
        self.asked.append(asked)
        return asked


def _response(body: bytes, code: int, headers: Mapping[str, str] | None) -> bytes:
    lines = [f"HTTP/1.1 {code} Status", "Content-Type: application/json"]
    lines += [f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join([*lines, "", ""]).encode() + body
