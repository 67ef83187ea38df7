"""A connection to a gateway that is kept up: calls, events, and both again when it was lost."""

import logging
import random
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import anyio
from anyio.abc import TaskGroup, TaskStatus

from clawmode.exceptions import ClawmodeError, ConfigurationError
from clawmode.rpc import protocol
from clawmode.rpc.events import GAP, Event, Events
from clawmode.rpc.link import (
    Address,
    GatewayUnreachable,
    Introduction,
    Link,
    open_link,
    read_error,
    request_frame,
)
from clawmode.rpc.protocol import RpcError
from clawmode.tasks import TaskOwner
from clawmode.types import JsonObject, JsonValue

logger = logging.getLogger("clawmode.gateway")

CALL_SECONDS = 30.0
FIRST_DELAY = 1.0
LAST_DELAY = 30.0
MAX_EVENTS = 10_000
MAX_FOLLOWED = 1_000
"""Sessions, in one request."""

PASSING = ("UNAVAILABLE", "RATE_LIMITED", "TIMEOUT", "INTERNAL")
"""Refusals to be let in that may be none the next time."""

KEY = "idempotencyKey"
EFFECTS = frozenset(
    {
        "agent",
        "chat.inject",
        "chat.send",
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
        "tools.invoke",
        "trajectory.export",
    }
)
"""Methods that do something: they get an idempotency key. A test compares it with the gateway's."""


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


class Connection(TaskOwner):
    """Keeps a connection up. Used inside of `async with`, in one task.

    Args:
        where: The gateway, looked up each time.
        who: What it is told of us.
        max_events: How many wait for each reader of `events`.

    Attributes:
        hello: What the gateway said when it let us in.
    """

    def __init__(
        self, where: Callable[[], Address], who: Introduction, max_events: int = MAX_EVENTS
    ) -> None:
        self.hello: Mapping[str, JsonValue] = {}
        self._where = where
        self._who = who
        self._max_events = max_events
        self._link: Link | None = None
        self._failure: ClawmodeError | None = None
        self._calls: dict[str, _Call] = {}
        self._watchers: list[Events] = []
        self._following: set[str] = set()
        self._seq = 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._who.client_id!r})"

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
        """Calls a method; again, if the connection is lost meanwhile.

        Raises:
            RpcError: The gateway answers with an error, or (`TIMEOUT`) not in time.
            ClawmodeError: The client is closed, or not let in any more.
        """
        given: JsonObject = dict(params or {})
        if method in EFFECTS:
            given.setdefault(KEY, uuid.uuid4().hex)
        call = _Call(uuid.uuid4().hex, "")
        call.frame = _checked_frame(call.id, method, given)
        if self._failure is not None:
            raise self._failure
        self._calls[call.id] = call
        try:
            with anyio.move_on_after(timeout):
                await self._send(call)
                await call.answered.wait()
        finally:
            del self._calls[call.id]
        if call.error is not None:
            raise call.error
        if not call.answered.is_set():
            text = f"{method} was not answered in {timeout:g} s; it may have been carried out"
            raise RpcError("TIMEOUT", text)
        return call.payload

    def events(self) -> Events:
        """All that the gateway tells from now on; `GAP` where something is missing."""
        made = Events(self._max_events, lambda it: self._watchers.remove(it))
        self._watchers.append(made)
        if self._failure is not None:
            made.end(self._failure)
        return made

    async def follow(self, session_key: str) -> None:
        """Wants the events of a session; `*` is all. Holds for later connections too.

        Raises:
            RpcError: It cannot be.
        """
        await self.call("sessions.subscribe", {"sessionKeys": [session_key]})
        self._following.add(session_key)

    # ---- The connection ----

    async def _stay_connected(self, *, task_status: TaskStatus[None]) -> None:
        delay, entered = FIRST_DELAY, False
        while True:
            address: Address | None = None
            wait = 0
            try:
                address = self._where()
                async with open_link(address, self._who) as link:
                    if not entered:
                        task_status.started()
                    delay, entered = FIRST_DELAY, True
                    await self._serve(link)
            except (RpcError, GatewayUnreachable, ConfigurationError) as error:
                if not entered:
                    raise
                if not self._may_pass(error, address):
                    self._end(error)
                    return
                wait = getattr(error, "retry_after_ms", None) or 0
                where = "" if address is None else f" at {address.url}"
                text = "the connection to the gateway%s was lost (%s); connecting again"
                logger.warning(text, where, error)
            finally:
                self._link = None
            delay = min(LAST_DELAY, random.uniform(FIRST_DELAY, 3 * delay))  # noqa: S311 (jitter)
            await anyio.sleep(max(delay, wait / 1000))

    def _may_pass(self, error: ClawmodeError, used: Address | None) -> bool:
        """Whether to try again: it was not there, was busy, or is another one by now."""
        if not isinstance(error, RpcError) or error.code in PASSING:
            return not isinstance(error, ConfigurationError)
        with suppress(GatewayUnreachable):
            return self._where() != used
        return True

    async def _serve(self, link: Link) -> None:
        """Makes the calls that wait, and reads. Ends by an exception."""
        again = bool(self.hello)
        self._link, self.hello, self._seq = link, link.hello, 0
        waiting = tuple(self._calls.values())
        if again:
            self._tell(Event(GAP, {"reason": "reconnect"}))
        following = sorted(self._following)
        for at in range(0, len(following), MAX_FOLLOWED):
            keys: JsonObject = {"sessionKeys": list[JsonValue](following[at : at + MAX_FOLLOWED])}
            await link.send(request_frame("follow", "sessions.subscribe", keys))
        for call in waiting:
            await link.send(call.frame)
        async for frame in link.frames():
            self._take(frame)

    async def _send(self, call: _Call) -> None:
        if self._link is not None:
            with suppress(GatewayUnreachable):  # it is sent over the next connection
                await self._link.send(call.frame)

    def _take(self, frame: dict[str, Any]) -> None:
        payload = frame.get("payload")
        content: JsonObject = payload if isinstance(payload, dict) else {}
        if frame.get("type") == "event":
            self._hear(str(frame.get("event")), content, frame.get("seq"))
        elif (call := self._calls.get(str(frame.get("id")))) is not None:
            call.settle(content, None if frame.get("ok") is True else read_error(frame))

    def _hear(self, name: str, payload: JsonObject, seq: object) -> None:
        if isinstance(seq, int):
            missed, self._seq = seq - self._seq - 1, seq
            if missed:
                self._tell(Event(GAP, {"reason": "seq", "missed": missed}))
        self._tell(Event(name, payload))

    def _tell(self, event: Event) -> None:
        """Tells all readers."""
        for watcher in tuple(self._watchers):
            watcher.put(event)

    def _end(self, failure: ClawmodeError) -> None:
        """No connection any more, and none to come."""
        self._failure = self._failure or failure
        for call in self._calls.values():
            if not call.answered.is_set():
                call.settle({}, failure)
        for watcher in tuple(self._watchers):
            watcher.end(failure)


def _checked_frame(request_id: str, method: str, params: JsonObject) -> str:
    """The frame of a request; one that would end the connection is not sent.

    Raises:
        RpcError: It is too large, or no JSON.
    """
    try:
        frame = request_frame(request_id, method, params)
    except (ValueError, TypeError, RecursionError) as error:
        raise RpcError("INVALID_REQUEST", f"params: {error}", field="params") from None
    protocol.parse(frame, connected=True)
    return frame
