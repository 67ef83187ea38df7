"""Runs of agents: accepted at once, queued, run, watched, waited for, aborted, continued.

Everything that a gateway does with agents is here; it adds a wire.
"""

import contextlib
import logging
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, TypeAlias

import anyio
from anyio.abc import TaskGroup

from clawmode import __version__
from clawmode.activation import ToolSurface, activate
from clawmode.agent.compaction import Compactor
from clawmode.agent.events import AgentEvent, Listener, Stream
from clawmode.agent.hooks import AgentEnd, AgentHooks, ClaimedReply, ModelResolve, PromptBuild
from clawmode.agent.lanes import Lanes
from clawmode.agent.loop import Outcome, Status, Turn, run_loop
from clawmode.agent.prompt import Prompt, build
from clawmode.agent.recorder import Recorder
from clawmode.agent.replies import SILENT, Shape, shape
from clawmode.agent.requests import AgentRequest, Resolver, RunResult, RunSettings
from clawmode.agent.sessions import Session, SessionStore
from clawmode.agent.toolbox import CodeModeTools, DirectTools, Toolbox
from clawmode.agent.trajectory import Trajectory, sidecar_path
from clawmode.agent.transcript import Transcript
from clawmode.approvals import Approvals
from clawmode.code_mode import CodeMode
from clawmode.context import RunContext
from clawmode.exceptions import ClawmodeError, ConfigurationError
from clawmode.executor import Executor
from clawmode.foreign import told
from clawmode.hooks import Hooks
from clawmode.messages import AssistantMessage, Message, Text, UserMessage
from clawmode.models.debug import debug_flags, log
from clawmode.namespaces import NamespaceRegistry
from clawmode.redaction import Redactor
from clawmode.sandbox.pool import Pool
from clawmode.sqlite_store import SqliteStore
from clawmode.tools import JsonObject, Tool
from clawmode.types import JsonValue

if TYPE_CHECKING:
    from clawmode.mcp.client import McpServers

logger = logging.getLogger("clawmode.agent")

RunState: TypeAlias = Literal["queued", "running"] | Status
WaitStatus: TypeAlias = Literal["ok", "error", "timeout"]

WAIT_SECONDS = 30.0
MAX_REMEMBERED = 1_000
"""Runs that have ended and can still be asked about."""

MAX_MESSAGE_CHARS = 1 << 20
STOPPED = "The run was stopped."
NOTHING_SAID = "The process ended before it was written down what was asked: ask again."
CONTINUED = "[The process ended in the middle of this, and has been started again. Go on.]"


@dataclass(eq=False, slots=True)
class Run:
    """A run that was accepted."""

    id: str
    request: AgentRequest
    session: Session
    accepted_at: float = field(default_factory=time.time)
    started_at: float = 0.0
    state: RunState = "queued"
    result: RunResult | None = None
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    ended: anyio.Event = field(default_factory=anyio.Event)
    timed_out: bool = False
    seq: int = 0


class AgentRuntime:
    """Runs agents. Used inside of `async with`, in one task.

    Args:
        resolver: What the configuration says.
        sessions: Where conversations are kept.
        state: The folder of the process's state: programs that wait are kept there too.
        tools: Our own tools.
        plugin_tools: Those of plugins.
        servers: MCP servers, open, to be shared by all runs.
        hooks: What watches and decides about calls.
        approvals: Who is asked.
        namespaces: Where namespaces were registered.
        pool: Workers to share; by default it has its own.
        max_concurrent: How many runs go on side by side; 0 leaves it to the machine.
        secrets: What is struck out of trajectories, beside what looks like a secret.
    """

    def __init__(
        self,
        *,
        resolver: Resolver,
        sessions: SessionStore,
        state: Path,
        tools: Iterable[Tool] = (),
        plugin_tools: Iterable[Tool] = (),
        servers: "McpServers | None" = None,
        hooks: Hooks | None = None,
        approvals: Approvals | None = None,
        namespaces: NamespaceRegistry | None = None,
        pool: Pool | None = None,
        max_concurrent: int = 0,
        secrets: Iterable[str] = (),
    ) -> None:
        self.sessions = sessions
        self.approvals = approvals or Approvals()
        self.hooks = hooks or Hooks()
        self._agent_hooks = AgentHooks(self.hooks)
        self._resolver = resolver
        self._tools = tuple(tools)
        self._plugin_tools = tuple(plugin_tools)
        self._servers = servers
        self._namespaces = namespaces
        self._store = SqliteStore(state)
        self._owns_pool = pool is None
        self._pool = pool or Pool()
        self._lanes = Lanes(max_concurrent)
        self._secrets = tuple(secrets)
        self._runs: OrderedDict[str, Run] = OrderedDict()
        self._listeners: list[Listener] = []
        self._opened = contextlib.AsyncExitStack()
        self._tasks: TaskGroup | None = None
        self._closing = False

    async def __aenter__(self) -> "AgentRuntime":
        async with contextlib.AsyncExitStack() as opened:
            if self._owns_pool:
                await opened.enter_async_context(self._pool)
            self._tasks = await opened.enter_async_context(anyio.create_task_group())
            self._opened = opened.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Not aborted: they are left unfinished, and can be continued.
        self._closing = True
        if self._tasks is not None:
            self._tasks.cancel_scope.cancel()
        await self._opened.__aexit__(None, None, None)

    # ---- For callers ----

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Shows `listener` every event of every run, until what it returns is called."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def start(self, request: AgentRequest) -> Run:
        """Accepts a run, and returns before it begins. A run id that is known starts nothing.

        Raises:
            ConfigurationError: The request cannot be meant.
        """
        if request.run_id and (known := self._runs.get(request.run_id)) is not None:
            return known
        _check(request)
        assert self._tasks is not None, "an AgentRuntime is used inside of `async with`"
        agent_id = self._resolver.agent_of(request)
        session = await self.sessions.resolve(
            key=request.session_key or None,
            session_id=request.session_id or None,
            agent_id=agent_id,
        )
        if (known := self._runs.get(request.run_id)) is not None:
            return known  # asked for twice at once
        run = Run(request.run_id or uuid.uuid4().hex, request, session)
        self._remember(run)
        self._tasks.start_soon(self._live, run)
        return run

    async def wait(self, run_id: str, timeout_seconds: float = WAIT_SECONDS) -> JsonObject:
        """Waits for a run's end. To give up waiting does not stop it.

        Raises:
            ConfigurationError: There is no such run.
        """
        run = self._find(run_id)
        with anyio.move_on_after(timeout_seconds):
            await run.ended.wait()
        if run.result is None:
            return {"status": "timeout", "startedAt": int(run.started_at * 1000) or None}
        result = run.result
        status: WaitStatus = "ok" if result.status == "ok" else "error"
        made: JsonObject = {
            "status": status,
            "startedAt": int(result.started_at * 1000),
            "endedAt": int(result.ended_at * 1000),
        }
        return made if result.error is None else {**made, "error": result.error}

    async def result(self, run_id: str) -> RunResult:
        """What came of a run, when it has ended.

        Raises:
            ConfigurationError: There is no such run.
        """
        run = self._find(run_id)
        await run.ended.wait()
        assert run.result is not None
        return run.result

    def abort(self, run_id: str) -> bool:
        """Stops a run, queued or running. False: there is none, or it has ended."""
        run = self._runs.get(run_id)
        if run is None or run.ended.is_set():
            return False
        run.scope.cancel()
        return True

    def runs(self) -> list[Run]:
        """All that are known, oldest first."""
        return list(self._runs.values())

    def _find(self, run_id: str) -> Run:
        if run_id not in self._runs:
            raise ConfigurationError(f"there is no run {run_id[:80]!r}")
        return self._runs[run_id]

    def _remember(self, run: Run) -> None:
        self._runs[run.id] = run
        over = len(self._runs) - MAX_REMEMBERED
        ended = [key for key, each in self._runs.items() if over > 0 and each.ended.is_set()]
        for key in ended[: max(over, 0)]:
            del self._runs[key]

    # ---- One run ----

    async def _live(self, run: Run) -> None:
        outcome: _Ended | None = None
        try:
            with run.scope:
                async with self._lanes.enter(run.session.key):
                    outcome = await self._carry_out(run)
        except Exception as error:
            logger.exception("run %s", run.id)
            outcome = _Ended(Outcome("error", None, f"{type(error).__name__}: {told(error)}"))
        if self._closing and outcome is None:
            return
        outcome = outcome or _Ended(Outcome("aborted", None, STOPPED))
        with anyio.CancelScope(shield=True):
            await self._conclude(run, outcome)

    async def _carry_out(self, run: Run) -> "_Ended":
        run.started_at, run.state = time.time(), "running"
        self._emit(run, "lifecycle", {"phase": "start", "startedAt": int(run.started_at * 1000)})
        try:
            await self._let_hooks_choose(run)
            settings = await self._resolver.settings(run.request, run.session)
            async with run.session.open(
                settings.lock_seconds, workspace=settings.workspace
            ) as transcript:
                return await self._in_session(run, settings, transcript)
        except ClawmodeError as error:
            return _Ended(Outcome("error", None, str(error)))

    async def _let_hooks_choose(self, run: Run) -> None:
        """Hooks may say which model, before anything is looked up."""
        if not self.hooks.has("before_model_resolve", "before_agent_start"):
            return
        event = ModelResolve(prompt=run.request.message, run=_context_of(run))
        chosen = await self._agent_hooks.choose_model(event)
        if chosen.model:
            name = f"{chosen.provider}/{chosen.model}" if chosen.provider else chosen.model
            run.request = replace(run.request, model=name)

    async def _in_session(
        self, run: Run, settings: RunSettings, transcript: Transcript
    ) -> "_Ended":
        """The run under its clock; how it ends is written down, whatever ends it."""
        if run.request.resume and run.id not in transcript.open_runs():
            text = f"This session has no run {run.id[:80]!r} that was left unfinished."
            return _Ended(Outcome("error", None, text))
        clock = anyio.CancelScope(deadline=anyio.current_time() + settings.timeout_seconds)
        with self._trajectory(run, settings) as trajectory:
            recorder = Recorder(
                run.id,
                transcript,
                trajectory,
                emit=lambda stream, data: self._emit(run, stream, data),
                stop=clock.cancel,
                persist=self._agent_hooks.persist,
            )
            ended = _Ended(Outcome("aborted", None, STOPPED))
            try:
                with clock:
                    ended = await self._with_tools(run, settings, transcript, recorder)
            finally:
                if recorder.failure is not None:
                    ended.outcome = Outcome("error", None, recorder.failure)
                elif clock.cancelled_caught:
                    text = f"The run took longer than {settings.timeout_seconds:g} s."
                    ended.outcome = Outcome("timeout", None, text)
                said = (it.message for it in transcript.entries if it.run_id == run.id)
                ended.said = tuple(message for message in said if message is not None)
                ended.shape = settings.shape
                if not self._closing and run.id in transcript.open_runs():
                    ended.write(transcript, run.id)
                recorder.trace("session.ended", ended.to_json())
            return ended

    def _trajectory(self, run: Run, settings: RunSettings) -> Trajectory:
        session = run.session
        workspace = settings.workspace
        trajectory = Trajectory(
            sidecar_path(session.transcript, session.id),
            session_id=session.id,
            session_key=session.key,
            run_id=run.id,
            agent_id=settings.agent_id,
            redactor=Redactor(self._secrets, workspace=workspace, home=Path.home()),
        )
        trajectory.write("session.started", {"trigger": run.request.channel or "api"})
        return trajectory

    async def _with_tools(
        self, run: Run, settings: RunSettings, transcript: Transcript, recorder: Recorder
    ) -> "_Ended":
        request = run.request
        surface = activate(
            settings.code_mode,
            settings.policy,
            core=self._tools,
            plugin=self._plugin_tools,
            mcp=() if self._servers is None else self._servers.tools(),
            client=request.client_tools,
            disable_tools=request.disable_tools,
            raw_model_call=request.raw_model_call,
        )
        _log_surface(run.id, surface, settings)
        context = _context_of(run)
        model = settings.models[0]
        transcript.start_run(
            run.id,
            model=f"{model.provider}/{model.name}",
            trigger=request.channel or "api",
            code_mode=surface.code_mode,
        )
        if not surface.code_mode:
            executor = Executor(settings.policy, self.hooks, self.approvals)
            executor.watchers.append(recorder.watch)
            toolbox = DirectTools(surface.tools, executor, context)
            ended = await self._turn(run, settings, transcript, recorder, toolbox)
            ended.metadata |= {"codeModeEngaged": False, "visibleTools": len(surface.tools)}
            return ended
        async with self._code_mode(settings, context, request) as code_mode:
            code_mode.watch(recorder.watch)
            try:
                toolbox = CodeModeTools(code_mode)
                ended = await self._turn(run, settings, transcript, recorder, toolbox)
            finally:
                if not self._closing:
                    with anyio.CancelScope(shield=True):
                        await self._end_programs(code_mode)
            ended.metadata |= _engaged(code_mode)
            return ended

    @staticmethod
    async def _end_programs(code_mode: CodeMode) -> None:
        try:
            await code_mode.end_run()
        except ClawmodeError as error:
            logger.error("programs that wait could not be deleted: %s", error)

    def _code_mode(
        self, settings: RunSettings, context: RunContext, request: AgentRequest
    ) -> CodeMode:
        return CodeMode(
            tools=(*self._tools, *self._plugin_tools, *request.client_tools),
            mcp_servers=() if self._servers is None else self._servers,
            config=settings.code_mode,
            policy=settings.policy,
            hooks=self.hooks,
            approvals=self.approvals,
            namespaces=self._namespaces,
            store=self._store,
            context=context,
            pool=self._pool,
        )

    async def _turn(
        self,
        run: Run,
        settings: RunSettings,
        transcript: Transcript,
        recorder: Recorder,
        toolbox: Toolbox,
    ) -> "_Ended":
        request = run.request
        if not request.resume:
            recorder.record(UserMessage(content=(Text(request.message), *request.images)))
        elif (outcome := _take_up(run.id, transcript, recorder)) is not None:
            return _Ended(outcome)
        messages = transcript.messages()
        prompt = Prompt()
        if request.raw_model_call:
            messages = messages[-1:]
        else:
            shown = PromptBuild(
                prompt=request.message, run=_context_of(run), messages=tuple(messages[:-1])
            )
            claimed = await self._agent_hooks.claim_reply(shown)
            if claimed is not None:
                return _Ended(_answer_instead(claimed, recorder))
            additions = await self._agent_hooks.build_prompt(shown)
            prompt = build(settings.ingredients, additions)
            messages = _with_context(messages, prompt.context)
        recorder.trace("trace.metadata", _about(request, settings))
        recorder.trace("context.compiled", _context(prompt, toolbox, len(messages)))
        recorder.trace("prompt.submitted", {"prompt": request.message, "resumed": request.resume})
        turn = Turn(
            models=settings.models,
            toolbox=toolbox,
            system=prompt.text,
            messages=messages,
            sink=recorder,
            limits=settings.limits,
            thinking=request.thinking or settings.thinking,
            run_id=run.id,
            cache_key=run.session.id,
            shorten=None if request.raw_model_call else self._compactor(run, settings, transcript),
        )
        outcome = await run_loop(turn)
        metadata: JsonObject = {"assistantTurns": turn.turns, "toolCalls": turn.tool_calls}
        if turn.model is not None:
            metadata |= {"provider": turn.model.provider, "model": turn.model.name}
        return _Ended(outcome, turn.usage.to_json(), metadata)

    def _compactor(self, run: Run, settings: RunSettings, transcript: Transcript) -> Compactor:
        return Compactor(
            settings.compaction,
            transcript,
            _context_of(run),
            self.hooks,
            lambda stream, data: self._emit(run, stream, data),
        )

    async def _conclude(self, run: Run, ended: "_Ended") -> None:
        outcome = ended.outcome
        now = time.time()
        run.result = RunResult(
            run_id=run.id,
            session_key=run.session.key,
            session_id=run.session.id,
            status=outcome.status,
            payloads=shape(ended.said, error=outcome.error, how=ended.shape),
            usage=ended.usage,
            metadata=ended.metadata,
            error=outcome.error,
            problem=outcome.problem,
            started_at=run.started_at,
            ended_at=now,
        )
        run.state = outcome.status
        at: JsonObject = {"endedAt": int(now * 1000), "status": outcome.status}
        if outcome.status == "ok":
            self._emit(run, "lifecycle", {"phase": "end", **at})
        else:
            self._emit(run, "lifecycle", {"phase": "error", **at, "error": outcome.error})
        try:
            await self.sessions.touch(run.session.id, status=outcome.status, usage=ended.usage)
        except ClawmodeError as error:
            logger.error("session %s: %s", run.session.key, error)
        run.ended.set()
        if self.hooks.has("agent_end"):
            end = AgentEnd(
                run=_context_of(run),
                status=outcome.status,
                messages=ended.said,
                metadata=ended.metadata,
                error=outcome.error,
            )
            await self._agent_hooks.end_run(end)

    def _emit(self, run: Run, stream: Stream, data: JsonObject) -> None:
        run.seq += 1
        event = AgentEvent(
            run_id=run.id, seq=run.seq, stream=stream, data=data, session_key=run.session.key
        )
        for listener in tuple(self._listeners):
            try:
                listener(event)
            except Exception as error:
                logger.error("listener %r: %s: %s", listener, type(error).__name__, told(error))


@dataclass(slots=True)
class _Ended:
    outcome: Outcome
    usage: JsonObject = field(default_factory=dict[str, JsonValue])
    metadata: JsonObject = field(default_factory=dict[str, JsonValue])
    said: tuple[Message, ...] = ()
    shape: Shape = field(default_factory=Shape)

    def to_json(self) -> JsonObject:
        """For the trajectory."""
        outcome = self.outcome
        told: JsonObject = {"status": outcome.status, "error": outcome.error}
        return {**told, "usage": self.usage, "metadata": self.metadata}

    def write(self, transcript: Transcript, run_id: str) -> None:
        """Writes down how a run ended, if that can be written."""
        outcome = self.outcome
        try:
            transcript.end_run(
                run_id,
                outcome.status,
                error=outcome.error,
                usage=self.usage,
                metadata=self.metadata,
            )
        except ClawmodeError as error:
            logger.error("run %s: its end was not written: %s", run_id, error)
            if outcome.status == "ok":
                self.outcome = Outcome("error", outcome.reply, str(error))


def _take_up(run_id: str, transcript: Transcript, recorder: Recorder) -> Outcome | None:
    """Makes a run ready to go on; or says how it ended, if that alone was not written down."""
    recorder.settle_lost_calls()
    last = transcript.open_runs()[run_id].last
    if last is None:
        return Outcome("error", None, NOTHING_SAID)
    if isinstance(last, AssistantMessage) and not last.calls and last.stop != "aborted":
        return Outcome("ok", last)
    if isinstance(transcript.messages()[-1], AssistantMessage):
        # What was cut off, or another run's answer: models want to be asked something.
        recorder.record(UserMessage.of(CONTINUED))
    return None


def _context_of(run: Run) -> RunContext:
    return RunContext(
        agent_id=run.session.agent_id,
        session_id=run.session.id,
        session_key=run.session.key,
        run_id=run.id,
        sender=run.request.sender,
        channel=run.request.channel,
    )


def _answer_instead(claimed: ClaimedReply, recorder: Recorder) -> Outcome:
    """The turn is a hook's: it answers, or nobody does."""
    silent = claimed.silent or not claimed.text.strip()
    said = AssistantMessage(
        content=(Text(SILENT[0] if silent else claimed.text),), provider="hook", model="hook"
    )
    recorder.record(said)
    return Outcome("ok", said)


def _with_context(messages: list[Message], context: str) -> list[Message]:
    """The conversation with something before what was said last; it is not kept."""
    last = messages[-1] if messages else None
    if not context or not isinstance(last, UserMessage):
        return messages
    return [*messages[:-1], replace(last, content=(Text(f"{context}\n\n"), *last.content))]


def _check(request: AgentRequest) -> None:
    if request.resume:
        if not request.run_id:
            raise ConfigurationError("to continue a run, its id has to be named")
        return
    if not request.message.strip() and not request.images:
        raise ConfigurationError("the message is empty")
    if len(request.message) > MAX_MESSAGE_CHARS:
        raise ConfigurationError(f"the message is over {MAX_MESSAGE_CHARS} characters")


def _log_surface(run_id: str, surface: ToolSurface, settings: RunSettings) -> None:
    if debug_flags().code_mode:
        log(
            "run %s: code mode is %s and %s; the model sees %s; %d tools are behind",
            run_id,
            "enabled" if settings.code_mode.enabled else "not enabled",
            "engaged" if surface.code_mode else "not engaged",
            ", ".join(tool.name for tool in surface.visible[:50]) or "no tools",
            len(surface.tools) if surface.code_mode else 0,
        )


def _about(request: AgentRequest, settings: RunSettings) -> JsonObject:
    return {
        "version": __version__,
        "models": [f"{model.provider}/{model.name}" for model in settings.models],
        "thinking": request.thinking or settings.thinking,
        "timeoutSeconds": settings.timeout_seconds,
        "sender": request.sender,
    }


def _context(prompt: Prompt, toolbox: Toolbox, messages: int) -> JsonObject:
    tools: list[JsonValue] = [
        {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
        for tool in toolbox.definitions()
    ]
    return {
        "systemPrompt": prompt.text,
        "promptReport": prompt.report(),
        "tools": tools,
        "messageCount": messages,
    }


def _engaged(code_mode: CodeMode) -> JsonObject:
    counted = code_mode.telemetry
    calls: JsonObject = {
        "search": counted.searches,
        "describe": counted.describes,
        "call": counted.calls,
    }
    return {"codeModeEngaged": True, "visibleTools": 2, "bridgeCalls": calls}
