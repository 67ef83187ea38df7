"""The gateway's network server: WebSocket and HTTP, with Starlette and uvicorn."""

import logging
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import anyio
from starlette.applications import Starlette
from starlette.requests import HTTPConnection
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request as Upgrade

from clawmode.addresses import Site
from clawmode.gateway import metrics
from clawmode.gateway.clients import Client
from clawmode.gateway.dispatch import Dispatcher
from clawmode.gateway.http_api import STATUSES, HttpApi, failure_headers
from clawmode.gateway.page_server import Guarded, PageServer
from clawmode.rpc import admission, protocol
from clawmode.rpc.admission import ListeningSocket
from clawmode.rpc.http_server import TRUST, QuietServer
from clawmode.rpc.listen import ListenAddress
from clawmode.rpc.protocol import BadFrame, Request, RpcError
from clawmode.types import JsonObject

logger = logging.getLogger("clawmode.gateway")

MAX_IN_FLIGHT = 64
"""The most requests of one client that are executed concurrently; more are read later."""

MAX_WAITS = 1_000
WAITING = ("agent.wait", "exec.approval.waitDecision", "plugin.approval.waitDecision")
"""Methods that only wait, and the most of them for one client: they have a limit of their own."""

MAX_UNREAD = 64 << 10
"""The most bytes of pongs that a client may leave unread."""

CLOSE_SECONDS = 2.0
"""The time for a client to read what it was sent before its connection is closed, and after."""

PAGE = """\
This is a clawmode gateway. Clients connect by WebSocket to this address, with a token.

clawmode dashboard       open its page in a browser, on this machine
clawmode chat            chat with its agents, on this machine
clawmode gateway status  whether it runs; also: logs, reload, stop, token add
/healthz, /readyz        whether it responds, and accepts work
/metrics                 metrics for Prometheus; needs a token
POST /channels/<name>    signed messages of a webhook
/v1                      agents for OpenAI's clients: /v1/models, /v1/chat/completions,
                         /v1/responses; needs a token, and so does POST /tools/invoke

For programs: clawmode.GatewayClient in Python, or the protocol, in docs/operate/gateway.md.
"""
"""The text for clients that do not accept HTML, such as `curl`."""

ON_LOOPBACK = Site("127.0.0.1")

ABORT = "clawmode.abort"
"""The key of the ASGI state with a callable that aborts the connection. See also `TRUST`."""


class LimitedProtocol(WebSocketsSansIOProtocol):
    """uvicorn's protocol with a small limit for messages until the client has authenticated."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        # `connection: close` is for HTTP responses only: see `serve`.
        self.default_headers = [
            header for header in self.default_headers if header[0] != b"connection"
        ]

    def handle_connect(self, event: Upgrade) -> None:
        self.conn.max_message_size = protocol.MAX_FIRST_BYTES
        super().handle_connect(event)
        # uvicorn has set no scope if it rejected the upgrade.
        if hasattr(self, "scope"):
            self.scope["state"][TRUST] = self.trust
            self.scope["state"][ABORT] = self.transport.abort

    async def run_asgi(self) -> None:
        await super().run_asgi()
        # A closed transport waits for a client that does not read, without a limit.
        self.loop.call_later(CLOSE_SECONDS, self.transport.abort)

    def handle_ping(self) -> None:
        # A client that sends pings and does not read would fill the memory with pongs.
        if self.transport.get_write_buffer_size() > MAX_UNREAD:
            self.transport.abort()
        else:
            super().handle_ping()

    def trust(self) -> None:
        """Lifts the limits: the client has authenticated."""
        self.conn.max_message_size = protocol.MAX_PAYLOAD
        if (accepted := admission.accepted(self.transport)) is not None:
            accepted.release()


class GatewayApp:
    """The ASGI application of a gateway.

    Args:
        dispatcher: Executes requests of clients.
        origins: Origins of web pages that may connect, in addition to the gateway's own page.
        routes: More routes: those of channels.
        site: The names of the gateway: requests under other names are rejected.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        origins: Sequence[str] = (),
        routes: Sequence[BaseRoute] = (),
        site: Site = ON_LOOPBACK,
    ) -> None:
        self._dispatcher = dispatcher
        self._gateway = dispatcher.gateway
        self._origins = frozenset(origins)
        self._site = site
        self._page = PageServer(self._gateway, site, PAGE)
        app = Starlette(
            routes=[
                WebSocketRoute("/", self._serve),
                WebSocketRoute("/ws", self._serve),
                Route("/healthz", self._health),
                Route("/readyz", self._ready),
                Route("/metrics", self._metrics),
                *HttpApi(dispatcher, self._is_allowed_origin).routes,
                *self._page.routes,
                *routes,
            ]
        )
        self.asgi = Guarded(app, site)

    # ---- WebSocket ----

    async def _serve(self, socket: WebSocket) -> None:
        if not self._is_allowed_origin(socket):
            origin = socket.headers.get("origin", "")[:200]
            logger.warning("a connection was rejected: origin %r is not allowed", origin)
            text = "this origin may not connect: add it to gateway.allowedOrigins"
            await socket.send_denial_response(PlainTextResponse(text, 403))
            return
        await socket.accept()
        client = await self._greet(socket)
        if client is None:
            return
        try:
            async with anyio.create_task_group() as tasks:

                async def write() -> None:
                    with suppress(WebSocketDisconnect, RuntimeError):  # the client has disconnected
                        async for frame in client.frames():
                            await socket.send_text(frame)
                        await _close(socket, *(client.closing or (1000, "")))
                    tasks.cancel_scope.cancel()

                async def drop() -> None:
                    await client.finished.wait()
                    with anyio.move_on_after(CLOSE_SECONDS):  # `write` ends this if it can
                        await client.dropped.wait()
                    socket.scope["state"][ABORT]()
                    tasks.cancel_scope.cancel()

                tasks.start_soon(drop)
                tasks.start_soon(write)
                await self._read(socket, client)
        finally:
            self._gateway.leave(client)

    def _is_allowed_origin(self, socket: HTTPConnection) -> bool:
        """Returns whether a web page may connect: it would act with the token of its reader."""
        origin = socket.headers.get("origin")
        if origin is None or origin in self._origins:
            return True
        # `Guarded` has checked the host: no page can choose a name that points here.
        return self._site.is_own(origin, socket.headers.get("host", ""))

    async def _greet(self, socket: WebSocket) -> Client | None:
        """Sends the challenge and waits for `connect`; None if the client is rejected."""
        challenge: JsonObject = {"nonce": secrets.token_hex(16), "ts": int(time.time() * 1000)}
        await _send(socket, protocol.event(protocol.CHALLENGE, challenge))
        request: Request | None = None
        try:
            with anyio.fail_after(admission.CONNECT_SECONDS):
                request = protocol.parse(await _receive(socket), connected=False)
            address = socket.client.host if socket.client else ""
            session = await self._page.page_session(socket)
            client = await self._gateway.connect(request.params, address, session)
            answer = self._gateway.join(client, self._dispatcher.allowed(client))
            socket.scope["state"][TRUST]()
            client.send(protocol.response(request.id, answer))
            self._gateway.client_tools.repeat(client)
            name = client.hello.client.id
            # In quotes: the client chooses the name, and could imitate the rest of the line.
            logger.info("client %s: %r of %r", client.id, name, client.principal)
            return client
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

    async def _read(self, socket: WebSocket, client: Client) -> None:
        """Executes requests until the client disconnects or sends an invalid frame."""
        # Two limits: a client whose requests all wait must still be able to send the request that
        # ends the waiting.
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
                    if client.closing is not None:  # logged out, but it does not read that
                        break
                    tasks.start_soon(self._answer, client, request, limit)

    async def _answer(self, client: Client, request: Request, limit: anyio.Semaphore) -> None:
        try:
            client.send(await self._dispatcher.answer(client, request))
        finally:
            limit.release()

    # ---- HTTP ----

    async def _health(self, request: HttpRequest) -> Response:
        return JSONResponse({"status": "ok"})

    async def _ready(self, request: HttpRequest) -> Response:
        # A gateway without its database still computes and reads, but parks no program.
        reachable = self._gateway.host.backend.nodes.reachable
        ready = self._gateway.ready and reachable
        said = {"ready": ready} if reachable else {"ready": ready, "store": "unreachable"}
        return JSONResponse(said, 200 if ready else 503)

    async def _metrics(self, request: HttpRequest) -> Response:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        address = request.client.host if request.client else ""
        try:
            if scheme.lower() != "bearer":
                raise RpcError("UNAUTHORIZED", "a bearer token is required")
            await self._gateway.token_of(token.strip(), address, "/metrics")
        except RpcError as error:
            status, _ = STATUSES.get(error.code, (500, ""))
            return PlainTextResponse(str(error), status, failure_headers(error))
        text = metrics.render(self._gateway)
        return PlainTextResponse(text, media_type=metrics.MEDIA_TYPE)


# ---- The socket ----


async def _receive(socket: WebSocket) -> str | bytes:
    message = await socket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code", 1006))
    # Bytes are returned as they are: the parser rejects them with its own reason.
    text = message.get("text")
    return text if text is not None else message.get("bytes") or b""


async def _send(socket: WebSocket, frame: str) -> None:
    # Starlette raises RuntimeError if the connection is already closed.
    with suppress(WebSocketDisconnect, RuntimeError), anyio.move_on_after(CLOSE_SECONDS):
        await socket.send_text(frame)


async def _close(socket: WebSocket, code: int, reason: str) -> None:
    if socket.application_state == WebSocketState.CONNECTED:
        with suppress(WebSocketDisconnect, RuntimeError):
            with anyio.move_on_after(CLOSE_SECONDS, shield=True):
                # A close frame has room for 123 bytes of reason.
                await socket.close(code, reason.encode()[:120].decode("utf-8", "ignore"))
                return
            socket.scope["state"][ABORT]()  # the client does not read


# ---- Serving ----


async def serve(
    app: GatewayApp, listen: ListenAddress, bound: ListeningSocket, stop: anyio.Event
) -> None:
    """Serves until `stop` is set, then closes open connections."""
    server = QuietServer(
        app.asgi,
        ws=LimitedProtocol,
        headers=[("connection", "close")],  # one request for each connection: see `admission`
        ws_max_size=protocol.MAX_PAYLOAD,
        ws_per_message_deflate=False,
        ssl_certfile=listen.cert or None,
        ssl_keyfile=listen.key or None,
        timeout_graceful_shutdown=5,
    )
    async with anyio.create_task_group() as tasks:

        async def watch() -> None:
            await stop.wait()
            server.should_exit = True

        tasks.start_soon(watch)
        await server.serve(sockets=[bound])
        tasks.cancel_scope.cancel()
