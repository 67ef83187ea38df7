"""One `tools/call` of a client of our MCP server: the program, its questions, its progress.

A question to a person is sent to the client, if the client supports elicitation: as a request on a
connection that can carry requests, otherwise as a result that asks for input (2026-07-28). If the
client supports neither, the call that needs approval is rejected at once.
"""

import contextlib
import itertools
import json
import logging
import secrets
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import anyio
import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError

from clawmode.code_mode.code_mode import CodeMode
from clawmode.code_mode.results import compact
from clawmode.exceptions import message_of
from clawmode.tasks import must_propagate
from clawmode.text import truncate
from clawmode.tools.approvals import Decision, InputQuestion, Question
from clawmode.tools.executor import CallEvent
from clawmode.types import JsonValue

logger = logging.getLogger("clawmode.mcp")

MAX_EVENTS = 1000
REMEDY = (
    "To allow calls without asking, the operator can start `clawmode mcp` with `--approve always`, "
    'or set `"trustAnnotations": true` for an MCP server whose read-only tools may run unasked.'
)
CANNOT_ASK = f"this client cannot ask a person (it does not support elicitation). {REMEDY}"
DECLINED = f"the client declined: its user refused, or nobody was there. {REMEDY}"
MAX_REJECTED = 1_000
MAX_QUESTIONS = 100
"""Questions in one `tools/call`; then its result is `waiting`, and `wait` continues."""
DECISIONS: tuple[Decision, ...] = ("allow-once", "allow-always", "deny")

Context: TypeAlias = ServerRequestContext[Any, Any]


@dataclass(frozen=True, slots=True)
class _ElicitationSupport:
    """The kinds of elicitation that a client supports."""

    form: bool
    url: bool


@dataclass(slots=True)
class ToolCall:
    """One `tools/call`, from the request to its result.

    Attributes:
        rejected: The tools for which a rejected approval was logged already.
    """

    context: Context
    params: types.CallToolRequestParams
    code_mode: CodeMode
    rejected: set[str]
    id: str = field(default_factory=lambda: "mcp_" + secrets.token_hex(8))

    async def run(self) -> types.CallToolResult | types.InputRequiredResult:
        async with self._report_progress():
            result = await self._begin()
            async with self._abort_if_cancelled(result):
                # Bounded: a program that asks in a loop could keep the call open for ever.
                for _ in range(MAX_QUESTIONS):
                    if result["status"] != "waiting":
                        break
                    question = next(iter(self._questions(str(result["runId"]))), None)
                    if question is None:
                        break
                    request = _elicitation(question)
                    if not self._can_ask(question):
                        asked = self._questions(str(result["runId"]))
                        for each in itertools.filterfalse(self._can_ask, asked):
                            self._reject(each, CANNOT_ASK)
                    elif not self.context.session.can_send_request:
                        return types.InputRequiredResult(
                            input_requests={question.id: types.ElicitRequest(params=request)},
                            request_state=str(result["runId"]),
                        )
                    else:
                        await self._elicit(question, request)
                    result = await self.code_mode.call("wait", {"runId": result["runId"]})
        return types.CallToolResult(
            content=[types.TextContent(text=compact(result))],
            structured_content=result,
            is_error=result["status"] == "failed",
        )

    async def _begin(self) -> dict[str, JsonValue]:
        """Starts or continues a program, or answers the question of a waiting one."""
        if self.params.request_state is None:
            arguments = self.params.arguments or {}
            return await self.code_mode.call(self.params.name, arguments, call_id=self.id)
        # The state comes from the client and is untrusted, but `code_mode` has only programs of the
        # client's own scope.
        answers = self.params.input_responses or {}
        for question in self._questions(self.params.request_state):
            if isinstance(answer := answers.get(question.id), types.ElicitResult):
                self._settle(question, answer)
        return await self.code_mode.call("wait", {"runId": self.params.request_state})

    # ---- Questions ----

    def _questions(self, run_id: str) -> list[Question | InputQuestion]:
        """Returns the questions of one program; the scope may have more programs."""
        approvals = self.code_mode.approvals
        everything = (*approvals.pending_inputs(), *approvals.pending())
        return [each for each in everything if each.call_id.startswith(f"{run_id}:")]

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

    @property
    def _elicitation_support(self) -> _ElicitationSupport:
        capabilities = self.context.session.client_capabilities
        elicitation = None if capabilities is None else capabilities.elicitation
        if elicitation is None:
            return _ElicitationSupport(form=False, url=False)
        # A client that names neither supports forms, which were the only kind at first.
        return _ElicitationSupport(
            form=elicitation.form is not None or elicitation.url is None,
            url=elicitation.url is not None,
        )

    def _can_ask(self, question: Question | InputQuestion) -> bool:
        wants_url = isinstance(question, InputQuestion) and question.request.url is not None
        support = self._elicitation_support
        return support.url if wants_url else support.form

    async def _elicit(
        self, question: Question | InputQuestion, request: types.ElicitRequestParams
    ) -> None:
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
        except MCPError as error:
            self._reject(
                question, f"the client failed to ask ({message_of(error)[:200]}). {REMEDY}"
            )
        else:
            self._settle(question, answer)

    def _reject(self, question: Question | InputQuestion, why: str) -> None:
        """Rejects a question that no user can answer, and logs the reason once per tool."""
        if isinstance(question, InputQuestion):
            self.code_mode.approvals.answer(question.id, None)
            return
        self.code_mode.approvals.reject(question.id, why)
        if question.tool_id not in self.rejected and len(self.rejected) < MAX_REJECTED:
            self.rejected.add(question.tool_id)
            logger.warning("%s was not approved: %s", question.tool_id, why)

    def _settle(self, question: Question | InputQuestion, answer: types.ElicitResult) -> None:
        content: dict[str, Any] = dict(answer.content or {})
        accepted = answer.action == "accept"
        if isinstance(question, InputQuestion):
            self.code_mode.approvals.answer(question.id, content if accepted else None)
            return
        if not accepted:
            self._reject(question, DECLINED)
            return
        known = [decision for decision in DECISIONS if decision == content.get("decision")]
        self.code_mode.approvals.resolve(question.id, known[0] if known else "deny")

    # ---- Progress ----

    @contextlib.asynccontextmanager
    async def _report_progress(self) -> AsyncIterator[None]:
        """Reports nested calls to the client during the block, if the client wants progress."""
        send, receive = anyio.create_memory_object_stream[CallEvent](MAX_EVENTS)
        own_thread = threading.get_ident()
        run_id = str((self.params.arguments or {}).get("runId", "")) or self.params.request_state

        def note(event: CallEvent) -> None:
            mine = event.parent_id == self.id or event.call_id.startswith(f"{run_id}:")
            # A synchronous tool reports from its own thread, where the stream must not be used.
            if mine and threading.get_ident() == own_thread:
                with contextlib.suppress(anyio.WouldBlock, anyio.ClosedResourceError):
                    send.send_nowait(event)

        unwatch = self.code_mode.watch(note)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._send_progress, receive)
            try:
                yield
            finally:
                unwatch()
                send.close()

    async def _send_progress(self, events: "anyio.abc.ObjectReceiveStream[CallEvent]") -> None:
        # The protocol requires a number that rises with each report: the count of reports.
        reports = 0
        async with events:
            async for event in events:
                reports += 1
                message = f"{event.tool_id} {event.state or event.phase}"
                await self.context.session.report_progress(reports, None, message)


_FORM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "decision": {"type": "string", "enum": list(DECISIONS), "title": "May the call run?"},
    },
    "required": ["decision"],
}

_EMPTY_FORM: dict[str, Any] = {"type": "object", "properties": {}}


def _elicitation(question: Question | InputQuestion) -> types.ElicitRequestParams:
    if isinstance(question, Question):
        arguments = truncate(json.dumps(question.input, ensure_ascii=False), 4000)
        text = (
            f"{question.title}\n{question.tool_id} with {arguments}\n"
            f"`allow-always` would remember {question.always}."
        )
        return types.ElicitRequestFormParams(message=text, requested_schema=_FORM)
    message = f"{question.tool_id} asks:\n{question.request.message}"
    if question.request.url is not None:
        return types.ElicitRequestURLParams(
            message=message, url=question.request.url, elicitation_id=question.id
        )
    schema: dict[str, Any] = dict(question.request.schema or _EMPTY_FORM)
    return types.ElicitRequestFormParams(message=message, requested_schema=schema)
