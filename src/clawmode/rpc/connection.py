"""A client's connection to a gateway that survives losses: calls and events, repeated after each.

Knows nothing of sockets: see `link` for one WebSocket.
"""

import logging
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import field
from typing import Any, Protocol

import anyio
from anyio.abc import TaskGroup, TaskStatus

from clawmode.exceptions import ClawmodeError, ConfigurationError
from clawmode.rpc import protocol
from clawmode.rpc.events import GAP, Event, Events
from clawmode.rpc.presence import Address, GatewayUnreachable
from clawmode.rpc.protocol import IDEMPOTENCY, RpcError
from clawmode.tasks import TaskOwner, backoff
from clawmode.types import JsonObject, JsonValue, dataclass

LOGGER = "clawmode.gateway.connection"
"""The logger of lost connections, for programs that show these in another way."""

logger = logging.getLogger(LOGGER)

CALL_SECONDS = 30.0
FIRST_DELAY = 1.0
LAST_DELAY = 30.0
"""The shortest and the longest pause, in seconds, before the next attempt to connect."""

MAX_EVENTS = 10_000
MAX_FOLLOWED = 1_000
"""The most sessions in one request of `sessions.subscribe`."""

TEMPORARY = ("UNAVAILABLE", "RATE_LIMITED", "TIMEOUT", "INTERNAL")
"""Codes of a rejected `connect` after which the next attempt may succeed."""

EFFECTS = frozenset(
    {
        "agent",
        "chat.inject",
        "chat.send",
        "codemode.run",
        "config.set",
        "cron.add",
        "cron.remove",
        "cron.run",
        "exec.approval.request",
        "exec.approvals.set",
        "plugin.approval.request",
        "sessions.compact",
        "sessions.create",
        "sessions.delete",
        "sessions.patch",
        "sessions.reset",
        "tokens.revoke",
        "tools.invoke",
        "trajectory.export",
    }
)
"""The methods with an effect, which need an idempotency key. A test compares the list with the
gateway's table."""


@dataclass(eq=False, slots=True)
class _Call:
    id: str
    frame: str = field(repr=False)
    answered: anyio.Event = field(default_factory=anyio.Event)
    payload: JsonObject = field(default_factory=dict[str, JsonValue])
    error: ClawmodeError | None = None

    def settle(self, payload: JsonObject, error: ClawmodeError | None = None) -> None:
        self.payload, self.error = payload, error
        self.answered.set()


class Link(Protocol):
    """One connection, from the handshake to its end.

    Attributes:
        hello: The gateway's response to `connect`.
    """

    hello: JsonObject

    async def send(self, frame: str) -> None:
        """Sends a frame. Raises `GatewayUnreachable` if the connection was lost."""

    def frames(self) -> AsyncIterator[dict[str, Any]]:
        """Yields received frames, and raises `GatewayUnreachable` at the end."""
        ...


class Connection(TaskOwner):
    """Reconnects when the connection is lost. Used inside of `async with`, by one task.

    Args:
        where: Returns the gateway's address; called before each attempt to connect.
        open_link: Connects to an address.
        name: The client's name, for `repr`.
        max_events: The size of the buffer of each reader of `events`.

    Attributes:
        hello: The gateway's response to the last `connect`.
    """

    def __init__(
        self,
        where: Callable[[], Address],
        open_link: Callable[[Address], AbstractAsyncContextManager[Link]],
        name: str,
        max_events: int = MAX_EVENTS,
    ) -> None:
        self.hello: Mapping[str, JsonValue] = {}
        self._where = where
        self._open_link = open_link
        self._name = name
        self._max_events = max_events
        self._link: Link | None = None
        self._failure: ClawmodeError | None = None
        self._calls: dict[str, _Call] = {}
        self._readers: list[Events] = []
        self._following: set[str] = set()
        self._seq = 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r})"

    async def _opened(self, tasks: TaskGroup) -> None:
        await tasks.start(self._stay_connected)

    async def _closing(self) -> None:
        self._end(GatewayUnreachable("the client is closed"))

    # ---- For callers ----

    @property
    def connected(self) -> bool:
        """Whether there is a connection at this moment."""
        return self._link is not None

    async def call(
        self,
        method: str,
        params: Mapping[str, JsonValue] | None = None,
        *,
        timeout: float | None = CALL_SECONDS,  # noqa: ASYNC109 (it is also in the error)
    ) -> JsonObject:
        """Calls a method. If the connection is lost meanwhile, the call is repeated.

        Raises:
            RpcError: The gateway responds with an error, or (`TIMEOUT`) not in time.
            ClawmodeError: The client is closed, or the gateway no longer accepts it.
        """
        given: JsonObject = dict(params or {})
        if method in EFFECTS:
            given.setdefault(IDEMPOTENCY, uuid.uuid4().hex)
        call = _Call(uuid.uuid4().hex, "")
        try:
            call.frame = protocol.request(call.id, method, given)
        except (ValueError, TypeError, RecursionError) as error:
            raise RpcError("INVALID_REQUEST", f"params: {error}", field="params") from None
        protocol.parse(call.frame, connected=True)  # the gateway would close the connection
        if self._failure is not None:
            raise self._failure
        self._calls[call.id] = call
        try:
            with anyio.move_on_after(timeout):
                if self._link is not None:
                    # A call that cannot be sent now is sent over the next connection.
                    with suppress(GatewayUnreachable):
                        await self._link.send(call.frame)
                await call.answered.wait()
        finally:
            del self._calls[call.id]
        if call.error is not None:
            raise call.error
        if not call.answered.is_set():
            text = f"no response to {method} in {timeout:g} s; it may have been executed"
            raise RpcError("TIMEOUT", text)
        return call.payload

    def events(self) -> Events:
        """Returns an iterator over all events from now on, with `GAP` where events are missing."""
        events = Events(self._max_events, lambda reader: self._readers.remove(reader))
        self._readers.append(events)
        if self._failure is not None:
            events.end(self._failure)
        return events

    async def follow(self, session_key: str) -> None:
        """Subscribes to the events of a session, or with `*` of all; renewed after reconnecting.

        Raises:
            RpcError: The gateway rejects the subscription.
        """
        await self.call("sessions.subscribe", {"sessionKeys": [session_key]})
        self._following.add(session_key)

    # ---- The connection ----

    async def _stay_connected(self, *, task_status: TaskStatus[None]) -> None:
        attempt, entered = 0, False
        while True:
            address: Address | None = None
            wait = 0
            attempt += 1
            try:
                address = self._where()
                async with self._open_link(address) as link:
                    if not entered:
                        task_status.started()
                    attempt, entered = 1, True
                    await self._serve(link)
            except (RpcError, GatewayUnreachable, ConfigurationError) as error:
                if not entered:
                    raise
                if not self._should_retry(error, address):
                    self._end(error)
                    return
                wait = getattr(error, "retry_after_ms", None) or 0
                where = "" if address is None else f" at {address.url}"
                text = "the connection to the gateway%s was lost (%s); connecting again"
                logger.warning(text, where, error)
            finally:
                self._link = None
            await anyio.sleep(max(backoff(attempt, 2 * FIRST_DELAY, LAST_DELAY), wait / 1000))

    def _should_retry(self, error: ClawmodeError, used: Address | None) -> bool:
        if not isinstance(error, RpcError) or error.code in TEMPORARY:
            return not isinstance(error, ConfigurationError)
        # The gateway rejected us for good, but it may have been replaced: a restarted gateway
        # announces another port and another token.
        with suppress(GatewayUnreachable):
            return self._where() != used
        return True

    async def _serve(self, link: Link) -> None:
        """Repeats subscriptions and unanswered calls, then reads. Ends by an exception."""
        reconnected = bool(self.hello)
        self._link, self.hello, self._seq = link, link.hello, 0
        # Calls that are made from here on send themselves.
        unanswered = tuple(self._calls.values())
        if reconnected:
            self._publish(Event(GAP, {"reason": "reconnect"}))
        following = sorted(self._following)
        for start in range(0, len(following), MAX_FOLLOWED):
            keys = list[JsonValue](following[start : start + MAX_FOLLOWED])
            frame = protocol.request("follow", "sessions.subscribe", {"sessionKeys": keys})
            await link.send(frame)
        for call in unanswered:
            await link.send(call.frame)
        async for received in link.frames():
            self._handle(received)

    def _handle(self, frame: dict[str, Any]) -> None:
        payload = frame.get("payload")
        content: JsonObject = payload if isinstance(payload, dict) else {}
        if frame.get("type") == "event":
            seq = frame.get("seq")
            if isinstance(seq, int):
                missed, self._seq = seq - self._seq - 1, seq
                if missed:
                    self._publish(Event(GAP, {"reason": "seq", "missed": missed}))
            self._publish(Event(str(frame.get("event")), content))
        elif (call := self._calls.get(str(frame.get("id")))) is not None:
            call.settle(content, None if frame.get("ok") is True else protocol.parse_error(frame))

    def _publish(self, event: Event) -> None:
        """Passes an event to all readers."""
        for reader in tuple(self._readers):
            reader.put(event)

    def _end(self, failure: ClawmodeError) -> None:
        """Fails all calls and ends all readers: there will be no connection any more."""
        self._failure = self._failure or failure
        for call in self._calls.values():
            if not call.answered.is_set():
                call.settle({}, failure)
        for reader in tuple(self._readers):
            reader.end(failure)
