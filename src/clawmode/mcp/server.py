"""Our MCP face: `exec` and `wait` as the two tools of an MCP server, over stdio or HTTP.

Over stdio the process is the scope. Over HTTP it is who authenticated, and their session where the
protocol has one. A question to a person is put to the client if it can take one: as a request of
ours on a connection that carries those, else as a result that asks for input (2026-07-28). A call
that needs approval is rejected at once where the client can do neither.
"""

import contextlib
import hmac
import itertools
import json
import logging
import math
import secrets
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import anyio
import mcp_types as types
from anyio.abc import TaskGroup, TaskStatus
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.session import ServerSession
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp.shared.exceptions import MCPError
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from clawmode import __version__
from clawmode.addresses import Attempts
from clawmode.code_mode.code_mode import CodeMode
from clawmode.code_mode.results import compact
from clawmode.context import RunContext
from clawmode.foreign import message_of, must_propagate
from clawmode.mcp.servers import McpServers
from clawmode.tasks import Notifier
from clawmode.text import truncate
from clawmode.tools.approvals import Decision, InputQuestion, Question
from clawmode.tools.executor import CallEvent
from clawmode.types import JsonValue

logger = logging.getLogger("clawmode.mcp")

MAX_SESSIONS = 256
"""Scopes that are kept; the one that was used least recently goes first."""

MAX_EVENTS = 1000

LIST_SECONDS = 3.0
"""How long `tools/list` waits for MCP servers that are still connecting."""

SETTLE_SECONDS = 0.1
ANNOUNCE_SECONDS = 5.0

TITLE = "clawmode"
TITLES = {"exec": "Run a program that calls tools", "wait": "Continue a program"}
INSTRUCTIONS = (
    "Instead of one tool per action, write a short JavaScript or TypeScript program for `exec`: it "
    "can call many tools, also those of MCP servers, and return only what is needed. If a result "
    "has the status `waiting`, call `wait` with its `runId`."
)
SESSION_HEADER = "mcp-session-id"
PRINCIPAL = "token"
"""Whoever shows the token: there is one."""
REMEDY = (
    "To allow calls without asking, the operator can start `clawmode mcp` with `--approve always`, "
    'or set `"trustAnnotations": true` for an MCP server whose read-only tools may run unasked.'
)
CANNOT_ASK = f"this client cannot ask a person (it does not support elicitation). {REMEDY}"
DECLINED = f"the client declined, for its person or because nobody is there. {REMEDY}"
MAX_REJECTED = 1_000
MAX_QUESTIONS = 100
"""Rounds of questions in one `tools/call`; after that it answers `waiting`, and `wait` goes on."""
DECISIONS: tuple[Decision, ...] = ("allow-once", "allow-always", "deny")

Context: TypeAlias = ServerRequestContext[Any, Any]
Opener: TypeAlias = Callable[[RunContext], CodeMode]
"""Makes the `CodeMode` of a scope; it is opened and closed here."""


# ---- Scopes ----


@dataclass(slots=True)
class _Session:
    code_mode: CodeMode
    ended: anyio.Event
    busy: int = 0


@dataclass(slots=True)
class Sessions:
    """The `CodeMode` of each scope, opened at its first call."""

    opener: Opener
    tasks: TaskGroup
    process: str = field(default_factory=lambda: secrets.token_hex(8))
    _open: OrderedDict[str, _Session] = field(default_factory=OrderedDict[str, _Session])
    _opening: anyio.Lock = field(default_factory=anyio.Lock)

    @contextlib.asynccontextmanager
    async def use(self, principal: str, session: str) -> AsyncIterator[CodeMode]:
        """The scope's `CodeMode`, which is not closed meanwhile."""
        found = await self._find(f"{principal}:{session or self.process}")
        found.busy += 1
        try:
            yield found.code_mode
        finally:
            found.busy -= 1

    async def _find(self, key: str) -> _Session:
        async with self._opening:
            if key not in self._open:
                self._make_room()
                self._open[key] = await self.tasks.start(self._own, key)
            self._open.move_to_end(key)
            return self._open[key]

    def _make_room(self) -> None:
        idle = (key for key, session in self._open.items() if not session.busy)
        while len(self._open) >= MAX_SESSIONS and (key := next(idle, None)) is not None:
            self._open.pop(key).ended.set()

    async def _own(self, key: str, *, task_status: TaskStatus[_Session]) -> None:
        """Opens and closes in one task, as cancel scopes want it."""
        name = f"mcp:{key}"
        context = RunContext(session_id=name, session_key=name, run_id=name, channel="mcp")
        session = _Session(self.opener(context), anyio.Event())
        async with session.code_mode:
            task_status.started(session)
            await session.ended.wait()

    def end(self, principal: str, session: str) -> None:
        """A client has said that it is done: its programs are too."""
        if session and (found := self._open.pop(f"{principal}:{session}", None)) is not None:
            found.ended.set()

    def close(self) -> None:
        """Ends all of them."""
        for session in self._open.values():
            session.ended.set()
        self._open.clear()


# ---- The two tools ----


class _AnnouncingServer(Server[Any]):
    """A server that says that its list of tools can change, on every transport."""

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        return super().create_initialization_options(
            notification_options or NotificationOptions(tools_changed=True),
            experimental_capabilities,
            extensions,
        )


class Face:
    """Answers a client's requests.

    Args:
        sessions: Whose programs are whose.
        describe: A `CodeMode` like those of the sessions, to tell clients what there is.
        servers: The MCP servers behind it, which may still be connecting.
    """

    def __init__(self, sessions: Sessions, describe: CodeMode, servers: McpServers) -> None:
        self.sessions = sessions
        self._describe = describe
        self._servers = servers
        self._listeners: OrderedDict[str, ServerSession] = OrderedDict()
        self._rejected: set[str] = set()
        self._bus = InMemorySubscriptionBus()
        self.server: Server[Any] = _AnnouncingServer(
            "clawmode",
            version=__version__,
            title=TITLE,
            instructions=INSTRUCTIONS,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_subscriptions_listen=ListenHandler(self._bus),
        )

    async def _list_tools(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        # Many clients list once and ignore changes: a little patience shows them most servers.
        with anyio.move_on_after(LIST_SECONDS):
            await self._servers.settled()
        self._listen("/".join(_scope_of(context)), context.session)
        return types.ListToolsResult(tools=self._definitions())

    def _definitions(self) -> list[types.Tool]:
        return [
            types.Tool.model_validate(each | {"title": TITLES[str(each["name"])]}, by_alias=True)
            for each in self._describe.definitions("mcp")
        ]

    def _listen(self, key: str, session: ServerSession) -> None:
        self._listeners[key] = session
        self._listeners.move_to_end(key)
        while len(self._listeners) > MAX_SESSIONS:
            self._listeners.popitem(last=False)

    async def announce_changes(self) -> None:
        """Tells clients that have listed the tools when their text changes, until cancelled."""
        changes = Notifier()
        unwatch = self._servers.watch(lambda view: changes.notify())
        try:
            known, seen = self._definitions(), changes.count
            while True:
                await changes.wait(seen)
                await anyio.sleep(SETTLE_SECONDS)  # servers often connect at about the same time
                seen = changes.count
                if (now := self._definitions()) != known:
                    known = now
                    await self._announce()
        finally:
            unwatch()

    async def _announce(self) -> None:
        await self._bus.publish(ToolsListChanged())
        async with anyio.create_task_group() as tasks:
            for key, session in tuple(self._listeners.items()):
                tasks.start_soon(self._announce_to, key, session)

    async def _announce_to(self, key: str, session: ServerSession) -> None:
        try:
            with anyio.fail_after(ANNOUNCE_SECONDS):
                await session.send_tool_list_changed()
        except Exception as error:  # it has hung up, or does not read
            self._listeners.pop(key, None)
            logger.info("a client could not be told of new tools: %s", type(error).__name__)

    async def _call_tool(
        self, context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        if params.name not in ("exec", "wait"):
            text = f"There is no tool {params.name[:80]!r}: this server has `exec` and `wait`."
            return types.CallToolResult(content=[types.TextContent(text=text)], is_error=True)
        principal, session = _scope_of(context)
        async with self.sessions.use(principal, session) as code_mode:
            call = _Call(context, params, code_mode, self._rejected)
            return await call.make()


def _scope_of(context: Context) -> tuple[str, str]:
    """Who asks, and in which session; over stdio nobody else can."""
    request = context.request
    if request is None:
        return "stdio", ""
    return request.scope.get("clawmode.principal", ""), request.headers.get(SESSION_HEADER, "")


@dataclass(frozen=True, slots=True)
class _Asking:
    """How a client can ask its person."""

    form: bool
    url: bool


@dataclass(slots=True)
class _Call:
    """One `tools/call`, from the request to its answer.

    Attributes:
        rejected: Tools of which it was said on stderr that nobody can approve their calls.
    """

    context: Context
    params: types.CallToolRequestParams
    code_mode: CodeMode
    rejected: set[str]
    id: str = field(default_factory=lambda: "mcp_" + secrets.token_hex(8))

    async def make(self) -> types.CallToolResult | types.InputRequiredResult:
        async with self._progress_told():
            result = await self._begin()
            async with self._ended_with(result):
                # Without a person's time in between, a program could ask for ever.
                for _ in range(MAX_QUESTIONS):
                    if (question := self._question(result)) is None:
                        break
                    request = _elicitation(question)
                    if not self._can_ask(question):
                        asked = self._questions(str(result["runId"]))
                        for each in itertools.filterfalse(self._can_ask, asked):
                            self._reject(each, CANNOT_ASK)
                    elif not self.context.session.can_send_request:
                        return types.InputRequiredResult(
                            input_requests={question.id: types.ElicitRequest(params=request)},
                            request_state=str(result["runId"]),
                        )
                    else:
                        await self._elicit(question, request)
                    result = await self.code_mode.call("wait", {"runId": result["runId"]})
        return types.CallToolResult(
            content=[types.TextContent(text=compact(result))],
            structured_content=result,
            is_error=result["status"] == "failed",
        )

    async def _begin(self) -> dict[str, JsonValue]:
        """Starts or continues a program, or goes on with one whose question was answered."""
        if self.params.request_state is None:
            arguments = self.params.arguments or {}
            return await self.code_mode.call(self.params.name, arguments, call_id=self.id)
        # Whatever a client claims here, it can only answer for programs of its own scope.
        answers = self.params.input_responses or {}
        for question in self._questions(self.params.request_state):
            if isinstance(answer := answers.get(question.id), types.ElicitResult):
                self._settle(question, answer)
        return await self.code_mode.call("wait", {"runId": self.params.request_state})

    # ---- Questions ----

    def _question(self, result: dict[str, JsonValue]) -> Question | InputQuestion | None:
        """What a person has to say before the program can go on."""
        if result["status"] != "waiting":
            return None
        return next(iter(self._questions(str(result["runId"]))), None)

    def _questions(self, run_id: str) -> list[Question | InputQuestion]:
        """Those of one program. Others of the scope are other people's, or given up."""
        approvals = self.code_mode.approvals
        everything = (*approvals.pending_inputs(), *approvals.pending())
        return [each for each in everything if each.call_id.startswith(f"{run_id}:")]

    @contextlib.asynccontextmanager
    async def _ended_with(self, result: dict[str, JsonValue]) -> AsyncIterator[None]:
        """Ends the program that this call began, if it is cancelled while a person is asked."""
        try:
            yield
        except BaseException as error:
            began_it = self.params.name == "exec" and self.params.request_state is None
            if must_propagate(error) and began_it and result["status"] == "waiting":
                with anyio.CancelScope(shield=True):
                    await self.code_mode.abort(str(result["runId"]))
            raise

    @property
    def _capabilities(self) -> _Asking:
        told = self.context.session.client_capabilities
        elicitation = None if told is None else told.elicitation
        if elicitation is None:
            return _Asking(form=False, url=False)
        # Who names neither takes forms: there was nothing else once.
        return _Asking(
            form=elicitation.form is not None or elicitation.url is None,
            url=elicitation.url is not None,
        )

    def _can_ask(self, question: Question | InputQuestion) -> bool:
        wants_url = isinstance(question, InputQuestion) and question.request.url is not None
        return self._capabilities.url if wants_url else self._capabilities.form

    async def _elicit(
        self, question: Question | InputQuestion, request: types.ElicitRequestParams
    ) -> None:
        """Asks the client's person, and settles the question."""
        session, asked_in = self.context.session, self.context.request_id
        try:
            if isinstance(request, types.ElicitRequestURLParams):
                answer = await session.elicit_url(
                    request.message, request.url, question.id, asked_in
                )
            else:
                schema = request.requested_schema
                answer = await session.elicit_form(request.message, schema, asked_in)
        except MCPError as error:
            self._reject(
                question, f"the client failed to ask ({message_of(error)[:200]}). {REMEDY}"
            )
        else:
            self._settle(question, answer)

    def _reject(self, question: Question | InputQuestion, why: str) -> None:
        """Nobody can be asked: the program is told so, and so is whoever reads stderr."""
        if isinstance(question, InputQuestion):
            self.code_mode.approvals.answer(question.id, None)
            return
        self.code_mode.approvals.reject(question.id, why)
        if question.tool_id not in self.rejected and len(self.rejected) < MAX_REJECTED:
            self.rejected.add(question.tool_id)
            logger.warning("%s was not approved: %s", question.tool_id, why)

    def _settle(self, question: Question | InputQuestion, answer: types.ElicitResult) -> None:
        content: dict[str, Any] = dict(answer.content or {})
        accepted = answer.action == "accept"
        if isinstance(question, InputQuestion):
            self.code_mode.approvals.answer(question.id, content if accepted else None)
            return
        if not accepted:
            self._reject(question, DECLINED)
            return
        known = [decision for decision in DECISIONS if decision == content.get("decision")]
        self.code_mode.approvals.resolve(question.id, known[0] if known else "deny")

    # ---- Progress ----

    @contextlib.asynccontextmanager
    async def _progress_told(self) -> AsyncIterator[None]:
        """Tells the client of nested calls meanwhile, if it wants to know."""
        send, receive = anyio.create_memory_object_stream[CallEvent](MAX_EVENTS)
        ours = threading.get_ident()
        run_id = str((self.params.arguments or {}).get("runId", "")) or self.params.request_state

        def note(event: CallEvent) -> None:
            mine = event.parent_id == self.id or event.call_id.startswith(f"{run_id}:")
            # A tool that is not async reports from its thread, where no stream can be written.
            if mine and threading.get_ident() == ours:
                with contextlib.suppress(anyio.WouldBlock, anyio.ClosedResourceError):
                    send.send_nowait(event)

        unwatch = self.code_mode.watch(note)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._tell, receive)
            try:
                yield
            finally:
                unwatch()
                send.close()

    async def _tell(self, events: "anyio.abc.ObjectReceiveStream[CallEvent]") -> None:
        # Counted are the reports: the number has to rise with each of them.
        reports = 0
        async with events:
            async for event in events:
                reports += 1
                words = f"{event.tool_id} {event.state or event.phase}"
                await self.context.session.report_progress(reports, None, words)


_FORM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "decision": {"type": "string", "enum": list(DECISIONS), "title": "May it run?"},
    },
    "required": ["decision"],
}

_NOTHING: dict[str, Any] = {"type": "object", "properties": {}}


def _words(question: Question) -> str:
    arguments = json.dumps(question.input, ensure_ascii=False)
    text = f"{question.title}\n{question.tool_id} with {truncate(arguments, 4000)}"
    return f"{text}\n`allow-always` would remember {question.always}."


def _elicitation(question: Question | InputQuestion) -> types.ElicitRequestParams:
    if isinstance(question, Question):
        return types.ElicitRequestFormParams(message=_words(question), requested_schema=_FORM)
    message = f"{question.tool_id} asks:\n{question.request.message}"
    if question.request.url is not None:
        return types.ElicitRequestURLParams(
            message=message, url=question.request.url, elicitation_id=question.id
        )
    schema: dict[str, Any] = dict(question.request.schema or _NOTHING)
    return types.ElicitRequestFormParams(message=message, requested_schema=schema)


# ---- Transports ----


@contextlib.asynccontextmanager
async def opened(opener: Opener, servers: McpServers) -> AsyncIterator[Face]:
    """The face, without a transport.

    Args:
        opener: Makes the `CodeMode` of a scope.
        servers: The MCP servers behind it.
    """
    async with anyio.create_task_group() as tasks:
        sessions = Sessions(opener, tasks)
        face = Face(sessions, opener(RunContext()), servers)
        try:
            async with anyio.create_task_group() as announcing:
                announcing.start_soon(face.announce_changes)
                yield face
                announcing.cancel_scope.cancel()
        finally:
            sessions.close()


async def serve_stdio(opener: Opener, servers: McpServers) -> None:
    """Serves one client on stdin and stdout, until it hangs up."""
    async with opened(opener, servers) as face, stdio_server() as (read, write):
        await face.server.run(read, write, face.server.create_initialization_options())


class RequireToken:
    """Lets requests through that carry the token, and nobody else's.

    Args:
        app: What is behind it.
        token: The secret.
        attempts: Who has shown wrong tokens too often has to wait, with the right one too.
    """

    def __init__(self, app: ASGIApp, token: str, attempts: Attempts) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()
        self._attempts = attempts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        if scope["type"] == "http":
            if (refusal := self._check(scope)) is not None:
                await refusal(scope, receive, send)
                return
            scope["clawmode.principal"] = PRINCIPAL
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> PlainTextResponse | None:
        address = (scope.get("client") or ("",))[0]
        if (seconds := self._attempts.wait(address)) > 0:
            headers = {"retry-after": str(math.ceil(seconds))}
            return PlainTextResponse("Too many wrong tokens: wait.\n", 429, headers)
        given = dict(scope["headers"]).get(b"authorization", b"")
        if hmac.compare_digest(given, self._expected):
            return None
        if given:  # clients often begin without one, and that guesses nothing
            self._attempts.fail(address)
        headers = {"www-authenticate": "Bearer"}
        return PlainTextResponse("A bearer token is needed.\n", 401, headers)


class EndSessions:
    """Ends the programs of a session that its client deletes.

    Args:
        app: What is behind it.
        sessions: Whose programs are whose.
    """

    def __init__(self, app: ASGIApp, sessions: Sessions) -> None:
        self._app = app
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        await self._app(scope, receive, send)
        if scope["type"] == "http" and scope["method"] == "DELETE":
            session = dict(scope["headers"]).get(SESSION_HEADER.encode(), b"")
            self._sessions.end(scope["clawmode.principal"], session.decode("latin-1"))


async def serve_http(
    opener: Opener,
    servers: McpServers,
    host: str,
    port: int,
    token: str,
    on_ready: Callable[[int], None],
) -> None:
    """Serves clients over streamable HTTP at `/mcp`, until it is cancelled.

    Args:
        opener: Makes the `CodeMode` of a scope.
        servers: The MCP servers behind it.
        host: The address to listen at.
        port: 0 for any that is free.
        token: What clients have to show.
        on_ready: Told the port.
    """
    import uvicorn

    async with opened(opener, servers) as face:
        inner = face.server.streamable_http_app(host=host)
        app = RequireToken(EndSessions(inner, face.sessions), token, Attempts())
        config = uvicorn.Config(
            app,
            host=host,
            port=port,
            log_level="warning",
            lifespan="on",
            proxy_headers=False,  # else a client could choose the address that is counted
        )
        server = uvicorn.Server(config)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve)
            while not server.started:  # noqa: ASYNC110 - uvicorn sets no event
                await anyio.sleep(0.01)
            on_ready(server.servers[0].sockets[0].getsockname()[1])
