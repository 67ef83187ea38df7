"""One session of a framework: its programs, the nested calls through the framework, its questions.

A call that the framework makes again finds its record, and continues its program with `wait`: a
program is never started twice, and a call that may have taken effect is never made again.
"""

import asyncio
import contextlib
import contextvars
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

import anyio
from pydantic_core import to_jsonable_python

from clawmode.code_mode.arguments import BadArguments, read_arguments, read_run_id
from clawmode.code_mode.code_mode import CodeMode
from clawmode.code_mode.codex import read_wait_limits
from clawmode.code_mode.results import join
from clawmode.code_mode.stores import SnapshotStore
from clawmode.exceptions import NotOpen
from clawmode.integrations.records import (
    GONE,
    LOST,
    Answer,
    Answers,
    CallRecord,
    NestedQuestion,
    Outcome,
    Pause,
    ProgramRecord,
    Records,
    call_key,
    failed,
)
from clawmode.tasks import Notifier, hold
from clawmode.tools.questions import Question
from clawmode.tools.tool import Effect, Tool, ToolContext
from clawmode.types import JsonObject, JsonValue

QUESTION_SECONDS = 2.0
"""How long a result waits for the questions of calls that are about to ask."""

SHORT_WAITS = (50.0, 200.0, 1000.0)
"""Milliseconds after which a program that is continued is looked at: usually, its calls have asked
again, or have run."""

UNANSWERED = "The call was denied, so its program has ended without an answer to its questions."
UNDER_WAY = "Another call waits for this program already: read its result."
CANCELLED = "The run that made this call was cancelled. Calls that had begun may have taken effect."

Given = TypeVar("Given")
ToolOrFunction: TypeAlias = Tool | Callable[..., Any]

Context = TypeVar("Context")
"""The framework's context of a tool call, which nested calls get."""

Run: TypeAlias = Callable[[Context, JsonObject, ToolContext], Coroutine[Any, Any, object]]
"""Makes a nested call through the framework. The result is converted to JSON: models and data
classes become objects, bytes become base64, and other objects become text."""


class RunEnds(Exception):
    """Raised by a nested call because of which the framework ends the whole run.

    The program ends, and `Session.call` raises the cause of this exception.
    """


@dataclass(slots=True)
class _Entry(Generic[Context]):
    """A call of `exec` or `wait` that is under way, or was the last, for nested calls."""

    context: Context
    variables: contextvars.Context = field(default_factory=contextvars.copy_context)
    task: asyncio.Task[Any] | None = field(default_factory=asyncio.current_task)
    ended: BaseException | None = None


class Session(Generic[Context]):
    """The programs of one session of a framework. `Sessions.open` creates it.

    Attributes:
        code_mode: Runs the programs.
        used: When the session was last opened or called, by `time.monotonic`.
    """

    def __init__(
        self, code_mode: CodeMode, store: SnapshotStore, tools: Sequence[ToolOrFunction] = ()
    ) -> None:
        self.code_mode = code_mode
        self._own_tools = tools
        self._offered: Sequence[object] | None = None
        ttl = code_mode.config.snapshot_ttl_seconds
        self._records = Records(store, code_mode.context, ttl)
        self._entries: dict[str, _Entry[Context]] = {}  # by program, or by the id of its `exec`
        self._answers: dict[str, tuple[Answer, JsonObject]] = {}  # with the input they are for
        self._locks: dict[str, anyio.Lock] = {}
        self._asked = Notifier()
        self.used = time.monotonic()
        self._other_ids = ["cell_id"] if code_mode.config.dialect == "codex" else []
        code_mode.approvals.on_question = self._on_question
        code_mode.approvals.moves = True  # the framework may bring the answer to another process

    # ---- The framework's tools ----

    def tool(
        self,
        name: str,
        description: str,
        parameters: Mapping[str, JsonValue],
        run: Run[Context],
        *,
        output_schema: Mapping[str, JsonValue] | None = None,
        effect: Effect | None = None,
    ) -> Tool:
        """Returns a tool of the framework as one that programs can call, for `CodeMode.offer`.

        Args:
            name: The name of the tool.
            description: What it does, for a model.
            parameters: JSON Schema of its input.
            run: Makes the call through the framework. Gets the context of the `exec` or `wait` that
                is under way, and runs with its context variables, so that tracing sees the nesting.
                Raises `ApprovalNeeded` if a person has to approve the call first.
            output_schema: JSON Schema of its result.
            effect: Whether it only reads.
        """

        async def execute(params: JsonObject, context: ToolContext) -> Any:
            program = context.call_id.partition(":")[0]
            entry = self._entries.get(program) or self._entries.get(context.parent_id or "")
            if entry is None:
                raise NotOpen("The framework has not entered this program in this process.")
            # A task of its own, because only a task can have other context variables.
            made = run(entry.context, params, context)
            try:
                result = await asyncio.create_task(made, context=entry.variables.copy())
            except RunEnds as end:
                if entry.ended is None and entry.task is not None:  # only the first may cancel
                    entry.ended = end.__cause__
                    entry.task.cancel()
                raise
            return to_jsonable_python(
                result, bytes_mode="base64", inf_nan_mode="null", fallback=str
            )

        return Tool(
            name, description, parameters, execute, output_schema=output_schema, effect=effect
        )

    def offer(self, given: Sequence[Given], make: Callable[[Given], Tool]) -> None:
        """Offers tools of the framework to programs, besides those of `Sessions`.

        Args:
            given: The framework's tools. If they are equal to those of the last time, nothing
                changes.
            make: Makes a tool of one of them, usually with `tool`.
        """
        if given != self._offered:
            self.code_mode.offer([*self._own_tools, *map(make, given)])
            self._offered = given

    def definitions(self, *, max_chars: int | None = None) -> tuple[JsonObject, JsonObject]:
        """Returns `exec` and `wait`, each with `name`, `description` and `inputSchema`."""
        first, second = self.code_mode.definitions("mcp", max_chars=max_chars)
        return first, second

    # ---- Calls ----

    async def call(
        self,
        name: str,
        arguments: object,
        call_id: str,
        context: Context,
        *,
        answers: Answers = None,
        again: bool | None = None,
    ) -> Outcome:
        """Makes a call of `exec` or `wait`, or continues one that was entered before.

        If the caller is cancelled, the program ends.

        Args:
            name: `exec` or `wait`.
            arguments: The arguments of the model: an object, or JSON text.
            call_id: The framework's id of the call, the same when the call is made again.
            context: The framework's context, for nested calls.
            answers: The answers to the open questions of the program.
            again: Whether the call was made before, if the framework knows it. If it was, and with
                answers to single questions, no program is started. If it was not, the model has
                used an id again.
        """
        key = call_key(name, arguments, call_id)
        try:
            async with hold(self._locks, key):  # the same call may be entered twice at once
                record = None if again is False else await self._records.call(key)
                if record is None:
                    if name == "exec" and (again or (answers and isinstance(answers, Mapping))):
                        return failed("runtime_unavailable", GONE)
                    record = CallRecord()
                    if name == "wait":
                        with contextlib.suppress(BadArguments):  # `wait` says what is wrong
                            given = read_arguments(arguments)
                            record.program = read_run_id(given, *self._other_ids)
                    await self._records.write({key: record})
                    if name == "exec":
                        self._entries[call_id] = _Entry(context)
                        made = self._made("exec", arguments, call_id)
                        return await self._finish(key, record, made, call_id)
                elif record.result is not None:
                    if not (await self._records.program(record.program)).is_open:
                        return Outcome(record.result)
                elif not record.program:
                    return await self._close(key, record, failed("runtime_unavailable", LOST))
                is_new = record.result is None and not answers
                if is_new and record.program in self._locks:  # a turn has several `wait`s
                    return await self._close(key, CallRecord(), failed("invalid_input", UNDER_WAY))
                # The model may end a program whose question nobody has answered yet.
                is_codex = self.code_mode.config.dialect == "codex" and name == "wait"
                ends = is_codex and read_wait_limits(read_arguments(arguments)).terminate
                # The arguments of a `wait` may have limits; those of an `exec` are no `wait`.
                resumed = {"runId": record.program} if name == "exec" else arguments
                async with hold(self._locks, record.program):
                    self._entries[record.program] = _Entry(context)
                    if await self._answer(record.program, answers) and not ends:
                        made = self._continued(record.program, call_id)
                    else:
                        made = self._made("wait", resumed, call_id)
                    return await self._finish(key, record, made, call_id)
        finally:
            self.used = time.monotonic()

    async def end(self, name: str, call_id: str) -> None:
        """Ends the program of a call that waits for people, if nobody will answer it."""
        for key, record in (await self._records.calls(name, call_id)).items():
            if await self.asked(record.program):
                await self.code_mode.abort(record.program)
                await self._close(key, record, failed("aborted", UNANSWERED))

    async def keep(self, call_id: str, data: bytes | None) -> None:
        """Keeps data of the adapter with a call, for when the call is made again."""
        if data is not None:
            await self._records.keep(call_id, data)

    async def kept(self, call_id: str) -> bytes | None:
        """Returns what `keep` has kept; None if there is nothing."""
        return await self._records.kept(call_id)

    async def asked(self, program: str) -> tuple[NestedQuestion, ...]:
        """Returns the questions that a program waits for; none if it waits for nobody."""
        record = await self._records.program(program)
        return tuple(record.pauses[-1].asked) if record.is_open else ()

    async def pauses(self, name: str, arguments: object, call_id: str) -> list[Outcome]:
        """Returns all pauses of a call that has not ended, for frameworks that replay them."""
        key = call_key(name, arguments, call_id)
        call = await self._records.call(key)
        if call is None or not call.program:
            return []
        program, waiting = await self._records.program(call.program), call.result or {}
        return [
            Outcome(waiting, tuple(pause.asked)) for pause in program.pauses if pause.call == key
        ]

    async def _made(self, name: str, arguments: object, call_id: str) -> Outcome:
        result = await self.code_mode.call(name, arguments, call_id=call_id, with_images=True)
        return Outcome(result, await self._questions(result))

    async def _continued(self, program: str, call_id: str) -> Outcome:
        """Resumes a program that has asked people.

        A plain `wait` gives people its whole time. Here nobody is asked before it has returned, so
        it returns as soon as every call of the program waits for a person.
        """
        earlier: dict[str, JsonValue] = {}
        for patience in (*SHORT_WAITS, None):
            made = await self.code_mode.wait(program, call_id=call_id, yield_ms=patience)
            earlier = join(earlier, made.to_json(with_images=True))
            asked = await self._questions(earlier)
            # Without open calls, the program is only slow, unless it yields itself.
            is_done = made.status != "waiting" or made.reason == "yield"
            if is_done or (asked and len(asked) == len(made.pending_tool_calls)):
                break
        return Outcome(earlier, asked)

    async def _finish(
        self, key: str, record: CallRecord, made: Awaitable[Outcome], call_id: str
    ) -> Outcome:
        """Awaits an outcome and keeps it."""
        try:
            outcome = await made
        except asyncio.CancelledError:
            with anyio.CancelScope(shield=True):
                if record.program:
                    await self.code_mode.abort(record.program)
                entry = self._entries.pop(record.program or call_id, None)
                await self._close(key, record, failed("aborted", CANCELLED))
            if entry is None or entry.ended is None or entry.task is None:
                raise
            entry.task.uncancel()
            raise entry.ended from None
        if outcome.run_id and not record.program:
            self._entries[outcome.run_id] = self._entries.pop(call_id)
            record.program = outcome.run_id
        if not outcome.run_id:
            self._entries.pop(call_id, None)
        if outcome.result.get("code") == "invalid_input" and await self.asked(record.program):
            return outcome  # another process continues the program, and will keep its outcome
        return await self._close(key, record, outcome)

    async def _close(self, key: str, record: CallRecord, outcome: Outcome) -> Outcome:
        """Keeps an outcome, and the questions of the program if it has any."""
        rows: dict[str, CallRecord | ProgramRecord | None] = {key: record}
        record.result = outcome.result
        if record.program:
            program = await self._records.program(record.program)
            pause = Pause(key, list(outcome.asked))
            if outcome.asked and pause not in program.pauses[-1:]:  # put again, it is the same one
                program.pauses.append(pause)
            if program.pauses:
                program.is_open = bool(outcome.asked)
                rows[record.program] = program if outcome.run_id else None
            if not outcome.run_id:
                self._forget_answers(record.program)
                self._entries.pop(record.program, None)
        await self._records.write(rows)
        return outcome

    # ---- Questions ----

    async def _questions(self, result: Mapping[str, JsonValue]) -> tuple[NestedQuestion, ...]:
        """Returns the questions of a program; calls that are about to ask get a moment for it."""
        rows = result.get("pendingToolCalls")
        given = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
        run_id, asked = result.get("runId"), list[Question]()
        expected = {f"{run_id}:{row['id']}" for row in given if row.get("state") == "approval"}
        with anyio.move_on_after(QUESTION_SECONDS):
            while len(asked) < len(expected):
                pending = self.code_mode.approvals.pending()
                asked = [each for each in pending if each.call_id in expected]
                if len(asked) < len(expected):
                    await self._asked.wait()
        return tuple(
            NestedQuestion(
                id=each.call_id,
                tool=each.tool_id.rpartition(":")[2],
                title=each.title,
                description=each.description,
                input=each.input,
            )
            for each in asked
        )

    async def _answer(self, program: str, answers: Answers) -> bool:
        """Notes answers to the open questions of a program, and gives them to calls that wait.

        Returns:
            True if the program has open questions, answered or not.
        """
        questions = await self.asked(program)
        self._forget_answers(program)
        for asked in questions:
            answer = answers.get(asked.id) if isinstance(answers, Mapping) else answers
            if answer is not None:
                self._answers[asked.id] = answer, asked.input
        for question in self.code_mode.approvals.pending():
            self._resolve(question)
        return bool(questions)

    def _forget_answers(self, program: str) -> None:
        for each in [each for each in self._answers if each.startswith(f"{program}:")]:
            del self._answers[each]

    def _on_question(self, question: Question) -> None:
        self._resolve(question)  # a call that waited in a process that died asks again here
        self._asked.notify()

    def _resolve(self, question: Question) -> None:
        if question.call_id not in self._answers:
            return
        # The answer stays: the question may be an old one, which another process has taken over
        # meanwhile, and this process puts it again.
        answer, shown = self._answers[question.call_id]
        # Hooks may have changed the input since: then the person has not seen this call.
        if question.input != shown:
            return
        approvals = self.code_mode.approvals
        if answer.allow:
            approvals.resolve(question.id, "allow-always" if answer.always else "allow-once")
        elif answer.reason:
            approvals.reject(question.id, answer.reason)
        else:
            approvals.resolve(question.id, "deny")
