"""One WebSocket connection to a gateway: opened, introduced, read until it ends.

The token is sent in a single frame and nowhere else: no proxy sees it in the clear, no redirect is
followed, and no log contains it.
"""

import json
import logging
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import anyio
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, InvalidURI, WebSocketException

from clawmode.exceptions import ConfigurationError
from clawmode.rpc import protocol
from clawmode.rpc.presence import Address, GatewayUnreachable
from clawmode.rpc.protocol import RpcError
from clawmode.types import JsonObject, JsonValue, dataclass

CHALLENGE_SECONDS = 15.0
OPEN_SECONDS = 10.0
CLOSE_SECONDS = 2.0
CLOSE_SILENT = 4000
"""The gateway has not sent a tick for two intervals."""

MAX_TICK_MS = 3_600_000
MAX_REASON = 4_000
HELLO_ID = "hello"

# With a level of its own, so that no other setting makes websockets log frames: the first frame
# contains the token.
_wire_logger = logging.getLogger("clawmode.gateway.wire")
_wire_logger.setLevel(logging.WARNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Introduction:
    """What a client tells the gateway about itself."""

    client_id: str
    version: str
    mode: str
    scopes: tuple[str, ...] = ()


class WebSocketLink:
    """A connection that the gateway has accepted.

    Attributes:
        hello: The gateway's response to `connect`.
    """

    def __init__(self, socket: ClientConnection, hello: JsonObject) -> None:
        self._socket = socket
        self.hello = hello
        policy = hello.get("policy")
        tick = policy.get("tickIntervalMs") if isinstance(policy, dict) else None
        # The gateway is not trusted: a wrong interval must not keep a dead connection open.
        usable = isinstance(tick, int) and not isinstance(tick, bool) and 0 < tick <= MAX_TICK_MS
        self._silence = 2 * (tick if usable else protocol.TICK_MS) / 1000

    async def send(self, frame: str) -> None:
        """Sends a frame.

        Raises:
            GatewayUnreachable: The connection was lost.
        """
        with _translated():
            await self._socket.send(frame)

    async def frames(self) -> AsyncIterator[dict[str, Any]]:
        """Yields the frames of the gateway. Always ends by the exception.

        Raises:
            GatewayUnreachable: The connection was lost, or the gateway no longer sends ticks.
        """
        while True:
            frame: dict[str, Any] | None = None
            with anyio.move_on_after(self._silence):
                frame = await _receive(self._socket)
            if frame is None:
                await self._socket.close(CLOSE_SILENT, "tick timeout")
                raise GatewayUnreachable(f"the gateway sent nothing for {self._silence:g} s")
            yield frame


# ---- Opening ----


class _Connect(connect):
    def process_redirect(self, exc: Exception) -> Exception | str:
        """Follows no redirect: the token is meant for the configured gateway only."""
        return exc


@asynccontextmanager
async def open_link(address: Address, who: Introduction) -> AsyncIterator[WebSocketLink]:
    """Connects to a gateway; the connection is closed at the end of the block.

    Raises:
        ConfigurationError: The address is invalid.
        GatewayUnreachable: No gateway answers at the address, or its answer is invalid.
        RpcError: The gateway rejects the client.
    """
    socket = await _open_socket(address)
    try:
        yield WebSocketLink(socket, await _introduce(socket, address, who))
    finally:
        with anyio.move_on_after(CLOSE_SECONDS, shield=True), suppress(WebSocketException, OSError):
            await socket.close()


async def _open_socket(address: Address) -> ClientConnection:
    secure = address.url.startswith("wss:")
    options: dict[str, Any] = {"ssl": address.tls} if secure and address.tls else {}
    try:
        return await _Connect(
            address.url,
            compression=None,
            proxy=True if secure else None,  # without TLS a proxy would see the token
            open_timeout=OPEN_SECONDS,
            ping_interval=None,  # the gateway sends ticks
            close_timeout=CLOSE_SECONDS,
            max_size=protocol.MAX_BUFFERED,
            logger=_wire_logger,
            **options,
        )
    except InvalidURI:
        text = "the URL of a gateway must start with ws:// or wss://"
        raise ConfigurationError(text) from None
    except InvalidStatus as error:
        text = f"{address.shown} answered with HTTP status {error.response.status_code}"
        raise GatewayUnreachable(text) from None
    except (OSError, TimeoutError, WebSocketException) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        text = f"{address.shown} cannot be reached: {reason[:MAX_REASON]}"
        raise GatewayUnreachable(text) from None


async def _introduce(socket: ClientConnection, address: Address, who: Introduction) -> JsonObject:
    """Waits for the challenge and calls `connect`; returns the response."""
    params: JsonObject = {
        "minProtocol": protocol.PROTOCOL,
        "maxProtocol": protocol.PROTOCOL,
        "client": {
            "id": who.client_id,
            "version": who.version,
            "platform": sys.platform,
            "mode": who.mode,
        },
        "role": "operator",
        "scopes": list[JsonValue](who.scopes),
        "auth": {"token": address.token},
    }
    try:
        with anyio.fail_after(CHALLENGE_SECONDS):
            challenge = await _receive(socket)
        if (challenge.get("type"), challenge.get("event")) != ("event", protocol.CHALLENGE):
            raise GatewayUnreachable(f"{address.shown} is not a gateway: it sent no challenge")
        with _translated():
            await socket.send(protocol.request(HELLO_ID, protocol.CONNECT, params))
        with anyio.fail_after(CHALLENGE_SECONDS):
            answer = await _receive(socket)
    except TimeoutError:
        text = f"{address.shown} did not complete the handshake in {CHALLENGE_SECONDS:g} s"
        raise GatewayUnreachable(text) from None
    if answer.get("ok") is not True:
        raise protocol.parse_error(answer)
    hello = answer.get("payload")
    if not isinstance(hello, dict) or hello.get("type") != "hello-ok":
        text = f"{address.shown} is not a gateway: its answer to `connect` is not `hello-ok`"
        raise GatewayUnreachable(text)
    if hello.get("protocol") != protocol.PROTOCOL:
        text = f"{address.shown} uses another protocol than {protocol.PROTOCOL}"
        raise RpcError("INVALID_REQUEST", text, field="minProtocol")
    return hello


# ---- Receiving ----


async def _receive(socket: ClientConnection) -> dict[str, Any]:
    with _translated():
        text = await socket.recv()
    try:
        frame = json.loads(text)
    except (ValueError, RecursionError):
        frame = None
    if not isinstance(frame, dict):
        await socket.close(protocol.CLOSE_POLICY, "no frame")
        raise GatewayUnreachable("the gateway sent a message that is not a JSON object")
    return frame


@contextmanager
def _translated() -> Iterator[None]:
    """Turns exceptions of the WebSocket library into `GatewayUnreachable`."""
    try:
        yield
    except ConnectionClosed as error:
        close = error.rcvd or error.sent
        why = f" ({close.code} {close.reason[:120]})".rstrip() if close else ""
        raise GatewayUnreachable(f"the gateway closed the connection{why}") from None
    except (OSError, WebSocketException) as error:
        text = f"the connection to the gateway broke: {type(error).__name__}"
        raise GatewayUnreachable(text) from None
