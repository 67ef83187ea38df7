"""The hooks of runs and messages: what each is shown, what it may answer, and what that means.

    before_model_resolve(ModelResolve) -> ModelOverride | None       provider and model; first wins
    before_prompt_build(PromptBuild) -> PromptAdditions | None       context and system prompt
    before_agent_start(PromptBuild) -> both of these | None          legacy: in either phase
    before_agent_reply(PromptBuild) -> ClaimedReply | None           answers instead of the model
    agent_end(AgentEnd)                                              watches
    before_compaction, after_compaction(CompactionEvent)             watch
    before_install(Install) -> InstallDecision | None                may block
    tool_result_persist(ToolMessage) -> ToolMessage | None           rewrites, at once
    message_received, message_sent(MessageEvent)                     watch
    message_sending(MessageEvent) -> SendDecision | None             rewrites, cancels
    session_start, session_end(SessionEvent)                         watch
    gateway_start, gateway_stop(GatewayEvent)                        watch

An answer is the dataclass, or an object with the same keys in camelCase.
"""

import dataclasses
import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from clawmode.context import RunContext
from clawmode.messages import Message, ToolMessage
from clawmode.tools.hooks import Hooks, RegisteredHook
from clawmode.types import JsonObject, JsonValue

logger = logging.getLogger("clawmode.hooks")

END_SECONDS = 30.0


# ---- What they are shown ----


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelResolve:
    """A run that is about to choose its model. There is no session yet."""

    prompt: str
    run: RunContext


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptBuild:
    """A run whose prompt is about to be made.

    Attributes:
        messages: The conversation so far; empty while the session is not loaded.
    """

    prompt: str
    run: RunContext
    messages: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEnd:
    """A run that has ended."""

    run: RunContext
    status: str
    messages: tuple[Message, ...]
    metadata: JsonObject
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionEvent:
    """A conversation that is, or was, shortened.

    Attributes:
        summary: What was left; empty before.
    """

    run: RunContext
    messages: int
    tokens: int
    summary: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Install:
    """Something that is about to be installed, laid out in a folder to be looked at."""

    kind: str
    name: str
    version: str
    folder: str
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageEvent:
    """A message on its way, from a channel or to one."""

    text: str
    channel: str
    target: str = ""
    sender: str = ""
    session_key: str = ""
    error: str | None = None

    def to_json(self) -> JsonObject:
        """For scripts."""
        told: JsonObject = {
            "text": self.text,
            "channel": self.channel,
            "target": self.target,
            "sender": self.sender,
            "sessionKey": self.session_key,
        }
        return told if self.error is None else {**told, "error": self.error}


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEvent:
    """A session that begins or ends."""

    key: str
    id: str
    agent_id: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayEvent:
    """A gateway that starts or stops."""

    address: str = ""
    reason: str = ""


# ---- What they may answer ----


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOverride:
    """Which model to use; empty leaves it."""

    provider: str = ""
    model: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptAdditions:
    """What goes into the prompt.

    Attributes:
        prepend_context: Before what the person said, for this turn.
        system_prompt: Instead of the one that was built.
        prepend_system_context: Before it; stable text, which providers can cache.
        append_system_context: After it.
    """

    prepend_context: str = ""
    system_prompt: str = ""
    prepend_system_context: str = ""
    append_system_context: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedReply:
    """An answer instead of the model's. Empty, or `silent`: none at all."""

    text: str = ""
    silent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallDecision:
    """Whether something is blocked. `block=False` decides nothing."""

    block: bool = False
    block_reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendDecision:
    """What becomes of a message. `cancel=False` decides nothing."""

    text: str | None = None
    cancel: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Legacy:
    """What `before_agent_start` may say: all that the two hooks after it may."""

    provider: str = ""
    model: str = ""
    prepend_context: str = ""
    system_prompt: str = ""
    prepend_system_context: str = ""
    append_system_context: str = ""


# ---- Their rules ----


@dataclass(slots=True)
class AgentHooks:
    """Runs the hooks of runs and messages by their rules."""

    hooks: Hooks = field(default_factory=Hooks)

    async def choose_model(self, event: ModelResolve) -> ModelOverride:
        """What hooks say about the model: of each field, the first that says something."""
        chosen = ModelOverride()
        async for answer in self._answers("before_model_resolve", event, ModelOverride):
            chosen = _first(chosen, answer)
        legacy = PromptBuild(prompt=event.prompt, run=event.run)
        async for answer in self._answers("before_agent_start", legacy, _Legacy):
            override = ModelOverride(provider=answer.provider, model=answer.model)
            chosen = _first(chosen, override)
        return chosen

    async def build_prompt(self, event: PromptBuild) -> PromptAdditions:
        """What hooks add to the prompt: contexts one after the other, the first system prompt."""
        found = [it async for it in self._answers("before_prompt_build", event, PromptAdditions)]
        async for answer in self._answers("before_agent_start", event, _Legacy):
            known = {each.name: getattr(answer, each.name) for each in fields(PromptAdditions)}
            found.append(PromptAdditions(**known))

        def joined(name: str) -> str:
            return "\n\n".join(text for each in found if (text := getattr(each, name)))

        return PromptAdditions(
            prepend_context=joined("prepend_context"),
            system_prompt=next((each.system_prompt for each in found if each.system_prompt), ""),
            prepend_system_context=joined("prepend_system_context"),
            append_system_context=joined("append_system_context"),
        )

    async def claim_reply(self, event: PromptBuild) -> ClaimedReply | None:
        """The answer of the first hook that wants the turn; None if the model is to be asked."""
        async for answer in self._answers("before_agent_reply", event, ClaimedReply):
            return answer
        return None

    async def end_run(self, event: AgentEnd) -> None:
        """Shows how a run ended."""
        await self.hooks.notify("agent_end", event, END_SECONDS)

    def persist(self, message: ToolMessage) -> ToolMessage:
        """A tool result as hooks want it kept. Whose result it is, they cannot change."""
        for registered in self.hooks.of("tool_result_persist"):
            answer = registered.ask_now(message).answer
            if isinstance(answer, ToolMessage):
                message = replace(answer, call_id=message.call_id, name=message.name)
            elif answer is not None:
                kind = type(answer).__name__
                logger.error("hook %s of tool_result_persist: %s", registered.name, kind)
        return message

    async def inspect_install(self, event: Install) -> str | None:
        """Why something must not be installed; None if nobody objects. A block is final."""
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
        """A message as it is to be sent; None if a hook cancelled it, which is final.

        A hook that breaks down has not let it pass.
        """
        for registered in self.hooks.of("message_sending"):
            answered = await registered.ask(event)
            answer = None if answered.failed else _read(answered.answer, SendDecision)
            broken = answered.failed or (answer is None and answered.answer is not None)
            if broken:
                logger.error("hook %s of message_sending: the message is not sent", answered.name)
                return None
            if answer is not None and answer.cancel:
                return None
            if answer is not None and answer.text is not None:
                event = replace(event, text=answer.text)
        return event

    async def _answers(self, name: str, event: object, kind: "type[T]") -> "AsyncIterator[T]":
        for registered in self.hooks.of(name):
            answer = await _ask(registered, event, kind)
            if answer is not None:
                yield answer


T = TypeVar("T")


async def _ask(registered: RegisteredHook, event: object, kind: type[T]) -> T | None:
    """What a hook answers; None if that is nothing, or nothing that can be meant."""
    answered = await registered.ask(event)
    if answered.failed or answered.answer is None:
        return None
    read = _read(answered.answer, kind)
    if read is None:
        shown = type(answered.answer).__name__
        logger.error("hook %s of %s: %s is no answer", answered.name, registered.event, shown)
    return read


def _read(answer: object, kind: "type[T]") -> "T | None":
    """An answer, as the dataclass or as JSON; None if it is neither."""
    known = {_camel(each.name): each for each in fields(kind)}  # pyrefly: ignore
    if isinstance(answer, kind):
        given = {each.name: getattr(answer, each.name) for each in known.values()}
        fit = (_fits(each, given[each.name]) or given[each.name] is None for each in known.values())
        return answer if all(fit) else None
    if not isinstance(answer, Mapping):
        return None
    read: dict[str, Any] = {}
    for key, value in answer.items():
        each = known.get(str(key))
        if each is None or not _fits(each, value):
            return None
        read[each.name] = value
    return kind(**read)


def _fits(each: "dataclasses.Field[Any]", value: JsonValue) -> bool:
    if isinstance(each.default, bool):
        return isinstance(value, bool)
    return isinstance(value, str)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _first(chosen: ModelOverride, answer: ModelOverride) -> ModelOverride:
    return ModelOverride(
        provider=chosen.provider or answer.provider, model=chosen.model or answer.model
    )
