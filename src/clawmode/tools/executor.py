"""The one path of every tool call: policy, hooks, validation, approval, the tool, hooks, record.

Direct, nested in a cell, through a namespace: whoever calls a tool calls it here. A second way
would be a security bug.
"""

import inspect
import json
import logging
import time
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import anyio
from anyio.lowlevel import RunVar

from clawmode.context import RunContext
from clawmode.exceptions import ClawmodeError
from clawmode.foreign import message_of, must_propagate
from clawmode.tools.approvals import Approvals, NotApproved, Question
from clawmode.tools.hooks import AfterToolCall, BeforeToolCall, Hooks, Verdict
from clawmode.tools.policy import Policy
from clawmode.tools.tool import Execute, InputRequest, Tool, ToolContext, ToolResult
from clawmode.tools.validation import InvalidSchema, validate
from clawmode.types import JsonObject, JsonValue, copy_json

logger = logging.getLogger("clawmode.executor")

MAX_THREADS = 512
"""Plain functions that may run at once in an event loop: several runs with all the calls that each
may have pending (`maxPendingToolCalls`, 16 by default), so that none holds up the others."""

CallState: TypeAlias = Literal["running", "approval"]
EndState: TypeAlias = Literal["completed", "failed", "cancelled"]


class ToolFailure(Exception):
    """A call that did not succeed, in words that may reach the program that made it.

    Attributes:
        code: `denied`, `blocked`, `not_approved`, `invalid_tool_input`, `tool_failed` or
            `invalid_tool_output`.
        name: The type of the exception that the tool raised; else `ToolError`.
        message: What happened, without the name.
    """

    def __init__(self, code: str, message: str, name: str = "ToolError") -> None:
        plain = name in ("ToolError", message)
        super().__init__(message if plain else f"{name}: {message}")
        self.code = code
        self.name = name
        self.message = message


@dataclass(frozen=True, slots=True)
class CallEvent:
    """What happens to a call, for whoever watches the run. Holds no input and no output."""

    phase: Literal["start", "update", "end"]
    call_id: str
    tool_id: str
    parent_id: str | None = None
    state: EndState | None = None
    seconds: float = 0.0
    update: JsonValue = None
    code: str | None = None


Watcher: TypeAlias = Callable[[CallEvent], None]
"""Sees every call event. Must not raise and must not block."""


async def _unwatched(state: CallState) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call to be made.

    Attributes:
        on_state: Told before the call waits for a person, and before it runs after that. May raise
            `ToolFailure`: then it does not run.
        on_asking: Told before the tool, which runs, waits for a person's input, and after that.
        patience: Seconds after which no answer of a person can reach the caller any more.
    """

    id: str
    tool: Tool
    input: JsonObject
    run: RunContext
    parent_id: str | None = None
    on_state: Callable[[CallState], Awaitable[None]] = _unwatched
    on_asking: Callable[[bool], None] = lambda asking: None
    patience: float | None = None


@dataclass(frozen=True, slots=True)
class Admission:
    """What the hooks made of a cell that is to start, and whom to ask about it."""

    params: JsonObject
    question: Question | None


@dataclass(slots=True)
class _Doing:
    """A call under way: with what it was asked for, and then with what it is made."""

    event: BeforeToolCall


@dataclass(slots=True)
class Executor:
    """Makes calls, under one policy, one set of hooks and one desk for approvals.

    Attributes:
        on_question: Told before a person is waited for.
    """

    policy: Policy
    hooks: Hooks = field(default_factory=Hooks)
    approvals: Approvals = field(default_factory=Approvals)
    watchers: list[Watcher] = field(default_factory=list[Watcher])
    on_question: Callable[[], None] = lambda: None

    async def call(self, call: Call) -> ToolResult:
        """Makes one call.

        Raises:
            ToolFailure: It was refused, or it failed.
        """
        began = time.monotonic()
        doing = _Doing(
            BeforeToolCall(
                tool_name=call.tool.name,
                tool_id=call.tool.id,
                params=call.input if self.hooks.empty else copy_json(call.input),
                run=call.run,
                tool_call_id=call.id,
                parent_id=call.parent_id,
            )
        )
        if self.watchers:
            self._emit(CallEvent("start", call.id, call.tool.id, call.parent_id))
        state: EndState = "cancelled"
        code: str | None = None
        try:
            outcome = await self._make(call, doing)
            state = "completed"
        except ToolFailure as failure:
            outcome, state, code = failure, "failed", failure.code
        except Exception:
            state = "failed"
            raise
        finally:
            seconds = time.monotonic() - began
            if self.watchers:
                ids = (call.id, call.tool.id, call.parent_id)
                self._emit(CallEvent("end", *ids, state, seconds, code=code))
        if isinstance(outcome, ToolFailure):
            if not self.hooks.empty:
                failed = AfterToolCall(
                    call=doing.event, error=str(outcome), code=code, seconds=seconds
                )
                await self.hooks.tell(failed)
            raise outcome
        if not self.hooks.empty:
            await self.hooks.tell(AfterToolCall(call=doing.event, result=outcome, seconds=seconds))
        return outcome

    # ---- Stages ----

    async def _make(self, call: Call, doing: "_Doing") -> ToolResult:
        params = await self._prepare(call, doing)
        answer = await self._execute(call, params)
        return _finalize(answer)

    async def _prepare(self, call: Call, doing: "_Doing") -> JsonObject:
        """Everything that can refuse a call. What comes back is what runs."""
        tool = call.tool
        if (denied := self.policy.why_denied(tool)) is not None:
            raise ToolFailure("denied", f"{tool.id} is not allowed: {denied}")
        verdict = await self._decide(doing.event)
        if verdict.params is not doing.event.params:
            doing.event = replace(doing.event, params=verdict.params)
        _check_input(tool, verdict.params)
        # Last: the answer is for exactly these arguments.
        question = self.approvals.question(
            tool, verdict.params, call.run, verdict.approvals, call.patience
        )
        if question is not None:
            if not self.approvals.inline:
                await call.on_state("approval")
            await self.ask(replace(question, call_id=call.id))
            await call.on_state("running")
        return verdict.params

    async def _decide(self, event: BeforeToolCall) -> Verdict:
        verdict = await self.hooks.decide(event)
        if verdict.blocked is not None:
            raise ToolFailure("blocked", f"{event.tool_id} was blocked: {verdict.blocked}")
        return verdict

    async def ask(self, question: Question) -> None:
        """Waits for a decision, a person's or an approver's.

        Raises:
            ToolFailure: It is no, or there was none in time.
        """
        if not self.approvals.inline:
            self.on_question()
        try:
            resolution = await self.approvals.ask(question)
        except NotApproved as error:
            text = f"{question.tool_id} was not approved: {error}"
            raise ToolFailure("not_approved", text) from None
        except BaseException as error:
            if must_propagate(error):
                raise
            logger.error("approver: %s: %s", type(error).__name__, message_of(error))
            text = f"{question.tool_id}: the approver failed"
            raise ToolFailure("not_approved", text) from None
        if resolution in ("deny", "timeout"):
            why = "nobody answered" if resolution == "timeout" else "it was denied"
            raise ToolFailure("not_approved", f"{question.tool_id} was not approved: {why}")

    async def admit(self, event: BeforeToolCall, tool: Tool, patience: float) -> Admission:
        """Asks the hooks about a cell of code mode, which is no tool of the catalog.

        Raises:
            ToolFailure: A hook blocked it.
        """
        verdict = await self._decide(event)
        wishes = verdict.approvals
        if not wishes:
            return Admission(verdict.params, None)
        question = self.approvals.question(tool, verdict.params, event.run, wishes, patience)
        return Admission(verdict.params, question)

    async def _execute(self, call: Call, params: JsonObject) -> object:
        running = True

        def update(value: JsonValue) -> None:
            if running:  # a thread that was left to itself may still report
                self._update(call, value)

        async def ask(request: InputRequest) -> JsonObject | None:
            return await self._ask_input(call, request)

        context = ToolContext(
            run=call.run, call_id=call.id, parent_id=call.parent_id, update=update, ask=ask
        )
        execute, params = call.tool.execute, copy_json(params)
        try:
            if inspect.iscoroutinefunction(execute):
                return await execute(params, context)
            answer = await anyio.to_thread.run_sync(
                _in_thread,
                execute,
                params,
                context,
                abandon_on_cancel=True,
                limiter=_tool_threads(),
            )
            return await answer if inspect.isawaitable(answer) else answer
        except BaseException as error:
            if must_propagate(error):
                raise
            raise _tool_failed(call.tool, error) from None
        finally:
            running = False

    async def _ask_input(self, call: Call, request: InputRequest) -> JsonObject | None:
        """What a person tells a tool. Trouble with the asking declines; the tool goes on."""
        if not self.approvals.takes_input:
            return None
        question = self.approvals.input_question(call.tool, request, call.run, call.patience)
        call.on_asking(True)
        self.on_question()
        try:
            return await self.approvals.ask_input(replace(question, call_id=call.id))
        except BaseException as error:
            if must_propagate(error):
                raise
            logger.error("answerer: %s: %s", type(error).__name__, message_of(error))
            return None
        finally:
            call.on_asking(False)

    # ---- Telling ----

    def _update(self, call: Call, value: JsonValue) -> None:
        self._emit(CallEvent("update", call.id, call.tool.id, call.parent_id, update=value))

    def _emit(self, event: CallEvent) -> None:
        for watcher in self.watchers:
            try:
                watcher(event)
            except Exception as error:
                logger.error("watcher %r: %s: %s", watcher, type(error).__name__, error)


_threads: RunVar[anyio.CapacityLimiter] = RunVar("clawmode_tool_threads")


def _tool_threads() -> anyio.CapacityLimiter:
    """The limiter of the event loop's tools that block, apart from the 40 threads of everybody."""
    try:
        return _threads.get()
    except LookupError:
        _threads.set(made := anyio.CapacityLimiter(MAX_THREADS))
        return made


class _FromThread(Exception):
    """Carries out of a thread what is no `Exception`. No person's Ctrl-C arrives in a thread."""


def _in_thread(execute: Execute, params: JsonObject, context: ToolContext) -> object:
    try:
        return execute(params, context)
    except Exception:
        raise
    except BaseException as error:
        raise _FromThread from error


def _tool_failed(tool: Tool, error: BaseException) -> ToolFailure:
    """The failure that a tool's exception becomes. Its traceback is for the log alone."""
    if isinstance(error, _FromThread) and error.__cause__ is not None:
        error = error.__cause__
    name = type(error).__name__
    if isinstance(error, ClawmodeError):  # raised on purpose, in words for the caller
        logger.info("tool %s: %s: %s", tool.id, name, message_of(error))
        return ToolFailure("tool_failed", message_of(error))
    logger.error("tool %s raised %s", tool.id, name, exc_info=_loggable(error))
    return ToolFailure("tool_failed", message_of(error), name)


def _loggable(error: BaseException) -> BaseException:
    """The exception, or one like it whose text any log can write: without halves of characters."""
    text = "".join(traceback.format_exception(error))
    clean = text.encode("utf-8", "backslashreplace").decode()
    if clean == text:
        return error
    return RuntimeError(clean).with_traceback(error.__traceback__)


def _check_input(tool: Tool, params: JsonObject) -> None:
    try:
        problems = validate(tool, params)
    except InvalidSchema as error:
        raise ToolFailure("invalid_tool_input", f"{tool.id} cannot be called: {error}") from None
    if problems:
        raise ToolFailure("invalid_tool_input", f"{tool.id}: " + "; ".join(problems))


def _finalize(answer: object) -> ToolResult:
    """A tool's answer, checked to be JSON: its text is made here, once."""
    result = answer if isinstance(answer, ToolResult) else _wrap(answer)
    try:
        encoded = json.dumps(result.value, allow_nan=False, ensure_ascii=False)
        return replace(result, encoded=encoded.encode("utf-8", "replace"))
    except (TypeError, ValueError, RecursionError) as error:
        reason = f"it answered what is not JSON: {error}"
        raise ToolFailure("invalid_tool_output", reason) from None


def _wrap(answer: object) -> ToolResult:
    if isinstance(answer, str):
        return ToolResult(text=answer)
    return ToolResult(details=answer)  # pyrefly: ignore[bad-argument-type] - checked by _finalize
