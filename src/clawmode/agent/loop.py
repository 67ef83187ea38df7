"""The loop: asks a model, makes the calls that it wants, and again, until it has nothing to ask.

A function over messages, tools and models that emits events. What goes wrong with a model is an
outcome, not an exception; what is cancelled leaves a record of how far it came.
"""

import json
import logging
import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, TypeAlias

import anyio

from clawmode.agent.events import Stream
from clawmode.agent.intake import Intake
from clawmode.agent.toolbox import ABORTED, Toolbox, fail
from clawmode.foreign import message_of, must_propagate
from clawmode.messages import (
    AssistantMessage,
    Message,
    Text,
    ToolCall,
    ToolMessage,
    Usage,
)
from clawmode.models.base import (
    FINAL,
    RETRYABLE,
    CallBegun,
    Chunk,
    ErrorKind,
    Finished,
    Model,
    ModelError,
    ModelEvent,
    ModelRequest,
    TextDelta,
    TextEnd,
    ThinkingDelta,
    ThinkingLevel,
)
from clawmode.redaction import KnownSecrets
from clawmode.sessions.sanitize import bounded, bounded_parts
from clawmode.tasks import backoff
from clawmode.types import JsonObject

logger = logging.getLogger("clawmode.agent")

Status: TypeAlias = Literal["ok", "error", "aborted", "timeout"]
Problem: TypeAlias = ErrorKind | Literal["too_many_turns", "repeats"]

MAX_BACKOFF = 30.0
MAX_RETRY_AFTER = 60.0
MAX_ANSWER_CHARS = 4 << 20
"""Of one answer, thoughts included. The longest that models are made for have a quarter of that."""
REPEATS_NOTED, REPEATS_ENDED = 3, 6
"""After how many calls of the same kind with the same answer the model is told, and stopped."""

SKIPPED = "Skipped to process an incoming message."
REPEATED = "[This is the same call as before, with the same result. Do something else, or answer.]"


class Sink(Protocol):
    """Where a run's doings go. None of it may raise, or block for long."""

    def emit(self, stream: Stream, data: JsonObject) -> None:
        """An event, for whoever watches."""
        ...

    def record(self, message: Message) -> None:
        """A message, for the transcript: written when this returns."""
        ...

    async def secure(self) -> None:
        """Waits until what was recorded outlives the machine."""
        ...

    def trace(self, kind: str, data: JsonObject) -> None:
        """A note, for the trajectory."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopLimits:
    """How long and how often.

    Attributes:
        max_turns: Requests to the model.
        retries: More tries of a request that failed and may go well.
        retry_seconds: Before the first of them; then twice as long, and so on.
        idle_seconds: For each model: without a chunk for so long its request is given up.
    """

    max_turns: int = 500
    retries: int = 2
    retry_seconds: float = 1.0
    idle_seconds: Callable[[Model], float] = lambda model: 120.0


class Shorten(Protocol):
    """Makes a conversation shorter."""

    async def __call__(
        self, turn: "Turn", model: Model, *, overflow: bool
    ) -> Sequence[Message] | None:
        """The conversation that stands for the turn's; None if that is as short as it gets.

        Args:
            turn: Whose conversation.
            model: Who is to read it.
            overflow: The model has said that it is too long; else it may be.
        """
        ...


@dataclass(slots=True, kw_only=True)
class Turn:
    """What one run of the loop works on, and what has come of it.

    Attributes:
        models: The one to ask, and those to fall back to.
        messages: The conversation; grows.
        intake: What people say meanwhile, read before each request.
        shorten: Makes a conversation shorter that is too long for a model.
        until_decided: Waits as long as the calls that were made wait for nothing but people.
        take_place: Waits until the run may go on: others do while it waits for people.
        heard: Whether something of the present answer was passed on.
        turns: How often the model was asked.
        requests: Requests that were sent for that, with those that failed.
        errors: Requests that failed, by the kind of error.
        known: Secrets of which no piece is passed on alone: who gets the pieces strikes out whole
            ones only.
    """

    models: Sequence[Model]
    toolbox: Toolbox
    system: str
    messages: list[Message]
    sink: Sink
    limits: LoopLimits = field(default_factory=LoopLimits)
    thinking: ThinkingLevel = "off"
    run_id: str = ""
    cache_key: str = ""
    intake: Intake = field(default_factory=Intake)
    shorten: "Shorten | None" = None
    until_decided: Callable[[], Awaitable[None]] | None = None
    take_place: Callable[[], Awaitable[None]] | None = None
    usage: Usage = field(default_factory=Usage)
    turns: int = 0
    requests: int = 0
    tool_calls: int = 0
    model: Model | None = None
    heard: bool = False
    errors: Counter[str] = field(default_factory=Counter[str])
    known: KnownSecrets = field(default_factory=KnownSecrets)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it ended.

    Attributes:
        reply: The model's last words.
        problem: What kind of error it was.
    """

    status: Status
    reply: AssistantMessage | None = None
    error: str | None = None
    problem: Problem | None = None


async def run_loop(turn: Turn) -> Outcome:
    """Runs until the model is done, or cannot go on. If it is cancelled, that is recorded."""
    repeats = _Repeats()
    while turn.turns < turn.limits.max_turns:
        for said in turn.intake.read():
            _add(turn, said)
        try:
            reply = await _ask(turn)
        except ModelError as error:
            return Outcome("error", None, str(error), error.kind)
        _add(turn, reply)
        turn.usage += reply.usage
        turn.sink.emit("assistant", {"message": reply.text})
        if not reply.calls and turn.intake.finish():
            return Outcome("ok", reply)
        await turn.sink.secure()  # before anything has an effect
        await _call_all(turn, reply.calls, repeats)
        if (times := repeats.lost()) is not None:
            names = ", ".join(sorted({call.name for call in reply.calls}))
            text = f"The model made the same call of {names} {times} times, with the same result."
            return Outcome("error", reply, text, "repeats")
        await _until_decided(turn)
        if turn.take_place is not None:
            await turn.take_place()
    text = f"The model was asked {turn.limits.max_turns} times and had still not finished."
    return Outcome("error", None, text, "too_many_turns")


async def _until_decided(turn: Turn) -> None:
    """Asks no model while a person decides: all that it could do, and be paid for, is to wait.

    What people say to the run meanwhile is passed on at once.
    """
    if turn.until_decided is None:
        return

    async def listen(scope: anyio.CancelScope) -> None:
        await turn.intake.arrival()
        scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listen, tasks.cancel_scope)
        await turn.until_decided()
        tasks.cancel_scope.cancel()


def _add(turn: Turn, message: Message) -> None:
    turn.messages.append(message)
    turn.sink.record(message)


# ---- Asking ----


async def _ask(turn: Turn) -> AssistantMessage:
    """The answer of the first model that gives one.

    Raises:
        ModelError: None does.
    """
    turn.turns += 1
    failed: ModelError | None = None
    for number, model in enumerate(turn.models):
        if failed is not None:
            tried = turn.models[number - 1]
            step: JsonObject = {
                "from": f"{tried.provider}/{tried.name}",
                "to": f"{model.provider}/{model.name}",
                "error": failed.kind,
            }
            turn.sink.trace("model.fallback_step", step)
        turn.model = model
        try:
            return await _try(turn, model)
        except ModelError as error:
            if error.kind in FINAL:
                raise
            failed = error
    assert failed is not None, "a run has at least one model"
    raise failed


async def _try(turn: Turn, model: Model) -> AssistantMessage:
    """Asks a model; if the conversation is too long for it, with a shorter one."""
    await _shorten(turn, model, overflow=False)
    try:
        return await _try_often(turn, model)
    except ModelError as error:
        if error.kind != "context_overflow" or not await _shorten(turn, model, overflow=True):
            raise
    return await _try_often(turn, model)


async def _shorten(turn: Turn, model: Model, *, overflow: bool) -> bool:
    shorter = None if turn.shorten is None else await turn.shorten(turn, model, overflow=overflow)
    if shorter is None:
        return False
    turn.messages = list(shorter)
    return True


async def _try_often(turn: Turn, model: Model) -> AssistantMessage:
    request = ModelRequest(
        system=turn.system,
        messages=tuple(turn.messages),
        tools=turn.toolbox.definitions(),
        thinking=turn.thinking,
        max_tokens=model.limits.max_tokens,
        exact_tools=turn.toolbox.exact,
        cache_key=turn.cache_key,
        run_id=turn.run_id,
    )
    attempt = 0
    while True:
        if turn.heard:  # of an answer that came to nothing, whoever gave it
            turn.sink.emit("assistant", {"reset": True})
        turn.heard = False
        try:
            answer = await _Listener(turn).hear(model, request)
            turn.heard = False
            turn.requests += 1
            return answer
        except ModelError as error:
            attempt += 1
            turn.errors[error.kind] += 1
            turn.requests += error.sent
            note: JsonObject = {"error": error.kind, "text": str(error)[:500], "attempt": attempt}
            turn.sink.trace("model.failed", note)
            if error.kind not in RETRYABLE or attempt > turn.limits.retries:
                raise
            await anyio.sleep(_pause(error, attempt, turn.limits.retry_seconds))


def _pause(error: ModelError, attempt: int, first: float) -> float:
    wanted = error.retry_after or 0.0
    if wanted > MAX_RETRY_AFTER:
        raise error  # nobody waits that long; another model may be free
    return max(wanted, backoff(attempt, first, MAX_BACKOFF))


class _Listener:
    """Hears one answer, passes it on as it comes, and keeps what came if it is cut off."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._text: list[str] = []
        self._chars = 0
        self._held: tuple[Stream, str] = ("assistant", "")

    async def hear(self, model: Model, request: ModelRequest) -> AssistantMessage:
        idle = self._turn.limits.idle_seconds(model)
        try:
            with anyio.CancelScope(deadline=anyio.current_time() + idle) as watchdog:
                async with model.stream(request) as events:
                    async for event in self._watched(events, watchdog, idle):
                        if isinstance(event, Finished):
                            self._pass_on(event)
                            return event.message
                        self._pass_on(event)
                        if self._chars > MAX_ANSWER_CHARS:
                            text = f"said more than {MAX_ANSWER_CHARS} characters without an end"
                            raise ModelError("garbage", f"{model.provider}/{model.name} {text}")
        except ModelError:
            raise
        except BaseException as error:
            if must_propagate(error):
                self._keep_partial(model)
                raise
            logger.exception("%s/%s: %s", model.provider, model.name, type(error).__name__)
            text = (
                f"{model.provider}/{model.name} failed: {type(error).__name__}: {message_of(error)}"
            )
            raise ModelError("server", text) from None
        if watchdog.cancelled_caught:
            text = f"{model.provider}/{model.name} sent nothing for {idle:g} s"
            raise ModelError("timeout", text)
        raise ModelError("garbage", f"{model.provider}/{model.name} stopped in the middle")

    async def _watched(
        self, events: AsyncIterator[ModelEvent], watchdog: anyio.CancelScope, idle: float
    ) -> AsyncIterator[ModelEvent]:
        async for event in events:
            watchdog.deadline = math.inf
            yield event
            watchdog.deadline = anyio.current_time() + idle

    def _say(self, stream: Stream, text: str) -> None:
        """Passes on a piece of a text, but for an end that may be the beginning of a secret."""
        if stream != self._held[0]:
            self._say_rest()
        text = self._held[1] + text
        said = text[: len(text) - self._turn.known.partial_length(text)]
        self._held = stream, text[len(said) :]
        if said:
            self._turn.sink.emit(stream, {"delta": said})

    def _say_rest(self) -> None:
        stream, text = self._held
        self._held = stream, ""
        if text:
            self._turn.sink.emit(stream, {"delta": text})

    def _pass_on(self, event: ModelEvent) -> None:
        sink = self._turn.sink
        self._turn.heard = True
        if not isinstance(event, (TextDelta, ThinkingDelta, Chunk)):
            self._say_rest()
        match event:
            case TextDelta(text):
                self._text.append(text)
                self._chars += len(text)
                self._say("assistant", text)
            case TextEnd(text):
                sink.emit("assistant", {"text": text})
            case ThinkingDelta(text):
                self._chars += len(text)
                self._say("thinking", text)
            case CallBegun(name):
                sink.emit("assistant", {"call": name})
            case Chunk(size):
                self._chars += size
            case Finished():
                pass

    def _keep_partial(self, model: Model) -> None:
        """The run is stopped: what was said is said."""
        self._say_rest()
        if said := "".join(self._text):
            cut = AssistantMessage(
                content=(Text(said),), provider=model.provider, model=model.name, stop="aborted"
            )
            _add(self._turn, cut)


# ---- Calling ----


async def _call_all(turn: Turn, calls: Sequence[ToolCall], repeats: "_Repeats") -> None:
    """Makes the calls of one message: side by side, unless one of them has to be alone."""
    results: dict[str, ToolMessage] = {}
    turn.tool_calls += len(calls)

    async def make(call: ToolCall) -> None:
        result = await _call(turn, call)
        watched = result.is_error or not turn.toolbox.may_repeat(call)
        if watched and repeats.note(call, turn.toolbox.gist(result)) >= REPEATS_NOTED:
            result = replace(result, content=(*result.content, Text(REPEATED)))
        results[call.id] = result
        turn.sink.record(result)

    try:
        if any(turn.toolbox.runs_alone(call) for call in calls):
            for call in calls:
                if not turn.intake.waits():
                    await make(call)
        elif not turn.intake.waits():  # all of them, or none
            async with anyio.create_task_group() as tasks:
                for call in calls:
                    tasks.start_soon(make, call)
        for call in calls:
            if call.id not in results:
                results[call.id] = fail(call, SKIPPED)
                turn.sink.record(results[call.id])
    finally:
        for call in calls:
            if call.id not in results:  # cancelled
                results[call.id] = fail(call, ABORTED)
                turn.sink.record(results[call.id])
        turn.messages += [results[call.id] for call in calls]


async def _call(turn: Turn, call: ToolCall) -> ToolMessage:
    began = anyio.current_time()
    about: JsonObject = {"callId": call.id, "name": call.name}
    turn.sink.emit("tool", {"phase": "start", **about, "args": bounded(call.arguments)})
    end: JsonObject = {"isError": True}
    try:
        result = await turn.toolbox.call(call)
        end = {"isError": result.is_error, "result": bounded_parts(result.content)}
        return result
    except BaseException as error:
        if must_propagate(error):
            end["state"] = "cancelled"
            raise
        logger.exception("the call of %s failed in the host", call.name)
        return fail(call, f"The host failed: {type(error).__name__}")
    finally:
        ms = round((anyio.current_time() - began) * 1000)
        turn.sink.emit("tool", {"phase": "end", **about, **end, "ms": ms})


class _Repeats:
    """Notices a model that makes the same call over and over and gets the same answer."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[str, int]] = {}
        self._now: dict[str, tuple[str, int]] = {}

    def note(self, call: ToolCall, result: str) -> int:
        """How many messages in a row have had this call with this result."""
        key = json.dumps([call.name, call.arguments], sort_keys=True)
        before, count = self._before.get(key, ("", 0))
        self._now[key] = (result, count + 1 if before == result else 1)
        return self._now[key][1]

    def lost(self) -> int | None:
        """For how many messages nothing else has been done, if that is too many."""
        least = min((count for _, count in self._now.values()), default=0)
        self._before = self._now
        self._now = {}
        return least if least >= REPEATS_ENDED else None
