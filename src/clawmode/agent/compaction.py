"""Shortening a conversation that grows too long: what was said before is summed up by a model.

What is kept word for word begins with something that a person or the model said, so that no call
loses its result. Plain planning here; the session's lock is held by whoever calls.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import anyio

from clawmode.agent.events import Stream
from clawmode.agent.hooks import CompactionEvent
from clawmode.agent.loop import Turn
from clawmode.context import RunContext
from clawmode.foreign import must_propagate
from clawmode.messages import (
    AssistantMessage,
    Image,
    Message,
    Text,
    Thinking,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from clawmode.models.base import Finished, Model, ModelError, ModelRequest
from clawmode.sessions.history import Entry, History, TranscriptError
from clawmode.sessions.transcript import Transcript
from clawmode.tools.hooks import Hooks
from clawmode.types import JsonObject

logger = logging.getLogger("clawmode.agent")

CHARS_PER_TOKEN = 4
IMAGE_TOKENS = 1_600
MESSAGE_TOKENS = 8
"""What a message costs beside its words."""

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
    """About how many tokens a model reads of these."""
    return -(-len(system) // CHARS_PER_TOKEN) + sum(_tokens(message) for message in messages)


def _tokens(message: Message) -> int:
    total = MESSAGE_TOKENS
    for part in message.content:
        if isinstance(part, Image):
            total += IMAGE_TOKENS
        else:
            total += -(-_length(part) // CHARS_PER_TOKEN)
    return total


def _length(part: Text | Thinking | ToolCall) -> int:
    if not isinstance(part, ToolCall):
        return len(part.text)
    return len(part.name) + len(str(part.arguments))


# ---- Planning ----


@dataclass(frozen=True, slots=True)
class Plan:
    """What is summed up, and from which entry on nothing is.

    Attributes:
        messages: The conversation so far that the summary is to stand for.
        first_kept: The id of the first entry that stays as it is; None if none does.
    """

    messages: tuple[Message, ...]
    first_kept: str | None


def plan(history: History, keep_tokens: int) -> Plan | None:
    """How to shorten a conversation; None if there is nothing to gain.

    Args:
        history: The conversation.
        keep_tokens: How much of its end stays word for word.
    """
    entries = history.entries
    last = next((n for n in reversed(range(len(entries))) if entries[n].type == "compaction"), None)
    start = 0 if last is None else _position(entries, entries[last].data.get("firstKept"), last)
    cut = _cut(entries, start, keep_tokens)
    before = History()
    for entry in entries[:cut]:
        before.add(entry)
    if last is not None and last >= cut:
        before.add(entries[last])
    summed = before.messages()
    # A summary alone is not summed up again.
    if len(summed) <= (0 if last is None else 1):
        return None
    return Plan(tuple(summed), entries[cut].id if cut < len(entries) else None)


def _position(entries: Sequence[Entry], entry_id: object, otherwise: int) -> int:
    return next((n for n in range(otherwise) if entries[n].id == entry_id), otherwise)


def _cut(entries: Sequence[Entry], start: int, keep_tokens: int) -> int:
    """Where the part begins that is kept: as early as it may, and before one message at least."""
    kept = 0
    cut = len(entries)
    for number in reversed(range(start, len(entries))):
        message = entries[number].message
        if message is None:
            continue
        kept += _tokens(message)
        if kept > keep_tokens and cut < len(entries):
            break
        if not isinstance(message, ToolMessage):
            cut = number
    return cut


# ---- Summing up ----


async def summarize(model: Model, messages: Sequence[Message], wishes: str = "") -> str:
    """What was said, in short.

    Args:
        model: Who sums up.
        messages: What was said.
        wishes: What a person wants to be looked after.

    Raises:
        ModelError: The model did not answer, or with nothing.
    """
    request = ModelRequest(
        system=f"{SYSTEM}\n\nThe person wishes: {wishes}" if wishes else SYSTEM,
        messages=(UserMessage.of(ASK + transcript_of(messages)),),
    )
    with anyio.move_on_after(SUMMARY_SECONDS):
        try:
            return await _hear(model, request)
        except ModelError:
            raise
        except BaseException as error:
            if must_propagate(error):
                raise
            logger.exception("%s/%s: %s", model.provider, model.name, type(error).__name__)
            raise ModelError("server", f"the summary failed: {type(error).__name__}") from None
    raise ModelError("timeout", f"the summary took longer than {SUMMARY_SECONDS:g} s")


async def _hear(model: Model, request: ModelRequest) -> str:
    async with model.stream(request) as events:
        async for event in events:
            if isinstance(event, Finished):
                if summary := event.message.text.strip():
                    return summary[:MAX_SUMMARY_CHARS]
                raise ModelError("garbage", "the summary is empty")
    raise ModelError("garbage", "the summary stopped in the middle")


def transcript_of(messages: Sequence[Message]) -> str:
    """A conversation as text for whoever sums it up; long parts are cut."""
    lines = (
        f"{_speaker(message, part)}: {words}"
        for message in messages
        for part in message.content
        if (words := _words(part))
    )
    return "\n\n".join(lines)


def _speaker(message: Message, part: object) -> str:
    if isinstance(message, UserMessage):
        return "Person"
    if isinstance(message, ToolMessage):
        return f"Result of {message.name}" + (" (failed)" if message.is_error else "")
    assert isinstance(message, AssistantMessage)
    return f"Agent calls {part.name}" if isinstance(part, ToolCall) else "Agent"


def _words(part: Text | Thinking | Image | ToolCall) -> str:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionSettings:
    """When and how a conversation is shortened.

    Attributes:
        enabled: Whether it is done by itself.
        reserve_tokens: What is kept free for the answer.
        keep_tokens: How much of the end stays word for word.
        context_tokens: The model's room, if it is to be smaller than it is.
        model: Who sums up; None is the one that is asked.
    """

    enabled: bool = True
    reserve_tokens: int = 16_384
    keep_tokens: int = 20_000
    context_tokens: int | None = None
    model: Model | None = None

    def room(self, model: Model) -> int:
        """How many tokens a conversation with a model may have."""
        window = model.limits.context_window
        if self.context_tokens is not None:
            window = min(window, self.context_tokens)
        return max(window - self.reserve_tokens, window // 4)


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """What shortening has done: messages that are summed up, tokens that were and are left."""

    messages: int
    before: int
    after: int


class Compactor:
    """Shortens the conversation of one run, under the session's lock, which the run holds.

    Args:
        settings: When and how.
        transcript: Where it is written down.
        run: Whose run it is.
        hooks: Told before and after.
        emit: Tells whoever watches.
    """

    def __init__(
        self,
        settings: CompactionSettings,
        transcript: Transcript,
        run: RunContext,
        hooks: Hooks,
        emit: Callable[[Stream, JsonObject], None],
    ) -> None:
        self._settings = settings
        self._transcript = transcript
        self._run = run
        self._hooks = hooks
        self._emit = emit

    async def __call__(
        self, turn: Turn, model: Model, *, overflow: bool
    ) -> Sequence[Message] | None:
        """The conversation, shorter; None if it fits, or cannot be made shorter."""
        room = self._settings.room(model)
        tokens = estimate(turn.messages, turn.system)
        if not overflow and (tokens <= room or not self._settings.enabled):
            return None
        # A model that says so knows better than the estimate: then half has to go.
        most = estimate(turn.messages) // 2 if overflow else room // 2
        keep = min(self._settings.keep_tokens, most)
        done = await self._compact(model, keep, tokens, turn.system)
        return None if done is None else self._transcript.messages()

    async def compact(self, model: Model, wishes: str = "") -> CompactionResult | None:
        """Shortens it because a person wants that; None if there is nothing to gain.

        Raises:
            ModelError: It could not be summed up.
            TranscriptError: It could not be written down.
        """
        tokens = estimate(self._transcript.messages())
        keep = min(self._settings.keep_tokens, tokens // 2)
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
            summary = await summarize(self._settings.model or model, found.messages, wishes)
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
