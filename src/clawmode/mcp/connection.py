"""`Connection`: one session with an MCP server: handshake, requests, list of tools, end.

Each request is sent by a task of the connection, while the caller waits in its own task. So an
exception of the SDK stays in the connection, a cancelled caller returns at once while the server is
notified, and the end of the connection fails every pending request with the reason.
"""

import asyncio
import contextlib
import itertools
import logging
import re
from collections.abc import AsyncIterator

import anyio
import mcp_types as types
from anyio.abc import TaskGroup
from mcp.client.session import ClientSession, IncomingMessage
from mcp.client.subscriptions import SubscriptionLost, listen
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from clawmode import __version__
from clawmode.exceptions import message_of
from clawmode.mcp.listing import MAX_PAGES, Listing, Offer, Problems
from clawmode.mcp.requests import (
    FailureKind,
    McpError,
    OpenRequest,
    OpenRequests,
    Undelivered,
)
from clawmode.mcp.sdk import CURRENT, Dispatcher, is_end
from clawmode.mcp.server_tasks import EXTENSION, RawResult, TaskFollower, find_task
from clawmode.mcp.settings import ServerSettings
from clawmode.mcp.wire import (
    NOT_AUTHORIZED,
    NOT_DELIVERED,
    SESSION_LOST,
    TOO_LARGE,
    UNREADABLE,
    CannotSend,
    IncomingStream,
    Link,
    OutgoingStream,
)
from clawmode.tasks import backoff, must_propagate
from clawmode.tools.tool import ToolContext
from clawmode.types import JsonObject, JsonValue

logger = logging.getLogger("clawmode.mcp")

PROBE_SECONDS = 5.0
MAX_ROUNDS = 10
UNKNOWN = "It is not known whether the call had an effect."
MAX_PAUSE = 60.0
"""The longest pause in seconds before listening for changes again."""
FAREWELL = 0.5
"""Seconds in which the server is notified of cancelled requests when the connection ends."""

_OVERSIZE = re.compile(r"its answer (is|has) over|exceeded the \d+ byte limit")
"""The SDK reports an exceeded HTTP limit only by its message."""

ENVELOPE = ("resultType", "ttlMs", "cacheScope", "_meta")
"""Members of a result that belong to the protocol, not to the tool."""


class Connection:
    """A session with a server, used inside of `opened` by the task that owns the server.

    Args:
        settings: The settings of the server.
        link: The state that is shared with the transport.
        reads: The messages of the server.
        writes: The messages to the server.
        asks: True if the server may ask users questions.
    """

    def __init__(
        self,
        settings: ServerSettings,
        link: Link,
        reads: IncomingStream,
        writes: OutgoingStream,
        *,
        asks: bool,
    ) -> None:
        self.link = link
        self._settings = settings
        self._open = OpenRequests(settings.name)
        self._tasks: TaskGroup | None = None
        self._over: McpError | None = None
        self._dispatcher = Dispatcher(link, reads, writes)
        self._session = ClientSession(
            dispatcher=self._dispatcher,
            # Without this callback, the SDK tells the server that elicitation is not supported.
            elicitation_callback=self._open.elicit if asks else None,
            logging_callback=self._log,
            message_handler=self._handle_message,
            client_info=types.Implementation(name="clawmode", version=__version__),
            extensions={EXTENSION: {}},
        )

    # ---- Start and end ----

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Runs the session. At the end, cancels pending requests and notifies the server."""
        farewell: asyncio.TimerHandle | None = None
        try:
            async with self._session, anyio.create_task_group() as tasks:
                self._tasks = tasks
                try:
                    yield
                finally:
                    closed = "is not available: the connection is being closed"
                    self._over = self._over or Undelivered(
                        self._settings.name, "unavailable", closed
                    )
                    patience = min(self.link.patience, FAREWELL)
                    farewell = asyncio.get_running_loop().call_later(patience, self.link.sever)
                    tasks.cancel_scope.cancel()
        finally:
            if farewell is not None:
                farewell.cancel()

    @property
    def usable(self) -> bool:
        """True if requests can be made."""
        return self._over is None

    @property
    def idle_seconds(self) -> float:
        """The seconds since the last request; 0 if a request is pending."""
        return self._open.idle_seconds

    def clocks_stopped(self) -> contextlib.AbstractContextManager[None]:
        """Suspends all time limits for the time of the block, while a user is asked."""
        return self._open.clocks_stopped()

    def conclude(self, error: McpError) -> None:
        """Ends all pending and later requests with an error."""
        self._over = self._over or error
        self._open.fail(error)

    async def shake_hands(self, limit: float | None) -> None:
        """Negotiates a version: `server/discover` of 2026, with fallback to the older handshake.

        Args:
            limit: Seconds for the first attempt.

        Raises:
            MCPError: The server cannot be reached, or rejects the handshake.
        """
        try:
            # Some older servers do not answer unknown methods at all.
            with anyio.fail_after(limit):
                await self._session.discover()
            return
        except MCPError as error:
            if error.code in (NOT_DELIVERED, NOT_AUTHORIZED) or is_end(error):
                raise
        except (TimeoutError, ValidationError, RuntimeError):
            pass
        try:
            await self._session.initialize()
        except MCPError as error:
            if error.code != types.UNSUPPORTED_PROTOCOL_VERSION:
                raise
            # The server started slowly: it has accepted the first method meanwhile.
            await self._session.discover()

    @property
    def capabilities(self) -> types.ServerCapabilities:
        return self._session.server_capabilities or types.ServerCapabilities()

    @property
    def instructions(self) -> str | None:
        """The server's own description, which is untrusted."""
        return self._session.instructions

    async def is_well(self) -> bool:
        """Probes the server. Returns True if it answers."""
        assert self._tasks is not None
        self.link.trouble = ""
        answers: list[bool] = []
        answered = anyio.Event()

        async def probe() -> None:
            CURRENT.set(self._settings)
            version = self._session.protocol_version
            try:
                if version is not None and version in MODERN_PROTOCOL_VERSIONS:
                    await self._session.send_discover(version)
                else:
                    await self._session.send_ping()
                answers.append(True)
            except MCPError as error:
                # An error response is an answer too, unless we made it.
                ours = error.code in (NOT_DELIVERED, SESSION_LOST) or is_end(error)
                answers.append(not ours)
            except ValidationError:
                answers.append(True)
            answered.set()

        # In a separate task: the SDK needs five seconds to cancel a request that cannot be sent.
        self._tasks.start_soon(probe)
        with anyio.move_on_after(PROBE_SECONDS):
            await answered.wait()
        return answers == [True]

    def watch(self) -> None:
        """Subscribes to changes of the list of tools, where the protocol requires this."""
        tools = self.capabilities.tools
        if self._tasks is None or tools is None or not tools.list_changed:
            return
        if self._session.protocol_version in MODERN_PROTOCOL_VERSIONS:
            self._tasks.start_soon(self._listen)

    async def _listen(self) -> None:
        CURRENT.set(self._settings)
        for attempt in itertools.count(1):
            try:
                async with listen(self._session, tools_list_changed=True) as events:
                    async for _ in events:
                        self.link.events.ring(stale=True)
            except MCPError as error:
                if error.code == types.METHOD_NOT_FOUND:
                    return
            except (SubscriptionLost, ValidationError):
                pass
            await anyio.sleep(backoff(attempt, 1.0, MAX_PAUSE))
            self.link.events.ring(stale=True)  # changes may have been missed during the pause

    # ---- Requests ----

    async def request(
        self, request: types.ClientRequest, context: ToolContext | None = None
    ) -> JsonObject:
        """Makes a request and returns its result.

        Args:
            request: The request.
            context: The context of the tool call that the request is made for. It receives
                progress, and the questions of the server.

        Raises:
            McpError: The request has no result.
        """
        began = anyio.current_time()
        with self._open.opened(self._settings.timeout, context) as call:
            if self._over is not None:
                raise self._over
            assert self._tasks is not None
            self._tasks.start_soon(self._exchange, request, call)
            with call.patience:
                await call.done.wait()
        if call.error is not None:
            raise call.error
        if call.value is None:
            self.link.events.ring(suspect=True)
            waited = f"{anyio.current_time() - began:.1f} s{self.link.hint()}"
            raise self._error("timeout", f"did not answer within {waited}")
        return call.value

    async def _exchange(self, request: types.ClientRequest, call: OpenRequest) -> None:
        CURRENT.set(self._settings)
        try:
            with call.sending:
                call.settle(await self._converse(request, call), None)
        except BaseException as error:
            if must_propagate(error):
                raise
            if (failure := self._translate(error)) is not None:
                call.settle(None, failure)

    async def _converse(self, request: types.ClientRequest, call: OpenRequest) -> JsonObject:
        """Sends the request, and repeats it with answers while the server asks for input."""
        for number in range(1, MAX_ROUNDS + 1):
            result = await self._session.send_request(
                request, RawResult, progress_callback=call.progress
            )
            if result.root.get("resultType") != "input_required":
                found = result.root
                if (task := find_task(found)) is not None:
                    found = await TaskFollower(self._session, task, call, self._open).result()
                return {key: value for key, value in found.items() if key not in ENVELOPE}
            asked = types.InputRequiredResult.model_validate(result.root)
            if not asked.input_requests:  # the server only wants to be asked again later
                await anyio.sleep(backoff(number, 0.05, 0.25, jitter=0))
            answers = await self._open.answer_all(asked.input_requests or {}, call.context)
            assert request.params is not None
            update = {"input_responses": answers or None, "request_state": asked.request_state}
            params = request.params.model_copy(update=update)
            request = request.model_copy(update={"params": params})
        raise self._error("protocol", f"asked for input {MAX_ROUNDS} times")

    def _translate(self, error: BaseException) -> McpError | None:
        """Translates an exception of the SDK.

        Returns None if the connection has ended: `conclude` then fails the request with the reason.
        """
        if isinstance(error, McpError):
            return error
        if isinstance(error, CannotSend):
            return self._error("invalid_input", f"was not called: {error}")
        if isinstance(error, MCPError):
            if is_end(error):
                self.link.events.ring(over=True)
                return None
            return self._translate_error(error.code, error.message, error.data)
        if isinstance(error, ValidationError):
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"]))[:100]
            text = f"{where}: {first['msg']}" if where else first["msg"]
            return self._error("protocol", f"sent an invalid result: {text}")
        logger.error("%s: %s: %s", self._settings.name, type(error).__name__, message_of(error))
        return self._error("protocol", f"could not be called: {type(error).__name__}")

    def _translate_error(self, code: int, message: str, data: JsonValue) -> McpError:
        text = self.link.clean(message)
        if code in (NOT_DELIVERED, SESSION_LOST):
            return Undelivered(self._settings.name, "unavailable", text)
        for prefix in ("Failed to parse JSON response: ", "Failed to parse SSE message: "):
            text = text.removeprefix(prefix)
        if code == TOO_LARGE or (code != UNREADABLE and _OVERSIZE.search(text)):
            return self._error("too_large", f"sent a message that was rejected: {text}")
        if code == NOT_AUTHORIZED:
            return self._error("unavailable", text)
        if text.startswith("SSE stream "):  # the stream ended before the answer was complete
            return self._error("lost", f"was lost during the call: {text}. {UNKNOWN}")
        if code in (UNREADABLE, types.PARSE_ERROR):
            return self._error("protocol", f"sent an answer that cannot be parsed: {text}")
        if code in (types.METHOD_NOT_FOUND, types.INVALID_PARAMS):
            self.link.events.ring(stale=True)  # our list of tools may be outdated
        return self._error("refused", f"answered with error {code}: {text}", data)

    def _error(self, kind: FailureKind, text: str, data: JsonValue = None) -> McpError:
        return McpError(self._settings.name, kind, text, data)

    # ---- Notifications of the server ----

    async def _handle_message(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self.link.events.ring(stale=True)
        elif isinstance(message, Exception):
            self.link.add_garbage(message_of(message).encode("utf-8", "replace"))

    async def _log(self, params: types.LoggingMessageNotificationParams) -> None:
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("%s: %s", self._settings.name, self.link.clean(str(params.data)))

    # ---- Lists ----

    async def list_tools(self) -> tuple[list[Offer], Problems]:
        """Reads the list of tools page by page, up to the limits of `listing`.

        Raises:
            MCPError: The server rejects the request, or the connection is lost.
        """
        listing = Listing()
        self._dispatcher.problems = listing.problems
        cursor: str | None = None
        seen: set[str | None] = set()
        while cursor not in seen and len(seen) < MAX_PAGES and not listing.full:
            seen.add(cursor)
            params = types.PaginatedRequestParams(cursor=cursor)
            page = await self._session.list_tools(params=params)
            for tool in page.tools:
                annotations = tool.annotations or types.ToolAnnotations()
                offer = Offer(
                    tool.name,
                    tool.description or "",
                    tool.input_schema,
                    label=tool.title or annotations.title,
                    output_schema=tool.output_schema,
                    hints=annotations.model_dump(
                        by_alias=True, exclude_none=True, exclude={"title"}
                    ),
                    needs_task=tool.execution is not None
                    and tool.execution.task_support == "required",
                )
                listing.add(offer)
            cursor = page.next_cursor or None
            if cursor is None:
                return listing.finish(), listing.problems
        if cursor in seen:
            listing.problems.add("its list of tools repeats a page")
        return listing.finish(cut_short=True), listing.problems
