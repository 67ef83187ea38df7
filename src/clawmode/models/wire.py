"""The HTTP client below the provider SDKs: the tool guard of SF-7, the API key, the debug log.

This module sees the final bytes, after all hooks and SDKs. `announce` sets the expectations for the
requests that are sent in its context; a request that was not announced is rejected.
"""

import json
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, TypeAlias

import httpx2

from clawmode.models.auth import Credential
from clawmode.models.base import ErrorKind, ModelError
from clawmode.models.debug import MAX_EVENT, MAX_PAYLOAD, DebugFlags, debug_flags, for_log, log
from clawmode.redaction import Redactor
from clawmode.tasks import close_iterator
from clawmode.text import printable
from clawmode.types import dataclass

CONNECT_SECONDS = 30.0
READ_SECONDS = 600.0
"""A last resort: the agent loop aborts a silent stream much earlier."""
PEEKED_EVENTS = 5
MAX_BUFFER = 1 << 20
"""Bytes of one event that are buffered for the log."""
DONE = b"[DONE]"

KeyHeaders: TypeAlias = Literal["bearer", "x-api-key", "both"]
"""The headers that carry the key."""

ELSEWHERE = ("functions", "mcp_servers", "web_search_options")
"""Members of a body that give a model tools which are not in `tools`."""
MORE_TOOLS = "additional_tools"
"""The type of an item of `input` that does so."""


@dataclass(eq=False, slots=True)
class Exchange:
    """One request and its response.

    Attributes:
        model: The model, `provider/name`.
        run_id: The run that makes the request, for logs.
        exact_tools: The only tools that the body may name; None if the tools are not checked.
        sent: True if the request has passed the guard and may have been sent.
        refusal: Why this module did not send the request.
        done: True if the stream contained its end marker.
    """

    model: str
    exact_tools: frozenset[str] | None
    run_id: str = ""
    sent: bool = False
    refusal: ModelError | None = None
    done: bool = False

    @property
    def label(self) -> str:
        """The model and the run, for logs."""
        return f"{self.model} ({self.run_id})" if self.run_id else self.model


_current: ContextVar[Exchange | None] = ContextVar("clawmode_model_exchange", default=None)


@contextmanager
def announce(exchange: Exchange) -> Iterator[None]:
    """Requests that are sent in this block, or by tasks started in it, belong to the exchange."""
    token = _current.set(exchange)
    try:
        yield
    finally:
        _current.reset(token)


# ---- The guard of SF-7 ----


def check_tools(body: bytes, expected: frozenset[str]) -> None:
    """Checks that a body names exactly these tools, each of them once.

    Raises:
        ModelError: The tools differ, or the body cannot be parsed.
    """
    try:
        payload = json.loads(body, object_pairs_hook=_reject_duplicates)
    except (ValueError, RecursionError) as error:
        raise _refusal(expected, f"a body that is not JSON ({error})") from None
    if not isinstance(payload, dict):
        raise _refusal(expected, "a body that is not a JSON object")
    tools = payload.get("tools")
    if not isinstance(tools, list):
        raise _refusal(expected, "no list of tools" if tools is not None else "no tools at all")
    names = [_name_of(tool) for tool in tools]
    if Counter(names) != Counter(expected):
        raise _refusal(expected, ", ".join(name or "one without a name" for name in names))
    items = payload.get("input")
    items = items if isinstance(items, list) else []
    kinds = [item.get("type") for item in items if isinstance(item, dict)]
    other = [key for key in ELSEWHERE if payload.get(key)]
    other += [kind for kind in kinds if kind == MORE_TOOLS]
    if other:
        raise _refusal(expected, f"them, and more tools in {other[0]!r}")


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # A provider may read the other one of two members with the same name.
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a member occurs twice")
    return made


def _name_of(tool: Any) -> str | None:
    """Returns the tool's name out of `{name}` or `{type: "function", function: {name}}`."""
    if not isinstance(tool, dict):
        return None
    inner = tool.get("function")
    holders = [tool, inner] if isinstance(inner, dict) else [tool]
    found = [holder["name"] for holder in holders if "name" in holder]
    # With two different names it is not known which one the provider reads.
    if not found or found[0] != found[-1] or not isinstance(found[0], str):
        return None
    return found[0] or None


def _refusal(expected: frozenset[str], found: str) -> ModelError:
    return ModelError(
        "payload_guard",
        "the request was not sent: its tools must be exactly "
        f"{', '.join(sorted(expected)) or 'none'}; found {found[:500]}",
        sent=False,
    )


def tool_names(body: bytes) -> list[str]:
    """Returns the names of the tools in a body; empty if the body cannot be parsed."""
    try:
        tools = json.loads(body).get("tools") or []
        return [_name_of(tool) or "?" for tool in tools]
    except (ValueError, AttributeError, TypeError, RecursionError):
        return []


# ---- The client ----


def make_client(
    credential: Credential,
    key_headers: KeyHeaders,
    *,
    timeout: float | None,
    local: bool,
    headers: Mapping[str, str],
) -> httpx2.AsyncClient:
    """Makes a client that checks, authorizes and logs requests.

    It follows no redirects: the key could be sent to another server.
    """
    # Local models may need an hour before the first token.
    read = timeout or (None if local else READ_SECONDS)
    return httpx2.AsyncClient(
        auth=_KeyAuth(credential, key_headers, headers),
        # Compression would delay the events of a stream until a block is full.
        headers={"accept-encoding": "identity"},
        timeout=httpx2.Timeout(read, connect=timeout or CONNECT_SECONDS),
        event_hooks={
            "request": [_RequestGuard(credential).check],
            "response": [_ResponseWatcher(credential).watch],
        },
    )


class _KeyAuth(httpx2.Auth):
    """Adds the key and the configured headers; retries once if the key has changed.

    The SDKs above never see the key.
    """

    def __init__(
        self, credential: Credential, key_headers: KeyHeaders, configured: Mapping[str, str]
    ) -> None:
        self._credential = credential
        self._key_headers = key_headers
        self._configured = configured

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        with _keep_refusal():
            key = await self._credential.get()
        self._authorize(request, key)
        response = yield request
        if response.status_code == 401 and key is not None:
            with _keep_refusal():
                changed = await self._credential.renew(key)
            if changed:
                self._authorize(request, await self._credential.get())
                yield request

    def _authorize(self, request: httpx2.Request, key: str | None) -> None:
        # Remove the placeholder key that the SDKs were given.
        for name in ("authorization", "x-api-key"):
            request.headers.pop(name, None)
        if key is not None:
            if self._key_headers != "x-api-key":
                request.headers["authorization"] = f"Bearer {key}"
            if self._key_headers != "bearer":
                request.headers["x-api-key"] = key
        request.headers.update(self._configured)


@contextmanager
def _keep_refusal() -> Iterator[None]:
    """Stores our own error in the exchange, because the SDKs wrap the error in theirs."""
    try:
        yield
    except ModelError as error:
        if (exchange := _current.get()) is not None:
            exchange.refusal = error
        raise


class _RequestGuard:
    """Checks the final bytes of each request before the transport sends them."""

    def __init__(self, credential: Credential) -> None:
        self._credential = credential

    async def check(self, request: httpx2.Request) -> None:
        """Checks and logs a request.

        Raises:
            ModelError: The request must not be sent.
        """
        exchange = _current.get()
        if exchange is None:
            text = "the request was not sent: it was made outside of a model request"
            raise ModelError("payload_guard", text, sent=False)
        # Not `content`, which is a copy: the transport reads the stream.
        if not isinstance(request.stream, httpx2.AsyncByteStream):
            text = "the request was not sent: its body cannot be checked"
            raise ModelError("payload_guard", text, sent=False)
        body = b"".join([chunk async for chunk in request.stream])
        with _keep_refusal():
            if exchange.exact_tools is not None:
                check_tools(body, exchange.exact_tools)
        request.stream = httpx2.ByteStream(body)
        request.extensions["clawmode_began"] = time.monotonic()
        exchange.sent = True
        flags = debug_flags()
        if flags.transport:
            # Without user, password and query, which may be secret.
            url = request.url
            place = f"{url.scheme}://{url.netloc.decode('ascii')}{url.path}"
            log("%s: %s %s, %d bytes", exchange.label, request.method, place, len(body))
        if flags.payload == "tools":
            names = tool_names(body)
            log("%s: %d tools: %s", exchange.label, len(names), ", ".join(names))
        elif flags.payload == "full-redacted":
            text = for_log(body, self._credential.redactor, MAX_PAYLOAD)
            log("%s: payload: %s", exchange.label, text)


class _ResponseWatcher:
    """Replaces the body of each response by one that counts and logs."""

    def __init__(self, credential: Credential) -> None:
        self._credential = credential

    async def watch(self, response: httpx2.Response) -> None:
        exchange = _current.get()
        stream = response.stream
        if exchange is not None and isinstance(stream, httpx2.AsyncByteStream):
            response.stream = _ObservedBody(
                stream, response, exchange, debug_flags(), self._credential.redactor
            )


class _ObservedBody(httpx2.AsyncByteStream):
    """Passes a body through; looks for the end marker, counts bytes, and logs events."""

    def __init__(
        self,
        inner: httpx2.AsyncByteStream,
        response: httpx2.Response,
        exchange: Exchange,
        flags: DebugFlags,
        redactor: Redactor,
    ) -> None:
        self._inner = inner
        self._chunks = aiter(inner)
        self._response = response
        self._exchange = exchange
        self._flags = flags
        self._tail = b""
        self._bytes = 0
        self._closed = False
        is_events = "event-stream" in response.headers.get("content-type", "")
        self._events = (
            _EventLog(exchange.label, flags, redactor) if is_events and flags.sse else None
        )

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        chunk = await anext(self._chunks)
        self._bytes += len(chunk)
        # The end marker may be split between two chunks.
        self._tail = (self._tail + chunk)[-64:]
        if DONE in self._tail:
            self._exchange.done = True
        if self._events is not None:
            self._events.feed(chunk)
        return chunk

    async def aclose(self) -> None:
        if not self._closed and self._flags.transport:
            ms = (time.monotonic() - self._response.request.extensions["clawmode_began"]) * 1000
            status, label = self._response.status_code, self._exchange.label
            log("%s: status %d, %d ms, %d bytes", label, status, ms, self._bytes)
        self._closed = True
        await close_iterator(self._chunks)  # the SDKs do not
        await self._inner.aclose()


class _EventLog:
    """Splits a stream into server-sent events and logs them."""

    def __init__(self, label: str, flags: DebugFlags, redactor: Redactor) -> None:
        self._label = label
        self._peek = flags.sse == "peek"
        self._redactor = redactor
        self._buffer = b""
        self._seen = 0

    def feed(self, chunk: bytes) -> None:
        """Adds a chunk of the stream, and logs the events that it completes."""
        if self._peek and self._seen == PEEKED_EVENTS:
            return
        self._buffer += chunk.replace(b"\r\n", b"\n")
        while b"\n\n" in self._buffer:
            event, _, self._buffer = self._buffer.partition(b"\n\n")
            self._log(event)
        # An event that never ends must not fill the memory.
        self._buffer = self._buffer[-MAX_BUFFER:]

    def _log(self, event: bytes) -> None:
        fields = [line.partition(b":") for line in event.split(b"\n")]
        named = b"".join(value for key, _, value in fields if key == b"event")
        data = b"".join(value for key, _, value in fields if key == b"data").strip()
        if not (named or data) or (self._peek and self._seen == PEEKED_EVENTS):
            return
        self._seen += 1
        name = named.decode("utf-8", "replace").strip() or _event_type(data)
        name = printable(name, "")[:80]
        if self._peek:
            log("%s: event %s: %s", self._label, name, for_log(data, self._redactor, MAX_EVENT))
        else:
            log("%s: event %s", self._label, name)


def _event_type(data: bytes) -> str:
    try:
        value = json.loads(data)
    except ValueError:
        return "[DONE]" if data == DONE else "?"
    found = (value.get("type") or value.get("object")) if isinstance(value, dict) else None
    return found if isinstance(found, str) else "?"


# ---- Errors ----


def transport_kind(error: BaseException | None) -> ErrorKind | None:
    """Returns the kind of the transport error that is or caused `error`; None if there is none."""
    for _ in range(10):  # bounded, because a chain of causes can be a cycle
        if isinstance(error, httpx2.TimeoutException):
            return "timeout"
        if isinstance(error, httpx2.TransportError):
            return "connection"
        if isinstance(error, httpx2.DecodingError):
            return "garbage"
        if error is None:
            return None
        error = error.__cause__
    return None
