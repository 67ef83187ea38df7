"""Runs of agents: accepted at once, queued, run, watched, waited for, aborted, continued.

Everything that a gateway does with agents is here; it adds a wire.
"""

import contextlib
import logging
import time
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, TypeAlias

import anyio
from anyio.abc import TaskGroup

from clawmode.agent.care import Forget, SessionCare
from clawmode.agent.events import AgentEvent, Listener, Stream
from clawmode.agent.hooks import AgentEnd, AgentHooks, ModelResolve
from clawmode.agent.intake import IncomingMessage
from clawmode.agent.lanes import Lanes, Place
from clawmode.agent.loop import Outcome, Status
from clawmode.agent.operator_hooks import OperatorHooks
from clawmode.agent.preview import Preview, looking, preview
from clawmode.agent.replies import SentMessages, shape
from clawmode.agent.requests import (
    MAX_MESSAGE_CHARS,
    AgentRequest,
    Resolver,
    RunResult,
    RunSettings,
    Streaming,
)
from clawmode.agent.run import STOPPED, Resources, RunEnd, SessionRun
from clawmode.catalog.namespaces import NamespaceRegistry
from clawmode.code_mode.code_mode import CodeMode
from clawmode.code_mode.sqlite_store import SqliteStore
from clawmode.context import RunContext
from clawmode.exceptions import ClawmodeError, ConfigurationError
from clawmode.foreign import message_of
from clawmode.redaction import KnownSecrets, Redactor
from clawmode.sandbox.pool import Pool
from clawmode.sessions.store import Session, SessionStore
from clawmode.tasks import Lifetime
from clawmode.tools.approvals import Approvals
from clawmode.tools.hooks import Hooks
from clawmode.tools.tool import Tool
from clawmode.types import JsonObject

if TYPE_CHECKING:
    from clawmode.mcp.servers import McpServers, ServerView

logger = logging.getLogger("clawmode.agent")

RunState: TypeAlias = Literal["queued", "running"] | Status
WaitStatus: TypeAlias = Literal["ok", "error", "timeout"]

WAIT_SECONDS = 30.0
MAX_REMEMBERED = 1_000
"""Runs that have ended and can still be asked about."""


async def _nothing(run: RunContext) -> None:
    """Nothing was left running."""


@dataclass(eq=False, slots=True)
class Run:
    """A run that was accepted.

    Attributes:
        stopped: Why it was aborted, if whoever asked has to be told.
        sent: What messaging tools have sent.
        streaming: How its reply goes out.
        inside: The run in its session, as long as it goes on.
    """

    id: str
    request: AgentRequest
    session: Session
    accepted_at: float = field(default_factory=time.time)
    started_at: float = 0.0
    state: RunState = "queued"
    result: RunResult | None = None
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    ended: anyio.Event = field(default_factory=anyio.Event)
    seq: int = 0
    stopped: str = ""
    sent: SentMessages = field(default_factory=SentMessages)
    streaming: Streaming = field(default_factory=Streaming)
    inside: SessionRun | None = field(default=None, repr=False)


class AgentRuntime:
    """Runs agents. Used inside of `async with`; another task than the first may leave it.

    Args:
        resolver: What the configuration says.
        sessions: Where conversations are kept.
        state: The folder of the process's state: programs that wait are kept there too.
        tools: Tools of all runs.
        own: Makes those that each run has for itself: for its workspace, and its session.
        forget: Ends what a session has left running, when it ends.
        plugin_tools: Those of plugins.
        servers: MCP servers, open, to be shared by all runs.
        hooks: What watches and decides about calls.
        operator: Scripts of the operator's.
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
        own: Callable[[SessionRun], tuple[Tool, ...]] = lambda run: (),
        forget: Forget = _nothing,
        plugin_tools: Iterable[Tool] = (),
        servers: "McpServers | None" = None,
        hooks: Hooks | None = None,
        operator: OperatorHooks | None = None,
        approvals: Approvals | None = None,
        namespaces: NamespaceRegistry | None = None,
        pool: Pool | None = None,
        max_concurrent: int = 0,
        secrets: Iterable[str] = (),
    ) -> None:
        self.sessions = sessions
        self.approvals = approvals or Approvals()
        self.hooks = hooks or Hooks()
        self.on_accept: Callable[[Run], Awaitable[None]] | None = None
        """Told of every run before it is started; what it raises is the answer."""
        self._agent_hooks = AgentHooks(self.hooks)
        self._resolver = resolver
        self._owns_pool = pool is None
        self.store = SqliteStore(state)
        self._shared = Resources(
            tools=tuple(tools),
            own=own,
            plugin_tools=tuple(plugin_tools),
            servers=servers,
            hooks=self.hooks,
            operator=operator,
            approvals=self.approvals,
            namespaces=namespaces,
            store=self.store,
            pool=pool or Pool(),
            secrets=tuple(secrets),
        )
        self._redactor = Redactor(self._shared.secrets)
        self.known = KnownSecrets(self._shared.secrets)
        """What is struck out of everything that leaves the process."""
        self._lanes = Lanes(max_concurrent)
        self.care = SessionCare(
            sessions=sessions,
            resolver=resolver,
            lanes=self._lanes,
            hooks=self.hooks,
            operator=operator,
            stop=self.stop,
            forget=forget,
        )
        self._runs: OrderedDict[str, Run] = OrderedDict()
        self._listeners: list[Listener] = []
        self._life = Lifetime("clawmode-runs", self._end)
        self._closing = False

    async def __aenter__(self) -> "AgentRuntime":
        async with contextlib.AsyncExitStack() as opened:
            if self._owns_pool:
                await opened.enter_async_context(self._shared.pool)
            await self._life.open()
            opened.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self._life.close()
        finally:
            if self._owns_pool:
                await self._shared.pool.aclose()
            self.store.close()

    async def _end(self, tasks: TaskGroup) -> None:
        # Not aborted: runs are left unfinished, and can be continued.
        self._closing = True
        tasks.cancel_scope.cancel()

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
        assert self._life.tasks is not None, "an AgentRuntime is used inside of `async with`"
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
        if self.on_accept is not None:
            try:
                await self.on_accept(run)
            except BaseException:
                self._runs.pop(run.id, None)
                run.ended.set()
                raise
        self._life.tasks.start_soon(self._live, run)
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

    def abort(self, run_id: str, reason: str = "") -> bool:
        """Stops a run, queued or running. False: there is none, or it has ended.

        Args:
            run_id: Which.
            reason: Why, for whoever asked; nothing, if they know: they wanted it.
        """
        run = self._runs.get(run_id)
        if run is None or run.ended.is_set():
            return False
        run.stopped = run.stopped or reason
        run.scope.cancel()
        return True

    def stop(self, session_key: str) -> int:
        """Stops what runs and waits in a session; how many that were."""
        self.care.cancel(session_key)
        return sum(self.abort(run.id) for run in self.under_way(session_key))

    def abort_running(self, session_key: str, reason: str = "") -> bool:
        """Stops what runs in a session, and not what waits for it. False: nothing does."""
        runs = self.under_way(session_key)
        return any(self.abort(run.id, reason) for run in runs if run.state == "running")

    def is_running(self, session_key: str) -> bool:
        """Whether a run of a session is at work."""
        return any(run.state == "running" for run in self.under_way(session_key))

    def steer(self, run_id: str, said: IncomingMessage) -> bool:
        """Says something to a run that is under way. False: it takes nothing, or not any more."""
        run = self._runs.get(run_id)
        return run is not None and run.inside is not None and run.inside.intake.add(said)

    def withdraw(self, said_id: str) -> bool:
        """Takes back what was said to a run, as long as no model has read it."""
        inside = (run.inside for run in self._runs.values() if not run.ended.is_set())
        return any(it is not None and it.intake.withdraw(said_id) for it in inside)

    def runs(self) -> list[Run]:
        """All that are known, oldest first."""
        return list(self._runs.values())

    def under_way(self, session_key: str) -> list[Run]:
        """Those of a session that have not ended: the one that runs, and those that wait for it."""
        return [
            run
            for run in self._runs.values()
            if run.session.key == session_key and not run.ended.is_set()
        ]

    async def settings(self, request: AgentRequest, session: Session) -> RunSettings:
        """What a request would come to.

        Raises:
            ClawmodeError: Something of it cannot be had.
        """
        return await self._resolver.settings(request, session)

    async def preview(self, request: AgentRequest) -> Preview:
        """What a model would be told at the beginning of a turn; nothing is begun.

        Raises:
            ClawmodeError: Something of it cannot be had.
        """
        return await preview(self._shared, self._resolver, self.sessions, request)

    def look(
        self, request: AgentRequest, *, create: bool = False
    ) -> contextlib.AbstractAsyncContextManager[SessionRun]:
        """A run that is not carried out: its settings, and its tools. See `preview.looking`."""
        return looking(self._shared, self._resolver, self.sessions, request, create=create)

    def programs(self) -> list[CodeMode]:
        """The code modes of runs that are under way."""
        inside = (run.inside for run in self._runs.values())
        return [it.programs for it in inside if it is not None and it.programs is not None]

    def servers(self) -> "tuple[ServerView, ...]":
        """What is known of the MCP servers that all runs share."""
        return () if self._shared.servers is None else self._shared.servers.views

    def learn(self, secrets: Iterable[str]) -> None:
        """Adds to what is struck out of the trajectories of runs that begin from now on."""
        known = dict.fromkeys((*self._shared.secrets, *secrets))
        self._shared = replace(self._shared, secrets=tuple(known))
        self._redactor, self.known = Redactor(known), KnownSecrets(known)

    def find(self, run_id: str) -> Run | None:
        """A run that is known."""
        return self._runs.get(run_id)

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
        outcome: RunEnd | None = None
        try:
            with run.scope:
                async with self._lanes.enter(run.session.key) as place:
                    outcome = await self._carry_out(run, place)
        except Exception as error:
            logger.exception("run %s", run.id)
            outcome = RunEnd.badly(f"{type(error).__name__}: {message_of(error)}")
        if self._closing and outcome is None:
            return
        kept = None if run.inside is None else run.inside.ended
        outcome = outcome or kept or RunEnd(Outcome("aborted", None, STOPPED))
        if run.stopped and outcome.outcome.status == "aborted":
            outcome.outcome = replace(outcome.outcome, error=run.stopped)
        with anyio.CancelScope(shield=True):
            await self._conclude(run, outcome)

    async def _carry_out(self, run: Run, place: Place) -> RunEnd:
        run.started_at, run.state = time.time(), "running"
        self._emit(run, "lifecycle", {"phase": "start", "startedAt": int(run.started_at * 1000)})
        try:
            await self._let_hooks_choose(run)
            run.session = await self._session_now(run)
            settings = await self._resolver.settings(run.request, run.session)
            run.streaming = settings.streaming
            async with run.session.open(
                settings.lock_seconds, workspace=settings.workspace
            ) as transcript:
                if not transcript.entries:
                    await self.care.begin(run.session)
                run.inside = SessionRun(
                    shared=self._shared,
                    request=run.request,
                    session=run.session,
                    context=_context_of(run),
                    settings=settings,
                    transcript=transcript,
                    emit=lambda stream, data: self._emit(run, stream, data),
                    closing=lambda: self._closing,
                    sent=run.sent,
                    place=place,
                )
                return await run.inside.carry_out()
        except ClawmodeError as error:
            return RunEnd.badly(str(error))

    async def _session_now(self, run: Run) -> Session:
        """The session that is meant by now: it may have been reset, or deleted, since it was asked.

        Raises:
            UnknownSession: It was asked for by its id, and is gone.
        """
        if run.request.session_id or run.request.resume:
            return await self.sessions.get(run.session.id)
        return await self.sessions.resolve(run.session.key)

    async def _let_hooks_choose(self, run: Run) -> None:
        """Hooks may say which model, before anything is looked up."""
        if not self.hooks.has("before_model_resolve", "before_agent_start"):
            return
        event = ModelResolve(prompt=run.request.message, run=_context_of(run))
        chosen = await self._agent_hooks.choose_model(event)
        if chosen.model:
            name = f"{chosen.provider}/{chosen.model}" if chosen.provider else chosen.model
            run.request = replace(run.request, model=name)

    async def _conclude(self, run: Run, ended: RunEnd) -> None:
        outcome = ended.outcome
        if outcome.error is not None:
            outcome = replace(outcome, error=self._redactor.text(outcome.error))
        now = time.time()
        run.result = RunResult(
            run_id=run.id,
            session_key=run.session.key,
            session_id=run.session.id,
            status=outcome.status,
            payloads=shape(ended.said, error=outcome.error, sent=ended.sent, how=ended.shape),
            unread=ended.unread,
            usage=ended.usage.to_json(),
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
        run.inside = None  # and with it the conversation, of which it has a copy
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
                logger.error(
                    "listener %r: %s: %s", listener, type(error).__name__, message_of(error)
                )


def _context_of(run: Run) -> RunContext:
    return RunContext(
        agent_id=run.session.agent_id,
        session_id=run.session.id,
        session_key=run.session.key,
        run_id=run.id,
        sender=run.request.sender,
        channel=run.request.origin or run.request.channel,
    )


def _check(request: AgentRequest) -> None:
    if request.resume:
        if not request.run_id:
            raise ConfigurationError("to continue a run, its id has to be named")
        return
    if not request.message.strip() and not request.images:
        raise ConfigurationError("the message is empty")
    if len(request.message) > MAX_MESSAGE_CHARS:
        raise ConfigurationError(f"the message is over {MAX_MESSAGE_CHARS} characters")
