"""Gateways for tests: as a user starts one, in this process with a real wire, and fake ones."""

import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from socket import socket
from typing import Any, TypeAlias

import anyio
from tests.support.forking import shared_zygote
from tests.support.gateway_inside import Inside, inside
from tests.support.waiting import until_sync
from websockets.asyncio.server import ServerConnection
from websockets.asyncio.server import serve as serve_sockets
from websockets.exceptions import ConnectionClosed

from clawmode.gateway.server import GatewayApp, serve
from clawmode.rpc import presence, protocol
from clawmode.rpc.admission import AcceptedSocket
from clawmode.rpc.client import Events, GatewayClient
from clawmode.rpc.listen import ListenAddress
from clawmode.rpc.presence import RunningGateway
from clawmode.rpc.tokens import Token, Tokens, digest

TOKEN = "cm_for_tests_alone_0123456789"
SECONDS = 15.0


# ---- In this process ----


@dataclass
class Wired(Inside):
    """A gateway with a real wire."""

    url: str = ""
    port: int = 0
    wire: GatewayApp | None = None
    strangers: Collection[AcceptedSocket] = ()

    def connect(self, **options: Any) -> GatewayClient:
        """A client, not connected yet."""
        given: dict[str, Any] = {"client_id": "test", **options}
        return GatewayClient(self.url, TOKEN, **given)

    def hang_up(self) -> None:
        """Ends all connections, as a network does that fails."""
        for client in tuple(self.gateway.clients.values()):
            client.finish(1011, "lost")


@asynccontextmanager
async def wired(
    folder: Path,
    script: list[Any] | None = None,
    *,
    port: int = 0,
    announced: bool = False,
    tls: tuple[str, str] = ("", ""),
    **options: Any,
) -> AsyncIterator[Wired]:
    """Serves a gateway; `announced`: so that commands find it. Others as for `inside`."""
    async with inside(folder, script, **options) as it:
        state = it.gateway.host.setup.state
        it.gateway.tokens = Tokens(state, [Token(name="tester", digest=digest(TOKEN))])
        cert, key = tls
        listen, closed = ListenAddress(port=port, cert=cert, key=key), anyio.Event()
        with listen.bind() as bound, _announced(state, listen, bound, it, announced):
            wire = GatewayApp(it.dispatcher)
            made = Wired(**vars(it), url=listen.url(bound), port=bound.getsockname()[1], wire=wire)
            made.strangers = bound.strangers
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(serve, wire, listen, bound, closed)
                try:
                    yield made
                finally:
                    for client in tuple(it.gateway.clients.values()):
                        client.finish(protocol.CLOSE_RESTART, "the gateway stops")
                    closed.set()


@contextmanager
def _announced(
    state: Path, listen: ListenAddress, bound: socket, it: Inside, wanted: bool
) -> Iterator[None]:
    if not wanted:
        yield
        return
    here = RunningGateway(
        pid=os.getpid(),
        url=listen.url(bound),
        version="test",
        started_at=time.time(),
        token=TOKEN,
        cert=listen.cert,
        config=str(it.config),
    )
    with presence.hold(state), presence.announced(state, here):
        yield


# ---- As a user starts it ----


class Started:
    """A gateway in a process of its own.

    Args:
        folder: Where it runs, and its configuration is.
        state: Its state folder.
        arguments: Beside `--json`.
        port: Of the gateway; 0 is a free one.
        files: The limit on open files, soft and hard; 0 leaves it as it is.
    """

    def __init__(
        self, folder: Path, state: Path, *arguments: str, port: int = 0, files: int = 0
    ) -> None:
        self.state = state
        self.log = folder / "gateway.log"
        config = folder / "clawmode.json5"
        named = ("--config", str(config)) if config.exists() else ()
        zygote = shared_zygote()
        out = zygote.file("out")
        self.process = zygote.start(
            ("gateway", "--json", "--port", str(port), "--state", str(state), *named, *arguments),
            folder,
            [Path(os.devnull), out, self.log],
            None,
            files=files,
        )
        until_sync(lambda: ends_a_line(out) or self.process.wait(0) is not None, SECONDS)
        assert ends_a_line(out), self.log.read_text("utf-8")
        self.url: str = json.loads(out.read_text("utf-8"))["url"]
        self.port = int(self.url.rpartition(":")[2])

    def __enter__(self) -> "Started":
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            if self.process.wait(10) is None:
                self.kill()

    def kill(self) -> None:
        """Ends it as a machine does that loses its power."""
        self.process.kill()
        self.process.wait(10)


def ends_a_line(file: Path) -> bool:
    return file.exists() and file.read_bytes().endswith(b"\n")


# ---- A fake one ----

Behave: TypeAlias = Callable[["Fake", ServerConnection, dict[str, Any]], Awaitable[None]]
"""What is done about a request after `connect`."""


class Fake:
    """Says what a test wants a gateway to say.

    Attributes:
        hello: Instead of what `hello-ok` has.
        requests: All that came after `connect`.
        closed: With which codes connections have ended.
    """

    def __init__(self, behave: Behave) -> None:
        self._behave = behave
        self.hello: dict[str, Any] = {}
        self.connects: list[dict[str, Any]] = []
        self.requests: list[dict[str, Any]] = []
        self.closed: list[int | None] = []
        self.url = ""

    async def serve(self, socket: ServerConnection) -> None:
        await socket.send(protocol.event(protocol.CHALLENGE, {"nonce": "n", "ts": 0}))
        connect = json.loads(await socket.recv())
        self.connects.append(connect)
        hello = protocol.hello_ok(connection_id="c", scopes=(), methods=(), events=(), snapshot={})
        await socket.send(protocol.response(connect["id"], {**hello, **self.hello}))
        try:
            async for text in socket:
                request = json.loads(text)
                self.requests.append(request)
                await self._behave(self, socket, request)
        except ConnectionClosed:
            pass
        finally:
            self.closed.append(socket.close_code)


async def answer_all(fake: Fake, socket: ServerConnection, request: dict[str, Any]) -> None:
    """Answers everything with nothing."""
    await socket.send(protocol.response(request["id"], {}))


@asynccontextmanager
async def faking(behave: Behave = answer_all) -> AsyncIterator[Fake]:
    """Serves a fake gateway."""
    fake = Fake(behave)
    async with serve_sockets(fake.serve, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        fake.url = f"ws://127.0.0.1:{port}"
        yield fake


# ---- Reading ----


async def next_of(events: Events, *names: str) -> dict[str, Any]:
    """The payload of the next event of these names."""
    with anyio.fail_after(SECONDS):
        async for event in events:
            if event.name in names:
                return dict(event.payload)
    raise AssertionError(f"no {names} came")
