"""One run inside of its session: the lock is held, the transcript is open, the clock runs.

`SessionRun` opens the run's tools, builds its prompt and runs the loop. It records how the run
ended, whatever ended it.
"""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from clawmode import __version__
from clawmode.agent.activation import ToolSurface, activate
from clawmode.agent.compaction import Compactor, estimate
from clawmode.agent.events import Stream
from clawmode.agent.hooks import AgentHooks, PromptBuild
from clawmode.agent.intake import IncomingMessage, Intake
from clawmode.agent.lanes import Place
from clawmode.agent.loop import Outcome, Shortener, Turn, run_loop
from clawmode.agent.prompt import Ingredients, Prompt, build
from clawmode.agent.recorder import Recorder
from clawmode.agent.replies import SILENT, SentMessages
from clawmode.agent.requests import AgentRequest, RunSettings, Shape
from clawmode.agent.search_toolbox import SearchSurface, open_search
from clawmode.agent.toolbox import CodeModeTools, DirectTools, Toolbox
from clawmode.catalog.catalog import is_control
from clawmode.catalog.namespaces import NamespaceRegistry
from clawmode.code_mode.code_mode import CodeMode
from clawmode.code_mode.stores import SnapshotStore
from clawmode.context import RunContext
from clawmode.exceptions import ClawmodeError
from clawmode.messages import AssistantMessage, Message, Text, Usage, UserMessage
from clawmode.models.base import Model, ToolDefinition
from clawmode.models.debug import debug_flags, log
from clawmode.redaction import KnownSecrets, Redactor
from clawmode.sandbox.pool import Pool
from clawmode.sessions.store import Session
from clawmode.sessions.trajectory import Trajectory, sidecar_path
from clawmode.sessions.transcript import Transcript
from clawmode.tools.approvals import Approvals
from clawmode.tools.executor import Executor
from clawmode.tools.hooks import Hooks
from clawmode.tools.tool import Tool
from clawmode.types import JsonObject, JsonValue

if TYPE_CHECKING:
    from clawmode.agent.operator_hooks import OperatorHooks
    from clawmode.mcp.servers import McpServers

logger = logging.getLogger("clawmode.agent")

STOPPED = "The run was stopped."
NOTHING_SAID = "The process ended before the message was recorded: send it again."
CONTINUED = "[The process ended in the middle of this, and has been started again. Go on.]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What all runs of a process share.

    Attributes:
        tools: The tools of every run.
        own: Makes the tools that a run has for itself.
        plugin_tools: The tools of plugins.
        servers: Open MCP servers.
        operator: The operator's scripts.
        store: Keeps parked cells.
        pool: The workers that run cells.
        secrets: Values that are redacted in trajectories.
    """

    tools: tuple[Tool, ...]
    own: "Callable[[SessionRun], tuple[Tool, ...]]"
    plugin_tools: tuple[Tool, ...]
    servers: "McpServers | None"
    hooks: Hooks
    operator: "OperatorHooks | None"
    approvals: Approvals
    namespaces: NamespaceRegistry | None
    store: SnapshotStore
    pool: Pool
    secrets: tuple[str, ...] = field(default=(), repr=False)


@dataclass(slots=True)
class RunEnd:
    """How a run ended, and the messages of the run.

    Attributes:
        sent: The messages that messaging tools have sent.
        unread: Messages to the run that no model has read.
    """

    outcome: Outcome
    usage: Usage = field(default_factory=Usage)
    metadata: JsonObject = field(default_factory=dict[str, JsonValue])
    said: tuple[Message, ...] = ()
    shape: Shape = field(default_factory=Shape)
    sent: SentMessages = field(default_factory=SentMessages)
    unread: tuple[IncomingMessage, ...] = ()

    @classmethod
    def with_error(cls, text: str) -> "RunEnd":
        """Returns the end of a run that failed before a message was recorded."""
        return cls(Outcome("error", None, text))

    def to_json(self) -> JsonObject:
        """Returns the event `session.ended` of the trajectory."""
        return {
            "status": self.outcome.status,
            "error": self.outcome.error,
            "usage": self.usage.to_json(),
            "metadata": self.metadata,
        }


@dataclass(eq=False, slots=True, kw_only=True, weakref_slot=True)
class SessionRun:
    """A run that has its session to itself.

    Attributes:
        shared: What all runs share.
        context: The run's ids, for hooks and approvals.
        emit: Emits events to listeners.
        closing: Whether the runtime is closing. Then the run is left unfinished, to be resumed.
        intake: Messages from people to the run in progress.
        sent: The messages that messaging tools have sent.
        place: The run's place among the concurrent runs; given away while it waits for a person.
        programs: The run's code mode while it is open.
        ended: How the run ended; also set if `carry_out` was cancelled and did not return.
    """

    shared: Resources
    request: AgentRequest
    session: Session
    context: RunContext
    settings: RunSettings
    transcript: Transcript
    emit: Callable[[Stream, JsonObject], None]
    closing: Callable[[], bool]
    intake: Intake = field(default_factory=Intake)
    sent: SentMessages = field(default_factory=SentMessages)
    place: Place = field(default_factory=Place)
    programs: CodeMode | None = None
    ended: RunEnd | None = None
    _turn: Turn | None = None
    _own: tuple[Tool, ...] = ()
    _surface: JsonObject = field(default_factory=dict[str, JsonValue])
    _sent: JsonObject = field(default_factory=dict[str, JsonValue])

    async def carry_out(self) -> RunEnd:
        """Runs until the model is done or the time limit is reached."""
        run_id, transcript = self.context.run_id, self.transcript
        if self.request.resume and run_id not in transcript.open_runs():
            text = f"This session has no unfinished run {run_id[:80]!r} that could be resumed."
            return RunEnd.with_error(text)
        session, settings = self.session, self.settings
        limit = settings.timeout_seconds
        clock = anyio.CancelScope(deadline=anyio.current_time() + limit)
        with Trajectory(
            sidecar_path(session.transcript, session.id),
            session_id=session.id,
            session_key=session.key,
            run_id=run_id,
            agent_id=settings.agent_id,
            redactor=Redactor(self.shared.secrets, workspace=settings.workspace, home=Path.home()),
            enabled=settings.trace,
        ) as trajectory:
            trajectory.write("session.started", {"trigger": self._trigger})
            recorder = Recorder(
                run_id,
                transcript,
                trajectory,
                emit=self.emit,
                stop=clock.cancel,
                persist=AgentHooks(self.shared.hooks).persist,
            )
            outcome = Outcome("aborted", None, STOPPED)
            try:
                with clock:
                    outcome = await self._with_tools(recorder)
            finally:
                # Also if the run was cancelled: `ended` must say how far it came.
                if recorder.failure is not None:
                    outcome = Outcome("error", None, recorder.failure)
                elif clock.cancelled_caught:
                    outcome = Outcome("timeout", None, f"The run took longer than {limit:g} s.")
                self.ended = self._end(outcome)
                recorder.trace("session.ended", self.ended.to_json())
            return self.ended

    @property
    def _trigger(self) -> str:
        return self.request.trigger or self.request.channel or "api"

    def status(self) -> JsonObject:
        """Returns the state of the session and of this run, for the model and for people."""
        settings, turn = self.settings, self._turn
        model = settings.models[0] if turn is None or turn.model is None else turn.model
        messages = self.transcript.messages()
        status: JsonObject = {
            "sessionKey": self.session.key,
            "sessionId": self.session.id,
            "agentId": settings.agent_id,
            "runId": self.context.run_id,
            "model": f"{model.provider}/{model.name}",
            "thinking": settings.thinking,
            "workspace": str(settings.workspace),
            "messages": len(messages),
            "contextTokens": estimate(messages),
            "contextRoom": settings.compaction.room(model),
            "usage": self.session.usage.to_json(),
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        if turn is not None:
            status |= {"runUsage": turn.usage.to_json(), "requests": turn.turns}
        return status

    # ---- Tools ----

    def activate(self) -> ToolSurface:
        """Makes the run's own tools; returns which tools the model sees and can call."""
        shared, settings, request = self.shared, self.settings, self.request
        self._own = shared.own(self)
        return activate(
            settings.code_mode,
            settings.policy,
            core=(*shared.tools, *self._own),
            plugin=shared.plugin_tools,
            mcp=() if shared.servers is None else shared.servers.tools(),
            client=request.client_tools,
            disable_tools=request.disable_tools,
            raw_model_call=request.raw_model_call,
            tool_search=settings.tool_search,
        )

    def offered(self) -> tuple[Tool, ...]:
        """Returns all tools of the run, before the policy is applied."""
        servers = self.shared.servers
        mcp = () if servers is None else servers.tools()
        own, others = (*self.shared.tools, *self._own), self.shared.plugin_tools
        return (*own, *others, *mcp, *self.request.client_tools)

    async def _with_tools(self, recorder: Recorder) -> Outcome:
        shared, settings = self.shared, self.settings
        surface = self.activate()
        if debug_flags().code_mode:
            log(
                "run %s: code mode is %s and %s; the model sees %s; %d tools are in the catalog",
                self.context.run_id,
                "enabled" if settings.code_mode.enabled else "not enabled",
                "engaged" if surface.code_mode else "not engaged",
                ", ".join(tool.name for tool in surface.visible[:50]) or "no tools",
                len(surface.tools) if surface.code_mode or surface.search else 0,
            )
        model = settings.models[0]
        self.transcript.start_run(
            self.context.run_id,
            model=f"{model.provider}/{model.name}",
            trigger=self._trigger,
            code_mode=surface.code_mode,
        )
        if surface.code_mode:
            return await self._with_programs(recorder)
        executor = Executor(settings.policy, shared.hooks, shared.approvals)
        executor.watchers.append(recorder.watch)
        executor.on_question = self.place.step_aside
        if surface.search is not None:
            async with self._search(executor) as search:
                try:
                    return await self._converse(recorder, search.toolbox, search.directory)
                finally:
                    self._surface = search.report()
        self._surface = {"codeModeEngaged": False, "visibleTools": len(surface.tools)}
        return await self._converse(recorder, DirectTools(surface.tools, executor, self.context))

    def _search(self, executor: Executor) -> AbstractAsyncContextManager[SearchSurface]:
        settings, shared = self.settings, self.shared

        def tools() -> tuple[Tool, ...]:
            found = settings.policy.effective(self.offered())
            return tuple(tool for tool in found if not is_control(tool))

        return open_search(
            settings.tool_search,
            tools,
            executor=executor,
            context=self.context,
            pool=shared.pool,
            servers=shared.servers,
            message=self.request.message,
        )

    def _code_mode(self) -> CodeMode:
        shared, settings = self.shared, self.settings
        tools = (*shared.tools, *self._own, *shared.plugin_tools, *self.request.client_tools)
        return CodeMode(
            tools=tools,
            mcp_servers=() if shared.servers is None else shared.servers,
            config=settings.code_mode,
            policy=settings.policy,
            hooks=shared.hooks,
            approvals=shared.approvals,
            namespaces=shared.namespaces,
            store=shared.store,
            context=self.context,
            pool=shared.pool,
        )

    async def _with_programs(self, recorder: Recorder) -> Outcome:
        async with self._code_mode() as code_mode:
            code_mode.watch(recorder.watch)
            code_mode.executor.on_question = self.place.step_aside
            self.programs = code_mode
            toolbox = CodeModeTools(code_mode)
            try:
                return await self._converse(recorder, toolbox)
            finally:
                self.programs = None
                self._surface = toolbox.report()
                # A run that is left unfinished needs its parked programs when it is resumed.
                if not self.closing():
                    with anyio.CancelScope(shield=True):
                        try:
                            await code_mode.end_run()
                        except ClawmodeError as error:
                            logger.error("parked programs could not be deleted: %s", error)

    async def preview(self) -> tuple[Prompt, tuple[ToolDefinition, ...]]:
        """Returns the system prompt and the tools that the model would get."""
        surface = self.activate()
        messages = tuple(self.transcript.messages())
        shown = PromptBuild(prompt=self.request.message, run=self.context, messages=messages)
        added = await AgentHooks(self.shared.hooks).build_prompt(shown)
        given = await self._ingredients()
        prompt = build(given, added)
        if not surface.code_mode:
            executor = Executor(self.settings.policy, self.shared.hooks, self.shared.approvals)
            if surface.search is not None:
                async with self._search(executor) as search:
                    prompt = build(replace(given, directory=search.directory), added)
                    return prompt, search.toolbox.definitions()
            return prompt, DirectTools(surface.tools, executor, self.context).definitions()
        async with self._code_mode() as code_mode:
            return prompt, CodeModeTools(code_mode).definitions()

    # ---- The conversation ----

    async def _converse(self, recorder: Recorder, toolbox: Toolbox, directory: str = "") -> Outcome:
        request, settings = self.request, self.settings
        if not request.resume:
            recorder.record(UserMessage(content=(Text(request.message), *request.images)))
        elif (outcome := _resume(self.context.run_id, self.transcript, recorder)) is not None:
            return outcome
        messages = self.transcript.messages()
        prompt = Prompt()
        if request.raw_model_call:
            messages = messages[-1:]
        else:
            hooks = AgentHooks(self.shared.hooks)
            before = tuple(messages[:-1])
            shown = PromptBuild(prompt=request.message, run=self.context, messages=before)
            claimed = await hooks.claim_reply(shown)
            if claimed is not None:
                silent = claimed.silent or not claimed.text.strip()
                text = Text(SILENT[0] if silent else claimed.text)
                reply = AssistantMessage(content=(text,), provider="hook", model="hook")
                recorder.record(reply)
                return Outcome("ok", reply)
            given = replace(await self._ingredients(), directory=directory)
            prompt = build(given, await hooks.build_prompt(shown))
            messages = prompt.add_context(messages)
        compiled = prompt.trace(toolbox.definitions(), len(messages))
        self._sent = {key: compiled[key] for key in ("toolSchemaBytes", "promptBytes")}
        recorder.trace("trace.metadata", _metadata(request, settings))
        recorder.trace("context.compiled", compiled)
        recorder.trace("prompt.submitted", {"prompt": request.message, "resumed": request.resume})
        self._turn = Turn(
            models=settings.models,
            toolbox=toolbox,
            system=prompt.text,
            messages=messages,
            sink=recorder,
            limits=settings.limits,
            thinking=settings.thinking,
            run_id=self.context.run_id,
            cache_key=self.session.id,
            intake=self.intake,
            shorten=None if request.raw_model_call else self._shortener(prompt),
            known=KnownSecrets(self.shared.secrets),
            until_decided=None if self.programs is None else self.programs.until_decided,
            take_place=self.place.take,
        )
        self.intake.open()
        return await run_loop(self._turn)

    async def _ingredients(self) -> Ingredients:
        """Returns the parts of the prompt, with the files as the operator's scripts want them."""
        given, operator, run = self.settings.ingredients, self.shared.operator, self.context
        if operator is None or not operator.has("agent:bootstrap"):
            return given
        about: JsonObject = {
            "agentId": run.agent_id,
            "sessionKey": run.session_key,
            "runId": run.run_id,
        }
        files = await operator.bootstrap(given.files, about, self.settings.workspace)
        return replace(given, files=files)

    def _shortener(self, prompt: Prompt) -> Shortener:
        compactor = Compactor(
            self.settings.compaction,
            self.transcript,
            self.context,
            self.shared.hooks,
            self.emit,
        )

        async def shorten(
            messages: Sequence[Message], system: str, model: Model, *, overflow: bool
        ) -> Sequence[Message] | None:
            shorter = await compactor(messages, system, model, overflow=overflow)
            # The transcript does not have the context that hooks added to the last message.
            return None if shorter is None else prompt.add_context(shorter)

        return shorten

    # ---- The end ----

    def _end(self, outcome: Outcome) -> RunEnd:
        """Collects the result of the run, and records its end in the transcript."""
        run_id, turn = self.context.run_id, self._turn
        said = (it.message for it in self.transcript.entries if it.run_id == run_id)
        ended = RunEnd(
            outcome,
            said=tuple(message for message in said if message is not None),
            shape=self.settings.shape,
            sent=self.sent,
            unread=tuple(self.intake.close()),
        )
        if turn is not None:
            ended.usage = turn.usage
            counts: JsonObject = {"assistantTurns": turn.turns, "toolCalls": turn.tool_calls}
            ended.metadata |= counts | {"modelRequests": turn.requests}
            if turn.errors:
                ended.metadata["modelErrors"] = dict[str, JsonValue](turn.errors)
            if turn.model is not None:
                ended.metadata |= {"provider": turn.model.provider, "model": turn.model.name}
        ended.metadata |= self._surface | self._sent
        if not self.closing() and run_id in self.transcript.open_runs():
            try:
                self.transcript.end_run(
                    run_id,
                    outcome.status,
                    error=outcome.error,
                    usage=ended.usage,
                    metadata=ended.metadata,
                )
            except ClawmodeError as error:
                logger.error("run %s: its end was not recorded: %s", run_id, error)
                if outcome.status == "ok":
                    ended.outcome = Outcome("error", outcome.reply, str(error))
        return ended


def _resume(run_id: str, transcript: Transcript, recorder: Recorder) -> Outcome | None:
    """Prepares an interrupted run; returns its outcome if only its end was not recorded."""
    recorder.settle_lost_calls()
    last = transcript.open_runs()[run_id].last
    if last is None:
        return Outcome("error", None, NOTHING_SAID)
    if isinstance(last, AssistantMessage) and not last.calls and last.stop != "aborted":
        return Outcome("ok", last)
    if isinstance(transcript.messages()[-1], AssistantMessage):
        # An answer that was cut off, or another run's: a model expects a user message last.
        recorder.record(UserMessage.of(CONTINUED))
    return None


def _metadata(request: AgentRequest, settings: RunSettings) -> JsonObject:
    return {
        "version": __version__,
        "models": [f"{model.provider}/{model.name}" for model in settings.models],
        "thinking": settings.thinking,
        "timeoutSeconds": settings.timeout_seconds,
        "sender": request.sender,
    }
