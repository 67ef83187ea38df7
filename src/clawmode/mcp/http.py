"""The HTTP transports: streamable HTTP, and the older HTTP with SSE.

The SDK's transports run over our own HTTP client. With the SDK's client, a refused connection would
end every call of the server with `CancelledError`, and an answer could have any size.
"""

import contextlib
import functools
import json
import re
import ssl
from collections.abc import AsyncIterator
from typing import Any

import httpx2
from mcp.client.sse import sse_client
from mcp.client.streamable_http import MCP_SESSION_ID, streamable_http_client
from mcp.shared.message import SessionMessage

from clawmode.exceptions import message_of
from clawmode.mcp.settings import Bearer, ServerSettings
from clawmode.mcp.wire import (
    MAX_MESSAGE,
    NOT_AUTHORIZED,
    NOT_DELIVERED,
    SESSION_LOST,
    UNREADABLE,
    IncomingStream,
    Link,
    MessageSink,
    OutgoingStream,
    encode,
    why_refused,
)
from clawmode.tasks import close_iterator

MAX_CONNECTIONS = 256
MAX_PEEK = 4_096
WRITE_SECONDS = 60.0

UNDELIVERED = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)
"""Raised before the request is sent: the server has not received it."""


@contextlib.asynccontextmanager
async def open_http(
    settings: ServerSettings, link: Link, auth: httpx2.Auth | None
) -> AsyncIterator[tuple[IncomingStream, OutgoingStream]]:
    """Opens the transport. A server that does not exist may show only at the first request."""
    headers = {"accept-encoding": "identity"} | dict(settings.headers)
    if isinstance(settings.auth, Bearer):
        headers = {
            name: value for name, value in headers.items() if name.lower() != "authorization"
        }
        headers["authorization"] = f"Bearer {settings.auth.token}"
    # No read timeout: a stream may be silent for long, and every call has its own time limit.
    timeout = httpx2.Timeout(settings.connect_timeout, read=None, write=WRITE_SECONDS)

    def make(*_: Any, **__: Any) -> httpx2.AsyncClient:
        return _HttpClient(settings, link, headers=headers, timeout=timeout, auth=auth)

    if settings.transport == "sse":
        async with sse_client(settings.url, httpx_client_factory=make) as streams:
            yield link.incoming(streams[0]), link.outgoing(_CheckedSink(streams[1]))
        return
    async with (
        make() as client,
        streamable_http_client(
            settings.url, http_client=client, max_sse_event_size=MAX_MESSAGE
        ) as streams,
    ):
        yield link.incoming(streams[0]), link.outgoing(_CheckedSink(streams[1]))


class _CheckedSink:
    """Rejects messages that cannot be encoded.

    The SDK encodes them itself, in a task of the transport, where a failure would end every call.
    So a message is encoded twice; the check takes a third of the time of the SDK's own encoding.
    """

    def __init__(self, inner: MessageSink) -> None:
        self._inner = inner

    async def send(self, item: SessionMessage, /) -> None:
        if encode(item.message):
            await self._inner.send(item)

    async def aclose(self) -> None:
        await self._inner.aclose()


@functools.cache
def _tls() -> ssl.SSLContext:
    """Shared by all servers, because loading the certificates takes 30 ms."""
    return httpx2.create_ssl_context()


class _HttpClient(httpx2.AsyncClient):
    """Turns a failed request into a JSON-RPC error, which the SDK passes to the caller."""

    def __init__(
        self,
        settings: ServerSettings,
        link: Link,
        *,
        headers: dict[str, str],
        timeout: httpx2.Timeout,
        auth: httpx2.Auth | None,
    ) -> None:
        super().__init__(
            headers=headers,
            timeout=timeout,
            auth=auth,
            verify=_tls(),
            limits=httpx2.Limits(max_connections=MAX_CONNECTIONS),
            event_hooks={"response": [_bound]},  # also for requests of the OAuth flow
        )
        self._settings = settings
        self._link = link

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Sends a request. If it fails, returns an error on behalf of the server."""
        try:
            response = await super().send(request, **options)
        except httpx2.TransportError as error:
            if request.method != "POST":
                raise
            undelivered = isinstance(error, UNDELIVERED)
            text = self._link.clean(str(error)) or type(error).__name__
            place = self._settings.place
            if undelivered:
                problem = f"cannot be reached at {place}: {text}"
            else:
                problem = f"lost the connection: {text}"
            self._link.trouble = problem
            self._link.events.ring(suspect=True)
            return _answer(request, 502, NOT_DELIVERED if undelivered else UNREADABLE, problem)
        except Exception as error:  # raised by the OAuth flow
            if request.method != "POST":
                raise
            return _answer(request, 401, NOT_AUTHORIZED, f"cannot be used: {message_of(error)}")
        if request.method == "POST" and response.status_code >= 400:
            return await self._explain(request, response)
        return response

    async def _explain(self, request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
        """Turns an error status into an error with a message."""
        status = _status(response)
        if request.headers.get(MCP_SESSION_ID) and await _ends_session(response):
            # The caller gets the error at once, and repeats the request on a new connection.
            self._link.trouble = "has forgotten the session"
            self._link.events.ring(suspect=True)
            await response.aclose()
            return _answer(request, 404, SESSION_LOST, "has forgotten the session")
        if self._settings.transport == "sse":
            self._link.fault = f"refused a message: {status}"
            self._link.events.ring(over=True)
            return response
        kind = response.headers.get("content-type", "").lower()
        unauthorized = response.status_code == 401
        if kind.startswith("application/json") and not unauthorized:
            return response
        await response.aclose()
        code = NOT_AUTHORIZED if unauthorized else UNREADABLE
        place = self._settings.place
        return _answer(request, response.status_code, code, f"at {place} answered {status}")


def explain(error: BaseException, place: str) -> str:
    """Returns why HTTP failed, as text that completes "the server ..."; empty for other errors."""
    if isinstance(error, httpx2.HTTPStatusError):
        response = error.response
        return f"at {place} answered {_status(response)}"
    if isinstance(error, httpx2.TransportError):
        return f"cannot be reached at {place}: {str(error) or type(error).__name__}"
    return ""


_SECONDS = re.compile(r"[0-9]{1,6}")


def _status(response: httpx2.Response) -> str:
    status = f"HTTP {response.status_code} {response.reason_phrase}".strip()
    pause = response.headers.get("retry-after", "")
    # Only a number: the header is the server's text.
    return f"{status}, retry after {pause} s" if _SECONDS.fullmatch(pause) else status


async def _ends_session(response: httpx2.Response) -> bool:
    """True if the session is unknown: by status 404, or with some servers 400 and a text."""
    if response.status_code == 404:
        return True
    if response.status_code != 400:
        return False
    with contextlib.suppress(httpx2.StreamError, httpx2.TransportError):
        return b"session" in (await response.aread())[:MAX_PEEK].lower()
    return False


def _answer(request: httpx2.Request, status: int, code: int, text: str) -> httpx2.Response:
    error = {"code": code, "message": text}
    body = json.dumps({"jsonrpc": "2.0", "id": None, "error": error})
    return httpx2.Response(
        status, headers={"content-type": "application/json"}, content=body, request=request
    )


# ---- Limits ----


async def _bound(response: httpx2.Response) -> None:
    """Limits the size of a body before it is read."""
    stream = response.stream
    assert isinstance(stream, httpx2.AsyncByteStream)
    events = response.headers.get("content-type", "").startswith("text/event-stream")
    # We asked for no compression: a kilobyte could expand to a gigabyte.
    packed = response.headers.pop("content-encoding", "identity") != "identity"
    response.stream = _BoundedBody(stream, events=events, packed=packed)


class _BoundedBody(httpx2.AsyncByteStream):
    """A body that raises an error which the SDK catches, as soon as a limit is exceeded."""

    def __init__(self, inner: httpx2.AsyncByteStream, *, events: bool, packed: bool) -> None:
        self._inner = inner
        self._chunks = aiter(inner)
        self._events = events
        self._packed = packed
        self._size = 0
        self._containers = 0

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        try:
            chunk = await anext(self._chunks)
        except httpx2.TransportError as error:
            if self._events:  # the SDK can resume the stream
                raise
            raise httpx2.StreamError(f"the connection was lost: {error}") from None
        if why := self._measure(chunk):
            # The SDK catches SSEError only for event streams, and StreamError only for other
            # bodies. An error that it does not catch would end all calls.
            raise httpx2.SSEError(why) if self._events else httpx2.StreamError(why)
        return chunk

    def _measure(self, chunk: bytes) -> str:
        if self._packed:
            return "its answer is compressed"
        if self._events and (b"\n\n" in chunk or b"\r\n\r\n" in chunk):
            # Events that end in this chunk are small; the SDK limits the size of the others.
            self._size = self._containers = 0
            chunk = chunk[max(chunk.rfind(b"\n\n"), chunk.rfind(b"\r\n\r\n")) :]
        self._size += len(chunk)
        self._containers += chunk.count(b"{") + chunk.count(b"[")
        return why_refused(self._size, self._containers)

    async def aclose(self) -> None:
        await close_iterator(self._chunks)  # the SDK does not
        await self._inner.aclose()
