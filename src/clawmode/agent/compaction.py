"""Compaction of a conversation that grows too long: a model summarizes its older part.

The part that stays verbatim begins with a message of the person or the model, so that no call
loses its result. The caller holds the session's lock.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

import anyio

from clawmode.agent.events import Stream
from clawmode.agent.hooks import CompactionEvent
from clawmode.config.agents import AgentOptions
from clawmode.context import RunContext
from clawmode.messages import Image, Message, Text, Thinking, ToolCall, ToolMessage, UserMessage
from clawmode.models.base import MessageEnd, Model, ModelError, ModelRequest
from clawmode.sessions.entries import TranscriptError
from clawmode.sessions.history import History
from clawmode.sessions.transcript import Transcript
from clawmode.tasks import must_propagate
from clawmode.tools.hooks import Hooks
from clawmode.types import JsonObject, dataclass

logger = logging.getLogger("clawmode.agent")

CHARS_PER_TOKEN = 4
IMAGE_TOKENS = 1_600
MESSAGE_TOKENS = 8
"""The cost of a message in addition to its text."""

MAX_PART_CHARS = 4_000
MAX_SUMMARY_CHARS = 40_000
SUMMARY_SECONDS = 180.0

SYSTEM = (
    "You sum up a conversation between a person and an agent that calls tools, so that the agent "
    "can go on without it. Keep what was asked, what was decided, what was done and with which "
    "result, names, paths, numbers and ids that may be needed again, and what is still open. "
    "Leave out the rest. Write plain text."
)
ASK = "Sum up this conversation:\n\n"


def estimate(messages: Sequence[Message], system: str = "") -> int:
    """Estimates how many tokens a model reads of a conversation."""
    return -(-len(system) // CHARS_PER_TOKEN) + sum(_tokens(message) for message in messages)


def _tokens(message: Message) -> int:
    total = MESSAGE_TOKENS
    for part in message.content:
        if isinstance(part, Image):
            total += IMAGE_TOKENS
            continue
        text = part.name + str(part.arguments) if isinstance(part, ToolCall) else part.text
        total += -(-len(text) // CHARS_PER_TOKEN)
    return total


def room_for(agent: AgentOptions, model: Model) -> int:
    """Returns how many tokens a conversation of an agent with a model may have."""
    window = model.limits.context_window
    if agent.context_tokens is not None:
        window = min(window, agent.context_tokens)
    # A window smaller than the reserve must not leave a conversation of nothing.
    return max(window - agent.compaction.reserve_tokens, window // 4)


# ---- Planning ----


@dataclass(frozen=True, slots=True)
class Plan:
    """Which part of a conversation is summarized.

    Attributes:
        messages: The messages that the summary replaces.
        first_kept: The id of the first entry that stays verbatim; None if no entry does.
    """

    messages: tuple[Message, ...]
    first_kept: str | None


def plan(history: History, keep_tokens: int) -> Plan | None:
    """Plans a compaction; returns None if it would not make the conversation shorter.

    Args:
        history: The conversation.
        keep_tokens: How many tokens at its end stay verbatim.
    """
    entries = history.entries
    last = next((n for n in reversed(range(len(entries))) if entries[n].type == "compaction"), None)
    start = 0
    if last is not None:
        first_kept = entries[last].data.get("firstKept")
        start = next((n for n in range(last) if entries[n].id == first_kept), last)
    # The position of the first entry that stays verbatim; at least one message does.
    kept = 0
    cut = len(entries)
    for number in reversed(range(start, len(entries))):
        message = entries[number].message
        if message is None:
            continue
        kept += _tokens(message)
        if kept > keep_tokens and cut < len(entries):
            break
        # A result must not be separated from its call, which comes before it.
        if not isinstance(message, ToolMessage):
            cut = number
    before = History()
    for entry in entries[:cut]:
        before.add(entry)
    if last is not None and last >= cut:
        before.add(entries[last])
    replaced = before.messages()
    # A summary is not summarized again without new messages.
    if len(replaced) <= (0 if last is None else 1):
        return None
    return Plan(tuple(replaced), entries[cut].id if cut < len(entries) else None)


# ---- The summary ----


async def summarize(model: Model, messages: Sequence[Message], wishes: str = "") -> str:
    """Asks a model for a summary of a conversation.

    Args:
        model: The model that writes the summary.
        messages: The conversation.
        wishes: What the person wants the summary to keep.

    Raises:
        ModelError: The model failed, took too long, or returned nothing.
    """
    request = ModelRequest(
        system=f"{SYSTEM}\n\nThe person wishes: {wishes}" if wishes else SYSTEM,
        messages=(UserMessage.of(ASK + transcript_of(messages)),),
    )
    with anyio.move_on_after(SUMMARY_SECONDS):
        try:
            async with model.stream(request) as events:
                async for event in events:
                    if isinstance(event, MessageEnd):
                        if summary := event.message.text.strip():
                            return summary[:MAX_SUMMARY_CHARS]
                        raise ModelError("garbage", "the summary is empty")
            raise ModelError("garbage", "the model's stream ended before the summary was complete")
        except ModelError:
            raise
        except BaseException as error:
            if must_propagate(error):
                raise
            logger.exception("%s/%s: %s", model.provider, model.name, type(error).__name__)
            raise ModelError("server", f"the summary failed: {type(error).__name__}") from None
    raise ModelError("timeout", f"the summary took longer than {SUMMARY_SECONDS:g} s")


def transcript_of(messages: Sequence[Message]) -> str:
    """Returns a conversation as text for the summary; long parts are cut."""
    lines: list[str] = []
    for message in messages:
        speaker = "Agent"
        if isinstance(message, UserMessage):
            speaker = "Person"
        elif isinstance(message, ToolMessage):
            speaker = f"Result of {message.name}" + (" (failed)" if message.is_error else "")
        for part in message.content:
            caller = f"Agent calls {part.name}" if isinstance(part, ToolCall) else speaker
            if text := _text_of(part):
                lines.append(f"{caller}: {text}")
    return "\n\n".join(lines)


def _text_of(part: Text | Thinking | Image | ToolCall) -> str:
    if isinstance(part, Thinking):
        return ""
    if isinstance(part, Image):
        return "[a picture]"
    text = str(part.arguments) if isinstance(part, ToolCall) else part.text
    if len(text) <= MAX_PART_CHARS:
        return text
    half = MAX_PART_CHARS // 2
    return f"{text[:half]} […] {text[-half:]}"


# ---- In a run ----


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """How many messages were summarized, and the tokens of the conversation before and after."""

    messages: int
    before: int
    after: int


class Compactor:
    """Compacts the conversation of one run, which holds the session's lock.

    Args:
        agent: Says when and how.
        summarizer: The model that writes the summary; None for the model of the run.
        transcript: Records the summary.
        run: The run, for hooks.
        hooks: Notified before and after.
        emit: Emits events of the run.
    """

    def __init__(
        self,
        agent: AgentOptions,
        summarizer: Model | None,
        transcript: Transcript,
        run: RunContext,
        hooks: Hooks,
        emit: Callable[[Stream, JsonObject], None],
    ) -> None:
        self._agent = agent
        self._summarizer = summarizer
        self._transcript = transcript
        self._run = run
        self._hooks = hooks
        self._emit = emit

    async def __call__(
        self, messages: Sequence[Message], system: str, model: Model, *, overflow: bool
    ) -> Sequence[Message] | None:
        """Compacts the conversation if it is too long for a model.

        Args:
            messages: The conversation.
            system: The system prompt.
            model: The model that is to read them.
            overflow: Whether the model has rejected the conversation as too long.

        Returns:
            The shorter conversation; None if it fits, or cannot be made shorter.
        """
        room = room_for(self._agent, model)
        tokens = estimate(messages, system)
        if not overflow and (tokens <= room or not self._agent.compaction.enabled):
            return None
        # A model that reports an overflow knows better than the estimate: then half has to go.
        most = estimate(messages) // 2 if overflow else room // 2
        keep = min(self._agent.compaction.keep_recent_tokens, most)
        done = await self._compact(model, keep, tokens, system)
        return None if done is None else self._transcript.messages()

    async def compact(self, model: Model, wishes: str = "") -> CompactionResult | None:
        """Compacts the conversation for a person; returns None if there is nothing to gain.

        Raises:
            ModelError: The summary failed.
            TranscriptError: The summary could not be recorded.
        """
        tokens = estimate(self._transcript.messages())
        keep = min(self._agent.compaction.keep_recent_tokens, tokens // 2)
        return await self._compact(model, keep, tokens, wishes=wishes, raises=True)

    async def _compact(
        self,
        model: Model,
        keep: int,
        tokens: int,
        system: str = "",
        *,
        wishes: str = "",
        raises: bool = False,
    ) -> CompactionResult | None:
        found = plan(self._transcript, keep)
        if found is None:
            return None
        about: JsonObject = {"messages": len(found.messages), "tokens": tokens}
        self._emit("compaction", {"phase": "start", **about})
        event = CompactionEvent(run=self._run, messages=len(found.messages), tokens=tokens)
        await self._hooks.notify("before_compaction", event)
        try:
            summary = await summarize(self._summarizer or model, found.messages, wishes)
            self._transcript.compaction(self._run.run_id, summary, found.first_kept)
        except (ModelError, TranscriptError) as error:
            self._emit("compaction", {"phase": "error", **about, "error": str(error)})
            if raises:
                raise
            return None
        left = estimate(self._transcript.messages(), system)
        await self._hooks.notify("after_compaction", replace(event, summary=summary))
        self._emit("compaction", {"phase": "end", **about, "tokensAfter": left})
        return CompactionResult(len(found.messages), tokens, left)
