"""`ServerSupervisor`: the task that owns one MCP server: connects it, and reconnects it if lost.

One task enters and leaves the SDK's contexts, which must be left by the task that entered them. A
server that cannot be reached, exits, hangs or sends invalid data affects only its own view and its
own calls.
"""

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import field, replace
from typing import Literal, TypeAlias

import anyio
import httpx2
import mcp_types as types
from mcp.shared.exceptions import MCPError

from clawmode.exceptions import message_of
from clawmode.mcp.connection import UNKNOWN, Connection
from clawmode.mcp.http import explain, open_http
from clawmode.mcp.listing import PROMPTS, RESOURCES, Problems
from clawmode.mcp.requests import McpError, Undelivered
from clawmode.mcp.sdk import CURRENT, is_end, leaf_of
from clawmode.mcp.server_tools import ServerTools
from clawmode.mcp.settings import ServerSettings
from clawmode.mcp.stdio import CannotStart, open_stdio
from clawmode.mcp.wire import GRACE, NOT_AUTHORIZED, SHORT_GRACE, ConnectionEvents, Link
from clawmode.tasks import Notifier, TimedSlot, backoff, must_propagate
from clawmode.tools.tool import Tool, ToolContext
from clawmode.types import JsonObject, dataclass

logger = logging.getLogger("clawmode.mcp")

State: TypeAlias = Literal["disabled", "idle", "connecting", "ready", "down"]

MAX_INSTRUCTIONS = 4_096
PROBE_SHARE = 1 / 4
"""The part of the time to connect that the newest handshake gets."""
STABLE_SECONDS = 30.0
"""A connection that lasted this long resets the backoff."""
FIRST_DELAY = 0.5
MAX_DELAY = 30.0
MAX_RETRIES = 6
MAX_WAIT = 2.0
"""Seconds that a call waits for the next attempt to connect before it fails."""
MIN_PAUSE, MAX_PAUSE = 0.1, 10.0
"""Seconds between two readings of a list that changes."""
CLOSE_SECONDS = 3.0
IDLE = "had no calls"
SLOT_SECONDS = 5.0
"""After this time, a server that does not answer no longer keeps others from starting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerView:
    """The state of a server. While the server is down, its view keeps the last tools.

    Attributes:
        resources, prompts: The tools that list and read them, such as `resources/list`, if any.
        problem: Why the server cannot be called, as text that completes "the server ...".
        notes: Faults in its list of tools.
        instructions: The server's own description. Untrusted, like every text of a server.
    """

    name: str
    state: State
    tools: tuple[Tool, ...] = ()
    resources: tuple[Tool, ...] = ()
    prompts: tuple[Tool, ...] = ()
    problem: str | None = None
    notes: tuple[str, ...] = ()
    instructions: str | None = None
    since: float = field(default_factory=time.time, compare=False)

    @property
    def all_tools(self) -> tuple[Tool, ...]:
        """The tools of the server, and those for its resources and prompts."""
        return (*self.tools, *self.resources, *self.prompts)


OnView: TypeAlias = Callable[[ServerView], None]
"""Called with the new state of a server. Must not block; exceptions are logged."""


class ServerSupervisor:
    """One server: its state, and the task that owns its connection (`run`).

    Args:
        settings: The settings of the server.
        slots: Limits how many processes start at once.
        asks: True if the server may ask users questions.
        logs: True to log problems as warnings, False for debug level.
        on_change: Called with every new view.
        auth: Makes the object that authorizes HTTP requests.
    """

    def __init__(
        self,
        settings: ServerSettings,
        slots: anyio.CapacityLimiter,
        *,
        asks: bool,
        logs: bool,
        on_change: OnView,
        auth: "Callable[[ServerSupervisor], httpx2.Auth | None]",
    ) -> None:
        self.settings = settings
        self.view = ServerView(name=settings.name, state="idle" if settings.enabled else "disabled")
        if settings.fault:
            self.view = ServerView(name=settings.name, state="down", problem=settings.fault)
        self._slots = slots
        self._asks = asks
        self._level = logging.WARNING if logs else logging.DEBUG
        self._on_change = on_change
        self._auth = auth(self)
        self._tools = ServerTools(settings, self, self.usable)
        self._listed = self.view
        self._connection: Connection | None = None
        self._events = ConnectionEvents()
        self._life = anyio.CancelScope()
        self._closing = False
        self._wake = Notifier()
        self._turn = Notifier()  # at every change of state
        self._attempts = 0
        self._failures = 0
        self._wanted = False
        self._not_before = -math.inf

    # ---- For callers ----

    async def bring_up(self) -> None:
        """Connects the server without regard to backoff. Returns when it is connected or failed."""
        self._not_before = -math.inf
        with contextlib.suppress(McpError):
            await self.usable()

    async def usable(self) -> Connection:
        """Returns the connection; waits for one if it is to be expected soon.

        Raises:
            McpError: The server is not available.
        """
        before = self._attempts
        while True:
            if self._connection is not None and self._connection.usable:
                return self._connection
            if self._closing or not self.settings.enabled:
                raise self._unavailable("is switched off")
            if self.settings.fault:
                raise self._unavailable(self.settings.fault)
            wait = self._not_before - anyio.current_time()
            if self.view.state == "down" and (self._attempts > before or wait > MAX_WAIT):
                later = f"; the next attempt is in {wait:.0f} s" if wait > 1 else ""
                raise self._unavailable(f"is not available: it {self.view.problem}{later}")
            self.want()
            await self._turn.wait()

    def want(self) -> None:
        """Tells the owner to connect the server when the backoff is over."""
        self._wanted = True
        self._wake.notify()

    def _unavailable(self, text: str) -> McpError:
        return McpError(self.settings.name, "unavailable", text)

    async def request(
        self, request: types.ClientRequest, context: ToolContext | None = None
    ) -> JsonObject:
        """Makes a request; repeats it once if the server has not received the first.

        Raises:
            McpError: The request has no result.
        """
        try:
            return await (await self.usable()).request(request, context)
        except Undelivered as error:
            if self._connection is not None:
                self._connection.conclude(error)
            self._events.ring(over=True)
            return await (await self.usable()).request(request, context)

    def close(self) -> None:
        """Ends the connection; gives the server a few seconds to close it cleanly."""
        self._closing = True
        self._wake.notify()
        self._events.ring()
        self._turn.notify()
        if self.view.state == "connecting":
            self._life.cancel()
        else:
            self._life.deadline = anyio.current_time() + CLOSE_SECONDS

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Suspends all time limits for the time of the block, while a user logs in."""
        connecting = self.view.state == "connecting"
        if connecting:
            self._life.deadline = math.inf
        with self._connection.clocks_stopped() if self._connection else contextlib.nullcontext():
            yield
        if connecting and self.view.state == "connecting":
            self._life.deadline = anyio.current_time() + self.settings.connect_timeout

    # ---- The owner ----

    async def run(self) -> None:
        """Connects the server when it is wanted, and again when the connection is lost."""
        CURRENT.set(self.settings)
        while not self._closing:
            wait = self._not_before - anyio.current_time() if self._wanted else math.inf
            if wait > 0:
                with anyio.move_on_after(wait):
                    await self._wake.wait()
                continue
            try:
                await self._run_connection()
            except Exception as error:  # a bug of ours must not end the other servers
                logger.exception("%s: %s", self.settings.name, type(error).__name__)
                self._set_down("had an internal error, see the log", lived=None, hopeless=True)

    async def _run_connection(self) -> None:
        """Runs one connection from its start to its end."""
        self._show(replace(self.view, state="connecting"))
        link = Link(self.settings.redact)
        self._events = link.events
        ended, problem, hopeless = False, "was closed", False
        began: float | None = None
        limit = self.settings.connect_timeout
        slot = TimedSlot(self._slots, SLOT_SECONDS)
        if self.settings.transport == "stdio":
            await slot.acquire()
        try:
            with anyio.CancelScope(deadline=anyio.current_time() + limit) as self._life:
                if self._closing:
                    return
                if self.settings.transport == "stdio":
                    transport = open_stdio(self.settings, link)
                else:
                    transport = open_http(self.settings, link, self._auth)
                async with transport as (reads, writes):
                    connection = Connection(self.settings, link, reads, writes, asks=self._asks)
                    async with connection.opened():
                        await self._prepare(connection)
                        began = anyio.current_time()
                        self._life.deadline = math.inf
                        slot.release()
                        self._set_ready(connection)
                        problem = await self._tend(connection)
                        ended = True
                        # Before the transport is closed, so that callers do not wait for the end of
                        # the process.
                        connection.conclude(self._lost(problem))
        except BaseException as error:
            if must_propagate(error):
                raise
            problem = problem if ended else self._explain(error, link)
            # Another attempt would fail in the same way, or ask the user to log in again.
            leaf = leaf_of(error)
            refused = isinstance(leaf, MCPError) and leaf.code == NOT_AUTHORIZED
            hopeless = refused or isinstance(leaf, CannotStart)
        finally:
            slot.release()
            if began is None and self._life.cancel_called and not self._closing:
                problem = f"did not answer within {limit:g} s{link.hint()}"
            lived = None if began is None else anyio.current_time() - began
            self._set_down(problem, lived=lived, hopeless=hopeless)

    async def _prepare(self, connection: Connection) -> None:
        # A login takes longer than this limit, and has its own one.
        probe = None if self._auth else self.settings.connect_timeout * PROBE_SHARE
        try:
            await connection.shake_hands(probe)
            await self._relist(connection)
        except MCPError as error:
            if is_end(error):
                # Ask now: later we end the process ourselves, and its exit status says nothing.
                connection.link.fault = await connection.link.cause()
            raise

    async def _tend(self, connection: Connection) -> str:
        """Handles the events of a connection until it ends. Returns the reason of the end."""
        link, events = connection.link, connection.link.events
        connection.watch()
        link.patience = GRACE
        listed, pause = (ready := anyio.current_time()), MIN_PAUSE  # the time before was not idle
        while not self._closing:
            idle = min(connection.idle_seconds, anyio.current_time() - ready)
            if (rest := self.settings.idle_timeout - idle) <= 0:
                self._wanted = False
                return IDLE
            due = listed + pause if events.stale else math.inf
            with anyio.CancelScope(deadline=min(due, anyio.current_time() + rest)):
                await events.wait()
            if events.over:
                link.patience = SHORT_GRACE
                return await link.cause()
            if events.suspect:
                events.suspect = False
                if not await connection.is_well():
                    link.patience = 0.0
                    why = link.trouble or "stopped answering"
                    return f"{why}{link.hint()}"
            now = anyio.current_time()
            if events.stale and now >= listed + pause:
                # A server that changes its list all the time is asked less and less often.
                pause = min(2 * pause, MAX_PAUSE) if now < listed + 2 * pause else MIN_PAUSE
                events.stale = False
                await self._refresh(connection)
                listed = anyio.current_time()
        return "was closed"

    async def _refresh(self, connection: Connection) -> None:
        try:
            with anyio.fail_after(self.settings.connect_timeout):
                await self._relist(connection)
        except (MCPError, TimeoutError, ValueError) as error:  # ValueError: the list is invalid
            connection.link.events.ring(suspect=True)
            text = connection.link.clean(message_of(error)) or type(error).__name__
            note = f"its list of tools could not be refreshed: {text}"
            self._show(replace(self.view, notes=(*self.view.notes[:20], note)))
        else:
            self._set_ready(connection)

    async def _relist(self, connection: Connection) -> None:
        """Reads the list of tools, and makes the tools."""
        can = connection.capabilities
        offers, problems = await connection.list_tools() if can.tools else ([], Problems())
        instructions = connection.instructions
        self._listed = replace(
            self.view,
            tools=self._tools.tools(offers, problems),
            resources=self._tools.protocol_tools(RESOURCES) if can.resources else (),
            prompts=self._tools.protocol_tools(PROMPTS) if can.prompts else (),
            notes=problems.texts(),
            instructions=None if instructions is None else instructions[:MAX_INSTRUCTIONS],
        )

    # ---- State ----

    def _set_ready(self, connection: Connection) -> None:
        if self._connection is not connection:
            self._connection = connection
            self._attempts += 1
        self._show(replace(self._listed, state="ready", problem=None))

    def _set_down(self, problem: str, *, lived: float | None, hopeless: bool = False) -> None:
        """Marks the server as down, and sets the time of the next attempt.

        Args:
            problem: The reason, as text that completes "the server ...".
            lived: The seconds that the connection lasted; None if there was none.
            hopeless: True if another attempt would fail in the same way.
        """
        if self._connection is not None:
            self._connection.conclude(self._lost(problem))
            self._connection = None
        if problem == IDLE:
            return self._show(replace(self.view, state="idle"))
        if lived is None:
            self._attempts += 1
            self._failures += 1
        elif lived >= STABLE_SECONDS:
            self._failures = 0
        delay = backoff(self._failures, FIRST_DELAY, MAX_DELAY) if self._failures else 0.0
        self._not_before = anyio.current_time() + delay
        if lived is not None:
            self._failures += 1
        self._wanted = self._failures <= MAX_RETRIES and not hopeless
        if problem != self.view.problem and not self._closing:
            logger.log(self._level, "%s: %s", self.settings.name, problem)
        self._show(replace(self.view, state="down", problem=problem))

    def _lost(self, problem: str) -> McpError:
        text = f"was lost during the call: it {problem}. {UNKNOWN}"
        return McpError(self.settings.name, "lost", text)

    def _show(self, view: ServerView) -> None:
        if view != self.view:
            since = self.view.since if view.state == self.view.state else time.time()
            self.view = view = replace(view, since=since)
            self._on_change(view)
        self._turn.notify()

    def _explain(self, error: BaseException, link: Link) -> str:
        """Returns why there is no connection, as text that completes "the server ..."."""
        leaf = leaf_of(error)
        if isinstance(leaf, CannotStart):
            return f"cannot be started: {leaf}"
        if link.fault:
            return f"{link.fault}{link.hint() if link.garbage else ''}"
        if isinstance(leaf, MCPError):
            return link.clean(leaf.message)
        reason = (
            explain(leaf, self.settings.place)
            or f"cannot be used: {type(leaf).__name__}: {message_of(leaf)}"
        )
        return f"{link.clean(reason)}{link.hint()}"
