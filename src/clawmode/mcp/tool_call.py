"""One `tools/call` of a client of our MCP server: the program, its questions, its progress.

A question to a person is sent to the client, if the client supports elicitation: as a request on a
connection that can carry requests, otherwise as a result that asks for input (2026-07-28). If the
client supports neither, the call that needs approval is rejected at once.
"""

import contextlib
import hashlib
import itertools
import json
import logging
import secrets
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import field
from typing import TYPE_CHECKING, Any, TypeAlias, get_args

import anyio
import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError

from clawmode.code_mode.results import compact, join, take_images
from clawmode.exceptions import message_of
from clawmode.tasks import must_propagate
from clawmode.text import escape, shorten, truncate
from clawmode.tools.executor import CallEvent
from clawmode.tools.questions import DECISIONS, Decision, InputQuestion, Question, QuestionGroup
from clawmode.types import JsonValue, dataclass

if TYPE_CHECKING:
    from clawmode.code_mode.code_mode import CodeMode

logger = logging.getLogger("clawmode.mcp")

MAX_EVENTS = 1000
MAX_WORDS = 500
REMEDY = (
    "To allow calls without asking, the operator can start `clawmode mcp` with `--approve always`, "
    'or set `"trustAnnotations": true` for an MCP server whose read-only tools may run unasked.'
)
CANNOT_ASK = f"this client cannot ask a person (it does not support elicitation). {REMEDY}"
DECLINED = f"the client declined: its user refused, or nobody was there. {REMEDY}"
MAX_REJECTED = 1_000
MAX_QUESTIONS = 100
"""Questions in one `tools/call`; then its result is `waiting`, and `wait` continues."""
MAX_GROUP, MAX_GROUP_INPUT = 25, 600
"""Calls that one form asks about, and characters of the input of each. A longer input is shown in a
form of its own."""
TAKE_OVER_LOOKS, LOOK_MS = 100, 100
"""How often, and how long each time, a call that takes a program over waits for its questions."""
SAME = "as-above"
"""The answer about one call of a group that leaves the decision to the answer about all."""
LEVELS: tuple[types.LoggingLevel, ...] = get_args(types.LoggingLevel)
"""The levels of log messages, the least severe first."""
LOGGER = "clawmode"

UNSENT = (anyio.WouldBlock, anyio.ClosedResourceError, anyio.BrokenResourceError)
"""An event of a call is not reported: the client is slow, or the call has ended."""

Context: TypeAlias = ServerRequestContext[Any, Any]
OnWaiting: TypeAlias = Callable[[dict[str, JsonValue]], dict[str, Any] | None]
AnyQuestion: TypeAlias = Question | InputQuestion | QuestionGroup


@dataclass(slots=True)
class ToolCall:
    """One `tools/call`, from the request to its result.

    Attributes:
        rejected: The tools for which a rejected approval was logged already.
        level: The least severe log messages that the client wants; None for no messages.
        unasked: The reason why a question could not be put to a person; empty if none was rejected.
    """

    context: Context
    params: types.CallToolRequestParams
    code_mode: "CodeMode"
    rejected: set[str]
    level: types.LoggingLevel | None = None
    unasked: str = ""
    id: str = field(default_factory=lambda: "mcp_" + secrets.token_hex(8))

    async def run(
        self, on_waiting: OnWaiting = lambda result: None
    ) -> types.CallToolResult | types.InputRequiredResult | dict[str, Any]:
        """Runs the call.

        Args:
            on_waiting: Called if the program waits. What it returns is the result, unless None.
        """
        async with self._report_progress():
            result = await self._begin()
            waits = result["status"] == "waiting" and self.params.request_state is None
            if waits and (task := on_waiting(result)) is not None:
                return task
            async with self._abort_if_cancelled(result):
                # Bounded: a program that asks in a loop could keep the call open for ever.
                for _ in range(MAX_QUESTIONS):
                    if result["status"] != "waiting":
                        break
                    question = next(iter(self.questions(str(result["runId"]))), None)
                    if question is None:
                        break
                    request = elicitation(question)
                    if not self.can_ask(question):
                        asked = self.questions(str(result["runId"]))
                        for each in itertools.filterfalse(self.can_ask, asked):
                            self.reject(each, CANNOT_ASK)
                    elif not self.context.session.can_send_request:
                        return types.InputRequiredResult(
                            input_requests={
                                question_key(question): types.ElicitRequest(params=request)
                            },
                            request_state=str(result["runId"]),
                        )
                    else:
                        await self._elicit(question, request)
                    result = join(result, await self._call("wait", {"runId": result["runId"]}))
        if self.unasked and REMEDY not in str(result.get("error", "")):
            # The program may have caught the error, and the model must still learn the reason.
            result = result | {"note": f"A call was not approved: {self.unasked}"}
        return tool_result(result)

    async def _begin(self) -> dict[str, JsonValue]:
        """Starts or continues a program, or answers the question of a waiting one."""
        if self.params.request_state is None:
            arguments = self.params.arguments or {}
            return await self._call(self.params.name, arguments)
        # The state comes from the client and is untrusted, but `code_mode` has only programs of the
        # client's own scope.
        run_id, result = self.params.request_state, dict[str, JsonValue]()
        if not self.questions(run_id):
            # Another process asked, and this one takes over: its questions have the same keys.
            for _ in range(TAKE_OVER_LOOKS):
                waited = await self.code_mode.wait(run_id, call_id=self.id, yield_ms=LOOK_MS)
                result = join(result, waited.to_json(with_images=True))
                if result["status"] != "waiting" or self.questions(run_id):
                    break  # nobody answers while this call waits for an answer
            if result["status"] == "failed" and result["code"] == "invalid_input":
                raise MCPError(types.INVALID_PARAMS, f"Invalid requestState: {result['error']}")
            if not self.questions(run_id):
                return result
        answers = self.params.input_responses or {}
        answered = False
        for question in self.questions(run_id):
            if isinstance(answer := answers.get(question_key(question)), types.ElicitResult):
                self.settle(question, answer)
                answered = True
        if not answered:  # then the same question is sent again, at once
            return {"status": "waiting", "runId": run_id}
        return join(result, await self._call("wait", {"runId": run_id}))

    async def _call(self, name: str, given: dict[str, Any]) -> dict[str, JsonValue]:
        return await self.code_mode.call(name, given, call_id=self.id, with_images=True)

    # ---- Questions ----

    def questions(self, run_id: str) -> list[AnyQuestion]:
        """Returns the questions of one program, each as one form; the scope may have more programs.

        Calls that wait for approval at the same time are one form.
        """
        approvals = self.code_mode.approvals
        inputs = [each for each in approvals.pending_inputs() if each.call_id.startswith(run_id)]
        group, forms = list[Question](), list[AnyQuestion](inputs)
        for question in approvals.pending():
            if not question.call_id.startswith(f"{run_id}:"):
                continue
            if len(json.dumps(question.input, ensure_ascii=False)) > MAX_GROUP_INPUT:
                forms.append(question)
            else:
                group.append(question)
        parts = (group[start : start + MAX_GROUP] for start in range(0, len(group), MAX_GROUP))
        forms += [QuestionGroup(tuple(part)) if len(part) > 1 else part[0] for part in parts]
        return forms

    @contextlib.asynccontextmanager
    async def _abort_if_cancelled(self, result: dict[str, JsonValue]) -> AsyncIterator[None]:
        """Aborts the program of this call if the call is cancelled while a user is asked."""
        try:
            yield
        except BaseException as error:
            started_here = self.params.name == "exec" and self.params.request_state is None
            if must_propagate(error) and started_here and result["status"] == "waiting":
                with anyio.CancelScope(shield=True):
                    await self.code_mode.abort(str(result["runId"]))
            raise

    def can_ask(self, question: AnyQuestion) -> bool:
        capabilities = self.context.session.client_capabilities
        supported = None if capabilities is None else capabilities.elicitation
        if supported is None:
            return False
        if isinstance(question, InputQuestion) and question.request.url is not None:
            return supported.url is not None
        # A client that names neither supports forms, which were the only kind at first.
        return supported.form is not None or supported.url is None

    async def _elicit(self, question: AnyQuestion, request: types.ElicitRequestParams) -> None:
        """Asks the client's user, and settles the question."""
        session, asked_in = self.context.session, self.context.request_id
        try:
            if isinstance(request, types.ElicitRequestURLParams):
                answer = await session.elicit_url(
                    request.message, request.url, question.id, asked_in
                )
            else:
                schema = request.requested_schema
                answer = await session.elicit_form(request.message, schema, asked_in)
        except (MCPError, ValueError) as error:
            is_told = isinstance(error, MCPError)
            why = shorten(message_of(error), 200) if is_told else "its answer is not valid"
            self.reject(question, f"the client failed to ask ({why}). {REMEDY}")
        else:
            self.settle(question, answer)

    def reject(self, question: AnyQuestion, why: str) -> None:
        """Rejects a question that no user can answer, and logs the reason once per tool."""
        if isinstance(question, QuestionGroup):
            for each in question.questions:
                self.reject(each, why)
            return
        if isinstance(question, InputQuestion):
            self.code_mode.approvals.answer(question.id, None)
            return
        self.unasked = why
        self.code_mode.approvals.reject(question.id, why)
        if question.tool_id not in self.rejected and len(self.rejected) < MAX_REJECTED:
            self.rejected.add(question.tool_id)
            logger.warning("%s was not approved: %s", question.tool_id, why)

    def settle(self, question: AnyQuestion, answer: types.ElicitResult) -> None:
        content: dict[str, Any] = dict(answer.content or {})
        accepted = answer.action == "accept"
        if isinstance(question, InputQuestion):
            self.code_mode.approvals.answer(question.id, content if accepted else None)
            return
        if not accepted:
            self.reject(question, DECLINED)
            return
        approvals = self.code_mode.approvals
        if isinstance(question, Question):
            approvals.resolve(question.id, _decision(content.get("decision")))
            return
        for number, each in enumerate(question.questions, 1):
            own = content.get(f"call_{number}", SAME)
            approvals.resolve(each.id, _decision(content.get("decision") if own == SAME else own))

    # ---- Progress ----

    @contextlib.asynccontextmanager
    async def _report_progress(self) -> AsyncIterator[None]:
        """Reports nested calls during the block, as progress and as log messages."""
        send, receive = anyio.create_memory_object_stream[CallEvent](MAX_EVENTS)
        own_thread = threading.get_ident()
        run_id = str((self.params.arguments or {}).get("runId", "")) or self.params.request_state

        def note(event: CallEvent) -> None:
            mine = event.parent_id == self.id or event.call_id.startswith(f"{run_id}:")
            # A synchronous tool reports from its own thread, where the stream must not be used.
            if mine and threading.get_ident() == own_thread:
                with contextlib.suppress(*UNSENT):
                    send.send_nowait(event)

        unwatch = self.code_mode.watch(note)
        failure: MCPError | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._send_progress, receive)
            try:
                yield
            except MCPError as error:  # the task group would wrap it in an ExceptionGroup
                failure = error
            finally:
                unwatch()
                send.close()
        if failure is not None:
            raise failure

    async def _send_progress(self, events: "anyio.abc.ObjectReceiveStream[CallEvent]") -> None:
        # The protocol requires a number that rises with each report: the count of reports.
        reports = 0
        async with events:
            async for event in events:
                reports += 1
                await self.context.session.report_progress(reports, None, _progress_text(event))
                await self._log(event)

    async def _log(self, event: CallEvent) -> None:
        level: types.LoggingLevel = "debug"
        if event.phase == "end":
            level = "info" if event.state == "completed" else "warning"
        if self.level is None or LEVELS.index(level) < LEVELS.index(self.level):
            return
        data: dict[str, Any] = {"call": event.call_id, "text": _progress_text(event)}
        if event.phase == "end":
            data["ms"] = round(event.seconds * 1000)
        if event.code:
            data["code"] = event.code
        params = types.LoggingMessageNotificationParams(level=level, data=data, logger=LOGGER)
        await self.context.session.send_notification(
            types.LoggingMessageNotification(params=params), self.context.request_id
        )


def tool_result(result: dict[str, JsonValue]) -> types.CallToolResult:
    """Returns the result of a program for a client.

    The text is the only copy: the tools declare no output schema, so no client needs
    `structuredContent`, and most clients would show the model both. Counters are left out.
    """
    plain, images = take_images(result)
    shown = {key: value for key, value in plain.items() if key != "telemetry"}
    pictures = [types.ImageContent(data=data, mime_type=kind) for data, kind in images]
    text, failed = types.TextContent(text=compact(shown)), result["status"] == "failed"
    return types.CallToolResult(content=[text, *pictures], is_error=failed)


def _progress_text(event: CallEvent) -> str:
    """Describes an event of a nested call, with the words and numbers of a server's progress."""
    if event.phase != "update":
        return f"{event.tool_id} {event.state or event.phase}"
    report = event.update if isinstance(event.update, dict) else {"message": event.update}
    done, total, message = (report.get(key) for key in ("progress", "total", "message"))
    parts = [truncate(message, MAX_WORDS)] if isinstance(message, str) else []
    if isinstance(done, int | float):
        parts.append(f"{done:g}/{total:g}" if isinstance(total, int | float) else f"{done:g}")
    said = " ".join(parts) or "update"
    return said if event.tool_id == "notify" else f"{event.tool_id}: {said}"


_DECIDED = {"type": "string", "enum": list(DECISIONS), "title": "May the call run?"}
_FORM = {"type": "object", "properties": {"decision": _DECIDED}, "required": ["decision"]}


def _decision(answer: object) -> Decision:
    return next((decision for decision in DECISIONS if decision == answer), "deny")


def question_key(question: AnyQuestion) -> str:
    """Returns the key under which a client answers a question.

    The question for an approval has the same key in every process that asks it, as long as it shows
    the same text: an answer never approves anything else than what was shown.
    """
    if isinstance(question, InputQuestion):
        return question.id
    shown = elicitation(question).message
    first = question.questions[0] if isinstance(question, QuestionGroup) else question
    return f"{first.call_id}:{hashlib.sha256(shown.encode()).hexdigest()[:16]}"


def elicitation(question: AnyQuestion) -> types.ElicitRequestParams:
    """Returns a question as a request to the client."""
    if isinstance(question, QuestionGroup):  # an answer about all calls, and one about each
        lines = [f"{len(question.questions)} calls of one program need approval."]
        fields: dict[str, Any] = {
            "decision": {"type": "string", "enum": list(DECISIONS), "title": "May all calls run?"}
        }
        for number, each in enumerate(question.questions, 1):
            arguments = json.dumps(each.input, ensure_ascii=False)
            lines.append(escape(f"{number}. {each.title} {each.tool_id} with {arguments}"))
            fields[f"call_{number}"] = {
                "type": "string",
                "enum": [SAME, *DECISIONS],
                "default": SAME,
                "title": f"Only call {number}, {each.tool_id}",
            }
        remembered = "; ".join(dict.fromkeys(each.always for each in question.questions))
        lines.append(f"`allow-always` would remember {remembered}.")
        form = {"type": "object", "properties": fields, "required": ["decision"]}
        return types.ElicitRequestFormParams(message="\n".join(lines), requested_schema=form)
    if isinstance(question, Question):
        arguments = truncate(json.dumps(question.input, ensure_ascii=False), 4000)
        text = (
            f"{question.title}\n{escape(f'{question.tool_id} with {arguments}')}\n"
            f"`allow-always` would remember {question.always}."
        )
        return types.ElicitRequestFormParams(message=text, requested_schema=_FORM)
    message = f"{question.tool_id} asks:\n{question.request.message}"
    if question.request.url is not None:
        return types.ElicitRequestURLParams(
            message=message, url=question.request.url, elicitation_id=question.id
        )
    schema: dict[str, Any] = dict(question.request.schema or {"type": "object", "properties": {}})
    return types.ElicitRequestFormParams(message=message, requested_schema=schema)
