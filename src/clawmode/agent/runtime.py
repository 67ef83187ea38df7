"""`AgentRuntime`: accepts runs of agents, queues and runs them, aborts them, emits their events.

Everything that a gateway does with agents is here; the gateway adds a wire.
"""

import contextlib
import logging
import time
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskGroup

from clawmode.agent.care import CleanUp, SessionCare
from clawmode.agent.events import Listener
from clawmode.agent.hooks import AgentEnd, AgentHooks
from clawmode.agent.lanes import Lanes
from clawmode.agent.preview import Preview, open_preview_run
from clawmode.agent.requests import (
    MAX_MESSAGE_CHARS,
    AgentRequest,
    ResolvedRequest,
    Resolver,
    RunResult,
)
from clawmode.agent.run import AgentRun, IncomingMessage, Resources
from clawmode.agent.turn import carry_out, choose_model, preview
from clawmode.catalog.namespaces import NamespaceRegistry
from clawmode.code_mode.code_mode import CodeMode
from clawmode.code_mode.sqlite_store import SqliteStore
from clawmode.code_mode.stores import SnapshotStore
from clawmode.exceptions import ClawmodeError, ConfigurationError, NotOpen, message_of
from clawmode.redaction import KnownSecrets, Redactor
from clawmode.sandbox.pool import Pool
from clawmode.sessions.store import Session, SessionStore
from clawmode.sessions.transcript import open_session
from clawmode.tasks import Lifetime
from clawmode.tools.approvals import Approvals
from clawmode.tools.hooks import Hooks
from clawmode.tools.tool import Tool
from clawmode.types import JsonObject

if TYPE_CHECKING:
    from clawmode.agent.operator_hooks import OperatorHooks
    from clawmode.mcp.servers import McpServers
    from clawmode.mcp.supervisor import ServerView

logger = logging.getLogger("clawmode.agent")

WAIT_SECONDS = 30.0
MAX_REMEMBERED = 1_000
"""Runs that have ended and whose results are still available."""


class AgentRuntime:
    """Runs agents. Used inside of `async with`; another task than the first may leave it.

    Args:
        resolver: Resolves requests by the configuration.
        sessions: The index of sessions.
        state: The state folder.
        store: Keeps parked cells, and is closed by whoever opened it; by default, a file in the
            state folder keeps them.
        tools: The tools of every run.
        own: Makes the tools that a run has for itself, for its workspace and its session.
        clean_up: Ends the processes of a session when the session ends.
        plugin_tools: The tools of plugins.
        servers: Open MCP servers, shared by all runs.
        hooks: The hooks of runs and calls.
        operator: The operator's scripts.
        approvals: Asks people for approval.
        namespaces: The registered namespaces.
        pool: Workers to share; by default the runtime has its own.
        max_concurrent: The number of concurrent runs; 0 for a default that fits the machine.
        secrets: Values that are redacted in trajectories, besides what looks like a secret.

    Attributes:
        on_accept: Awaited before a run starts. If it raises, nothing runs, and `start` raises that.
        known: The secrets, for those who redact what leaves the process.
    """

    def __init__(
        self,
        *,
        resolver: Resolver,
        sessions: SessionStore,
        state: Path,
        store: SnapshotStore | None = None,
        tools: Iterable[Tool] = (),
        own: Callable[[AgentRun], tuple[Tool, ...]] = lambda run: (),
        clean_up: CleanUp | None = None,
        plugin_tools: Iterable[Tool] = (),
        servers: "McpServers | None" = None,
        hooks: Hooks | None = None,
        operator: "OperatorHooks | None" = None,
        approvals: Approvals | None = None,
        namespaces: NamespaceRegistry | None = None,
        pool: Pool | None = None,
        max_concurrent: int = 0,
        secrets: Iterable[str] = (),
    ) -> None:
        self.sessions = sessions
        self.approvals = approvals or Approvals()
        self.hooks = hooks or Hooks()
        self.on_accept: Callable[[AgentRun], Awaitable[None]] | None = None
        self._owns_pool, self.pool = pool is None, pool or Pool()
        self._own_stores = [] if store else [SqliteStore(state)]
        self._resolver, self.store = resolver, store or self._own_stores[0]
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
            pool=self.pool,
            secrets=tuple(secrets),
        )
        self._redactor = Redactor(self._shared.secrets)
        self.known = KnownSecrets(self._shared.secrets)
        self._lanes = Lanes(max_concurrent)
        self.care = SessionCare(
            sessions=sessions,
            resolver=resolver,
            lanes=self._lanes,
            shared=self._shared,
            stop=self.stop,
            clean_up=clean_up,
        )
        self._runs: OrderedDict[str, AgentRun] = OrderedDict()
        self._life = Lifetime("clawmode-runs", self._end)

    async def __aenter__(self) -> "AgentRuntime":
        async with contextlib.AsyncExitStack() as opened:
            if self._owns_pool:
                await opened.enter_async_context(self.pool)
            await self._life.open()
            opened.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self._life.close()
        finally:
            for run in self._runs.values():
                run.ended.set()  # for those who wait for a run that was left unfinished
            if self._owns_pool:
                await self.pool.aclose()
            for own in self._own_stores:
                own.close()

    async def _end(self, tasks: TaskGroup) -> None:
        # Runs are not aborted but left unfinished, so that another process can resume them.
        self._shared.closing = True
        tasks.cancel_scope.cancel()

    # ---- For callers ----

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Calls `listener` with every event of every run; returns a function to unsubscribe."""
        self._shared.listeners.append(listener)
        return lambda: self._shared.listeners.remove(listener)

    async def start(self, request: AgentRequest) -> AgentRun:
        """Accepts a run, and returns before it begins.

        If a run with the id of the request is known, that run is returned.

        Raises:
            ConfigurationError: The request is invalid.
        """
        if request.run_id and (known := self._runs.get(request.run_id)) is not None:
            return known
        if request.resume and not request.run_id:
            raise ConfigurationError("run_id is required to resume a run")
        if not request.resume and not request.message.strip() and not request.images:
            raise ConfigurationError("the message is empty")
        if not request.resume and (size := len(request.message)) > MAX_MESSAGE_CHARS:
            text = f"the message has {size} characters; at most {MAX_MESSAGE_CHARS} are allowed"
            raise ConfigurationError(text)
        assert self._life.tasks is not None, "an AgentRuntime is used inside of `async with`"
        session = await self.sessions.resolve(
            request.session_key or None,
            request.session_id or None,
            self._resolver.agent_of(request),
        )
        if (known := self._runs.get(request.run_id)) is not None:
            return known  # a second request with the same id was faster
        run = AgentRun(request.run_id or uuid.uuid4().hex, request, session, self._shared)
        self._runs[run.id] = run
        if (over := len(self._runs) - MAX_REMEMBERED) > 0:
            for key in [key for key, it in self._runs.items() if it.ended.is_set()][:over]:
                del self._runs[key]
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
        """Waits for the end of a run. A timeout does not abort the run.

        Raises:
            ConfigurationError: The run id is unknown.
        """
        run = self._find(run_id)
        with anyio.move_on_after(timeout_seconds):
            await run.ended.wait()
        if run.result is None:
            return {"status": "timeout", "startedAt": int(run.started_at * 1000) or None}
        result = run.result
        made: JsonObject = {
            "status": "ok" if result.status == "ok" else "error",
            "startedAt": int(result.started_at * 1000),
            "endedAt": int(result.ended_at * 1000),
        }
        return made if result.error is None else {**made, "error": result.error}

    async def result(self, run_id: str) -> RunResult:
        """Waits for the end of a run; returns its result.

        Raises:
            ConfigurationError: The run id is unknown.
            NotOpen: The runtime was closed during the run.
        """
        run = self._find(run_id)
        await run.ended.wait()
        if run.result is None:
            raise NotOpen(f"The runtime was closed before the run {run_id[:80]!r} ended.")
        return run.result

    def abort(self, run_id: str, reason: str = "") -> bool:
        """Aborts a queued or running run; returns False if it is unknown or has ended.

        Args:
            run_id: The run.
            reason: The error of the run; empty if the person who asked for the run aborts it.
        """
        run = self._runs.get(run_id)
        if run is None or run.ended.is_set():
            return False
        run.stopped = run.stopped or reason
        run.scope.cancel()
        return True

    def stop(self, session_key: str) -> int:
        """Aborts the running and queued runs of a session; returns how many there were."""
        self.care.cancel(session_key)
        return sum(self.abort(run.id) for run in self.under_way(session_key))

    def abort_running(self, session_key: str, reason: str = "") -> bool:
        """Aborts the running run of a session, not the queued ones; returns False if none runs."""
        runs = self.under_way(session_key)
        return any(self.abort(run.id, reason) for run in runs if run.state == "running")

    def is_running(self, session_key: str) -> bool:
        """True if a run of the session is running, not only queued."""
        return any(run.state == "running" for run in self.under_way(session_key))

    def steer(self, run_id: str, message: IncomingMessage) -> bool:
        """Adds a message to a run in progress; returns False if the run accepts none."""
        run = self._runs.get(run_id)
        return run is not None and run.intake.add(message)

    def withdraw(self, message_id: str) -> bool:
        """Removes a message to a run; returns False if a model has read it, or it is unknown."""
        return any(run.intake.withdraw(message_id) for run in self._runs.values())

    def runs(self) -> list[AgentRun]:
        """Returns all known runs, the oldest first."""
        return list(self._runs.values())

    def under_way(self, session_key: str) -> list[AgentRun]:
        """Returns the running and queued runs of a session."""
        found = (run for run in self._runs.values() if run.session.key == session_key)
        return [run for run in found if not run.ended.is_set()]

    async def resolve(self, request: AgentRequest, session: Session) -> ResolvedRequest:
        """Returns what a request comes to.

        Raises:
            ClawmodeError: A model, folder or file that the run needs is not available.
        """
        return await self._resolver.resolve(request, session)

    async def preview(self, request: AgentRequest) -> Preview:
        """Returns what a model would get at the beginning of a turn, without starting one.

        Raises:
            ClawmodeError: The session, a model or a folder is not available.
        """
        async with self.preview_run(request) as run:
            return await preview(run)

    def preview_run(
        self, request: AgentRequest, *, create: bool = False
    ) -> contextlib.AbstractAsyncContextManager[AgentRun]:
        """Makes a run that is not carried out, to see its settings and tools.

        See `open_preview_run`.
        """
        return open_preview_run(request, self._shared, self._resolver, self.sessions, create=create)

    def programs(self) -> list[CodeMode]:
        """Returns the code modes of runs in progress."""
        found = (run.programs for run in self._runs.values())
        return [programs for programs in found if programs is not None]

    def servers(self) -> "tuple[ServerView, ...]":
        """Returns the state of the MCP servers that all runs share."""
        return () if self._shared.servers is None else self._shared.servers.views

    def learn(self, secrets: Iterable[str]) -> None:
        """Adds secrets that are redacted in the trajectories of later runs."""
        known = dict.fromkeys((*self._shared.secrets, *secrets))
        self._shared.secrets = tuple(known)
        self._redactor, self.known = Redactor(known), KnownSecrets(known)

    def find(self, run_id: str) -> AgentRun | None:
        return self._runs.get(run_id)

    def _find(self, run_id: str) -> AgentRun:
        if run_id not in self._runs:
            raise ConfigurationError(f"there is no run {run_id[:80]!r}")
        return self._runs[run_id]

    # ---- One run ----

    async def _live(self, run: AgentRun) -> None:
        interrupted = True
        try:
            with run.scope:
                async with self._lanes.enter(run.session.key) as run.place:
                    await self._carry_out(run)
                    interrupted = False
        except Exception as error:
            logger.exception("run %s", run.id)
            run.finish("error", f"{type(error).__name__}: {message_of(error)}")
            interrupted = False
        # Interrupted by the end of the runtime: without a result, so that it can be resumed.
        if self._shared.closing and interrupted:
            return
        if run.stopped and run.status == "aborted":
            run.error = run.stopped
        with anyio.CancelScope(shield=True):
            await self._conclude(run)

    async def _carry_out(self, run: AgentRun) -> None:
        run.started_at = time.time()
        run.emit("lifecycle", {"phase": "start", "startedAt": int(run.started_at * 1000)})
        try:
            await choose_model(run)
            # The session may have been reset since the run was accepted.
            if run.request.session_id or run.request.resume:
                run.session = await self.sessions.get(run.session.id)
            else:
                run.session = await self.sessions.resolve(run.session.key)
            found = await self._resolver.resolve(run.request, run.session)
            run.begin(found)
            limit = found.configuration.session.write_lock.acquire_timeout_ms / 1000
            async with open_session(
                run.session, limit, workspace=found.workspace
            ) as run.transcript:
                if not run.transcript.entries:
                    await self.care.begin(run.session)
                await carry_out(run)
        except ClawmodeError as error:
            run.finish("error", str(error))

    async def _conclude(self, run: AgentRun) -> None:
        result = run.result = run.make_result(self._redactor)
        at: JsonObject = {"endedAt": int(result.ended_at * 1000), "status": result.status}
        failure: JsonObject = {"phase": "error", **at, "error": result.error}
        run.emit("lifecycle", {"phase": "end", **at} if result.status == "ok" else failure)
        try:
            await self.sessions.touch(run.session.id, status=result.status, usage=run.usage)
        except ClawmodeError as error:
            logger.error("session %s: %s", run.session.key, error)
        said = run.release()
        run.ended.set()  # before the hooks: a slow hook must not delay the reply
        if self.hooks.has("agent_end"):
            end = AgentEnd(
                run=run.context,
                status=result.status,
                messages=said,
                metadata=result.metadata,
                error=result.error,
            )
            await AgentHooks(self.hooks).end_run(end)
