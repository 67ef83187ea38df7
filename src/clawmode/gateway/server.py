"""The wire of the gateway: WebSocket and HTTP, by Starlette and uvicorn."""

import logging
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request as Upgrade

from clawmode.addresses import is_loopback
from clawmode.gateway import metrics
from clawmode.gateway.clients import Client
from clawmode.gateway.dispatch import Dispatcher
from clawmode.rpc import admission, protocol
from clawmode.rpc.admission import AcceptedSocket, ListeningSocket
from clawmode.rpc.listen import ListenAddress
from clawmode.rpc.protocol import BadFrame, Request, RpcError
from clawmode.types import JsonObject

logger = logging.getLogger("clawmode.gateway")

MAX_IN_FLIGHT = 64
"""Requests of one client that are carried out at the same time; more are read later."""

MAX_WAITS = 1_000
WAITING = ("agent.wait", "exec.approval.waitDecision", "plugin.approval.waitDecision")
"""Requests that only wait, and how many of them there may be."""

MAX_UNREAD = 64 << 10
"""Bytes of answers to pings that a client may leave unread."""

CLOSE_SECONDS = 2.0
"""How long a client may take to read the end of its connection."""

PAGE = """\
This is a clawmode gateway. Clients talk to it over WebSocket at this address, with a token.

clawmode chat            talk to its agents, on this machine
clawmode gateway status  whether it runs; also: logs, reload, stop, token add
/healthz, /readyz        whether it answers, and takes work
/metrics                 figures for Prometheus; needs a token
POST /channels/<name>    messages of a webhook, signed

For programs: clawmode.rpc.client in Python, or the protocol, in docs/operate/gateway.md.
"""
"""What a browser shows."""

TRUST, ABORT = "clawmode.trust", "clawmode.abort"


NOISE = ("Invalid HTTP request received.", "Unsupported upgrade request.")


def _plain(record: logging.LogRecord) -> bool:
    """Leaves out tracebacks and lines that strangers could fill the log with."""
    record.exc_info = None
    return record.msg not in NOISE


logging.getLogger("uvicorn.error").addFilter(_plain)


class LimitedHttp(H11Protocol):
    """uvicorn's; one request for each connection, which has to be complete in time."""

    accepted: AcceptedSocket | None = None

    def connection_made(self, transport: Any) -> None:
        """As uvicorn's; from now on the connection is ended through its transport."""
        super().connection_made(transport)
        self.accepted = admission.accepted(transport)
        if self.accepted is not None:
            self.accepted.keep(transport)

    def data_received(self, data: bytes) -> None:
        """As uvicorn's; the clock stops when there is nothing left to come."""
        super().data_received(data)
        complete = self.cycle is not None and not self.cycle.more_body
        upgraded = self.transport.get_protocol() is not self
        if self.accepted is not None and (complete or upgraded):
            self.accepted.stop_clock()


class LimitedProtocol(WebSocketsSansIOProtocol):
    """uvicorn's, with a small limit on messages until the client is known."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        # For HTTP alone: see `serve`.
        self.default_headers = [it for it in self.default_headers if it[0] != b"connection"]

    def handle_connect(self, event: Upgrade) -> None:
        """As uvicorn's; what lifts the limit, and what ends it at once, go with the connection."""
        self.conn.max_message_size = protocol.MAX_FIRST_BYTES
        super().handle_connect(event)
        if hasattr(self, "scope"):
            self.scope["state"][TRUST] = self.trust
            self.scope["state"][ABORT] = self.transport.abort

    def handle_ping(self) -> None:
        """As uvicorn's, unless its answers pile up: then nobody reads them."""
        if self.transport.get_write_buffer_size() > MAX_UNREAD:
            self.transport.abort()
        else:
            super().handle_ping()

    def trust(self) -> None:
        """The client is known: it may send what the protocol allows, and stay."""
        self.conn.max_message_size = protocol.MAX_PAYLOAD
        if (accepted := admission.accepted(self.transport)) is not None:
            accepted.release()


class GatewayApp:
    """Serves one gateway.

    Args:
        dispatcher: Carries out what clients ask of which gateway.
        origins: Web pages that may connect, beside those of its own address.
        routes: Of others: channels.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        origins: Sequence[str] = (),
        routes: Sequence[BaseRoute] = (),
    ) -> None:
        self._dispatcher = dispatcher
        self._gateway = dispatcher.gateway
        self._origins = frozenset(origins)
        self.app = Starlette(
            routes=[
                WebSocketRoute("/", self._serve),
                Route("/", self._page),
                WebSocketRoute("/ws", self._serve),
                Route("/healthz", self._health),
                Route("/readyz", self._ready),
                Route("/metrics", self._metrics),
                *routes,
            ]
        )

    # ---- WebSocket ----

    async def _serve(self, socket: WebSocket) -> None:
        refusal = self._refusal(socket)
        if refusal:
            logger.warning("a connection was refused: %s", refusal)
            await socket.send_denial_response(PlainTextResponse(refusal, 403))
            return
        await socket.accept()
        client = await self._greet(socket)
        if client is None:
            return
        try:
            await self._converse(socket, client)
        finally:
            self._gateway.leave(client)

    def _refusal(self, socket: WebSocket) -> str:
        """Why a page of a browser may not connect: whoever opens it would act with its token."""
        origin = socket.headers.get("origin")
        if origin is None or origin in self._origins:
            return ""
        own = socket.headers.get("host", "")
        with suppress(ValueError):  # what is no address
            if urlsplit(origin).netloc == own and is_loopback(urlsplit(f"//{own}").hostname or ""):
                return ""
        return "this origin may not connect"

    async def _greet(self, socket: WebSocket) -> Client | None:
        """Has a client say who it is; None: it is not let in."""
        challenge: JsonObject = {"nonce": secrets.token_hex(16), "ts": int(time.time() * 1000)}
        await _send(socket, protocol.event(protocol.CHALLENGE, challenge))
        request: Request | None = None
        try:
            with anyio.fail_after(admission.CONNECT_SECONDS):
                request = protocol.parse(await _receive(socket), connected=False)
            return await self._admit(socket, request)
        except TimeoutError:
            await _close(socket, protocol.CLOSE_POLICY, "connect took too long")
        except BadFrame as error:
            await _send(socket, protocol.failure(error.id, error))
            large = error.code == "TOO_LARGE"
            code = protocol.CLOSE_TOO_LARGE if large else protocol.CLOSE_POLICY
            await _close(socket, code, str(error))
        except RpcError as error:
            await _send(socket, protocol.failure("" if request is None else request.id, error))
            await _close(socket, protocol.CLOSE_POLICY, error.code)
        except WebSocketDisconnect:
            pass
        return None

    async def _admit(self, socket: WebSocket, request: Request) -> Client:
        address = socket.client.host if socket.client else ""
        client = await self._gateway.connect(request.params, address)
        answer = self._gateway.join(client, self._dispatcher.allowed(client))
        socket.scope["state"][TRUST]()
        client.send(protocol.response(request.id, answer))
        self._gateway.client_tools.repeat(client)
        logger.info("client %s: %s of %s", client.id, client.hello.client_id, client.principal)
        return client

    async def _converse(self, socket: WebSocket, client: Client) -> None:
        async with anyio.create_task_group() as tasks:

            async def write() -> None:
                with suppress(WebSocketDisconnect, RuntimeError):  # it has gone
                    async for frame in client.frames():
                        await socket.send_text(frame)
                    await _close(socket, *(client.closing or (1000, "")))
                tasks.cancel_scope.cancel()

            async def drop() -> None:
                await client.dropped.wait()
                socket.scope["state"][ABORT]()
                tasks.cancel_scope.cancel()

            tasks.start_soon(drop)

            tasks.start_soon(write)
            await self._read(socket, client)

    async def _read(self, socket: WebSocket, client: Client) -> None:
        """Carries out what the client asks for, until it has gone or sends what is no frame."""
        # Whoever waits for something must still be able to bring it about.
        work, waits = anyio.Semaphore(MAX_IN_FLIGHT), anyio.Semaphore(MAX_WAITS)
        async with anyio.create_task_group() as tasks:
            while client.closing is None:
                try:
                    request = protocol.parse(await _receive(socket), connected=True)
                except BadFrame as error:
                    client.send(protocol.failure(error.id, error))
                    if error.fatal:
                        client.finish(protocol.CLOSE_POLICY, error.code)
                except WebSocketDisconnect:
                    client.finish(1000, "")
                    tasks.cancel_scope.cancel()
                else:
                    limit = waits if request.method in WAITING else work
                    await limit.acquire()
                    tasks.start_soon(self._answer, client, request, limit)

    async def _answer(self, client: Client, request: Request, limit: anyio.Semaphore) -> None:
        try:
            client.send(await self._dispatcher.answer(client, request))
        finally:
            limit.release()

    # ---- HTTP ----

    async def _page(self, request: HttpRequest) -> Response:
        return PlainTextResponse(PAGE)

    async def _health(self, request: HttpRequest) -> Response:
        return JSONResponse({"status": "ok"})

    async def _ready(self, request: HttpRequest) -> Response:
        ready = self._gateway.ready
        return JSONResponse({"ready": ready}, 200 if ready else 503)

    async def _metrics(self, request: HttpRequest) -> Response:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        address = request.client.host if request.client else ""
        if scheme.lower() != "bearer" or not await self._may_read(token.strip(), address):
            headers = {"www-authenticate": "Bearer"}
            return PlainTextResponse("a token is needed", 401, headers)
        return PlainTextResponse(metrics.render(self._gateway), media_type=metrics.MEDIA_TYPE)

    async def _may_read(self, token: str, address: str) -> bool:
        try:
            await self._gateway.token_of(token, address, "/metrics")
        except RpcError:
            return False
        return True


# ---- The socket ----


async def _receive(socket: WebSocket) -> str | bytes:
    message = await socket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code", 1006))
    text = message.get("text")
    return text if text is not None else message.get("bytes") or b""


async def _send(socket: WebSocket, frame: str) -> None:
    with suppress(WebSocketDisconnect, RuntimeError), anyio.move_on_after(CLOSE_SECONDS):
        await socket.send_text(frame)


async def _close(socket: WebSocket, code: int, reason: str) -> None:
    if socket.application_state == WebSocketState.CONNECTED:
        with suppress(WebSocketDisconnect, RuntimeError):
            with anyio.move_on_after(CLOSE_SECONDS, shield=True):
                await socket.close(code, reason.encode()[:120].decode("utf-8", "ignore"))
                return
            socket.scope["state"][ABORT]()  # it does not read


# ---- Serving ----


class _Server(uvicorn.Server):
    """uvicorn's, which leaves signals to whoever started it."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Captures none."""
        yield


async def serve(
    wire: GatewayApp, listen: ListenAddress, bound: ListeningSocket, stop: anyio.Event
) -> None:
    """Serves until `stop` is set; connections that are open then are closed."""
    config = uvicorn.Config(
        wire.app,
        log_config=None,
        access_log=False,
        http=LimitedHttp,
        ws=LimitedProtocol,
        proxy_headers=False,  # else whoever connects would choose their address
        headers=[("connection", "close")],  # a request that was answered keeps nothing open
        ws_max_size=protocol.MAX_PAYLOAD,
        ws_per_message_deflate=False,
        ssl_certfile=listen.cert or None,
        ssl_keyfile=listen.key or None,
        lifespan="off",
        timeout_graceful_shutdown=5,
        h11_max_incomplete_event_size=64 << 10,
    )
    server = _Server(config)
    async with anyio.create_task_group() as tasks:

        async def watch() -> None:
            await stop.wait()
            server.should_exit = True

        tasks.start_soon(watch)
        await server.serve(sockets=[bound])
        tasks.cancel_scope.cancel()
