"""One connection of a client to a gateway: opened, introduced, read until it ends.

The token goes out in one frame, and nowhere else: no proxy sees it in the clear, no redirect is
followed, no log has it.
"""

import json
import logging
import ssl
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, get_args
from urllib.parse import urlsplit

import anyio
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import (
    ConnectionClosed,
    InvalidStatus,
    InvalidURI,
    WebSocketException,
)

from clawmode.exceptions import ClawmodeError, ConfigurationError
from clawmode.rpc import protocol
from clawmode.rpc.protocol import Code, RpcError
from clawmode.types import JsonObject, JsonValue

CHALLENGE_SECONDS = 15.0
OPEN_SECONDS = 10.0
CLOSE_SECONDS = 2.0
CLOSE_SILENT = 4000
"""The gateway has not ticked for two intervals."""

MAX_TICK_MS = 3_600_000
MAX_WORDS = 4_000
HELLO_ID = "hello"
CODES: tuple[Code, ...] = get_args(Code)

# Its own level, so that no setting of others has frames logged: the first one has the token.
_wire_logger = logging.getLogger("clawmode.gateway.wire")
_wire_logger.setLevel(logging.WARNING)


class GatewayUnreachable(ClawmodeError):
    """No gateway answers there, or it has hung up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a gateway is, and what opens it.

    Attributes:
        tls: How its certificate is checked; None: as the system does it.
    """

    url: str = field(repr=False)
    token: str = field(repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False, compare=False)

    @property
    def shown(self) -> str:
        """For people: without what may be a secret in it."""
        parts = urlsplit(self.url)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        return f"{parts.scheme}://{host}:{parts.port}" if parts.port else f"{parts.scheme}://{host}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Introduction:
    """What a client says of itself."""

    client_id: str
    version: str
    mode: str
    scopes: tuple[str, ...] = ()


class Link:
    """A connection that the gateway has agreed to.

    Attributes:
        hello: What it answered to `connect`.
    """

    def __init__(self, socket: ClientConnection, hello: JsonObject) -> None:
        self._socket = socket
        self.hello = hello
        self._silence = 2 * _tick_seconds(hello)

    async def send(self, frame: str) -> None:
        """Sends a frame.

        Raises:
            GatewayUnreachable: It has hung up.
        """
        with _translated():
            await self._socket.send(frame)

    async def frames(self) -> AsyncIterator[dict[str, Any]]:
        """What comes.

        Raises:
            GatewayUnreachable: It has hung up, or says nothing any more. So it always ends.
        """
        while True:
            frame: dict[str, Any] | None = None
            with anyio.move_on_after(self._silence):
                frame = await _receive(self._socket)
            if frame is None:
                await self._socket.close(CLOSE_SILENT, "tick timeout")
                raise GatewayUnreachable("the gateway fell silent")
            yield frame


def _tick_seconds(hello: JsonObject) -> float:
    policy = hello.get("policy")
    given = policy.get("tickIntervalMs") if isinstance(policy, dict) else None
    usable = isinstance(given, int) and not isinstance(given, bool) and 0 < given <= MAX_TICK_MS
    return (given if usable else protocol.TICK_MS) / 1000


# ---- Opening ----


class _Connect(connect):
    def process_redirect(self, exc: Exception) -> Exception | str:
        """Follows none: the token is for whom it was made."""
        return exc


@asynccontextmanager
async def open_link(address: Address, who: Introduction) -> AsyncIterator[Link]:
    """Connects.

    Raises:
        ConfigurationError: The address is none.
        GatewayUnreachable: Nobody answers there, or in words that are not understood.
        RpcError: It does not let us in.
    """
    socket = await _open_socket(address)
    try:
        yield Link(socket, await _introduce(socket, address, who))
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
            proxy=True if secure else None,
            open_timeout=OPEN_SECONDS,
            ping_interval=None,  # it ticks
            close_timeout=CLOSE_SECONDS,
            max_size=protocol.MAX_BUFFERED,
            logger=_wire_logger,
            **options,
        )
    except InvalidURI:
        raise ConfigurationError("the address of a gateway begins with ws:// or wss://") from None
    except InvalidStatus as error:
        text = f"{address.shown} answers with HTTP status {error.response.status_code}"
        raise GatewayUnreachable(text) from None
    except (OSError, TimeoutError, WebSocketException) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        text = f"{address.shown} cannot be reached: {reason[:MAX_WORDS]}"
        raise GatewayUnreachable(text) from None


async def _introduce(socket: ClientConnection, address: Address, who: Introduction) -> JsonObject:
    try:
        with anyio.fail_after(CHALLENGE_SECONDS):
            challenge = await _receive(socket)
        if (challenge.get("type"), challenge.get("event")) != ("event", protocol.CHALLENGE):
            raise GatewayUnreachable(f"{address.shown} is no gateway: it sent no challenge")
        with _translated():
            await socket.send(_connect_frame(address, who))
        with anyio.fail_after(CHALLENGE_SECONDS):
            answer = await _receive(socket)
    except TimeoutError:
        raise GatewayUnreachable(f"{address.shown} takes too long to let us in") from None
    if answer.get("ok") is not True:
        raise read_error(answer)
    hello = answer.get("payload")
    if not isinstance(hello, dict) or hello.get("type") != "hello-ok":
        raise GatewayUnreachable(f"{address.shown} is no gateway: it did not greet")
    if hello.get("protocol") != protocol.PROTOCOL:
        text = f"{address.shown} speaks another protocol than {protocol.PROTOCOL}"
        raise RpcError("INVALID_REQUEST", text, field="minProtocol")
    return hello


def _connect_frame(address: Address, who: Introduction) -> str:
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
    return request_frame(HELLO_ID, protocol.CONNECT, params)


# ---- Frames ----


def request_frame(request_id: str, method: str, params: JsonObject) -> str:
    """A request, as it is sent.

    Raises:
        ValueError: It has what is no JSON.
    """
    frame = {"type": "req", "id": request_id, "method": method, "params": params}
    text = json.dumps(frame, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode("utf-8", "replace").decode()


def read_error(frame: dict[str, Any]) -> RpcError:
    """What a response says went wrong."""
    error = frame.get("error")
    told: dict[str, Any] = error if isinstance(error, dict) else {}
    details = told.get("details")
    found: dict[str, Any] = details if isinstance(details, dict) else {}
    wait = told.get("retryAfterMs")
    return RpcError(
        next((code for code in CODES if code == told.get("code")), "INTERNAL"),
        str(told.get("message") or "the gateway does not say why")[:MAX_WORDS],
        field=str(found.get("field", ""))[:MAX_WORDS],
        retry_after_ms=wait if isinstance(wait, int) and wait >= 0 else None,
        details={key: value for key, value in found.items() if key != "field"},
    )


async def _receive(socket: ClientConnection) -> dict[str, Any]:
    with _translated():
        text = await socket.recv()
    try:
        frame = json.loads(text)
    except (ValueError, RecursionError):
        frame = None
    if not isinstance(frame, dict):
        await socket.close(protocol.CLOSE_POLICY, "no frame")
        raise GatewayUnreachable("the gateway sent what is no frame")
    return frame


@contextmanager
def _translated() -> Iterator[None]:
    """What the library raises, in our words."""
    try:
        yield
    except ConnectionClosed as error:
        close = error.rcvd or error.sent
        why = f" ({close.code} {close.reason[:120]})".rstrip() if close else ""
        raise GatewayUnreachable(f"the gateway closed the connection{why}") from None
    except (OSError, WebSocketException) as error:
        raise GatewayUnreachable(f"the connection broke: {type(error).__name__}") from None
