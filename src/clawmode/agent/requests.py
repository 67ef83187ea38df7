"""`AgentRequest`, the `ResolvedRequest` that it comes to, and the `RunResult`: plain data."""

from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from clawmode.config.agents import AgentEntry, Configuration, Verbosity
from clawmode.exceptions import ClawmodeError
from clawmode.messages import Image
from clawmode.models.base import ErrorKind, Model, ThinkingLevel
from clawmode.tools.policy import Policy
from clawmode.tools.tool import Tool
from clawmode.types import JsonObject, JsonValue, dataclass

# Nearly every module of the agent imports this one, so it imports none of them.
if TYPE_CHECKING:
    from clawmode.agent.prompt import Ingredients
    from clawmode.agent.run import IncomingMessage
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


# ---- What a request comes to ----


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedRequest:
    """A request, and what the configuration says about it.

    Attributes:
        agent: The section of the agent with all that it inherits, and with `thinking`, `verbose`
            and `trace` of the request.
        configuration: The whole configuration.
        models: The model to ask, followed by its fallbacks.
        summarizer: The model that writes summaries; None for the model of the run.
        policy: All layers of rules for this agent, model, channel and sender.
        ingredients: The parts of the system prompt.
    """

    agent: AgentEntry
    configuration: Configuration
    models: tuple[Model, ...]
    policy: Policy
    workspace: Path
    ingredients: "Ingredients"
    summarizer: Model | None = None


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

    async def resolve(self, request: AgentRequest, session: "Session") -> ResolvedRequest:
        """Returns what a request comes to.

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
