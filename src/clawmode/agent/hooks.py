"""The hooks of runs and messages: their events, their answers, and the rules for these.

    before_model_resolve(ModelResolve) -> ModelOverride | None       provider and model; first wins
    before_prompt_build(PromptBuild) -> PromptAdditions | None       context and system prompt
    before_agent_start(PromptBuild) -> both of these | None          legacy: in either phase
    before_agent_reply(PromptBuild) -> ClaimedReply | None           answers instead of the model
    agent_end(AgentEnd)                                              observes
    before_compaction, after_compaction(CompactionEvent)             observe
    before_install(Install) -> InstallDecision | None                may block
    tool_result_persist(ToolMessage) -> ToolMessage | None           rewrites; synchronous
    message_received, message_sent(MessageEvent)                     observe
    message_sending(MessageEvent) -> SendDecision | None             rewrites, cancels
    session_start, session_end(SessionEvent)                         observe
    gateway_start, gateway_stop(GatewayEvent)                        observe

An answer is the dataclass, or a mapping with the same keys in camelCase.
"""

import dataclasses
import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import field, fields, replace
from typing import Any, TypeVar

from clawmode.context import RunContext
from clawmode.messages import Message, ToolMessage
from clawmode.records import to_camel
from clawmode.tools.hooks import Hooks
from clawmode.types import JsonObject, JsonValue, dataclass

logger = logging.getLogger("clawmode.hooks")

END_SECONDS = 30.0


# ---- Events ----


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelResolve:
    """A run before its model is chosen. Its session is not loaded yet."""

    prompt: str
    run: RunContext


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptBuild:
    """A run before its prompt is built.

    Attributes:
        messages: The conversation so far; empty while the session is not loaded.
    """

    prompt: str
    run: RunContext
    messages: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEnd:
    """A run that has ended, with the messages of the run."""

    run: RunContext
    status: str
    messages: tuple[Message, ...]
    metadata: JsonObject
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionEvent:
    """A conversation before or after its compaction.

    Attributes:
        messages: The number of messages that the summary replaces.
        tokens: The estimated tokens of the conversation before.
        summary: The summary; empty in `before_compaction`.
    """

    run: RunContext
    messages: int
    tokens: int
    summary: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Install:
    """A plugin or skill before its installation.

    Attributes:
        folder: The folder with its files, to be inspected.
    """

    kind: str
    name: str
    version: str
    folder: str
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageEvent:
    """A message from a channel or to one."""

    text: str
    channel: str
    target: str = ""
    sender: str = ""
    session_key: str = ""
    error: str | None = None

    def to_json(self) -> JsonObject:
        """Returns the payload for the operator's scripts."""
        known = {to_camel(name): value for name, value in dataclasses.asdict(self).items()}
        return {name: value for name, value in known.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEvent:
    """A session that starts, or ends by a reset or deletion."""

    key: str
    id: str
    agent_id: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayEvent:
    """A gateway that starts or stops."""

    address: str = ""
    reason: str = ""


# ---- Answers ----


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOverride:
    """The model to use. An empty field leaves the choice to others."""

    provider: str = ""
    model: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptAdditions:
    """Additions to the prompt.

    Attributes:
        prepend_context: Text before the person's message, for this turn only.
        system_prompt: A system prompt that replaces the one that was built.
        prepend_system_context: Text before the system prompt. It should not change from turn to
            turn, so that providers can cache the prompt.
        append_system_context: Text after the system prompt.
    """

    prepend_context: str = ""
    system_prompt: str = ""
    prepend_system_context: str = ""
    append_system_context: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedReply:
    """A reply instead of the model's. With an empty text, or `silent`, no reply is sent."""

    text: str = ""
    silent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallDecision:
    """Whether an installation is blocked. `block=False` leaves the decision to others."""

    block: bool = False
    block_reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendDecision:
    """Another text for a message, or its cancellation. `cancel=False` decides nothing."""

    text: str | None = None
    cancel: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Legacy:
    """The answer of `before_agent_start`: the fields of both hooks that replaced it."""

    provider: str = ""
    model: str = ""
    prepend_context: str = ""
    system_prompt: str = ""
    prepend_system_context: str = ""
    append_system_context: str = ""


# ---- Rules ----


@dataclass(slots=True)
class AgentHooks:
    """Runs the hooks of runs and messages, and combines their answers."""

    hooks: Hooks = field(default_factory=Hooks)

    async def choose_model(self, event: ModelResolve) -> ModelOverride:
        """Returns the model that hooks choose: for each field, the first answer that sets it."""
        chosen = ModelOverride()
        async for answer in self._answers("before_model_resolve", event, ModelOverride):
            chosen = _first(chosen, answer)
        legacy = PromptBuild(prompt=event.prompt, run=event.run)
        async for answer in self._answers("before_agent_start", legacy, _Legacy):
            override = ModelOverride(provider=answer.provider, model=answer.model)
            chosen = _first(chosen, override)
        return chosen

    async def build_prompt(self, event: PromptBuild) -> PromptAdditions:
        """Returns the additions of all hooks: all contexts joined, and the first system prompt."""
        found = [it async for it in self._answers("before_prompt_build", event, PromptAdditions)]
        async for answer in self._answers("before_agent_start", event, _Legacy):
            known = {it.name: getattr(answer, it.name) for it in fields(PromptAdditions)}
            found.append(PromptAdditions(**known))

        def joined(name: str) -> str:
            return "\n\n".join(text for it in found if (text := getattr(it, name)))

        return PromptAdditions(
            prepend_context=joined("prepend_context"),
            system_prompt=next((it.system_prompt for it in found if it.system_prompt), ""),
            prepend_system_context=joined("prepend_system_context"),
            append_system_context=joined("append_system_context"),
        )

    async def claim_reply(self, event: PromptBuild) -> ClaimedReply | None:
        """Returns the reply of the first hook that claims the turn; None to ask the model."""
        async for answer in self._answers("before_agent_reply", event, ClaimedReply):
            return answer
        return None

    async def end_run(self, event: AgentEnd) -> None:
        """Notifies hooks of the end of a run."""
        await self.hooks.notify("agent_end", event, END_SECONDS)

    def persist(self, message: ToolMessage) -> ToolMessage:
        """Returns a tool result as hooks rewrite it. They cannot change the call's id and name."""
        for registered in self.hooks.of("tool_result_persist"):
            answer = registered.ask_now(message).answer
            if isinstance(answer, ToolMessage):
                message = replace(answer, call_id=message.call_id, name=message.name)
            elif answer is not None:
                logger.error(
                    "hook %s of tool_result_persist must return a ToolMessage, got %s; the result "
                    "is kept unchanged",
                    registered.name,
                    type(answer).__name__,
                )
        return message

    async def inspect_install(self, event: Install) -> str | None:
        """Returns why an installation is blocked; None if no hook objects. A block is final."""
        for registered in self.hooks.of("before_install"):
            answered = await registered.ask(event)
            decision = None if answered.failed else _read(answered.answer, InstallDecision)
            broken = answered.failed or (decision is None and answered.answer is not None)
            if broken:
                return f"the hook {answered.name!r} failed"
            if decision is not None and decision.block:
                return decision.block_reason or f"blocked by the hook {answered.name!r}"
        return None

    async def send(self, event: MessageEvent) -> MessageEvent | None:
        """Returns a message as it is to be sent; None if a hook cancelled it, which is final.

        A hook that fails cancels the message: hooks may be there to keep secrets in.
        """
        for registered in self.hooks.of("message_sending"):
            answered = await registered.ask(event)
            answer = None if answered.failed else _read(answered.answer, SendDecision)
            broken = answered.failed or (answer is None and answered.answer is not None)
            if broken:
                logger.error(
                    "hook %s of message_sending failed, so the message is not sent", answered.name
                )
                return None
            if answer is not None and answer.cancel:
                return None
            if answer is not None and answer.text is not None:
                event = replace(event, text=answer.text)
        return event

    async def _answers(self, name: str, event: object, kind: "type[T]") -> "AsyncIterator[T]":
        for registered in self.hooks.of(name):
            answered = await registered.ask(event)
            if answered.failed or answered.answer is None:
                continue
            answer = _read(answered.answer, kind)
            if answer is not None:
                yield answer
                continue
            logger.error(
                "hook %s of %s must return a %s or a mapping with its keys, got %s; the answer is "
                "ignored",
                answered.name,
                name,
                kind.__name__.lstrip("_"),
                type(answered.answer).__name__,
            )


T = TypeVar("T")


def _read(answer: object, kind: "type[T]") -> "T | None":
    """Parses an answer, which is the dataclass or JSON; None if it is neither."""
    known = {to_camel(it.name): it for it in fields(kind)}  # pyrefly: ignore
    if isinstance(answer, kind):
        # A dataclass does not check its fields: a hook may have put anything there.
        given = {it.name: getattr(answer, it.name) for it in known.values()}
        fit = (_fits(it, given[it.name]) or given[it.name] is None for it in known.values())
        return answer if all(fit) else None
    if not isinstance(answer, Mapping):
        return None
    read: dict[str, Any] = {}
    for key, value in answer.items():
        member = known.get(str(key))
        if member is None or not _fits(member, value):
            return None
        read[member.name] = value
    return kind(**read)


def _fits(member: "dataclasses.Field[Any]", value: JsonValue) -> bool:
    if isinstance(member.default, bool):
        return isinstance(value, bool)
    return isinstance(value, str)


def _first(chosen: ModelOverride, answer: ModelOverride) -> ModelOverride:
    return ModelOverride(
        provider=chosen.provider or answer.provider, model=chosen.model or answer.model
    )
