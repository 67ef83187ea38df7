"""One connection to an MCP server, from the handshake to its end: requests made, lists read.

Whoever makes a request waits in a task of its own, and the exchange runs in one of the
connection's: what the SDK raises there stays there, a caller that is cancelled leaves at once while
the server is told, and a connection that ends tells every caller why.
"""

import asyncio
import contextlib
import itertools
import logging
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextvars import ContextVar
from typing import Any

import anyio
import mcp_types as types
from anyio.abc import TaskGroup
from mcp.client.session import ClientSession, IncomingMessage
from mcp.client.subscriptions import SubscriptionLost, listen
from mcp.shared.dispatcher import CallOptions
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import RootModel, ValidationError

from clawmode import __version__
from clawmode.foreign import message_of, must_propagate
from clawmode.mcp.listing import (
    MAX_ENTRIES,
    MAX_LISTED,
    MAX_PAGES,
    Listing,
    Offer,
    Problems,
    sift,
)
from clawmode.mcp.requests import (
    FailureKind,
    McpError,
    OpenRequest,
    OpenRequests,
    Undelivered,
)
from clawmode.mcp.settings import ServerSettings
from clawmode.mcp.wire import (
    NOT_AUTHORIZED,
    NOT_DELIVERED,
    SESSION_LOST,
    TOO_LARGE,
    UNREADABLE,
    Link,
    Reads,
    Writes,
)
from clawmode.tasks import backoff
from clawmode.tools.tool import ToolContext
from clawmode.types import JsonObject

logger = logging.getLogger("clawmode.mcp")

PROBE_SECONDS = 5.0
MAX_ROUNDS = 10
UNKNOWN = "Whether it had an effect is not known."
MAX_PAUSE = 60.0
"""Seconds between two tries to listen for changes."""
FAREWELL = 0.5
"""Seconds in which the server can still be told what is cancelled, when the connection ends."""

_OVERSIZE = re.compile(r"its answer (is|has) over|exceeded the \d+ byte limit")
"""Of the limits that HTTP has, the SDK tells by words alone."""

ENVELOPE = ("resultType", "ttlMs", "cacheScope", "_meta")
"""What is said about a result, not in it."""


class _Raw(RootModel[dict[str, Any]]):
    """A result as it came, once the SDK has found it valid."""


# ---- What the SDK logs ----

CURRENT: ContextVar[ServerSettings | None] = ContextVar("clawmode_mcp_server", default=None)


class _Hush(logging.Filter):
    """Keeps what the SDK says about our connections to ourselves.

    It logs tracebacks for what a server does wrong, and addresses with all that is in them.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        settings = CURRENT.get()
        if settings is None:
            return True
        # Below that it tells whole messages, and what is in them is nobody's business.
        if record.levelno >= logging.INFO and logger.isEnabledFor(logging.DEBUG):
            text = settings.redact(record.getMessage())[:500]
            logger.debug("%s: %s: %s", settings.name, record.name, text)
        return False


_hush = _Hush()
for _name in (
    "client",
    "httpx2",
    "mcp.client.auth.oauth2",
    "mcp.client.sse",
    "mcp.client.streamable_http",
    "mcp.shared.jsonrpc_dispatcher",
):
    logging.getLogger(_name).addFilter(_hush)


# ---- Under the session ----


class _Dispatcher(JSONRPCDispatcher):
    """The SDK's, which says when it has ended, and looks at answers before they are checked."""

    def __init__(self, reads: Reads, writes: Writes, on_end: Callable[[], None]) -> None:
        super().__init__(reads, writes)
        self._on_end = on_end
        self.problems = Problems()

    async def send_raw_request(
        self,
        method: str,
        params: Mapping[str, Any] | None,
        opts: CallOptions | None = None,
        **internal: Any,
    ) -> dict[str, Any]:
        """Sends a request; an answer that would take long to check is refused."""
        answer = await super().send_raw_request(method, params, opts, **internal)
        if method == "tools/list":
            tools = answer.get("tools")
            if isinstance(tools, list) and len(tools) > MAX_LISTED:
                self.problems.add(f"a page lists {len(tools)} tools; {MAX_LISTED} are read")
                tools = tools[:MAX_LISTED]
            return {**answer, "tools": sift(tools, self.problems)}
        for key, value in answer.items():
            if isinstance(value, list) and len(value) > MAX_ENTRIES:
                raise MCPError(TOO_LARGE, f"its answer has over {MAX_ENTRIES} entries in {key!r}")
        return answer

    async def run(self, *args: Any, **options: Any) -> None:
        """Runs until the wire ends."""
        try:
            await super().run(*args, **options)
        finally:
            self._on_end()


class Connection:
    """A session with a server. Used inside of `opened`, in the task that owns the server.

    Attributes:
        on_end: Called when the wire has ended.
        on_change: Called when the server says that its lists have changed.
    """

    def __init__(
        self,
        settings: ServerSettings,
        link: Link,
        reads: Reads,
        writes: Writes,
        *,
        asks: bool,
        on_end: Callable[[], None],
        on_change: Callable[[], None],
    ) -> None:
        self.link = link
        self._settings = settings
        self._on_end = on_end
        self._on_change = on_change
        self._open = OpenRequests(settings.name)
        self._tasks: TaskGroup | None = None
        self._over: McpError | None = None
        self._dispatcher = _Dispatcher(reads, writes, on_end)
        self._session = ClientSession(
            dispatcher=self._dispatcher,
            # Without anybody to ask, the server is told that it cannot.
            elicitation_callback=self._open.elicit if asks else None,
            logging_callback=self._log,
            message_handler=self._hear,
            client_info=types.Implementation(name="clawmode", version=__version__),
        )

    # ---- Beginning and end ----

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Runs the session. At the end every open request is cancelled, and its server told."""
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
        """Whether a request can be made."""
        return self._over is None

    def clocks_stopped(self) -> contextlib.AbstractContextManager[None]:
        """No request runs out of time inside of it: a person is busy."""
        return self._open.clocks_stopped()

    def conclude(self, error: McpError) -> None:
        """Nothing comes any more: tells everybody who waits."""
        self._over = self._over or error
        self._open.fail(error)

    async def shake_hands(self, limit: float | None) -> None:
        """Agrees on a version: asks as since 2026, and falls back to the older handshake.

        Raises:
            MCPError: The server cannot be reached, or refuses.
        """
        try:
            # Some older servers do not answer what they do not know.
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
            # It was slow to start, and has answered the first question meanwhile.
            await self._session.discover()

    @property
    def capabilities(self) -> types.ServerCapabilities:
        """What the server can do."""
        return self._session.server_capabilities or types.ServerCapabilities()

    @property
    def instructions(self) -> str | None:
        """What the server says about itself."""
        return self._session.instructions

    async def is_well(self) -> bool:
        """Whether the server answers at all."""
        assert self._tasks is not None
        self.link.trouble = ""
        answers: list[bool] = []
        answered = anyio.Event()

        async def probe() -> None:
            CURRENT.set(self._settings)
            answers.append(await self._probe())
            answered.set()

        # In a task of its own: to give up on a wire that is stuck takes the SDK five seconds.
        self._tasks.start_soon(probe)
        with anyio.move_on_after(PROBE_SECONDS):
            await answered.wait()
        return answers == [True]

    async def _probe(self) -> bool:
        version = self._session.protocol_version
        try:
            if version is not None and version in MODERN_PROTOCOL_VERSIONS:
                await self._session.send_discover(version)
            else:
                await self._session.send_ping()
        except MCPError as error:
            # An error is an answer, unless it is ours.
            return error.code not in (NOT_DELIVERED, SESSION_LOST) and not is_end(error)
        except ValidationError:
            pass
        return True

    def watch(self) -> None:
        """Listens for changes of the lists, where the server only tells those who do."""
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
                        self._on_change()
            except MCPError as error:
                if error.code == types.METHOD_NOT_FOUND:
                    return
            except (SubscriptionLost, ValidationError):
                pass
            await anyio.sleep(backoff(attempt, 1.0, MAX_PAUSE))
            self._on_change()  # nobody told us what happened meanwhile

    # ---- Requests ----

    async def request(
        self, request: types.ClientRequest, context: ToolContext | None = None
    ) -> JsonObject:
        """Makes a request and waits for its result.

        Args:
            request: What the server is asked.
            context: Of the tool's call that it is made for: hears of progress, and is asked what
                the server wants to know.

        Raises:
            McpError: There is none.
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
            self.link.notify("suspect")
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
        """Sends the request, and again with answers as long as the server asks for some."""
        for number in range(1, MAX_ROUNDS + 1):
            result = await self._session.send_request(
                request, _Raw, progress_callback=call.progress
            )
            if result.root.get("resultType") != "input_required":
                return {key: it for key, it in result.root.items() if key not in ENVELOPE}
            asked = types.InputRequiredResult.model_validate(result.root)
            if not asked.input_requests:  # it is not ready yet
                await anyio.sleep(backoff(number, 0.05, 0.25, jitter=0))
            answers = await self._open.answer_all(asked.input_requests or {}, call.context)
            request = _again(request, answers, asked.request_state)
        raise self._error("protocol", f"asked for input {MAX_ROUNDS} times")

    def _translate(self, error: BaseException) -> McpError | None:
        """What the SDK raised, in our words; None if the end of the connection is to tell."""
        if isinstance(error, McpError):
            return error
        if isinstance(error, MCPError):
            if is_end(error):
                self._on_end()
                return None
            return self._translate_answer(error.code, error.message)
        if isinstance(error, ValidationError):
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"]))[:100]
            text = f"{where}: {first['msg']}" if where else first["msg"]
            return self._error("protocol", f"answered what is no valid result: {text}")
        logger.error("%s: %s: %s", self._settings.name, type(error).__name__, message_of(error))
        return self._error("protocol", f"could not be asked: {type(error).__name__}")

    def _translate_answer(self, code: int, message: str) -> McpError:
        text = self.link.clean(message)
        if code in (NOT_DELIVERED, SESSION_LOST):
            return Undelivered(self._settings.name, "unavailable", text)
        for prefix in ("Failed to parse JSON response: ", "Failed to parse SSE message: "):
            text = text.removeprefix(prefix)
        if code == TOO_LARGE or (code != UNREADABLE and _OVERSIZE.search(text)):
            return self._error("too_large", f"sent what is not read: {text}")
        if code == NOT_AUTHORIZED:
            return self._error("unavailable", text)
        if text.startswith("SSE stream "):  # in the middle of an answer
            return self._error("lost", f"was lost during the call: {text}. {UNKNOWN}")
        if code in (UNREADABLE, types.PARSE_ERROR):
            return self._error("protocol", f"answered what cannot be read: {text}")
        if code in (types.METHOD_NOT_FOUND, types.INVALID_PARAMS):
            self._on_change()  # perhaps the list that we have is an old one
        return self._error("refused", f"answered with error {code}: {text}")

    def _error(self, kind: FailureKind, text: str) -> McpError:
        return McpError(self._settings.name, kind, text)

    # ---- What the server says unasked ----

    async def _hear(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._on_change()
        elif isinstance(message, Exception):
            self.link.litter(message_of(message).encode("utf-8", "replace"))

    async def _log(self, params: types.LoggingMessageNotificationParams) -> None:
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("%s: %s", self._settings.name, self.link.clean(str(params.data)))

    # ---- Lists ----

    async def list_tools(self) -> tuple[list[Offer], Problems]:
        """All tools, page by page, as many as are bearable.

        Raises:
            MCPError: The server refuses, or the connection ends.
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
                listing.add(_to_offer(tool))
            cursor = page.next_cursor or None
            if cursor is None:
                return listing.finish(), listing.problems
        if cursor in seen:
            listing.problems.add("its list of tools goes round in circles")
        return listing.finish(cut_short=True), listing.problems


def is_end(error: MCPError) -> bool:
    """Whether the wire has ended. The number alone does not say: servers use it too."""
    return error.code == types.CONNECTION_CLOSED and error.message == "Connection closed"


def _again(
    request: types.ClientRequest, answers: types.InputResponses, state: str | None
) -> types.ClientRequest:
    assert request.params is not None
    update = {"input_responses": answers or None, "request_state": state}
    return request.model_copy(update={"params": request.params.model_copy(update=update)})


def _to_offer(tool: types.Tool) -> Offer:
    said = tool.annotations or types.ToolAnnotations()
    hints = said.model_dump(by_alias=True, exclude_none=True, exclude={"title"})
    return Offer(
        tool.name,
        tool.description or "",
        tool.input_schema,
        label=tool.title or said.title,
        output_schema=tool.output_schema,
        hints=hints,
    )
