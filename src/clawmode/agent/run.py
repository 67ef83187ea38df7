"""`AgentRun`: one run of an agent, from its acceptance to its result.

The record of everything that is known about a run while it lives; `RunResult` is what remains of
the run. `runtime` queues runs, `turn` carries them out, and `loop` asks the model.
"""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import field, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

import anyio

from clawmode.agent.compaction import estimate, room_for
from clawmode.agent.events import AgentEvent, Listener, Stream
from clawmode.agent.lanes import Place
from clawmode.agent.replies import SentMessages, shape
from clawmode.agent.requests import AgentRequest, Problem, ResolvedRequest, RunResult, Status
from clawmode.agent.toolbox import ToolSurface, activate
from clawmode.catalog.namespaces import NamespaceRegistry
from clawmode.code_mode.stores import SnapshotStore
from clawmode.config.agents import AgentOptions
from clawmode.context import RunContext
from clawmode.exceptions import message_of
from clawmode.messages import Message, Usage, UserMessage
from clawmode.models.base import Model, ModelLimits
from clawmode.redaction import Redactor
from clawmode.sandbox.pool import Pool
from clawmode.sessions.store import Session
from clawmode.sessions.transcript import Transcript
from clawmode.tasks import Notifier
from clawmode.tools.approvals import Approvals
from clawmode.tools.hooks import Hooks
from clawmode.tools.tool import Tool
from clawmode.types import JsonObject, JsonValue, dataclass

if TYPE_CHECKING:
    from clawmode.agent.operator_hooks import OperatorHooks
    from clawmode.code_mode.code_mode import CodeMode
    from clawmode.mcp.servers import McpServers

logger = logging.getLogger("clawmode.agent")

RunState: TypeAlias = Literal["queued", "running"] | Status

STOPPED = "The run was stopped."
IDLE_SECONDS = 120.0
CRON_IDLE_SECONDS = 60.0


# ---- Messages to a run in progress ----


@dataclass(frozen=True, slots=True)
class IncomingMessage:
    """A message to a run in progress.

    Attributes:
        id: The id by which the message can be withdrawn before it is read.
    """

    id: str
    message: UserMessage


@dataclass(slots=True)
class Intake:
    """The messages that wait for one run.

    A closed intake accepts no message: the sender has to start another run.

    Attributes:
        on_read: Called with the ids of messages that were read.
    """

    on_read: Callable[[list[str]], None] = lambda ids: None
    _waiting: list[IncomingMessage] = field(default_factory=list[IncomingMessage])
    _closed: bool = True
    _arrived: Notifier = field(default_factory=Notifier)

    def open(self) -> None:
        """Accepts messages from now on."""
        self._closed = False

    @property
    def is_open(self) -> bool:
        return not self._closed

    def add(self, message: IncomingMessage) -> bool:
        """Adds a message; returns False if the intake is closed."""
        if not self._closed:
            self._waiting.append(message)
            self._arrived.notify()
        return not self._closed

    async def arrival(self) -> None:
        """Waits until there is a message to read."""
        while not self._waiting:
            await self._arrived.wait()

    def withdraw(self, message_id: str) -> bool:
        """Removes a message; returns False if it was read already, or is unknown."""
        before = len(self._waiting)
        self._waiting = [message for message in self._waiting if message.id != message_id]
        return len(self._waiting) < before

    def waits(self) -> bool:
        """True if there is a message to read."""
        return bool(self._waiting)

    def read(self) -> list[UserMessage]:
        """Removes and returns the messages since the last call."""
        messages = self._take_all()
        if messages:
            self.on_read([message.id for message in messages])
        return [message.message for message in messages]

    def finish(self) -> bool:
        """Closes the intake unless there is a message to read; returns whether it is closed."""
        self._closed = self._closed or not self._waiting
        return not self._waiting

    def close(self) -> list[IncomingMessage]:
        """Closes the intake; returns the messages that were not read."""
        self._closed = True
        return self._take_all()

    def _take_all(self) -> list[IncomingMessage]:
        messages = self._waiting.copy()
        self._waiting.clear()
        return messages


# ---- The run ----


@dataclass(eq=False, slots=True, kw_only=True)
class Resources:
    """What all runs of a process share.

    Attributes:
        store: Keeps parked cells.
        pool: The workers that run cells.
        tools: The tools of every run.
        own: Makes the tools that a run has for itself.
        plugin_tools: The tools of plugins.
        servers: Open MCP servers.
        operator: The operator's scripts.
        secrets: Values that are redacted in trajectories.
        listeners: Called with every event of every run.
        closing: Whether the runtime closes. Runs are then left unfinished, to be resumed.
    """

    store: SnapshotStore
    pool: Pool
    tools: tuple[Tool, ...] = ()
    own: "Callable[[AgentRun], tuple[Tool, ...]]" = lambda run: ()
    plugin_tools: tuple[Tool, ...] = ()
    servers: "McpServers | None" = None
    hooks: Hooks = field(default_factory=Hooks)
    operator: "OperatorHooks | None" = None
    approvals: Approvals = field(default_factory=Approvals)
    namespaces: NamespaceRegistry | None = None
    secrets: tuple[str, ...] = field(default=(), repr=False)
    listeners: list[Listener] = field(default_factory=list[Listener])
    closing: bool = False


@dataclass(eq=False, slots=True, weakref_slot=True)
class AgentRun:
    """A run of an agent.

    Attributes:
        shared: What all runs share.
        result: Set at the end of the run.
        ended: Set after `result`; or without a result if the runtime was closed during the run.
        stopped: Why the run was aborted, for its error; empty if the person asked for that.
        intake: Messages from people to the run in progress.
        sent: The messages that messaging tools have sent.
        place: The run's place among the concurrent runs; given away while it waits for a person.
        agent: The section of the agent; that of an agent without settings until the run begins.
        resolved: What the configuration says about the run. Only while the run is in progress, as
            `transcript`.
        transcript: The session's transcript, open and locked.
        programs: The run's code mode while it is open.
        own: The tools that this run has for itself, once `activate` was called.
        model: The model that was asked last.
        turns: How many times the model was asked.
        requests: How many requests were sent for that, including failed ones.
        errors: The number of failed requests by the kind of error.
        status: How the run ended. The initial value is that of a run that is cancelled.
        said: The messages of the run, at its end.
    """

    id: str
    request: AgentRequest
    session: Session
    shared: Resources = field(repr=False)
    accepted_at: float = field(default_factory=time.time)
    started_at: float = 0.0
    result: RunResult | None = None
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    ended: anyio.Event = field(default_factory=anyio.Event)
    seq: int = 0
    stopped: str = ""
    intake: Intake = field(default_factory=Intake)
    sent: SentMessages = field(default_factory=SentMessages)
    place: Place = field(default_factory=Place)
    agent: AgentOptions = field(default_factory=AgentOptions, repr=False)
    resolved: ResolvedRequest = field(init=False, repr=False)
    transcript: Transcript = field(init=False, repr=False)
    programs: "CodeMode | None" = None
    own: tuple[Tool, ...] = ()
    model: Model | None = None
    usage: Usage = field(default_factory=Usage)
    turns: int = 0
    requests: int = 0
    tool_calls: int = 0
    errors: Counter[str] = field(default_factory=Counter[str])
    status: Status = "aborted"
    error: str | None = STOPPED
    problem: Problem | None = None
    metadata: JsonObject = field(default_factory=dict[str, JsonValue])
    said: tuple[Message, ...] = field(default=(), repr=False)

    @property
    def state(self) -> RunState:
        if self.result is not None:
            return self.result.status
        return "running" if self.started_at else "queued"

    @property
    def context(self) -> RunContext:
        """The run's ids, for hooks and approvals."""
        request = self.request
        return replace(
            self.session.context(self.id),
            sender=request.sender,
            channel=request.origin or request.channel,
        )

    @property
    def trigger(self) -> str:
        return self.request.trigger or self.request.channel or "api"

    def emit(self, stream: Stream, data: JsonObject) -> None:
        """Emits an event to all listeners."""
        self.seq += 1
        event = AgentEvent(
            run_id=self.id, seq=self.seq, stream=stream, data=data, session_key=self.session.key
        )
        for listener in tuple(self.shared.listeners):  # a copy: a listener may unsubscribe itself
            try:
                listener(event)
            except Exception as error:
                logger.error(
                    "listener %r: %s: %s", listener, type(error).__name__, message_of(error)
                )

    def finish(
        self, status: Status, error: str | None = None, problem: Problem | None = None
    ) -> None:
        """Sets how the run ended. A later call replaces an earlier one."""
        self.status, self.error, self.problem = status, error, problem

    def make_result(self, redactor: Redactor) -> RunResult:
        """Returns the result of a run that has ended. No messages reach the run from now on.

        Args:
            redactor: Errors of tools and providers may quote a key, and go to channels.
        """
        error = self.error if self.error is None else redactor.text(self.error)
        return RunResult(
            run_id=self.id,
            session_key=self.session.key,
            session_id=self.session.id,
            status=self.status,
            payloads=shape(self.said, error=error, sent=self.sent, how=self.agent),
            unread=tuple(self.intake.close()),
            usage=self.usage.to_json(),
            metadata=self.metadata,
            error=error,
            problem=self.problem,
            started_at=self.started_at,
            ended_at=time.time(),
        )

    def release(self) -> tuple[Message, ...]:
        """Drops the conversation, because many ended runs are remembered; returns `said`."""
        said, self.said, self.own = self.said, (), ()
        for name in ("resolved", "transcript"):
            if hasattr(self, name):
                delattr(self, name)
        return said

    def begin(self, resolved: ResolvedRequest) -> None:
        """Sets what the configuration says about the run."""
        self.resolved, self.agent = resolved, resolved.agent

    # ---- Tools ----

    def activate(self) -> ToolSurface:
        """Makes the run's own tools; returns which tools the model sees and can call."""
        self.own = self.shared.own(self)
        return activate(
            self.resolved.agent.tools,
            self.resolved.policy,
            self.offered(),
            without_tools=self.request.disable_tools or self.request.raw_model_call,
        )

    def offered(self) -> tuple[Tool, ...]:
        """Returns all tools of the run, before the policy is applied."""
        shared = self.shared
        mcp = () if shared.servers is None else shared.servers.tools()
        others = (*shared.plugin_tools, *mcp, *self.request.client_tools)
        return (*shared.tools, *self.own, *others)

    def report(self) -> JsonObject:
        """Returns the state of the session and of this run, for the model and for people."""
        model = self.model or self.resolved.models[0]
        messages = self.transcript.messages()
        report: JsonObject = {
            "sessionKey": self.session.key,
            "sessionId": self.session.id,
            "agentId": self.session.agent_id,
            "runId": self.id,
            "model": f"{model.provider}/{model.name}",
            "thinking": self.agent.thinking,
            "workspace": str(self.resolved.workspace),
            "messages": len(messages),
            "contextTokens": estimate(messages),
            "contextRoom": room_for(self.agent, model),
            "usage": self.session.usage.to_json(),
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        if self.turns:
            report |= {"runUsage": self.usage.to_json(), "requests": self.turns}
        return report


# ---- Time limits ----


def time_limit(agent: AgentOptions, request: AgentRequest) -> float:
    """Returns how many seconds a run may take."""
    limit = float(agent.timeout_seconds)
    return limit if request.timeout_seconds is None else min(request.timeout_seconds, limit)


def idle_limit(limits: ModelLimits, agent: AgentOptions, request: AgentRequest) -> float:
    """Returns how many seconds a model may be silent before its request is aborted."""
    is_set = request.timeout_seconds is not None or "timeout_seconds" in agent.model_fields_set
    if limits.timeout_seconds is not None:
        window = limits.timeout_seconds
    elif request.cron_seconds is not None:
        # A remote model that is silent must leave time for its fallbacks.
        remote = min(request.cron_seconds, CRON_IDLE_SECONDS)
        window = request.cron_seconds if limits.local else remote
    elif request.trigger == "cron" and limits.local and not is_set:
        window = math.inf
    else:
        window = IDLE_SECONDS
    return min(window, time_limit(agent, request))
