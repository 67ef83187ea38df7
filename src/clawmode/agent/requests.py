"""`AgentRequest`, the `RunSettings` that a request resolves to, and the `RunResult`: plain data."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from clawmode.code_mode.config import CodeModeConfig
from clawmode.config.agents import Break, Reasoning, Verbosity
from clawmode.config.tools import ToolSearchConfig
from clawmode.exceptions import ClawmodeError
from clawmode.messages import Image
from clawmode.models.base import ErrorKind, Model, ThinkingLevel
from clawmode.tools.policy import Policy
from clawmode.tools.tool import Tool
from clawmode.types import JsonObject, JsonValue

# Nearly every module of the agent imports this one, so it imports none of them.
if TYPE_CHECKING:
    from clawmode.agent.intake import IncomingMessage
    from clawmode.agent.prompt import Ingredients
    from clawmode.sessions.store import Session

Status: TypeAlias = Literal["ok", "error", "aborted", "timeout"]
Problem: TypeAlias = ErrorKind | Literal["too_many_turns", "repeats"]

MAX_MESSAGE_CHARS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRequest:
    """A turn that an agent is asked for.

    Attributes:
        agent_id: The agent; empty for the default agent.
        session_key: The session; empty for the agent's main session.
        session_id: The session by its id, instead of its key.
        run_id: The id of the run. If a run with this id is known, no second one is started.
        model: `provider/model`, instead of the agent's model.
        thinking, verbose, trace: Override the agent's settings.
        timeout_seconds: Overrides the agent's time limit.
        client_tools: Tools that the client provides for this run.
        system: Text that is added to the system prompt.
        disable_tools: The model gets no tools.
        raw_model_call: The model gets only the message: no system prompt, tools or history.
        resume: Continue the run `run_id`, which ended with its process.
        channel: The channel by which the message came and the reply goes.
        origin: The channel by which the message came, if the reply goes to another one. Policy
            rules apply to this one.
        target: The recipient of the reply on `channel`.
        message_ids: The ids of the queued messages that this turn consists of.
        trigger: What started the turn if no channel did, such as `cron`.
        cron_seconds: The time limit of the schedule.
    """

    message: str = ""
    images: tuple[Image, ...] = ()
    agent_id: str = ""
    session_key: str = ""
    session_id: str = ""
    run_id: str = ""
    model: str = ""
    thinking: ThinkingLevel | None = None
    verbose: Verbosity | None = None
    trace: bool | None = None
    timeout_seconds: float | None = None
    client_tools: tuple[Tool, ...] = ()
    system: str = ""
    disable_tools: bool = False
    raw_model_call: bool = False
    resume: bool = False
    sender: str = ""
    channel: str = ""
    origin: str = ""
    target: str = ""
    message_ids: tuple[str, ...] = ()
    trigger: str = ""
    cron_seconds: float | None = None


# ---- Settings of a run ----


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopLimits:
    """Limits of the loop that asks a model.

    Attributes:
        max_turns: The number of model requests of one run.
        retries: How many times a failed request is repeated, if the error may be temporary.
        retry_seconds: The longest pause before the first retry; it doubles with each retry.
        idle_seconds: For each model, how long its stream may be silent before the request is
            aborted.
    """

    max_turns: int = 500
    retries: int = 2
    retry_seconds: float = 1.0
    idle_seconds: Callable[[Model], float] = lambda model: 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionSettings:
    """When and how a long conversation is compacted.

    Attributes:
        enabled: Whether conversations are compacted without being asked to.
        reserve_tokens: Tokens that are kept free for the reply.
        keep_tokens: Tokens at the end of the conversation that stay verbatim.
        context_tokens: A context window smaller than the model's own.
        model: The model that writes the summary; None for the model of the run.
    """

    enabled: bool = True
    reserve_tokens: int = 16_384
    keep_tokens: int = 20_000
    context_tokens: int | None = None
    model: Model | None = None

    def room(self, model: Model) -> int:
        """Returns how many tokens a conversation with a model may have."""
        window = model.limits.context_window
        if self.context_tokens is not None:
            window = min(window, self.context_tokens)
        # A window smaller than the reserve must not leave a conversation of nothing.
        return max(window - self.reserve_tokens, window // 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a reply contains besides the model's text.

    Attributes:
        verbose: Whether tool calls are included: not at all, one line each, or in full.
        reasoning: Whether the model's thoughts are included.
    """

    verbose: Verbosity = "off"
    reasoning: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Streaming:
    """How a reply is sent while the model writes it.

    Attributes:
        blocks: Whether the reply is sent in parts.
        at: Where a part ends.
        reasoning: Whether thoughts are sent: as parts of their own, or next to the text.
    """

    blocks: bool = False
    at: Break = "text_end"
    reasoning: Reasoning = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """Everything that the configuration says about a request.

    Attributes:
        models: The model to ask, followed by its fallbacks.
        policy: All layers of rules for this agent, model, channel and sender.
        ingredients: The parts of the system prompt.
        tool_search: Whether the model finds its tools by search. Code mode takes precedence.
        shape: What the reply contains.
        streaming: How the reply is sent.
        compaction: When and how a long conversation is compacted.
        trace: Whether the run is recorded in the trajectory.
    """

    agent_id: str
    models: tuple[Model, ...]
    policy: Policy
    code_mode: CodeModeConfig
    workspace: Path
    ingredients: "Ingredients"
    tool_search: ToolSearchConfig = field(default_factory=ToolSearchConfig)
    shape: Shape = field(default_factory=Shape)
    streaming: Streaming = field(default_factory=Streaming)
    compaction: CompactionSettings = field(default_factory=CompactionSettings)
    thinking: ThinkingLevel = "off"
    trace: bool = True
    timeout_seconds: float = 172_800.0
    lock_seconds: float = 60.0
    limits: LoopLimits = field(default_factory=LoopLimits)


class Resolver(Protocol):
    """Resolves requests by the configuration."""

    def agent_of(self, request: AgentRequest) -> str:
        """Returns the id of the agent that a request is for.

        Raises:
            ConfigurationError: The request names an unknown agent.
        """
        ...

    def forget(self, session: "Session") -> None:
        """Deletes the files made for a deleted session. Blocks: call it in a thread."""
        ...

    async def settings(self, request: AgentRequest, session: "Session") -> RunSettings:
        """Returns the settings of a run.

        Raises:
            ClawmodeError: A model, folder or file that the run needs is not available.
        """
        ...


# ---- The end of a run ----


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The result of a run.

    Attributes:
        payloads: The parts of the reply: `{text}`.
        metadata: The model, the number of turns and calls, whether code mode was used.
        unread: Messages to the run that no model has read.
    """

    run_id: str
    session_key: str
    session_id: str
    status: Status
    payloads: tuple[JsonObject, ...] = ()
    usage: JsonObject = field(default_factory=dict[str, JsonValue])
    metadata: JsonObject = field(default_factory=dict[str, JsonValue])
    error: str | None = None
    problem: str | None = None
    started_at: float = 0.0
    ended_at: float = 0.0
    unread: "tuple[IncomingMessage, ...]" = ()

    @property
    def output(self) -> str:
        """The text of the model's last reply; empty if there was none."""
        said = [it for it in self.payloads if not it.get("kind") and not it.get("isError")]
        return str(said[-1].get("text", "")) if said else ""

    def to_json(self) -> JsonObject:
        """Returns the result as gateway clients receive it."""
        made: JsonObject = {
            "runId": self.run_id,
            "sessionKey": self.session_key,
            "sessionId": self.session_id,
            "status": self.status,
            "payloads": list[JsonValue](self.payloads),
            "usage": self.usage,
            "metadata": self.metadata,
            "startedAt": int(self.started_at * 1000),
            "endedAt": int(self.ended_at * 1000),
        }
        if self.error is not None:
            made |= {"error": self.error, "problem": self.problem}
        return made


class RunFailed(ClawmodeError):
    """A run of an `Agent` ended with an error, was aborted or timed out.

    Attributes:
        result: The result of the run, with its `status`, `error` and everything that was said.
    """

    def __init__(self, result: RunResult) -> None:
        super().__init__(result.error or f"the run ended with the status {result.status}")
        self.result = result
