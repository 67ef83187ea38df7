"""The loop: asks a model, makes the calls that it asks for, and repeats until there are none.

`run_loop` is a function over messages, tools and models that emits events. A failing model is an
outcome, not an exception; a cancelled loop has recorded how far it came.
"""

import json
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, TypeAlias

import anyio

from clawmode.agent.answers import AnswerReader
from clawmode.agent.events import Stream
from clawmode.agent.intake import Intake
from clawmode.agent.requests import LoopLimits, Status
from clawmode.agent.toolbox import ABORTED, Toolbox, fail
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
    ErrorKind,
    Model,
    ModelError,
    ModelRequest,
    ThinkingLevel,
)
from clawmode.redaction import KnownSecrets
from clawmode.sessions.sanitize import bounded, bounded_parts
from clawmode.tasks import backoff, must_propagate
from clawmode.types import JsonObject

logger = logging.getLogger("clawmode.agent")

Problem: TypeAlias = ErrorKind | Literal["too_many_turns", "repeats"]

MAX_BACKOFF = 30.0
MAX_RETRY_AFTER = 60.0
REPEATS_NOTED, REPEATS_ENDED = 3, 6
"""How many equal calls with equal results the model makes before it is warned, and stopped."""

SKIPPED = "Skipped to process an incoming message."
REPEATED = "[This is the same call as before, with the same result. Do something else, or answer.]"


class Sink(Protocol):
    """Receives everything that a run does. No method may raise, or block for long."""

    def emit(self, stream: Stream, data: JsonObject) -> None:
        """Emits an event to listeners."""
        ...

    def record(self, message: Message) -> None:
        """Writes a message to the transcript before it returns."""
        ...

    async def secure(self) -> None:
        """Waits until the recorded messages are on the disk."""
        ...

    def trace(self, kind: str, data: JsonObject) -> None:
        """Writes an event to the trajectory."""
        ...


class Shortener(Protocol):
    """Makes a conversation shorter that is too long for a model."""

    async def __call__(
        self, messages: Sequence[Message], system: str, model: Model, *, overflow: bool
    ) -> Sequence[Message] | None:
        """Returns a shorter conversation; None if it fits, or cannot be made shorter.

        Args:
            messages: The conversation.
            system: The system prompt.
            model: The model that is to read them.
            overflow: Whether the model has rejected the conversation as too long.
        """
        ...


@dataclass(slots=True, kw_only=True)
class Turn:
    """The input of the loop, and its state.

    Attributes:
        models: The model to ask, followed by its fallbacks.
        messages: The conversation, to which the loop adds messages.
        intake: Messages from people, read before each request.
        shorten: Makes a conversation shorter that is too long for a model.
        until_decided: Waits while all pending calls wait for the decision of a person.
        take_place: Waits for a place among the concurrent runs, after the run has given its place
            away to wait for a person.
        heard: Whether a part of the last answer, which failed, was emitted.
        turns: How many times the model was asked.
        requests: How many requests were sent for that, including failed ones.
        errors: The number of failed requests by the kind of error.
        known: Secrets that are not emitted in pieces; see `AnswerReader`.
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
    shorten: Shortener | None = None
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
    """How the loop ended.

    Attributes:
        reply: The model's last message.
        problem: The kind of error.
    """

    status: Status
    reply: AssistantMessage | None = None
    error: str | None = None
    problem: Problem | None = None


async def run_loop(turn: Turn) -> Outcome:
    """Runs until the model asks for no more calls, or an error ends the turn.

    If the loop is cancelled, the partial answer and the cancelled calls are recorded.
    """
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
        # A message that arrived during the answer keeps the run going, even without calls.
        if not reply.calls and turn.intake.finish():
            return Outcome("ok", reply)
        # Calls have effects: after a crash the transcript must show that they may have happened.
        await turn.sink.secure()
        await _call_all(turn, reply.calls, repeats)
        if (times := repeats.end_message()) is not None:
            names = ", ".join(sorted({call.name for call in reply.calls}))
            text = f"The model made the same call of {names} {times} times, with the same result."
            return Outcome("error", reply, text, "repeats")
        await _until_decided(turn)
        if turn.take_place is not None:
            await turn.take_place()
    text = f"The model was asked {turn.limits.max_turns} times and had still not finished."
    return Outcome("error", None, text, "too_many_turns")


async def _until_decided(turn: Turn) -> None:
    """Waits while a person decides: a model that is asked now could only call `wait`.

    Returns early when a message for the run arrives.
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
    """Returns the answer of the first model that does not fail.

    Raises:
        ModelError: All models failed, or the error concerns all of them.
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
            return await _ask_model(turn, model)
        except ModelError as error:
            if error.kind in FINAL:
                raise
            failed = error
    assert failed is not None, "a run has at least one model"
    raise failed


async def _ask_model(turn: Turn, model: Model) -> AssistantMessage:
    """Asks one model. If the conversation is too long for it, shortens it and asks again."""
    await _shorten(turn, model, overflow=False)
    try:
        return await _ask_with_retries(turn, model)
    except ModelError as error:
        if error.kind != "context_overflow" or not await _shorten(turn, model, overflow=True):
            raise
    return await _ask_with_retries(turn, model)


async def _shorten(turn: Turn, model: Model, *, overflow: bool) -> bool:
    if turn.shorten is None:
        return False
    shorter = await turn.shorten(turn.messages, turn.system, model, overflow=overflow)
    if shorter is None:
        return False
    turn.messages = list(shorter)
    return True


async def _ask_with_retries(turn: Turn, model: Model) -> AssistantMessage:
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
        if turn.heard:  # the failed answer may be another model's
            turn.sink.emit("assistant", {"reset": True})
        turn.heard = False
        reader = AnswerReader(turn.sink.emit, turn.known)
        try:
            answer = await reader.read(model, request, turn.limits.idle_seconds(model))
            turn.requests += 1
            return answer
        except ModelError as error:
            attempt += 1
            turn.heard = reader.heard
            turn.errors[error.kind] += 1
            turn.requests += error.sent
            note: JsonObject = {"error": error.kind, "text": str(error)[:500], "attempt": attempt}
            turn.sink.trace("model.failed", note)
            wanted = error.retry_after or 0.0
            # Instead of a long wait, a fallback is asked.
            if (
                error.kind not in RETRYABLE
                or attempt > turn.limits.retries
                or wanted > MAX_RETRY_AFTER
            ):
                raise
            pause = backoff(attempt, turn.limits.retry_seconds, MAX_BACKOFF)
            await anyio.sleep(max(wanted, pause))
        except BaseException:
            if (cut := reader.partial(model)) is not None:
                _add(turn, cut)
            raise


# ---- Calling ----


async def _call_all(turn: Turn, calls: Sequence[ToolCall], repeats: "_Repeats") -> None:
    """Makes the calls of one message: concurrently, unless one of them must run alone."""
    results: dict[str, ToolMessage] = {}
    turn.tool_calls += len(calls)

    async def make(call: ToolCall) -> None:
        result = await _call(turn, call)
        watched = result.is_error or not turn.toolbox.may_repeat(call)
        if watched and repeats.note(call, turn.toolbox.gist(result)) >= REPEATS_NOTED:
            result = replace(result, content=(*result.content, Text(REPEATED)))
        results[call.id] = result
        turn.sink.record(result)

    # Providers reject a conversation in which a call has no result, so every call gets one.
    try:
        if any(turn.toolbox.runs_alone(call) for call in calls):
            for call in calls:
                if not turn.intake.waits():
                    await make(call)
        elif not turn.intake.waits():  # concurrent calls are made or skipped together
            async with anyio.create_task_group() as tasks:
                for call in calls:
                    tasks.start_soon(make, call)
        for call in calls:
            if call.id not in results:
                results[call.id] = fail(call, SKIPPED)
                turn.sink.record(results[call.id])
    finally:
        for call in calls:
            if call.id not in results:  # the run was cancelled
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
        logger.exception("the toolbox raised an exception for a call of %s", call.name)
        return fail(call, f"The host failed: {type(error).__name__}")
    finally:
        ms = round((anyio.current_time() - began) * 1000)
        turn.sink.emit("tool", {"phase": "end", **about, **end, "ms": ms})


class _Repeats:
    """Detects a model that makes the same call over and over and gets the same result."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[str, int]] = {}
        self._now: dict[str, tuple[str, int]] = {}

    def note(self, call: ToolCall, result: str) -> int:
        """Returns how many messages in a row have had this call with this result."""
        key = json.dumps([call.name, call.arguments], sort_keys=True)
        before, count = self._before.get(key, ("", 0))
        self._now[key] = (result, count + 1 if before == result else 1)
        return self._now[key][1]

    def end_message(self) -> int | None:
        """Ends a message; returns for how many messages all calls were repeats, if too many."""
        least = min((count for _, count in self._now.values()), default=0)
        self._before = self._now
        self._now = {}
        return least if least >= REPEATS_ENDED else None
