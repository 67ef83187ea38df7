"""A webhook channel behind a real server, and a receiver on this machine that answers as told."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import anyio
import httpx2
import uvicorn
from anyio.abc import ByteStream, SocketAttribute
from starlette.applications import Starlette
from tests.support.waiting import until

from clawmode.config.operations import ChannelEntry
from clawmode.messaging.channel import InboundMessage
from clawmode.messaging.webhook import WebhookChannel
from clawmode.messaging.webhook_delivery import Retry

SECRET = "correct horse battery staple"
QUICK = Retry(tries=3, seconds=0.01, longest=0.05)
NOTE: dict[str, Any] = {"id": "m1", "sender": "ann", "target": "room", "text": "hi"}


def sign(body: bytes, timestamp: int | str | None = None, secret: str = SECRET) -> dict[str, str]:
    """The headers of a signed request, made as the page says and not as we do."""
    when = str(int(time.time()) if timestamp is None else timestamp)
    digest = hmac.new(secret.encode(), when.encode() + b"." + body, hashlib.sha256).hexdigest()
    return {"X-Clawmode-Timestamp": when, "X-Clawmode-Signature": f"sha256={digest}"}


def sign_standard(
    body: bytes, timestamp: int | str | None = None, secret: bytes = SECRET.encode(), id: str = "w1"
) -> dict[str, str]:
    """The headers of Standard Webhooks, made as its specification says."""
    when = str(int(time.time()) if timestamp is None else timestamp)
    digest = hmac.new(secret, f"{id}.{when}.".encode() + body, hashlib.sha256).digest()
    signature = f"v1,{base64.b64encode(digest).decode()}"
    return {"webhook-id": id, "webhook-timestamp": when, "webhook-signature": signature}


# ---- In ----


@dataclass
class Door:
    """A channel that can be written to."""

    port: int
    channel: WebhookChannel
    taken: list[InboundMessage]
    client: httpx2.AsyncClient

    @property
    def path(self) -> str:
        return f"/channels/{self.channel.name}"

    async def post(
        self, note: Any = None, *, headers: dict[str, str] | None = None, signed: bool = True
    ) -> httpx2.Response:
        body = (
            note if isinstance(note, bytes) else json.dumps(NOTE if note is None else note).encode()
        )
        sent = {"content-type": "application/json"} | (sign(body) if signed else {})
        url = f"http://127.0.0.1:{self.port}{self.path}"
        with anyio.fail_after(10):
            made = [
                (key.encode(), value.encode()) for key, value in (sent | (headers or {})).items()
            ]
            return await self.client.post(url, content=body, headers=made)

    async def raw(self, *pieces: bytes) -> bytes:
        """All that comes back, until the server closes or has answered."""
        answer = b""
        with anyio.fail_after(10):
            async with (
                await anyio.connect_tcp("127.0.0.1", self.port) as stream,
                anyio.create_task_group() as tasks,
            ):
                # A server that refuses the first pieces may answer and hang up before the last.
                tasks.start_soon(self._send, stream, pieces)
                with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                    while b"}}" not in answer and b"}\n" not in answer:
                        answer += await stream.receive()
                tasks.cancel_scope.cancel()
        return answer

    @staticmethod
    async def _send(stream: ByteStream, pieces: tuple[bytes, ...]) -> None:
        with suppress(anyio.BrokenResourceError):
            for piece in pieces:
                await stream.send(piece)


@asynccontextmanager
async def serve(app: Any) -> AsyncIterator[int]:
    """A real server with an app; its port."""
    config = uvicorn.Config(
        app,
        host="127.0.0.1",
        port=0,
        log_level="warning",
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve)
        await until(lambda: server.started)
        try:
            yield server.servers[0].sockets[0].getsockname()[1]
        finally:
            server.should_exit = True


@asynccontextmanager
async def door(
    receive: Callable[[InboundMessage], Awaitable[None]] | None = None,
    *,
    seen: Any = None,
    name: str = "hook",
    **entry: Any,
) -> AsyncIterator[Door]:
    taken: list[InboundMessage] = []

    async def keep(message: InboundMessage) -> None:
        taken.append(message)

    options: dict[str, Any] = {"secret": SECRET} | entry
    made = ChannelEntry(**options)
    async with WebhookChannel(name, made, receive or keep, seen=seen) as channel:
        async with serve(Starlette(routes=[channel.route()])) as port:
            async with httpx2.AsyncClient(trust_env=False, verify=False) as client:
                yield Door(port, channel, taken, client)


# ---- Out ----

Answer = bytes | Callable[[ByteStream], Awaitable[None]]


def answer(body: str | bytes = "{}", status: str = "200 OK", **headers: str) -> bytes:
    body = body if isinstance(body, bytes) else body.encode()
    lines = {"content-length": str(len(body)), "connection": "close"} | headers
    head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in lines.items())
    return f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + body


@dataclass
class Received:
    """A request as it came."""

    head: str
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def header(self, name: str) -> str:
        found = [line for line in self.head.split("\r\n") if line.lower().startswith(f"{name}: ")]
        (line,) = found
        return line.partition(": ")[2]


@dataclass
class Receiver:
    """Answers one thing after the other; the last one again and again."""

    port: int
    answers: list[Answer] = field(default_factory=lambda: [answer()])
    received: list[Received] = field(default_factory=list[Received])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/secret-path?token=secret-token"

    async def serve(self, stream: ByteStream) -> None:
        async with stream:
            try:
                await self._serve(stream)
            except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                pass

    async def _serve(self, stream: ByteStream) -> None:
        data = b""
        while b"\r\n\r\n" not in data:
            data += await stream.receive()
        head, _, body = data.partition(b"\r\n\r\n")
        made = Received(head.decode(), b"")
        while len(body) < int(made.header("content-length")):
            body += await stream.receive()
        made.body = body
        self.received.append(made)
        said = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(said, bytes):
            await stream.send(said)
        else:
            await said(stream)


@asynccontextmanager
async def receiver(*answers: Answer) -> AsyncIterator[Receiver]:
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        made = Receiver(listener.extra(SocketAttribute.local_port))
        made.answers = list(answers) or made.answers
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, made.serve)
            yield made
            tasks.cancel_scope.cancel()


async def ignore(message: InboundMessage) -> None:
    """Takes nothing in."""


def sender(url: str | None, **entry: Any) -> WebhookChannel:
    options: dict[str, Any] = {"secret": SECRET, "edits": True} | entry
    if url is not None:
        options["url"] = url
    made = ChannelEntry(**options)
    return WebhookChannel("hook", made, ignore, retry=QUICK)
