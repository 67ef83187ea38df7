"""`Agent`: a model, its tools and its conversations in one object, for Python programs.

    async with Agent("anthropic/claude-sonnet-5", tools=[add]) as agent:
        result = await agent.run("What is 1 + 2?")

A thin layer on `AgentRuntime`, which has everything that a gateway needs besides: queues, steering,
runs that are continued after a crash.
"""

import functools
import os
import uuid
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import anyio
import anyio.to_thread

from clawmode.agent.events import AgentEvent, EventQueue
from clawmode.agent.models import ModelPool
from clawmode.agent.requests import AgentRequest, RunFailed, RunResult
from clawmode.agent.resolver import ConfigResolver
from clawmode.agent.runtime import AgentRuntime
from clawmode.catalog.catalog import Catalog
from clawmode.code_mode.arguments import A_POOL, check_argument, check_parts, read_mcp_servers
from clawmode.config.agents import Configuration
from clawmode.config.resolve import max_concurrent, read
from clawmode.exceptions import ClawmodeWarning, ConfigurationError, NotOpen
from clawmode.models.base import Model
from clawmode.sandbox.pool import Pool
from clawmode.sessions.keys import session_key as read_session_key
from clawmode.sessions.lock import SessionBusy
from clawmode.sessions.store import SessionStore
from clawmode.tools.approvals import Approvals
from clawmode.tools.function import read_tools
from clawmode.tools.hooks import Hooks
from clawmode.tools.policy import Policy
from clawmode.tools.tool import Tool
from clawmode.types import dataclass

if TYPE_CHECKING:
    from clawmode.mcp.servers import McpServers
    from clawmode.mcp.settings import ServerSettings

CLOSED = "The agent was closed."
UNREAD = "The run was aborted: nobody has read its events for too long."
NOT_OPEN = (
    "The agent is not open: use it inside of `async with Agent(...) as agent:`, "
    "or call `await agent.start()` first."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultEvent(AgentEvent):
    """The last event of a run that ended well."""

    result: RunResult


@dataclass(eq=False, slots=True)
class _Turn:
    """One call of `run` or `stream`.

    Attributes:
        ended: The run has ended, or will not begin: another turn may use the session.
    """

    request: AgentRequest
    ended: bool = False


class EventStream(AsyncIterator[AgentEvent]):
    """The events of one run; the last one is a `ResultEvent`.

    Leaving the loop early aborts the run. `aclose` does the same and waits for the end of the run.
    """

    def __init__(self, events: AsyncGenerator[AgentEvent, None], turn: _Turn) -> None:
        self._events = events
        self._turn = turn

    async def __anext__(self) -> AgentEvent:
        return await anext(self._events)

    async def aclose(self) -> None:
        """Aborts the run if it has not ended, and waits for its end. Idempotent."""
        await self._events.aclose()
        self._turn.ended = True  # the generator does not know, if it was never begun


class Agent:
    """An agent: a model that calls tools, by code mode unless `code_mode` is false.

    Opened with `async with`, or with `start` and `aclose`, which may be called in different tasks.
    It has the tools that it was given, and no others.

    Args:
        model: `provider/model`, such as "anthropic/claude-sonnet-5", with a key from the
            environment or from `providers`; or a `Model` object.
        tools: Tools, or plain functions, that the agent may call.
        mcp_servers: MCP servers whose tools it may call, as for `CodeMode`: `{"github": {"command":
            "…", "args": []}}`, `{"docs": {"url": "…"}}`, or an open `McpServers`, to share.
        instructions: Added to the system prompt.
        state: The folder that keeps conversations and waiting programs. Without one they are in a
            temporary folder, which is deleted when the agent is closed.
        session_key: The conversation of runs that name no other.
        settings: What the configuration has under `agents.defaults`: `{"thinking": "high"}`.
        providers: What the configuration has under `models.providers`, for models of your own:
            `{"mine": {"baseUrl": "https://…", "api": "openai-completions"}}`.
        code_mode: Whether the model writes programs that call the tools; `{"timeoutMs": 500}` also
            sets limits, as `tools.codeMode` in the configuration. False: the model sees all tools.
        tool_search: Whether the model finds its tools by search, if `code_mode` is false;
            `{"mode": "directory"}` also sets options, as `tools.toolSearch` in the configuration.
        policy: Which tools are allowed: a `Policy`, or `{"allow": [...], "deny": [...]}`.
        hooks: Functions that watch or decide about calls, prompts and runs.
        approvals: Which calls need approval, and who is asked. Without it no call does, unless a
            hook demands one.
        pool: Worker processes to share; by default the agent has its own.

    Raises:
        ConfigurationError: An argument cannot be used; the message says what to give instead.
    """

    def __init__(
        self,
        model: str | Model,
        *,
        tools: "Iterable[Tool | Callable[..., Any]]" = (),
        mcp_servers: "Mapping[str, Any] | Iterable[ServerSettings] | McpServers" = (),
        instructions: str = "",
        state: str | os.PathLike[str] | None = None,
        session_key: str = "main",
        settings: Mapping[str, Any] | None = None,
        providers: Mapping[str, Any] | None = None,
        code_mode: bool | Mapping[str, Any] = True,
        tool_search: bool | Mapping[str, Any] = False,
        policy: Policy | Mapping[str, Any] | None = None,
        hooks: Hooks | None = None,
        approvals: Approvals | None = None,
        pool: Pool | None = None,
    ) -> None:
        check_argument("instructions", instructions, str, '"You are a librarian."')
        check_argument("state", state, (str, os.PathLike), '"./state"')
        check_parts(policy=policy, hooks=hooks, approvals=approvals)
        check_argument("pool", pool, Pool, A_POOL)
        given = {} if isinstance(model, str) else {_name_of(model): model}
        name = model if isinstance(model, str) else _name_of(model)
        self._configuration = _configure(name, settings, providers, code_mode, tool_search)
        self._models = ModelPool(self._configuration, given)
        self._provider = self._models.settings(name)  # raises for a name that leads nowhere
        self._tools = read_tools(tools)
        Catalog(self._tools)  # raises for two tools with one id
        listed = mcp_servers if isinstance(mcp_servers, Iterable) else ()
        self._server_settings = read_mcp_servers(listed)
        self._servers = None if isinstance(mcp_servers, Iterable) else mcp_servers
        self._instructions = instructions
        self._state = None if state is None else Path(os.path.expanduser(state))
        self._session_key = read_session_key(session_key)
        self._policy = policy if isinstance(policy, Policy) else Policy.from_config(policy)
        self._hooks = hooks
        self.approvals = approvals or Approvals()
        self._pool = pool
        self._opened = AsyncExitStack()
        self._runtime: AgentRuntime | None = None
        self._closed = False
        # A run is accepted under this lock, so that closing knows all runs.
        self._changing = anyio.Lock()
        # Weak: a stream that the caller has dropped does not keep its session busy.
        self._streams: WeakValueDictionary[str, EventStream] = WeakValueDictionary()

    # ---- Open and close ----

    async def start(self) -> "Agent":
        """Starts a worker process and connects the MCP servers. To be called once.

        Raises:
            ConfigurationError: It was opened before.
        """
        async with self._changing, AsyncExitStack() as opened:
            if self._closed or self._runtime is not None:
                raise ConfigurationError("An Agent is opened once: make a new object.")
            state = self._state
            if state is None:
                # Errors of the clean-up are ignored: a command of a tool may still write there.
                make = functools.partial(
                    TemporaryDirectory, prefix="clawmode-", ignore_cleanup_errors=True
                )
                made = await anyio.to_thread.run_sync(make)
                opened.push_async_callback(anyio.to_thread.run_sync, made.cleanup)
                state = Path(made.name)
            models = await opened.enter_async_context(self._models)
            if self._server_settings:
                from clawmode.mcp.servers import McpServers  # takes a second, and few need it

                servers = McpServers(self._server_settings, asks=self.approvals.takes_input)
                self._servers = await opened.enter_async_context(servers)
                await servers.connect()
            secrets = [secret for server in self._server_settings for secret in server.secrets]
            if self._provider is not None:
                secrets += self._provider.headers.values()
                if (key := self._provider.key) is not None:
                    secrets += [key.value, os.environ.get(key.env, "")]
            runtime = AgentRuntime(
                resolver=ConfigResolver(self._configuration, models, state, self._policy),
                sessions=SessionStore(state / "sessions"),
                state=state,
                tools=self._tools,
                servers=self._servers,
                hooks=self._hooks,
                approvals=self.approvals,
                pool=self._pool,
                max_concurrent=max_concurrent(self._configuration),
                secrets=filter(None, secrets),
            )
            self._runtime = await opened.enter_async_context(runtime)
            self._opened = opened.pop_all()
        return self

    async def aclose(self) -> None:
        """Aborts the runs that have not ended, and closes what `start` opened. Idempotent."""
        self._closed = True
        with anyio.CancelScope(shield=True):
            async with self._changing:
                runs = [] if self._runtime is None else self._runtime.runs()
                for run in runs:
                    # Else the runtime would leave them unfinished, for another process to continue.
                    if self.runtime.abort(run.id, CLOSED):
                        await run.ended.wait()
                await self._opened.aclose()

    async def __aenter__(self) -> "Agent":
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @property
    def runtime(self) -> AgentRuntime:
        """The runtime underneath, for sessions, previews and everything else.

        Raises:
            NotOpen: The agent was not opened.
        """
        if self._runtime is None:
            raise NotOpen(NOT_OPEN)
        return self._runtime

    @property
    def missing_servers(self) -> dict[str, str]:
        """MCP servers that cannot be reached, and why."""
        views = () if self._servers is None else self._servers.views
        return {view.name: view.problem for view in views if view.problem}

    # ---- Runs ----

    async def run(self, message: str | AgentRequest, *, session_key: str = "") -> RunResult:
        """Runs the agent until it has answered. Cancelling the call aborts the run.

        Args:
            message: The message; or an `AgentRequest`, for pictures, a time limit or another model.
            session_key: The conversation, if it is not that of the agent.

        Raises:
            NotOpen: The agent is not open.
            SessionBusy: The conversation has a run that has not ended.
            RunFailed: The run ended with an error, was aborted or timed out.
            ClawmodeError: The request cannot be used.
        """
        async with aclosing(self.stream(message, session_key=session_key)) as events:
            async for event in events:
                if isinstance(event, ResultEvent):
                    return event.result
        raise AssertionError("the stream of a run ends with a result or an exception")

    def stream(self, message: str | AgentRequest, *, session_key: str = "") -> EventStream:
        """Runs the agent, and iterates over the events of the run; see `AgentEvent`.

        The last event is a `ResultEvent`. Leaving the loop early aborts the run. A caller who is
        100 events behind gets several deltas as one; the run is aborted when 10,000 events wait.
        Arguments and exceptions are those of `run`; a run that fails raises after its last event.
        """
        if self._closed:
            raise NotOpen(CLOSED)
        request = self._request(message, session_key)
        if self.runtime.find(request.run_id) is not None:
            raise ConfigurationError(f"the run id {request.run_id[:80]!r} is taken: choose another")
        key = request.session_key or request.session_id
        known = self._streams.get(key)
        if known is not None and not known._turn.ended:
            raise SessionBusy(
                f"The session {key!r} has a run that has not ended: await it (or `aclose()` its "
                "stream) first, or give concurrent runs conversations of their own: "
                'agent.run(message, session_key="…").'
            )
        turn = _Turn(request)
        made = self._streams[key] = EventStream(self._events(turn), turn)
        return made

    def _request(self, message: str | AgentRequest, session_key: str) -> AgentRequest:
        if not isinstance(message, (str, AgentRequest)):
            raise ConfigurationError(
                f"message: found {type(message).__name__}, expected a text or an AgentRequest"
            )
        request = message if isinstance(message, AgentRequest) else AgentRequest(message=message)
        key = session_key or request.session_key
        if key or not request.session_id:
            key = read_session_key(key or self._session_key, request.agent_id or None)
        return replace(
            request,
            run_id=request.run_id or uuid.uuid4().hex,
            session_key=key,
            system="\n\n".join(filter(None, (self._instructions, request.system))),
        )

    async def _events(self, turn: _Turn) -> AsyncGenerator[AgentEvent, None]:
        runtime, run = self.runtime, None
        waiting = EventQueue(lambda: runtime.abort(turn.request.run_id, UNREAD))

        def listen(event: AgentEvent) -> None:
            if event.run_id == turn.request.run_id:
                waiting.put(event)

        unsubscribe = runtime.subscribe(listen)
        try:
            async with self._changing:
                if self._closed:
                    raise NotOpen(CLOSED)
                run = await runtime.start(turn.request)
            event = await waiting.get()
            while event.stream != "lifecycle" or event.data["phase"] == "start":
                yield event
                event = await waiting.get()
            result = await runtime.result(run.id)
            if result.status != "ok":
                yield event
                raise RunFailed(result)
            same: Any = {each.name: getattr(event, each.name) for each in fields(event)}
            yield ResultEvent(**same, result=result)
        finally:
            unsubscribe()
            if run is not None and runtime.abort(run.id):
                with anyio.CancelScope(shield=True):
                    await run.ended.wait()
            turn.ended = True


def _name_of(model: object) -> str:
    provider, name = getattr(model, "provider", None), getattr(model, "name", None)
    if not (isinstance(provider, str) and isinstance(name, str) and hasattr(model, "stream")):
        raise ConfigurationError(
            f"model: found {type(model).__name__}, expected a name such as "
            '"anthropic/claude-sonnet-5", or a Model object',
            path="model",
        )
    return f"{provider}/{name}"


def _configure(
    model: str,
    settings: Mapping[str, Any] | None,
    providers: Mapping[str, Any] | None,
    code_mode: bool | Mapping[str, Any],
    tool_search: bool | Mapping[str, Any],
) -> Configuration:
    """Puts the arguments where a configuration file has them, so that they mean the same."""
    check_argument("settings", settings, Mapping, '{"thinking": "high"}')
    check_argument("providers", providers, Mapping, '{"mine": {"baseUrl": "https://…"}}')
    check_argument("code_mode", code_mode, (bool, Mapping), '{"timeoutMs": 500}')
    check_argument("tool_search", tool_search, (bool, Mapping), '{"mode": "directory"}')
    if isinstance(code_mode, Mapping):
        code_mode = {"enabled": True, **code_mode}
    if isinstance(tool_search, Mapping):
        tool_search = {"enabled": True, **tool_search}
    defaults = dict(settings or {})
    chosen = defaults.get("model", {})
    if not isinstance(chosen, dict) or "primary" in chosen:
        raise ConfigurationError(
            "settings.model: the model is the first argument of Agent; "
            'expected for example {"fallbacks": ["openai/gpt-4o"]}',
            path="settings.model",
        )
    found = read(
        {
            "agents": {"defaults": {**defaults, "model": {**chosen, "primary": model}}},
            "models": {"providers": dict(providers or {})},
            "tools": {"codeMode": code_mode, "toolSearch": tool_search},
        }
    )
    for warning in found.warnings:
        warnings.warn(str(warning), ClawmodeWarning, stacklevel=3)
    return found.unwrap()
