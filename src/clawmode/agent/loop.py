"""The loop: asks a model, makes the calls that it asks for, and repeats until there are none.

A failing model is a way for the run to end, not an exception; a cancelled loop has recorded how far
it came.
"""

import json
import logging
from collections.abc import Sequence
from dataclasses import field, replace
from typing import Protocol

import anyio

from clawmode.agent.answers import AnswerReader
from clawmode.agent.compaction import Compactor
from clawmode.agent.events import Stream
from clawmode.agent.prompt import Prompt
from clawmode.agent.run import AgentRun, idle_limit
from clawmode.agent.toolbox import ABORTED, Toolbox, fail
from clawmode.messages import AssistantMessage, Message, Text, ToolCall, ToolMessage
from clawmode.models.base import FINAL, RETRYABLE, Model, ModelError, ModelRequest
from clawmode.sessions.sanitize import bounded, bounded_parts
from clawmode.tasks import background_tasks, backoff, must_propagate
from clawmode.text import KnownSecrets, shorten
from clawmode.types import JsonObject, dataclass

logger = logging.getLogger("clawmode.agent")

RETRIES = 2
RETRY_SECONDS = 1.0
"""The longest pause before the first retry; it doubles with each retry."""
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


@dataclass(slots=True, kw_only=True)
class Loop:
    """The loop of one run.

    Args:
        run: The run, with its settings. The loop counts in it, and sets how the run ends.
        messages: The conversation, to which the loop adds messages.
        sink: Receives everything that the run does.
        compactor: Makes a conversation shorter that is too long for a model.
        known: Secrets that are not emitted in pieces; see `AnswerReader`.
    """

    run: AgentRun
    toolbox: Toolbox
    prompt: Prompt
    messages: list[Message]
    sink: Sink
    compactor: Compactor | None = None
    known: KnownSecrets = field(default_factory=KnownSecrets)
    _repeats: "_Repeats" = field(default_factory=lambda: _Repeats())
    _heard: bool = False
    """Whether a part of the last answer, which failed, was emitted."""

    async def converse(self) -> None:
        """Runs until the model asks for no more calls, or an error ends the run.

        If the loop is cancelled, the partial answer and the cancelled calls are recorded.
        """
        run, most = self.run, self.run.agent.max_turns
        while run.turns < most:
            for said in run.intake.read():
                self._add(said)
            try:
                reply = await self._ask()
            except ModelError as error:
                return run.finish("error", str(error), error.kind)
            self._add(reply)
            run.usage += reply.usage
            self.sink.emit("assistant", {"message": reply.text})
            # A message that arrived during the answer keeps the run going, even without calls.
            if not reply.calls and run.intake.finish():
                return run.finish("ok")
            # Calls have effects: after a crash the transcript must show that they may have
            # happened.
            await self.sink.secure()
            await self._call_all(reply.calls)
            if (times := self._repeats.end_message()) is not None:
                names = ", ".join(sorted({call.name for call in reply.calls}))
                text = f"The model made the same call of {names} {times} times"
                return run.finish("error", f"{text}, with the same result.", "repeats")
            await self._until_decided()
            # The run may have given its place away to wait for a person.
            await run.place.take()
        text = f"The model was asked {most} times and had still not finished."
        run.finish("error", text, "too_many_turns")

    async def _until_decided(self) -> None:
        """Waits while a person decides: a model that is asked now could only call `wait`.

        Returns early when a message for the run arrives.
        """
        if self.run.programs is None:
            return

        async def listen(scope: anyio.CancelScope) -> None:
            await self.run.intake.arrival()
            scope.cancel()

        async with background_tasks() as tasks:
            tasks.start_soon(listen, tasks.cancel_scope)
            await self.run.programs.until_decided()

    def _add(self, message: Message) -> None:
        self.messages.append(message)
        self.sink.record(message)

    # ---- Asking ----

    async def _ask(self) -> AssistantMessage:
        """Returns the answer of the first model that does not fail.

        Raises:
            ModelError: All models failed, or the error concerns all of them.
        """
        self.run.turns += 1
        failed: ModelError | None = None
        tried = ""
        for model in self.run.resolved.models:
            name = f"{model.provider}/{model.name}"
            if failed is not None:
                step: JsonObject = {"from": tried, "to": name, "error": failed.kind}
                self.sink.trace("model.fallback_step", step)
            self.run.model, tried = model, name
            try:
                return await self._ask_model(model)
            except ModelError as error:
                if error.kind in FINAL:
                    raise
                failed = error
        assert failed is not None, "a run has at least one model"
        raise failed

    async def _ask_model(self, model: Model) -> AssistantMessage:
        """Asks one model. If the conversation is too long for it, shortens it and asks again."""
        await self._shorten(model, overflow=False)
        try:
            return await self._ask_with_retries(model)
        except ModelError as error:
            if error.kind != "context_overflow" or not await self._shorten(model, overflow=True):
                raise
        return await self._ask_with_retries(model)

    async def _shorten(self, model: Model, *, overflow: bool) -> bool:
        if self.compactor is None:
            return False
        shorter = await self.compactor(self.messages, self.prompt.text, model, overflow=overflow)
        if shorter is None:
            return False
        # The transcript does not have the context that hooks added to the last message.
        self.messages = self.prompt.add_context(shorter)
        return True

    async def _ask_with_retries(self, model: Model) -> AssistantMessage:
        run = self.run
        request = ModelRequest(
            system=self.prompt.text,
            messages=tuple(self.messages),
            tools=self.toolbox.definitions(),
            thinking=run.agent.thinking,
            max_tokens=model.limits.max_tokens,
            exact_tools=self.toolbox.exact,
            cache_key=run.session.id,
            run_id=run.id,
        )
        attempt = 0
        while True:
            if self._heard:  # the failed answer may be another model's
                self.sink.emit("assistant", {"reset": True})
            self._heard = False
            reader = AnswerReader(self.sink.emit, self.known)
            try:
                answer = await reader.read(
                    model, request, idle_limit(model.limits, run.agent, run.request)
                )
                run.requests += 1
                return answer
            except ModelError as error:
                attempt += 1
                self._heard = reader.heard
                run.errors[error.kind] += 1
                run.requests += error.sent
                note: JsonObject = {"error": error.kind, "text": shorten(str(error), 500)}
                self.sink.trace("model.failed", {**note, "attempt": attempt})
                wanted = error.retry_after or 0.0
                # Instead of a long wait, a fallback is asked.
                too_long = attempt > RETRIES or wanted > MAX_RETRY_AFTER
                if error.kind not in RETRYABLE or too_long:
                    raise
                await anyio.sleep(max(wanted, backoff(attempt, RETRY_SECONDS, MAX_BACKOFF)))
            except BaseException:
                if (cut := reader.partial(model)) is not None:
                    self._add(cut)
                raise

    # ---- Calling ----

    async def _call_all(self, calls: Sequence[ToolCall]) -> None:
        """Makes the calls of one message: concurrently, unless one of them must run alone."""
        toolbox, intake = self.toolbox, self.run.intake
        results: dict[str, ToolMessage] = {}
        self.run.tool_calls += len(calls)

        def add(result: ToolMessage) -> None:
            results[result.call_id] = result
            self.sink.record(result)

        async def make(call: ToolCall) -> None:
            result = await self._call(call)
            watched = result.is_error or not toolbox.may_repeat(call)
            if watched and self._repeats.note(call, toolbox.gist(result)) >= REPEATS_NOTED:
                result = replace(result, content=(*result.content, Text(REPEATED)))
            add(result)

        # Providers reject a conversation in which a call has no result, so every call gets one.
        missing = ABORTED
        try:
            if any(toolbox.runs_alone(call) for call in calls):
                for call in calls:
                    if not intake.waits():
                        await make(call)
            elif not intake.waits():  # concurrent calls are made or skipped together
                async with anyio.create_task_group() as tasks:
                    for call in calls:
                        tasks.start_soon(make, call)
            missing = SKIPPED
        finally:
            for call in calls:
                if call.id not in results:
                    add(fail(call, missing))
            self.messages += [results[call.id] for call in calls]

    async def _call(self, call: ToolCall) -> ToolMessage:
        began = anyio.current_time()
        about: JsonObject = {"callId": call.id, "name": call.name}
        self.sink.emit("tool", {"phase": "start", **about, "args": bounded(call.arguments)})
        end: JsonObject = {"isError": True}
        try:
            result = await self.toolbox.call(call)
            end = {"isError": result.is_error, "result": bounded_parts(result.content)}
            if result.details is not None:
                end["details"] = bounded(result.details)
            return result
        except BaseException as error:
            if must_propagate(error):
                end["state"] = "cancelled"
                raise
            logger.exception("the toolbox raised an exception for a call of %s", call.name)
            return fail(call, f"The host failed: {type(error).__name__}")
        finally:
            ms = round((anyio.current_time() - began) * 1000)
            self.sink.emit("tool", {"phase": "end", **about, **end, "ms": ms})


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
