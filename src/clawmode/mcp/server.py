"""Our MCP face: `exec` and `wait` as the two tools of an MCP server, over stdio or HTTP.

Over stdio the process is the scope. Over HTTP it is who authenticated, and their session where the
protocol has one. A question to a person is put to the client if it can take one: as a request of
ours on a connection that carries those, else as a result that asks for input (2026-07-28). For a
client that can do neither, the result says `waiting`.
"""

import contextlib
import hmac
import json
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
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from clawmode import __version__
from clawmode.approvals import Decision, Question
from clawmode.code_mode import CodeMode
from clawmode.context import RunContext
from clawmode.executor import CallEvent
from clawmode.results import compact
from clawmode.types import JsonValue

MAX_SESSIONS = 256
"""Scopes that are kept; the one that was used least recently goes first."""

MAX_EVENTS = 1000
SESSION_HEADER = "mcp-session-id"
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

    def close(self) -> None:
        """Ends all of them."""
        for session in self._open.values():
            session.ended.set()
        self._open.clear()


# ---- The two tools ----


class Face:
    """Answers a client's requests.

    Args:
        sessions: Whose programs are whose.
        describe: A `CodeMode` like those of the sessions, to tell clients what there is.
    """

    def __init__(self, sessions: Sessions, describe: CodeMode) -> None:
        self._sessions = sessions
        self._describe = describe
        self.server: Server[Any] = Server(
            "clawmode",
            version=__version__,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
        )

    async def _list_tools(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        defined = [
            types.Tool.model_validate(each, by_alias=True)
            for each in self._describe.definitions("mcp")
        ]
        return types.ListToolsResult(tools=defined)

    async def _call_tool(
        self, context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        if params.name not in ("exec", "wait"):
            text = f"There is no tool {params.name[:80]!r}: this server has `exec` and `wait`."
            return types.CallToolResult(content=[types.TextContent(text=text)], is_error=True)
        principal, session = _scope_of(context)
        async with self._sessions.use(principal, session) as code_mode:
            call = _Call(context, params, code_mode)
            return await call.make()


def _scope_of(context: Context) -> tuple[str, str]:
    """Who asks, and in which session; over stdio nobody else can."""
    request = context.request
    if request is None:
        return "stdio", ""
    return request.scope.get("clawmode.principal", ""), request.headers.get(SESSION_HEADER, "")


@dataclass(slots=True)
class _Call:
    """One `tools/call`, from the request to its answer."""

    context: Context
    params: types.CallToolRequestParams
    code_mode: CodeMode
    id: str = field(default_factory=lambda: "mcp_" + secrets.token_hex(8))

    async def make(self) -> types.CallToolResult | types.InputRequiredResult:
        async with self._progress_told():
            result = await self._begin()
            while (question := self._question(result)) is not None:
                if not self.context.session.can_send_request:
                    return _ask_for_input(question, str(result["runId"]))
                answer = await self.context.session.elicit_form(
                    _words(question), _FORM, self.context.request_id
                )
                self._decide(question.id, answer)
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
        for question_id, answer in (self.params.input_responses or {}).items():
            if isinstance(answer, types.ElicitResult):
                self._decide(question_id, answer)
        return await self.code_mode.call("wait", {"runId": self.params.request_state})

    # ---- Questions ----

    def _question(self, result: dict[str, JsonValue]) -> Question | None:
        """What a person has to decide before the program can go on, if the client can ask."""
        capabilities = self.context.session.client_capabilities
        if result["status"] != "waiting" or capabilities is None:
            return None
        pending = self.code_mode.approvals.pending()
        return pending[0] if pending and capabilities.elicitation is not None else None

    def _decide(self, question_id: str, answer: types.ElicitResult) -> None:
        said = (answer.content or {}).get("decision") if answer.action == "accept" else "deny"
        decision: Decision = "deny"
        for known in DECISIONS:
            if known == said:
                decision = known
        self.code_mode.approvals.resolve(question_id, decision)

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
        begun = ended = 0
        async with events:
            async for event in events:
                begun += event.phase == "start"
                ended += event.phase == "end"
                words = f"{event.tool_id} {event.state or event.phase}"
                await self.context.session.report_progress(ended, begun, words)


_FORM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "decision": {"type": "string", "enum": list(DECISIONS), "title": "May it run?"},
    },
    "required": ["decision"],
}


def _words(question: Question) -> str:
    arguments = json.dumps(question.input, ensure_ascii=False)
    text = f"{question.title}\n{question.tool_id} with {arguments[:4000]}"
    if len(arguments) > 4000:
        text += f" … and {len(arguments) - 4000} more characters"
    return f"{text}\n`allow-always` would remember {question.always}."


def _ask_for_input(question: Question, run_id: str) -> types.InputRequiredResult:
    params = types.ElicitRequestFormParams(message=_words(question), requested_schema=_FORM)
    return types.InputRequiredResult(
        input_requests={question.id: types.ElicitRequest(params=params)}, request_state=run_id
    )


# ---- Transports ----


@contextlib.asynccontextmanager
async def _opened(opener: Opener) -> AsyncIterator[Face]:
    async with anyio.create_task_group() as tasks:
        sessions = Sessions(opener, tasks)
        try:
            yield Face(sessions, opener(RunContext()))
        finally:
            sessions.close()


async def serve_stdio(opener: Opener) -> None:
    """Serves one client on stdin and stdout, until it hangs up."""
    async with _opened(opener) as face, stdio_server() as (read, write):
        await face.server.run(read, write, face.server.create_initialization_options())


class RequireToken:
    """Lets requests through that carry the token, and nobody else's.

    Args:
        app: What is behind it.
        token: The secret.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        if scope["type"] == "http":
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self._expected):
                refusal = PlainTextResponse(
                    "A bearer token is needed.\n", 401, {"www-authenticate": "Bearer"}
                )
                await refusal(scope, receive, send)
                return
            scope["clawmode.principal"] = "token"
        await self._app(scope, receive, send)


async def serve_http(
    opener: Opener, host: str, port: int, token: str, on_ready: Callable[[int], None]
) -> None:
    """Serves clients over streamable HTTP at `/mcp`, until it is cancelled.

    Args:
        opener: Makes the `CodeMode` of a scope.
        host: The address to listen at.
        port: 0 for any that is free.
        token: What clients have to show.
        on_ready: Told the port.
    """
    import uvicorn

    async with _opened(opener) as face:
        app = RequireToken(face.server.streamable_http_app(host=host), token)
        config = uvicorn.Config(app, host=host, port=port, log_level="warning", lifespan="on")
        server = uvicorn.Server(config)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve)
            while not server.started:  # noqa: ASYNC110 - uvicorn sets no event
                await anyio.sleep(0.01)
            on_ready(server.servers[0].sockets[0].getsockname()[1])
