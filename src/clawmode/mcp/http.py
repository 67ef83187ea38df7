"""MCP servers behind an address: streamable HTTP, and the older HTTP with SSE.

The SDK's transports, over an HTTP client that they cannot be hurt by: in theirs, a connection that
is refused ends every call of the server with a `CancelledError`, and an answer of any size is read.
"""

import contextlib
import functools
import json
import ssl
from collections.abc import AsyncIterator
from typing import Any

import httpx2
from mcp.client.sse import sse_client
from mcp.client.streamable_http import MCP_SESSION_ID, streamable_http_client

from clawmode.foreign import message_of
from clawmode.mcp.settings import Bearer, ServerSettings
from clawmode.mcp.wire import (
    MAX_MESSAGE,
    NOT_AUTHORIZED,
    NOT_DELIVERED,
    SESSION_LOST,
    UNREADABLE,
    Link,
    Reads,
    Writes,
    why_refused,
)

MAX_CONNECTIONS = 256
MAX_PEEK = 4_096
WRITE_SECONDS = 60.0

UNDELIVERED = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)
"""What is raised before the request has left: the server has not seen it."""


@contextlib.asynccontextmanager
async def open_http(
    settings: ServerSettings, link: Link, auth: httpx2.Auth | None
) -> AsyncIterator[tuple[Reads, Writes]]:
    """Opens the wire. That nobody is there may show only with the first request."""
    headers = {"accept-encoding": "identity"} | dict(settings.headers)
    if isinstance(settings.auth, Bearer):
        headers = {key: it for key, it in headers.items() if key.lower() != "authorization"}
        headers["authorization"] = f"Bearer {settings.auth.token}"
    # No limit on reading: a stream may be silent for long, and every call has its own clock.
    timeout = httpx2.Timeout(settings.connect_timeout, read=None, write=WRITE_SECONDS)

    def make(*_: Any, **__: Any) -> httpx2.AsyncClient:
        return _HttpClient(settings, link, headers=headers, timeout=timeout, auth=auth)

    if settings.transport == "sse":
        async with sse_client(settings.url, httpx_client_factory=make) as streams:
            yield link.reads(streams[0]), link.writes(streams[1])
        return
    async with (
        make() as client,
        streamable_http_client(
            settings.url, http_client=client, max_sse_event_size=MAX_MESSAGE
        ) as streams,
    ):
        yield link.reads(streams[0]), link.writes(streams[1])


@functools.cache
def _tls() -> ssl.SSLContext:
    """Shared: to read the certificates takes 30 ms, and there may be many servers."""
    return httpx2.create_ssl_context()


class _HttpClient(httpx2.AsyncClient):
    """An HTTP client in which a request that fails is an answer that says so."""

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
            event_hooks={"response": [_bound]},  # those to the OAuth flow too
        )
        self._settings = settings
        self._link = link

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Sends it, and answers in the server's place if there is no server."""
        try:
            response = await super().send(request, **options)
        except httpx2.TransportError as error:
            if request.method != "POST":
                raise
            undelivered = isinstance(error, UNDELIVERED)
            text = self._link.clean(str(error)) or type(error).__name__
            place = self._settings.place
            what = f"cannot be reached at {place}: {text}" if undelivered else f"broke off: {text}"
            self._link.trouble = what
            self._link.notify("suspect")
            return _answer(request, 502, NOT_DELIVERED if undelivered else UNREADABLE, what)
        except Exception as error:  # of the OAuth flow
            if request.method != "POST":
                raise
            return _answer(request, 401, NOT_AUTHORIZED, f"cannot be used: {message_of(error)}")
        if request.method == "POST" and response.status_code >= 400:
            return await self._explain(request, response)
        return response

    async def _explain(self, request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
        """An error that is told by its status alone, as one that has words."""
        status = _status(response)
        if request.headers.get(MCP_SESSION_ID) and await _ends_session(response):
            # Who asked learns it first, and asks again.
            self._link.trouble = "has forgotten the session"
            self._link.notify("suspect")
            await response.aclose()
            return _answer(request, 404, SESSION_LOST, "has forgotten the session")
        if self._settings.transport == "sse":
            self._link.fault = f"refused a message: {status}"
            self._link.notify("lost")
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
    """Why there is no connection, if it is a matter of HTTP: completes "the server ..."."""
    if isinstance(error, httpx2.HTTPStatusError):
        response = error.response
        return f"at {place} answered {_status(response)}"
    if isinstance(error, httpx2.TransportError):
        return f"cannot be reached at {place}: {str(error) or type(error).__name__}"
    return ""


def _status(response: httpx2.Response) -> str:
    return f"HTTP {response.status_code} {response.reason_phrase}".strip()


async def _ends_session(response: httpx2.Response) -> bool:
    """Whether it says that the session is unknown: by 404, or as some do by 400 and words."""
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


# ---- Bounds ----


async def _bound(response: httpx2.Response) -> None:
    """Puts limits to a body before anybody reads it."""
    stream = response.stream
    assert isinstance(stream, httpx2.AsyncByteStream)
    events = response.headers.get("content-type", "").startswith("text/event-stream")
    # It was asked not to: a kilobyte of it may be a gigabyte.
    packed = response.headers.pop("content-encoding", "identity") != "identity"
    response.stream = _BoundedBody(stream, events=events, packed=packed)


class _BoundedBody(httpx2.AsyncByteStream):
    """A body that ends with an error which the SDK catches, as soon as there is a reason."""

    def __init__(self, inner: httpx2.AsyncByteStream, *, events: bool, packed: bool) -> None:
        self._inner = inner
        self._events = events
        self._packed = packed
        self._size = 0
        self._containers = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        # What it catches for one kind it lets through for the other: then all calls would end.
        kind = httpx2.SSEError if self._events else httpx2.StreamError
        try:
            async for chunk in self._inner:
                if why := self._measure(chunk):
                    raise kind(why)
                yield chunk
        except httpx2.TransportError as error:
            if self._events:  # which may be resumed
                raise
            raise httpx2.StreamError(f"it broke off: {error}") from None

    def _measure(self, chunk: bytes) -> str:
        if self._packed:
            return "its answer is compressed"
        if self._events and (b"\n\n" in chunk or b"\r\n\r\n" in chunk):
            # The events that end here are small; the size of others is the SDK's to watch.
            self._size = self._containers = 0
            chunk = chunk[max(chunk.rfind(b"\n\n"), chunk.rfind(b"\r\n\r\n")) :]
        self._size += len(chunk)
        self._containers += chunk.count(b"{") + chunk.count(b"[")
        return why_refused(self._size, self._containers)

    async def aclose(self) -> None:
        await self._inner.aclose()
