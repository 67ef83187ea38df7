"""A wire to an MCP server: what goes over it, within which bounds, and why it ended.

What `stdio` and HTTP have in common; each of them has its module. The SDK's session reads and
writes here, and neither a flood nor a blocked pipe on the other side holds it up.
"""

import json
import re
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol, Self, TypeAlias

import anyio
from anyio.abc import AsyncResource
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from clawmode.text import one_line

MAX_MESSAGE = 8 << 20
MAX_CONTAINERS = 1_000_000
"""Objects and lists in one message: a million of them take half a second to read."""
MAX_UNANSWERED = 256
MAX_TEXT = 500
MAX_SAMPLE = 80
MAX_LAST_LINES = 20
TOLD_LINES = 3

GRACE = 1.5
"""Seconds that a server has to end itself, and once more when it is told to."""
SHORT_GRACE = 0.3
"""The same for one that has never answered, or has closed the connection."""

# Errors that are ours and not the server's, in the range that JSON-RPC leaves to implementations.
# A server that sends one gets what it means: a second try, once.
NOT_DELIVERED = -32090
SESSION_LOST = -32091
TOO_LARGE = -32092
UNREADABLE = -32093
NOT_AUTHORIZED = -32094

Notice: TypeAlias = Literal["suspect", "lost"]
"""`suspect`: something went wrong, and the server should be asked whether it is well."""


class Incoming(Protocol):
    """Where messages come from: the SDK's streams and anyio's."""

    async def receive(self) -> SessionMessage | Exception:
        """The next message, or `EndOfStream`."""
        ...

    async def aclose(self) -> None:
        """Closes it."""
        ...


class Outgoing(Protocol):
    """Where messages go."""

    async def send(self, item: SessionMessage, /) -> None:
        """Sends one."""
        ...

    async def aclose(self) -> None:
        """Closes it."""
        ...


@dataclass(slots=True)
class Link:
    """An open wire, or one that was.

    Attributes:
        notify: Told when something about the wire calls for a look.
        fault: Why it ended, as far as that was seen on our side.
        trouble: What went wrong at last with a single request.
        garbage: What came in that is no message: how many, and the first of it.
        last_lines: What it wrote to stderr at last.
        unfinished: The beginning of a line of its output that it has not ended.
        patience: Seconds that the server is given to end in.
        end: Waits shortly for the cause of an end, such as an exit status.
    """

    redact: Callable[[str], str]
    notify: Callable[[Notice], None]
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

    def reads(self, inner: Incoming) -> "Reads":
        """What the session reads from."""
        return Reads(self, inner)

    def writes(self, inner: Outgoing) -> "Writes":
        """What the session writes to."""
        return Writes(self, inner)

    def sever(self) -> None:
        """Nothing is sent any more: who waits to send is told that the wire is closed."""
        self._severed = True
        for scope in self._sending:
            scope.cancel()

    def litter(self, text: bytes) -> None:
        """Notes something that is no message."""
        self.garbage += 1
        self.sample = self.sample or self.clean_bytes(text, MAX_SAMPLE)

    def clean(self, text: str, limit: int = MAX_TEXT) -> str:
        """A stranger's text without secrets, in one line, harmless to a terminal, cut."""
        return one_line(self.redact(text), limit)

    def clean_bytes(self, text: bytes, limit: int = MAX_TEXT) -> str:
        """The same of bytes that may be anything."""
        return self.clean(text.decode("utf-8", "backslashreplace"), limit)

    @property
    def said(self) -> str:
        """The last lines that it wrote to stderr, as a remark."""
        lines = [self.clean_bytes(line, 200) for line in self.last_lines]
        lines = _worth_telling([line for line in lines if _WORD.search(line)])
        return f" (it said: {' | '.join(lines)})" if lines else ""

    async def cause(self) -> str:
        """Why it ended, in words that complete "the server ..."."""
        if self.fault:
            return self.fault
        said = await self.end() if self.end is not None else ""
        return said or "closed the connection"

    def hint(self) -> str:
        """What may explain that no answer came."""
        sample = self.sample or self.clean_bytes(self.unfinished(), MAX_SAMPLE)
        if not sample:
            return self.said
        more = f" and {self.garbage - 1} more lines" if self.garbage > 1 else ""
        return f" (it wrote what is not JSON-RPC to stdout: {sample!r}{more})"


class Reads(AsyncResource):
    """The incoming messages. Ends if the server asks more than it lets us answer."""

    def __init__(self, link: Link, inner: Incoming) -> None:
        self._link = link
        self._inner = inner

    @property
    def last_context(self) -> object:
        """The SDK's HTTP transports hand a context along."""
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        """The next message."""
        item = await self._inner.receive()
        message = item.message if isinstance(item, SessionMessage) else None
        if isinstance(message, JSONRPCRequest):
            self._link.unanswered += 1
        elif isinstance(message, JSONRPCNotification):
            if message.method == "notifications/cancelled":  # then it gets no answer
                self._link.unanswered = max(0, self._link.unanswered - 1)
        if self._link.unanswered > MAX_UNANSWERED:
            self._link.fault = f"sent over {MAX_UNANSWERED} requests and did not read the answers"
            raise anyio.EndOfStream
        return item

    async def aclose(self) -> None:
        """Closes it."""
        await self._inner.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None


class Writes(AsyncResource):
    """The outgoing messages. A send that is stuck ends when the link is severed."""

    def __init__(self, link: Link, inner: Outgoing) -> None:
        self._link = link
        self._inner = inner

    async def send(self, item: SessionMessage, /) -> None:
        """Sends a message, or raises `ClosedResourceError`."""
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
        """Closes it."""
        await self._inner.aclose()


# ---- Text ----

_WORD = re.compile(r"\w")
_FAILURE = re.compile(r"error|exception|fail|fatal|denied|refused|cannot|can't|not found", re.I)


def _worth_telling(lines: list[str]) -> list[str]:
    """The last lines; instead of the first of them, one further up that tells of a failure."""
    last = lines[-TOLD_LINES:]
    if any(map(_FAILURE.search, last)):
        return last
    earlier = [line for line in lines[:-TOLD_LINES] if _FAILURE.search(line)]
    return [*earlier[-1:], *last[-TOLD_LINES + 1 :]] if earlier else last


_ID = rb'"id"\s*:\s*(\d{1,15}|"[^"\\]{1,64}")'
_ID_AT_START = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?' + _ID)
_ID_AT_END = re.compile(_ID + rb'\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$')


def find_id(head: bytes, tail: bytes) -> int | str | None:
    """The id of an answer that cannot be read, if it stands where servers write it.

    It may be found wrongly: then the server has spoilt another call of its own.
    """
    found = _ID_AT_START.match(head) or _ID_AT_END.search(tail)
    return None if found is None else json.loads(found[1])


def error_for(request_id: int | str, code: int, text: str) -> SessionMessage:
    """An answer in the server's place."""
    error = {"code": code, "message": text}
    return SessionMessage(
        JSONRPCError.model_validate({"jsonrpc": "2.0", "id": request_id, "error": error})
    )


def why_refused(size: int, containers: int) -> str:
    """Why a message is not read, empty if it is."""
    if size > MAX_MESSAGE:
        return f"its answer is over {MAX_MESSAGE} bytes: ask for less, or for pages"
    if containers > MAX_CONTAINERS:
        return f"its answer has over {MAX_CONTAINERS} parts: ask for less, or for pages"
    return ""
