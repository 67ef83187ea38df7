"""What is asked of an agent, what that comes to, and what comes of it, as data."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from clawmode.agent.compaction import CompactionSettings
from clawmode.agent.intake import IncomingMessage
from clawmode.agent.loop import LoopLimits, Status
from clawmode.agent.prompt import Ingredients
from clawmode.agent.replies import Shape
from clawmode.code_mode.config import CodeModeConfig
from clawmode.config.agents import Break, Reasoning, Verbosity
from clawmode.config.tool_search import ToolSearchConfig
from clawmode.exceptions import ClawmodeError
from clawmode.messages import Image
from clawmode.models.base import Model, ThinkingLevel
from clawmode.sessions.store import Session
from clawmode.tools.policy import Policy
from clawmode.tools.tool import Tool
from clawmode.types import JsonObject, JsonValue

MAX_MESSAGE_CHARS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRequest:
    """What somebody wants an agent to do.

    Attributes:
        agent_id: Which; empty for the default one.
        session_key: In which conversation; empty for the agent's main one.
        session_id: The same by its id.
        run_id: The run's name; one that is known already is not started a second time.
        model: `provider/model` instead of the agent's.
        thinking, verbose, trace: Instead of the agent's.
        timeout_seconds: Instead of the agent's.
        client_tools: Tools of whoever asks, for this run.
        system: Added to the system prompt.
        disable_tools: The model gets none.
        raw_model_call: The model gets the message, and nothing around it.
        resume: Goes on with the run of this id, which its process left unfinished.
        channel: The way by which it came, and by which the answer goes.
        origin: The way by which it came, if that is another one: it counts for policy.
        target: To whom, on that channel.
        message_ids: The messages that it is made of, as they are kept until a run has them.
        trigger: What started it, if that is no channel: `cron`.
        cron_seconds: What the schedule says that it may take.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Streaming:
    """How a reply goes out while it is given.

    Attributes:
        blocks: Whether in parts.
        at: Where a part ends.
        reasoning: Whether the model's thoughts go too: as parts of their own, or beside the words.
    """

    blocks: bool = False
    at: Break = "text_end"
    reasoning: Reasoning = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """What a request comes to, once everything is looked up.

    Attributes:
        models: The one to ask, and those to fall back to.
        policy: All of its layers, for this agent, model, channel and sender.
        ingredients: What the system prompt is made of.
        tool_search: Whether the model gets to its tools by search; code mode comes before.
        shape: What of a run is shown to whoever asked.
        streaming: How that goes out.
        compaction: When and how a long conversation is shortened.
        trace: Whether what it does is recorded step by step.
    """

    agent_id: str
    models: tuple[Model, ...]
    policy: Policy
    code_mode: CodeModeConfig
    workspace: Path
    ingredients: Ingredients
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
    """Looks up what the configuration says about a request."""

    def agent_of(self, request: AgentRequest) -> str:
        """The id of the agent that is meant.

        Raises:
            ConfigurationError: There is none.
        """
        ...

    def forget(self, session: Session) -> None:
        """Takes away what was made for a session that is gone. Deletes files: a thread's work."""
        ...

    async def settings(self, request: AgentRequest, session: Session) -> RunSettings:
        """Everything that a run has to know.

        Raises:
            ClawmodeError: Something of it cannot be had; nothing runs.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What came of a run.

    Attributes:
        payloads: What goes to whoever asked: `{text}`.
        metadata: Model, turns, calls, whether code mode engaged.
        unread: What people have said to it meanwhile, and no model has read.
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
    unread: tuple[IncomingMessage, ...] = ()

    @property
    def output(self) -> str:
        """The text of the model's last reply; empty if there was none."""
        said = [it for it in self.payloads if not it.get("kind") and not it.get("isError")]
        return str(said[-1].get("text", "")) if said else ""

    def to_json(self) -> JsonObject:
        """As it goes to clients."""
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
