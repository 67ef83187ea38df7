"""The one path of every tool call: policy, hooks, validation, approval, the tool, hooks, events.

Direct calls, calls nested in a cell and calls through a namespace are all made here. A second way
to call a tool would be a security bug.
"""

import inspect
import json
import logging
import time
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import field, replace
from typing import Literal, TypeAlias

import anyio
from anyio.lowlevel import RunVar

from clawmode.context import RunContext
from clawmode.exceptions import ClawmodeError, message_of
from clawmode.tasks import must_propagate
from clawmode.tools.approvals import Approvals, NotApproved, Question
from clawmode.tools.hooks import (
    AfterToolCall,
    ApprovalNeeded,
    BeforeToolCall,
    Hooks,
    RequireApproval,
    Verdict,
)
from clawmode.tools.policy import Policy
from clawmode.tools.rate_limits import rate_limit_of
from clawmode.tools.tool import Execute, InputRequest, Tool, ToolContext, ToolResult
from clawmode.tools.validation import InvalidSchema, validate, with_defaults
from clawmode.types import CallState, JsonObject, JsonValue, copy_json, dataclass

logger = logging.getLogger("clawmode.executor")

MAX_THREADS = 512
"""Plain functions that may run concurrently per event loop. It is enough for several runs with all
the calls that each may have pending (`maxPendingToolCalls`, 16 by default), so that no run blocks
another."""

EndState: TypeAlias = Literal["completed", "failed", "cancelled"]


class ToolFailure(Exception):
    """A call was rejected or failed. The message may reach the program that made the call.

    Attributes:
        code: `denied`, `blocked`, `not_approved`, `invalid_tool_input`, `tool_failed`,
            `rate_limited` or `invalid_tool_output`.
        name: The type of the exception that the tool raised; else `ToolError`.
        message: The description, without the name.
        retry_after_ms: How long to wait before the call is made again, if the tool says so.
    """

    def __init__(
        self,
        code: str,
        message: str,
        name: str = "ToolError",
        retry_after_ms: int | None = None,
    ) -> None:
        plain = name in ("ToolError", message)
        super().__init__(message if plain else f"{name}: {message}")
        self.code = code
        self.name = name
        self.message = message
        self.retry_after_ms = retry_after_ms


@dataclass(frozen=True, slots=True)
class CallEvent:
    """An event of a call, for watchers of the run. It holds neither input nor output."""

    phase: Literal["start", "update", "end"]
    call_id: str
    tool_id: str
    parent_id: str | None = None
    state: EndState | None = None
    seconds: float = 0.0
    update: JsonValue = None
    code: str | None = None


Watcher: TypeAlias = Callable[[CallEvent], None]
"""Called with every event. It must not raise and must not block."""


async def unwatched(state: CallState) -> None:
    """Does nothing with the state of a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call to be made.

    Attributes:
        on_state: Awaited before the call waits for an approval, and before it runs after that. May
            raise `ToolFailure`: then the tool is not called.
        on_asking: Called with True before the running tool waits for input, and with False after.
        program: The id of the program that makes the call; empty for a direct call.
        patience: Seconds after which an answer of a person cannot reach the caller any more.
    """

    id: str
    tool: Tool
    input: JsonObject
    run: RunContext
    parent_id: str | None = None
    program: str = ""
    on_state: Callable[[CallState], Awaitable[None]] = unwatched
    on_asking: Callable[[bool], None] = lambda asking: None
    patience: float | None = None


@dataclass(frozen=True, slots=True)
class Admission:
    """A cell that may start: its input after the hooks, and the question to answer before."""

    params: JsonObject
    question: Question | None


@dataclass(slots=True)
class Executor:
    """Makes calls under one policy, with one set of hooks and approvals.

    Attributes:
        on_question: Called before a call waits for a person.
    """

    policy: Policy
    hooks: Hooks = field(default_factory=Hooks)
    approvals: Approvals = field(default_factory=Approvals)
    watchers: list[Watcher] = field(default_factory=list[Watcher])
    on_question: Callable[[], None] = lambda: None

    async def call(self, call: Call) -> ToolResult:
        """Makes one call.

        Raises:
            ToolFailure: The call was rejected, or it failed.
        """
        began = time.monotonic()
        # A property of an MCP tool may be required in spite of its default. Filled in before hooks
        # and approvals run, so that they see what is sent.
        given = with_defaults(call.tool, call.input) if call.tool.source == "mcp" else call.input
        event = BeforeToolCall(
            tool_name=call.tool.name,
            tool_id=call.tool.id,
            params=given if self.hooks.empty else copy_json(given),
            run=call.run,
            tool_call_id=call.id,
            parent_id=call.parent_id,
        )
        if self.watchers:
            self.emit(CallEvent("start", call.id, call.tool.id, call.parent_id))
        # A cancellation is no `Exception`: then the state stays, and no hook is called.
        state: EndState = "cancelled"
        code: str | None = None
        try:
            if (denied := self.policy.why_denied(call.tool)) is not None:
                raise ToolFailure("denied", f"{call.tool.id} is not allowed: {denied}")
            verdict = await self._decide(event)
            if verdict.params is not event.params:
                # The hooks after the call see the rewritten input, even if it is rejected next.
                event = replace(event, params=verdict.params)
            self._validate(call.tool, verdict.params)
            # Approval comes after it, because the answer is for exactly these arguments.
            await self._approve(call, verdict.params, verdict.approvals)
            outcome = _finalize(await self._run(call, verdict.params))
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
                self.emit(CallEvent("end", *ids, state, seconds, code=code))
        if isinstance(outcome, ToolFailure):
            if not self.hooks.empty:
                failed = AfterToolCall(call=event, error=str(outcome), code=code, seconds=seconds)
                await self.hooks.tell(failed)
            raise outcome
        if not self.hooks.empty:
            await self.hooks.tell(AfterToolCall(call=event, result=outcome, seconds=seconds))
        return outcome

    # ---- Stages ----

    def _validate(self, tool: Tool, params: JsonObject) -> None:
        """Validates the input that the hooks left."""
        try:
            problems = validate(tool, params)
        except InvalidSchema as error:
            text = f"{tool.id} cannot be called: {error}"
            raise ToolFailure("invalid_tool_input", text) from None
        if problems:
            raise ToolFailure("invalid_tool_input", f"{tool.id}: " + "; ".join(problems))

    async def _approve(
        self, call: Call, params: JsonObject, wishes: tuple[RequireApproval, ...]
    ) -> None:
        question = self.approvals.question(call.tool, params, call.run, wishes, call.patience)
        if question is not None:
            if not self.approvals.inline:
                await call.on_state("approval")
            await self.ask(replace(question, call_id=call.id, program=call.program))
            await call.on_state("running")

    async def _decide(self, event: BeforeToolCall) -> Verdict:
        if self.hooks.empty:
            return Verdict(event.params)
        verdict = await self.hooks.decide(event)
        if verdict.blocked is not None:
            raise ToolFailure("blocked", f"{event.tool_id} was blocked: {verdict.blocked}")
        return verdict

    async def ask(self, question: Question) -> None:
        """Waits for the decision of a person or an approver.

        Raises:
            ToolFailure: The call was denied, or the question expired.
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
            # The message is for the operator's log only: the text below reaches the program.
            logger.error("approver: %s: %s", type(error).__name__, message_of(error))
            text = f"{question.tool_id}: the approver failed"
            raise ToolFailure("not_approved", text) from None
        if resolution in ("deny", "timeout"):
            why = "nobody answered" if resolution == "timeout" else "it was denied"
            raise ToolFailure("not_approved", f"{question.tool_id} was not approved: {why}")

    async def admit(self, event: BeforeToolCall, tool: Tool, patience: float) -> Admission:
        """Asks the hooks about a cell of code mode, whose `exec` is not a tool of the catalog.

        Raises:
            ToolFailure: A hook blocked the cell.
        """
        verdict = await self._decide(event)
        wishes = verdict.approvals
        if not wishes:
            return Admission(verdict.params, None)
        question = self.approvals.question(tool, verdict.params, event.run, wishes, patience)
        return Admission(verdict.params, question)

    async def _run(self, call: Call, params: JsonObject) -> object:
        """Calls the tool, and once more with the approval that it asks for itself."""
        try:
            return await self._execute(call, params)
        except ApprovalNeeded as need:
            await self._approve(call, params, (need.wish,))
        try:
            return await self._execute(call, params, approved=True)
        except ApprovalNeeded as need:
            raise _tool_failed(call.tool, need) from None

    async def _execute(self, call: Call, params: JsonObject, *, approved: bool = False) -> object:
        running = True

        def update(value: JsonValue) -> None:
            if running:  # the thread of a cancelled call may still report progress
                ids = (call.id, call.tool.id, call.parent_id)
                self.emit(CallEvent("update", *ids, update=value))

        async def ask(request: InputRequest) -> JsonObject | None:
            return await self._ask_input(call, request)

        context = ToolContext(
            run=call.run,
            call_id=call.id,
            parent_id=call.parent_id,
            update=update,
            ask=ask,
            approved=approved,
        )
        execute = call.tool.execute
        if call.tool.source != "mcp":  # the MCP client encodes the input, and changes nothing
            # A copy: the tool may change its input, and `after_tool_call` must see the original.
            params = copy_json(params)
        try:
            if inspect.iscoroutinefunction(execute):
                return await execute(params, context)
            try:
                limiter = _threads.get()
            except LookupError:
                _threads.set(limiter := anyio.CapacityLimiter(MAX_THREADS))
            answer = await anyio.to_thread.run_sync(
                _in_thread, execute, params, context, abandon_on_cancel=True, limiter=limiter
            )
            return await answer if inspect.isawaitable(answer) else answer
        except BaseException as error:
            if must_propagate(error) or isinstance(error, ApprovalNeeded):
                raise
            raise _tool_failed(call.tool, error) from None
        finally:
            running = False

    async def _ask_input(self, call: Call, request: InputRequest) -> JsonObject | None:
        """Asks a person for input. If asking fails, the request is declined; the tool continues."""
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

    def emit(self, event: CallEvent) -> None:
        """Passes an event on to all watchers."""
        for watcher in self.watchers:
            try:
                watcher(event)
            except Exception as error:
                logger.error("watcher %r: %s: %s", watcher, type(error).__name__, error)


# The limiter of each event loop for tools, apart from anyio's 40 threads for everything.
_threads: RunVar[anyio.CapacityLimiter] = RunVar("clawmode_tool_threads")


class _FromThread(Exception):
    """Carries a `BaseException` out of a thread, where Ctrl-C of a person never arrives."""


def _in_thread(execute: Execute, params: JsonObject, context: ToolContext) -> object:
    try:
        return execute(params, context)
    except Exception:
        raise
    except BaseException as error:
        raise _FromThread from error


def _tool_failed(tool: Tool, error: BaseException) -> ToolFailure:
    """Returns the failure for a tool's exception. The traceback goes to the log only."""
    if isinstance(error, _FromThread) and error.__cause__ is not None:
        error = error.__cause__
    name = type(error).__name__
    limit = rate_limit_of(error)
    code, pause = ("rate_limited", limit.retry_after_ms) if limit else ("tool_failed", None)
    if isinstance(error, ClawmodeError):  # raised on purpose, with a message for the caller
        logger.info("tool %s: %s: %s", tool.id, name, message_of(error))
        return ToolFailure(code, message_of(error), retry_after_ms=pause)
    if limit is not None:  # an everyday event that needs no traceback
        logger.info("tool %s: rate limit: %s", tool.id, name)
        return ToolFailure(code, message_of(error), name, pause)
    # A handler that writes UTF-8 would fail on lone surrogates, and the log line would be lost.
    text = "".join(traceback.format_exception(error))
    clean = text.encode("utf-8", "backslashreplace").decode()
    shown = error if clean == text else RuntimeError(clean).with_traceback(error.__traceback__)
    logger.error("tool %s raised %s", tool.id, name, exc_info=shown)
    return ToolFailure(code, message_of(error), name)


# `json.dumps` would make an encoder for each result.
_ENCODER = json.JSONEncoder(allow_nan=False, ensure_ascii=False)


def _finalize(answer: object) -> ToolResult:
    """Checks that a tool's answer is JSON, and encodes it, once for all readers."""
    text, details = None, answer
    if isinstance(answer, ToolResult):
        text, details = answer.text, answer.details
    elif isinstance(answer, str):
        text, details = answer, None
    try:
        encoded = _ENCODER.encode(text if details is None else details).encode("utf-8", "replace")
        return ToolResult(text, details, encoded)  # pyrefly: ignore[bad-argument-type] - it is JSON
    except (TypeError, ValueError, RecursionError) as error:
        reason = f"the tool returned a value that is not JSON: {error}"
        raise ToolFailure("invalid_tool_output", reason) from None
