"""The HTTP layer under the providers' libraries: the guard of SF-7, the key, and the debug log.

Here are the bytes that are sent, after every hook and library has had its hands on them. What an
exchange expects is said by whoever makes the request, in the context that it is made in; a request
that nobody announced is not sent.
"""

import json
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import httpx2

from clawmode.models.auth import Credential
from clawmode.models.base import ErrorKind, ModelError
from clawmode.models.debug import (
    MAX_EVENT,
    MAX_PAYLOAD,
    DebugFlags,
    debug_flags,
    log,
    shown,
)
from clawmode.redaction import Redactor
from clawmode.text import printable

CONNECT_SECONDS = 30.0
READ_SECONDS = 600.0
"""A last resort: whoever reads the stream is less patient."""
PEEKED = 5
MAX_BUFFER = 1 << 20
"""Bytes of one event of a stream that is being watched."""
DONE = b"[DONE]"

KeyHeaders: TypeAlias = Literal["bearer", "x-api-key", "both"]
"""How a provider wants to be shown the key."""

ELSEWHERE = ("functions", "mcp_servers", "web_search_options")
"""Members of a body by which a model gets tools that `tools` does not name."""


@dataclass(eq=False, slots=True)
class Exchange:
    """One request and its answer, as the wire sees them.

    Attributes:
        model: Which model it is for, `provider/name`.
        run_id: The run that asks, for logs.
        exact_tools: What the body must name as tools, and nothing else; None if anything goes.
        sent: Whether anything has left.
        refusal: Why it has not.
        done: Whether the stream said that it is complete.
    """

    model: str
    exact_tools: frozenset[str] | None
    run_id: str = ""
    sent: bool = False
    refusal: ModelError | None = None
    done: bool = False

    @property
    def label(self) -> str:
        """For logs: which model, which run."""
        return f"{self.model} ({self.run_id})" if self.run_id else self.model


_current: ContextVar[Exchange | None] = ContextVar("clawmode_model_exchange", default=None)


@contextmanager
def announced(exchange: Exchange) -> Iterator[None]:
    """What is sent in this block, and by tasks that are started in it, is part of the exchange."""
    token = _current.set(exchange)
    try:
        yield
    finally:
        _current.reset(token)


# ---- The guard ----


def check_tools(body: bytes, expected: frozenset[str]) -> None:
    """Checks that a body names exactly these tools, each of them once.

    Raises:
        ModelError: It does not, or cannot be read.
    """
    try:
        payload = json.loads(body, object_pairs_hook=_no_key_twice)
    except (ValueError, RecursionError) as error:
        raise _refusal(expected, f"a body that is no JSON ({error})") from None
    if not isinstance(payload, dict):
        raise _refusal(expected, "a body that is no JSON object")
    tools = payload.get("tools")
    if not isinstance(tools, list):
        raise _refusal(expected, "no list of tools" if tools is not None else "no tools at all")
    names = [_name_of(tool) for tool in tools]
    if Counter(names) != Counter(expected):
        raise _refusal(expected, ", ".join(name or "one without a name" for name in names))
    if beside := _tools_beside(payload):
        raise _refusal(expected, f"them, and {beside!r} beside them")


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # Of two members with one name, a provider may read the other one.
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a member occurs twice")
    return made


def _name_of(tool: Any) -> str | None:
    """What a provider would call it: `{name}`, or `{type: "function", function: {name}}`."""
    if not isinstance(tool, dict):
        return None
    inner = tool.get("function")
    holders = [tool, inner] if isinstance(inner, dict) else [tool]
    found = [holder["name"] for holder in holders if "name" in holder]
    # Two names are none: nobody knows which one is read.
    if not found or found[0] != found[-1] or not isinstance(found[0], str):
        return None
    return found[0] or None


def _tools_beside(payload: dict[str, Any]) -> str:
    if named := next((key for key in ELSEWHERE if payload.get(key)), ""):
        return named
    items = payload.get("input")
    if isinstance(items, list):
        kinds = {item.get("type") for item in items if isinstance(item, dict)}
        return "additional_tools" if "additional_tools" in kinds else ""
    return ""


def _refusal(expected: frozenset[str], found: str) -> ModelError:
    return ModelError(
        "payload_guard",
        "the request was not sent: its tools have to be exactly "
        f"{', '.join(sorted(expected)) or 'none'}; found {found[:500]}",
        sent=False,
    )


def tool_names(body: bytes) -> list[str]:
    """The tools that a body names, as far as they can be made out."""
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
    """A client that guards, authorizes and logs. It follows no redirect: a key could go astray."""
    # Local models may think for an hour before they say the first word.
    read = timeout or (None if local else READ_SECONDS)
    return httpx2.AsyncClient(
        auth=_KeyAuth(credential, key_headers, headers),
        # A compressed stream is held back until there is enough of it.
        headers={"accept-encoding": "identity"},
        timeout=httpx2.Timeout(read, connect=timeout or CONNECT_SECONDS),
        event_hooks={
            "request": [_Outgoing(credential).check],
            "response": [_Incoming(credential).watch],
        },
    )


class _KeyAuth(httpx2.Auth):
    """Adds the key and what was configured; tries once more if there is a new key.

    The libraries above never see it.
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
        """Puts the key into the headers."""
        with _told_why():
            key = await self._credential.get()
        self._authorize(request, key)
        response = yield request
        if response.status_code == 401 and key is not None:
            with _told_why():
                changed = await self._credential.renew(key)
            if changed:
                self._authorize(request, await self._credential.get())
                yield request

    def _authorize(self, request: httpx2.Request, key: str | None) -> None:
        # The libraries insist on a key of their own: what they put here is a placeholder.
        for name in ("authorization", "x-api-key"):
            request.headers.pop(name, None)
        if key is not None:
            if self._key_headers != "x-api-key":
                request.headers["authorization"] = f"Bearer {key}"
            if self._key_headers != "bearer":
                request.headers["x-api-key"] = key
        request.headers.update(self._configured)


@contextmanager
def _told_why() -> Iterator[None]:
    """Keeps our own error where the libraries, which wrap it, cannot hide it."""
    try:
        yield
    except ModelError as error:
        if (exchange := _current.get()) is not None:
            exchange.refusal = error
        raise


class _Outgoing:
    """The last look at a request."""

    def __init__(self, credential: Credential) -> None:
        self._credential = credential

    async def check(self, request: httpx2.Request) -> None:
        """Refuses what must not be sent, and logs the rest.

        Raises:
            ModelError: It must not.
        """
        exchange = _current.get()
        if exchange is None:
            text = "the request was not sent: nobody announced it"
            raise ModelError("payload_guard", text, sent=False)
        # Not `content`: that is a copy, and this is what the transport will read.
        body = await _read(request.stream)
        with _told_why():
            if exchange.exact_tools is not None:
                check_tools(body, exchange.exact_tools)
        request.stream = httpx2.ByteStream(body)
        request.extensions["clawmode_began"] = time.monotonic()
        exchange.sent = True
        self._log(debug_flags(), exchange, request, body)

    def _log(
        self, flags: DebugFlags, exchange: Exchange, request: httpx2.Request, body: bytes
    ) -> None:
        if flags.transport:
            # Neither the query nor the user of an address: both may be secrets.
            url = request.url
            place = f"{url.scheme}://{url.netloc.decode('ascii')}{url.path}"
            log("%s: %s %s, %d bytes", exchange.label, request.method, place, len(body))
        if flags.payload == "tools":
            names = tool_names(body)
            log("%s: %d tools: %s", exchange.label, len(names), ", ".join(names))
        elif flags.payload == "full-redacted":
            text = shown(body, self._credential.redactor, MAX_PAYLOAD)
            log("%s: payload: %s", exchange.label, text)


async def _read(stream: object) -> bytes:
    if isinstance(stream, httpx2.AsyncByteStream):
        return b"".join([chunk async for chunk in stream])
    text = "the request was not sent: its body cannot be looked at"
    raise ModelError("payload_guard", text, sent=False)


class _Incoming:
    """Watches an answer come in."""

    def __init__(self, credential: Credential) -> None:
        self._credential = credential

    async def watch(self, response: httpx2.Response) -> None:
        """Puts a watcher into the stream."""
        exchange = _current.get()
        stream = response.stream
        if exchange is not None and isinstance(stream, httpx2.AsyncByteStream):
            response.stream = _Watched(
                stream, response, exchange, debug_flags(), self._credential.redactor
            )


class _Watched(httpx2.AsyncByteStream):
    """A body that is passed on as it comes, counted, and told about if somebody wants to know."""

    def __init__(
        self,
        inner: httpx2.AsyncByteStream,
        response: httpx2.Response,
        exchange: Exchange,
        flags: DebugFlags,
        redactor: Redactor,
    ) -> None:
        self._inner = inner
        self._response = response
        self._exchange = exchange
        self._flags = flags
        self._tail = b""
        self._bytes = 0
        self._closed = False
        is_events = "event-stream" in response.headers.get("content-type", "")
        self._events = _Events(exchange.label, flags, redactor) if is_events and flags.sse else None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._inner:
            self._bytes += len(chunk)
            self._tail = (self._tail + chunk)[-64:]
            if DONE in self._tail:
                self._exchange.done = True
            if self._events is not None:
                self._events.feed(chunk)
            yield chunk

    async def aclose(self) -> None:
        """Closes the body, and logs how it went."""
        if not self._closed:
            self._closed = True
            if self._flags.transport:
                self._log()
        await self._inner.aclose()

    def _log(self) -> None:
        seconds = time.monotonic() - self._response.request.extensions["clawmode_began"]
        status = self._response.status_code
        log(
            "%s: status %d, %d ms, %d bytes",
            self._exchange.label,
            status,
            seconds * 1000,
            self._bytes,
        )


class _Events:
    """The events of a stream, for the log."""

    def __init__(self, label: str, flags: DebugFlags, redactor: Redactor) -> None:
        self._label = label
        self._peek = flags.sse == "peek"
        self._redactor = redactor
        self._buffer = b""
        self._seen = 0

    def feed(self, chunk: bytes) -> None:
        """Takes more of the stream."""
        if self._peek and self._seen == PEEKED:
            return
        self._buffer += chunk.replace(b"\r\n", b"\n")
        while b"\n\n" in self._buffer:
            event, _, self._buffer = self._buffer.partition(b"\n\n")
            self._tell(event)
        # An event that does not end is of no interest, and would fill the memory.
        self._buffer = self._buffer[-MAX_BUFFER:]

    def _tell(self, event: bytes) -> None:
        fields = [line.partition(b":") for line in event.split(b"\n")]
        named = b"".join(value for key, _, value in fields if key == b"event")
        data = b"".join(value for key, _, value in fields if key == b"data").strip()
        if not (named or data) or (self._peek and self._seen == PEEKED):
            return
        self._seen += 1
        name = named.decode("utf-8", "replace").strip() or _kind_of(data)
        name = printable(name, "")[:80]
        if self._peek:
            log("%s: event %s: %s", self._label, name, shown(data, self._redactor, MAX_EVENT))
        else:
            log("%s: event %s", self._label, name)


def _kind_of(data: bytes) -> str:
    try:
        value = json.loads(data)
    except ValueError:
        return "[DONE]" if data == DONE else "?"
    found = (value.get("type") or value.get("object")) if isinstance(value, dict) else None
    return found if isinstance(found, str) else "?"


# ---- What can go wrong ----


def transport_kind(error: BaseException | None) -> ErrorKind | None:
    """What kind of trouble with the transport this is, or came of; None if it is none."""
    for _ in range(10):
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
