"""Configured MCP servers as tools: connected side by side, kept alive, called.

Each server has a task that owns it, from its start to its end: it enters and leaves the SDK's
contexts, which belong to the task that entered them. A server that cannot be reached, dies, hangs
or talks nonsense has a problem that its view tells and its calls raise; nothing else notices.
"""

import contextlib
import logging
import math
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeAlias

import anyio
import httpx2
import mcp_types as types
from anyio.abc import AsyncResource, TaskGroup
from mcp.shared.exceptions import MCPError

from clawmode.exceptions import ConfigurationError
from clawmode.foreign import message_of, must_propagate
from clawmode.mcp.auth import OnLogin, make_auth
from clawmode.mcp.connection import CURRENT, UNKNOWN, Connection, Undelivered, is_end
from clawmode.mcp.http import explain, open_http
from clawmode.mcp.listing import PROMPTS, RESOURCES, Problems
from clawmode.mcp.server_tools import ServerCalls
from clawmode.mcp.settings import ServerSettings
from clawmode.mcp.stdio import CannotStart, open_stdio
from clawmode.mcp.wire import (
    GRACE,
    NOT_AUTHORIZED,
    SHORT_GRACE,
    Link,
    McpError,
    Notice,
    Reads,
    Writes,
)
from clawmode.tasks import Lifetime, Notifier, backoff
from clawmode.tools.tool import Tool, ToolContext
from clawmode.types import JsonObject

logger = logging.getLogger("clawmode.mcp")

State: TypeAlias = Literal["disabled", "idle", "connecting", "ready", "down"]

MAX_STARTING = 16
"""How many servers start at once: each has a limit on its time, and they share the processors."""
MAX_INSTRUCTIONS = 4_096
PROBE_SHARE = 1 / 4
"""How much of the time to connect goes to asking in the newest way."""
STABLE_SECONDS = 30.0
"""A connection that lasted this long has made up for earlier failures."""
FIRST_DELAY = 0.5
MAX_DELAY = 30.0
MAX_RETRIES = 6
MAX_WAIT = 2.0
"""How long a call waits for the next try before it says that the server is down."""
MIN_PAUSE, MAX_PAUSE = 0.1, 10.0
"""Seconds between two looks at a list that changes."""
CLOSE_SECONDS = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerView:
    """What is known of a server. While it is down, its tools are those that it had.

    Attributes:
        resources: The tools `resources/list` and `resources/read`, if the server has resources.
        prompts: The tools `prompts/list` and `prompts/get`, if it has prompts.
        problem: Why it cannot be called.
        notes: What is wrong with its list of tools.
        instructions: What the server says about itself. Untrusted, like every text of it.
    """

    name: str
    state: State
    tools: tuple[Tool, ...] = ()
    resources: tuple[Tool, ...] = ()
    prompts: tuple[Tool, ...] = ()
    problem: str | None = None
    notes: tuple[str, ...] = ()
    instructions: str | None = None

    @property
    def all_tools(self) -> tuple[Tool, ...]:
        """Everything that can be called."""
        return (*self.tools, *self.resources, *self.prompts)


OnView: TypeAlias = Callable[[ServerView], None]
"""Told of a server's new state. Must not block; what it raises is logged."""


class McpServers(AsyncResource):
    """The MCP servers of a run or a process.

    Opened with `async with`, or with `start` and `aclose`, which may be called in different tasks.

    Args:
        settings: The servers. Nothing is connected before `connect`, or the first call of a tool.
        asks: Whoever calls a tool may have a person to ask for the server; without it servers are
            told that nobody can be asked.
        on_login: Sends a person to an address to log in; without it, who has to is not available.
        tokens: A folder for OAuth tokens; without it they last as long as this object.
        logs: Problems are logged. Commands tell them in their own words instead.

    Raises:
        ConfigurationError: Two servers have one name.
    """

    def __init__(
        self,
        settings: Iterable[ServerSettings],
        *,
        asks: bool = False,
        on_login: OnLogin | None = None,
        tokens: Path | None = None,
        logs: bool = True,
    ) -> None:
        self._listeners: list[OnView] = []
        self._servers: dict[str, _Server] = {}
        slots = anyio.CapacityLimiter(MAX_STARTING)
        for each in settings:
            if each.name in self._servers:
                raise ConfigurationError(f"two MCP servers are named {each.name!r}")
            self._servers[each.name] = _Server(
                each,
                slots,
                asks=asks,
                logs=logs,
                on_change=self._changed,
                auth=lambda server: make_auth(server.settings, on_login, tokens, server.pause),
            )
        self._life = Lifetime("clawmode-mcp", self._end)

    async def start(self) -> "McpServers":
        """Makes the servers ready to be connected. To be called once."""
        tasks = await self._life.open()
        for server in self._servers.values():
            if server.settings.enabled and not server.settings.fault:
                tasks.start_soon(server.run)
        return self

    async def aclose(self) -> None:
        """Closes all connections. Idempotent, from any task."""
        await self._life.close()

    async def _end(self, tasks: TaskGroup) -> None:
        for server in self._servers.values():
            server.close()
        # Every owner's end is bounded, and a process that is left behind would be for good.
        tasks.cancel_scope.shield = True

    async def __aenter__(self) -> "McpServers":
        return await self.start()

    async def connect(
        self, *names: str, on_progress: OnView | None = None
    ) -> tuple[ServerView, ...]:
        """Connects servers side by side, all of them if none is named, and waits for the outcome.

        Never raises for a server: its view tells its problem. One that failed is tried again.

        Args:
            names: Which; those that are connected already stay so.
            on_progress: Told of each server as soon as it is connected or has failed.

        Raises:
            ConfigurationError: There is no server of such a name.
        """
        if unknown := [name for name in names if name not in self._servers]:
            raise ConfigurationError(f"there is no MCP server named {unknown[0]!r}")
        chosen = [self._servers[name] for name in names or self._servers]

        async def bring_up(server: "_Server") -> None:
            await server.bring_up()
            if on_progress is not None:
                _tell(on_progress, server.view)

        async with anyio.create_task_group() as tasks:
            for server in chosen:
                tasks.start_soon(bring_up, server)
        return tuple(server.view for server in chosen)

    def begin(self) -> None:
        """Starts to connect all servers; does not wait for them."""
        for server in self._servers.values():
            server.want()

    async def settled(self) -> None:
        """Waits until every server that was begun is connected or has failed once."""
        for server in self._servers.values():
            await server.settled()

    async def ready(self, name: str) -> None:
        """Connects one server if it is not. Returns when it is, or when that has failed."""
        with contextlib.suppress(McpError):
            await self._servers[name].usable()

    @property
    def views(self) -> tuple[ServerView, ...]:
        """What is known of every server, in the order of their configuration."""
        return tuple(server.view for server in self._servers.values())

    def watch(self, listener: OnView) -> Callable[[], None]:
        """Tells of every change of what is known of a server, until what it returns is called."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def tools(self) -> list[Tool]:
        """The tools of all servers."""
        return [tool for view in self.views for tool in view.all_tools]

    def _changed(self, view: ServerView) -> None:
        for listener in tuple(self._listeners):
            _tell(listener, view)


def _tell(listener: OnView, view: ServerView) -> None:
    try:
        listener(view)
    except Exception as error:
        logger.error("%r: %s: %s", listener, type(error).__name__, message_of(error))


# ---- One server ----


@dataclass(slots=True)
class _Watch:
    """What has happened to one connection and not been looked at."""

    suspect: bool = False
    stale: bool = False
    over: bool = False
    changes: Notifier = field(default_factory=Notifier)
    seen: int = 0

    def ring(self, *, suspect: bool = False, stale: bool = False, over: bool = False) -> None:
        self.suspect |= suspect
        self.stale |= stale
        self.over |= over
        self.changes.notify()

    def notice(self, notice: Notice) -> None:
        self.ring(suspect=notice == "suspect", over=notice == "lost")

    async def wait(self) -> None:
        self.seen = await self.changes.wait(self.seen)


class _Server:
    """A server and the task that owns it."""

    def __init__(
        self,
        settings: ServerSettings,
        slots: anyio.CapacityLimiter,
        *,
        asks: bool,
        logs: bool,
        on_change: OnView,
        auth: "Callable[[_Server], httpx2.Auth | None]",
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
        self._calls = ServerCalls(settings, self.usable, self.request)
        self._listed = self.view
        self._connection: Connection | None = None
        self._watch = _Watch()
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
        """Connects it if it is not; returns when it is, or when that has failed."""
        self._not_before = -math.inf
        with contextlib.suppress(McpError):
            await self.usable()

    async def usable(self) -> Connection:
        """The connection, once there is one.

        Raises:
            McpError: There is none, nor soon.
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
                later = f"; the next try is in {wait:.0f} s" if wait > 1 else ""
                raise self._unavailable(f"is not available: it {self.view.problem}{later}")
            self.want()
            await self._turn.wait()

    def want(self) -> None:
        """Has its owner connect it, as soon as it is time to."""
        self._wanted = True
        self._wake.notify()

    async def settled(self) -> None:
        """Waits until the first attempt to connect has ended."""
        while self._wanted and not self._attempts and not self._closing:
            await self._turn.wait()

    def _unavailable(self, text: str) -> McpError:
        return McpError(self.settings.name, "unavailable", text)

    async def request(
        self, request: types.ClientRequest, context: ToolContext | None = None
    ) -> JsonObject:
        """Makes a request; once more if the server cannot have seen the first.

        Raises:
            McpError: There is no result.
        """
        try:
            return await (await self.usable()).request(request, context)
        except Undelivered as error:
            self._give_up(error)
            return await (await self.usable()).request(request, context)

    def _give_up(self, error: McpError) -> None:
        """The connection of today is of no use any more."""
        if self._connection is not None:
            self._connection.conclude(error)
        self._watch.ring(over=True)

    def close(self) -> None:
        """Ends it, politely if that is possible in time."""
        self._closing = True
        self._wake.notify()
        self._watch.ring()
        self._turn.notify()
        if self.view.state == "connecting":
            self._life.cancel()
        else:
            self._life.deadline = anyio.current_time() + CLOSE_SECONDS

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Stops the clocks: somebody logs in."""
        connecting = self.view.state == "connecting"
        if connecting:
            self._life.deadline = math.inf
        with self._connection.clocks_stopped() if self._connection else contextlib.nullcontext():
            yield
        if connecting and self.view.state == "connecting":
            self._life.deadline = anyio.current_time() + self.settings.connect_timeout

    # ---- The owner ----

    async def run(self) -> None:
        """Owns the server: connects when it is wanted, and again when the connection is lost."""
        CURRENT.set(self.settings)
        while True:
            await self._rest()
            if self._closing:
                return
            try:
                await self._live()
            except Exception as error:  # a fault of ours must not take the others along
                logger.exception("%s: %s", self.settings.name, type(error).__name__)
                self._fall("failed for a reason that the log tells", lived=None, hopeless=True)

    async def _rest(self) -> None:
        """Until there is a reason to connect, and it is time to."""
        while not self._closing:
            wait = self._not_before - anyio.current_time()
            if self._wanted and wait <= 0:
                return
            patient = wait if self._wanted else math.inf
            with anyio.move_on_after(patient):
                await self._wake.wait()

    async def _live(self) -> None:
        """One connection, from its start to its end."""
        self._show(replace(self.view, state="connecting"))
        watch = self._watch = _Watch()
        link = Link(self.settings, watch.notice)
        ended, problem, hopeless = False, "was closed", False
        began: float | None = None
        limit = self.settings.connect_timeout
        await self._slots.acquire_on_behalf_of(self)
        try:
            with anyio.CancelScope(deadline=anyio.current_time() + limit) as self._life:
                if self._closing:
                    return
                async with self._opened(link, watch) as connection:
                    await self._prepare(connection, link)
                    began = anyio.current_time()
                    self._life.deadline = math.inf
                    self._slots.release_on_behalf_of(self)
                    self._rise(connection)
                    problem = await self._tend(connection, watch)
                    ended = True
                    # Now, while it is open: an exit status is still to be had.
                    connection.conclude(self._lost(problem))
        except BaseException as error:
            if must_propagate(error):
                raise
            problem = problem if ended else self._explain(error, link)
            hopeless = _is_hopeless(_leaf(error))
        finally:
            if began is None:
                self._slots.release_on_behalf_of(self)
                if self._life.cancel_called and not self._closing:
                    problem = f"did not answer within {limit:g} s{link.hint()}"
            lived = None if began is None else anyio.current_time() - began
            self._fall(problem, lived=lived, hopeless=hopeless)

    @contextlib.asynccontextmanager
    async def _opened(self, link: Link, watch: _Watch) -> AsyncIterator[Connection]:
        async with self._wire(link) as (reads, writes):
            connection = Connection(
                link,
                reads,
                writes,
                asks=self._asks,
                on_end=lambda: watch.ring(over=True),
                on_change=lambda: watch.ring(stale=True),
            )
            async with connection.opened():
                yield connection

    def _wire(self, link: Link) -> "contextlib.AbstractAsyncContextManager[tuple[Reads, Writes]]":
        if self.settings.transport == "stdio":
            return open_stdio(link)
        return open_http(link, self._auth)

    async def _prepare(self, connection: Connection, link: Link) -> None:
        # A person who logs in takes longer, and the SDK minds its own clock meanwhile.
        probe = None if self._auth else self.settings.connect_timeout * PROBE_SHARE
        try:
            await connection.shake_hands(probe)
            await self._relist(connection)
        except MCPError as error:
            if is_end(error):
                # Now: how the process ends after this is our doing.
                link.fault = await link.cause()
            raise

    async def _tend(self, connection: Connection, watch: _Watch) -> str:
        """Looks after a connection until it ends. Returns why it did."""
        connection.watch()
        connection.link.patience = GRACE
        listed, pause = anyio.current_time(), MIN_PAUSE
        while not self._closing:
            due = listed + pause if watch.stale else math.inf
            with anyio.CancelScope(deadline=due):
                await watch.wait()
            if watch.over:
                connection.link.patience = SHORT_GRACE
                return await connection.link.cause()
            if watch.suspect:
                watch.suspect = False
                if not await connection.is_well():
                    connection.link.patience = 0.0
                    why = connection.link.trouble or "does not answer any more"
                    return f"{why}{connection.link.hint()}"
            now = anyio.current_time()
            if watch.stale and now >= listed + pause:
                # Who changes its list all the time is asked less and less often.
                pause = min(2 * pause, MAX_PAUSE) if now < listed + 2 * pause else MIN_PAUSE
                watch.stale = False
                await self._refresh(connection, watch)
                listed = anyio.current_time()
        return "was closed"

    async def _refresh(self, connection: Connection, watch: _Watch) -> None:
        try:
            with anyio.fail_after(self.settings.connect_timeout):
                await self._relist(connection)
        except (MCPError, TimeoutError, ValueError) as error:  # ValueError: it is not valid
            watch.ring(suspect=True)
            text = connection.link.clean(message_of(error)) or type(error).__name__
            note = f"its list of tools could not be read again: {text}"
            self._show(replace(self.view, notes=(*self.view.notes[:20], note)))
        else:
            self._rise(connection)

    async def _relist(self, connection: Connection) -> None:
        """Reads the list, and makes the tools of it."""
        can = connection.capabilities
        offers, problems = await connection.list_tools() if can.tools else ([], Problems())
        instructions = connection.instructions
        self._listed = replace(
            self.view,
            tools=self._calls.tools(offers),
            resources=self._calls.protocol_tools(RESOURCES) if can.resources else (),
            prompts=self._calls.protocol_tools(PROMPTS) if can.prompts else (),
            notes=problems.told(),
            instructions=None if instructions is None else instructions[:MAX_INSTRUCTIONS],
        )

    # ---- State ----

    def _rise(self, connection: Connection) -> None:
        if self._connection is not connection:
            self._connection = connection
            self._attempts += 1
        self._show(replace(self._listed, state="ready", problem=None))

    def _fall(self, problem: str, *, lived: float | None, hopeless: bool = False) -> None:
        """It is down. After a good time it is brought up at once, else the tries take longer.

        Args:
            problem: Why, in words that complete "the server ...".
            lived: For how many seconds it was up; None if it never was.
            hopeless: To try again by itself would end the same way.
        """
        if self._connection is not None:
            self._connection.conclude(self._lost(problem))
            self._connection = None
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
            self.view = view
            self._on_change(view)
        self._turn.notify()

    @staticmethod
    def _explain(error: BaseException, link: Link) -> str:
        """Why there is no connection, in words that complete "the server ..."."""
        leaf = _leaf(error)
        if isinstance(leaf, CannotStart):
            return f"cannot be started: {leaf}"
        if link.fault:
            return f"{link.fault}{link.hint() if link.garbage else ''}"
        if isinstance(leaf, MCPError):
            return link.clean(leaf.message)
        said = (
            explain(leaf, link.settings.place)
            or f"cannot be used: {type(leaf).__name__}: {message_of(leaf)}"
        )
        return f"{link.clean(said)}{link.hint()}"


def _is_hopeless(error: BaseException) -> bool:
    """Whether to try again by itself would end the same way, or bother a person again."""
    refused = isinstance(error, MCPError) and error.code == NOT_AUTHORIZED
    return refused or isinstance(error, CannotStart)


def _leaf(error: BaseException) -> BaseException:
    """The first error inside of groups of groups, and rather not one that only followed."""
    while isinstance(error, BaseExceptionGroup):
        real = [each for each in error.exceptions if not isinstance(each, anyio.EndOfStream)]
        error = (real or error.exceptions)[0]
    return error
