"""`Link`: what the stdio and HTTP transports share: streams, limits, and the reason of an end.

The SDK's session reads and writes through these streams. A server that floods us with requests, or
does not read its input, cannot block the session.
"""

import json
import re
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import field
from typing import Protocol, Self

import anyio
from anyio.abc import AsyncResource
from mcp.shared.message import SessionMessage
from mcp_types import (
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
)

from clawmode.tasks import Notifier
from clawmode.text import one_line
from clawmode.types import dataclass

MAX_MESSAGE = 8 << 20
MAX_REQUEST = 1 << 20
MAX_CONTAINERS = 1_000_000
"""Objects and lists in one message: parsing a million of them takes half a second."""
MAX_UNANSWERED = 256
MAX_TEXT = 500
MAX_SAMPLE = 80
MAX_LAST_LINES = 20
SHOWN_LINES = 3

GRACE = 1.5
"""Seconds for a server to exit by itself, and once more after SIGTERM."""
SHORT_GRACE = 0.3
"""The same for a server that has never answered, or has closed the connection."""

# Codes of our own errors, in the range that JSON-RPC leaves to implementations. A server could send
# these codes too; all that it gains is that a request is repeated once.
NOT_DELIVERED = -32090
SESSION_LOST = -32091
TOO_LARGE = -32092
UNREADABLE = -32093
NOT_AUTHORIZED = -32094


@dataclass(slots=True)
class ConnectionEvents:
    """The events of one connection that its owner has not handled yet.

    Attributes:
        suspect: The connection should be probed, because a request failed.
        stale: The list of tools may have changed.
        over: The connection has ended.
    """

    suspect: bool = False
    stale: bool = False
    over: bool = False
    _changes: Notifier = field(default_factory=Notifier)
    _seen: int = 0

    def ring(self, *, suspect: bool = False, stale: bool = False, over: bool = False) -> None:
        """Adds events, and wakes the owner."""
        self.suspect |= suspect
        self.stale |= stale
        self.over |= over
        self._changes.notify()

    async def wait(self) -> None:
        """Waits for events since the last call."""
        self._seen = await self._changes.wait(self._seen)


class MessageSource(Protocol):
    """A stream of the SDK or of anyio from which messages are received."""

    async def receive(self) -> SessionMessage | Exception:
        """Returns the next message, or raises `EndOfStream`."""
        ...

    async def aclose(self) -> None: ...


class MessageSink(Protocol):
    """A stream of the SDK or of anyio to which messages are sent."""

    async def send(self, item: SessionMessage, /) -> None: ...

    async def aclose(self) -> None: ...


@dataclass(slots=True)
class Link:
    """The state of one connection to a server, shared by its transport and its session.

    Attributes:
        redact: Removes secrets from a text.
        events: Tells the owner of the connection what happened.
        fault: Why the connection ended, if our side noticed the reason.
        trouble: The last failure of a single request.
        garbage: The number of inputs that were no messages.
        sample: The first of these inputs.
        last_lines: The last lines that the server wrote to stderr.
        unfinished: Returns the start of an incomplete line of output.
        patience: Seconds that the server gets to exit.
        unanswered: Requests of the server that we have not answered.
        end: Waits briefly for the cause of the end, such as an exit status.
    """

    redact: Callable[[str], str]
    events: ConnectionEvents = field(default_factory=ConnectionEvents)
    fault: str = ""
    trouble: str = ""
    garbage: int = 0
    sample: str = ""
    last_lines: deque[bytes] = field(default_factory=lambda: deque(maxlen=MAX_LAST_LINES))
    unfinished: Callable[[], bytes] = bytes
    patience: float = SHORT_GRACE
    unanswered: int = 0
    end: Callable[[], Awaitable[str]] | None = None
    _sending: set[anyio.CancelScope] = field(default_factory=set)
    _severed: bool = False

    def incoming(self, source: MessageSource) -> "IncomingStream":
        """Returns the stream that the session reads."""
        return IncomingStream(self, source)

    def outgoing(self, sink: MessageSink) -> "OutgoingStream":
        """Returns the stream that the session writes."""
        return OutgoingStream(self, sink)

    def sever(self) -> None:
        """Stops sending: a pending or later `send` raises `ClosedResourceError`."""
        self._severed = True
        for scope in self._sending:
            scope.cancel()

    def add_garbage(self, text: bytes) -> None:
        """Counts an input that is no message, and keeps the first one as a sample."""
        self.garbage += 1
        self.sample = self.sample or self.clean_bytes(text, MAX_SAMPLE)

    def clean(self, text: str, limit: int = MAX_TEXT) -> str:
        """Redacts and escapes an untrusted text, on one line of at most `limit` characters."""
        return one_line(self.redact(text), limit)

    def clean_bytes(self, text: bytes, limit: int = MAX_TEXT) -> str:
        """Does the same for bytes in any encoding."""
        return self.clean(text.decode("utf-8", "backslashreplace"), limit)

    @property
    def stderr_note(self) -> str:
        """The most useful of the last lines of stderr, in parentheses."""
        cleaned = [_FRAME.sub("", self.clean_bytes(line, 200)) for line in self.last_lines]
        lines = [line for line in cleaned if _WORD.search(line)]
        last = lines[-SHOWN_LINES:]
        earlier = [line for line in lines[:-SHOWN_LINES] if _FAILURE.search(line)]
        if earlier and not any(map(_FAILURE.search, last)):
            # None of the last lines reports a failure: show an earlier one that does.
            last = [earlier[-1], *last[-SHOWN_LINES + 1 :]]
        return f" (stderr: {' | '.join(last)})" if last else ""

    async def cause(self) -> str:
        """Returns why the connection ended, as text that completes "the server ..."."""
        if self.fault:
            return self.fault
        reason = await self.end() if self.end is not None else ""
        return reason or "closed the connection"

    def hint(self) -> str:
        """Returns what may explain a missing answer, in parentheses."""
        sample = self.sample or self.clean_bytes(self.unfinished(), MAX_SAMPLE)
        if not sample:
            return self.stderr_note
        more = f" and {self.garbage - 1} more lines" if self.garbage > 1 else ""
        return f" (its stdout is not JSON-RPC: {sample!r}{more})"


class IncomingStream(AsyncResource):
    """The messages of the server. Ends if too many of its requests are unanswered."""

    def __init__(self, link: Link, inner: MessageSource) -> None:
        self._link = link
        self._inner = inner

    @property
    def last_context(self) -> object:
        """The context variables of the last message, which the SDK's HTTP transports pass on."""
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        item = await self._inner.receive()
        message = item.message if isinstance(item, SessionMessage) else None
        if isinstance(message, JSONRPCRequest):
            self._link.unanswered += 1
        elif isinstance(message, JSONRPCNotification):
            if message.method == "notifications/cancelled":  # a cancelled request gets no answer
                self._link.unanswered = max(0, self._link.unanswered - 1)
        if self._link.unanswered > MAX_UNANSWERED:
            self._link.fault = f"sent over {MAX_UNANSWERED} requests and did not read the answers"
            raise anyio.EndOfStream
        return item

    async def aclose(self) -> None:
        await self._inner.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None


class OutgoingStream(AsyncResource):
    """The messages to the server. `Link.sever` ends a `send` that blocks."""

    def __init__(self, link: Link, inner: MessageSink) -> None:
        self._link = link
        self._inner = inner

    async def send(self, item: SessionMessage, /) -> None:
        """Sends a message, or raises `ClosedResourceError` or `CannotSend`."""
        link = self._link
        with anyio.CancelScope() as scope:
            if link._severed:
                raise anyio.ClosedResourceError
            link._sending.add(scope)
            try:
                await self._inner.send(item)
            finally:
                link._sending.discard(scope)
            if isinstance(item.message, JSONRPCResponse | JSONRPCError):
                link.unanswered = max(0, link.unanswered - 1)
        if scope.cancelled_caught:
            raise anyio.ClosedResourceError

    async def aclose(self) -> None:
        await self._inner.aclose()


class CannotSend(ValueError):
    """A request cannot be sent, for the reason in the message. The connection is unharmed."""


def encode(message: JSONRPCMessage) -> bytes:
    """Encodes a message. The result is empty for a response that cannot be encoded.

    Raises:
        CannotSend: A request cannot be encoded, or is too large.
    """
    is_request = isinstance(message, JSONRPCRequest)
    try:
        encoded = message.model_dump_json(by_alias=True, exclude_unset=True).encode()
    except (ValueError, RecursionError):  # a lone surrogate, or too deep
        if is_request:
            raise CannotSend("the input cannot be encoded as JSON") from None
        return b""
    if is_request and len(encoded) > MAX_REQUEST:
        raise CannotSend(f"the input is over {MAX_REQUEST} bytes")
    return encoded


# ---- Text ----

_WORD = re.compile(r"\w")
_FRAME = re.compile(r"^\s*[|+][|+\s-]*(?:\d+ -+$)?")
"""What Python draws around the exceptions of a group."""
_FAILURE = re.compile(r"error|exception|fail|fatal|denied|refused|cannot|can't|not found", re.I)


_ID = rb'"id"\s*:\s*(\d{1,15}|"[^"\\]{1,64}")'
_ID_AT_START = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?' + _ID)
_ID_AT_END = re.compile(_ID + rb'\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$')


def find_id(head: bytes, tail: bytes) -> int | str | None:
    """Returns the id of an answer that cannot be parsed, if it is where servers write it.

    A wrong guess can only fail another call to the same server.
    """
    found = _ID_AT_START.match(head) or _ID_AT_END.search(tail)
    return None if found is None else json.loads(found[1])


def error_for(request_id: int | str, code: int, text: str) -> SessionMessage:
    """Returns an error response on behalf of the server."""
    error = {"code": code, "message": text}
    return SessionMessage(
        JSONRPCError.model_validate({"jsonrpc": "2.0", "id": request_id, "error": error})
    )


def why_refused(size: int, containers: int) -> str:
    """Returns why a message is rejected, or an empty string."""
    if size > MAX_MESSAGE:
        return f"its answer is over {MAX_MESSAGE} bytes: ask for less, or for pages"
    if containers > MAX_CONTAINERS:
        return f"its answer has over {MAX_CONTAINERS} parts: ask for less, or for pages"
    return ""
