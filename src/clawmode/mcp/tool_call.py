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
from clawmode.foreign import message_of, must_propagate
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
DECLINED = f"the client declined, for its person or because nobody is there. {REMEDY}"
MAX_REJECTED = 1_000
MAX_QUESTIONS = 100
"""Rounds of questions in one `tools/call`; after that it answers `waiting`, and `wait` goes on."""
DECISIONS: tuple[Decision, ...] = ("allow-once", "allow-always", "deny")

Context: TypeAlias = ServerRequestContext[Any, Any]


@dataclass(frozen=True, slots=True)
class _Asking:
    """How a client can ask its person."""

    form: bool
    url: bool


@dataclass(slots=True)
class ToolCall:
    """One `tools/call`, from the request to its answer.

    Attributes:
        rejected: Tools of which it was said on stderr that nobody can approve their calls.
    """

    context: Context
    params: types.CallToolRequestParams
    code_mode: CodeMode
    rejected: set[str]
    id: str = field(default_factory=lambda: "mcp_" + secrets.token_hex(8))

    async def make(self) -> types.CallToolResult | types.InputRequiredResult:
        async with self._progress_told():
            result = await self._begin()
            async with self._ended_with(result):
                # Without a person's time in between, a program could ask for ever.
                for _ in range(MAX_QUESTIONS):
                    if (question := self._question(result)) is None:
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
        """Starts or continues a program, or goes on with one whose question was answered."""
        if self.params.request_state is None:
            arguments = self.params.arguments or {}
            return await self.code_mode.call(self.params.name, arguments, call_id=self.id)
        # Whatever a client claims here, it can only answer for programs of its own scope.
        answers = self.params.input_responses or {}
        for question in self._questions(self.params.request_state):
            if isinstance(answer := answers.get(question.id), types.ElicitResult):
                self._settle(question, answer)
        return await self.code_mode.call("wait", {"runId": self.params.request_state})

    # ---- Questions ----

    def _question(self, result: dict[str, JsonValue]) -> Question | InputQuestion | None:
        """What a person has to say before the program can go on."""
        if result["status"] != "waiting":
            return None
        return next(iter(self._questions(str(result["runId"]))), None)

    def _questions(self, run_id: str) -> list[Question | InputQuestion]:
        """Those of one program. Others of the scope are other people's, or given up."""
        approvals = self.code_mode.approvals
        everything = (*approvals.pending_inputs(), *approvals.pending())
        return [each for each in everything if each.call_id.startswith(f"{run_id}:")]

    @contextlib.asynccontextmanager
    async def _ended_with(self, result: dict[str, JsonValue]) -> AsyncIterator[None]:
        """Ends the program that this call began, if it is cancelled while a person is asked."""
        try:
            yield
        except BaseException as error:
            began_it = self.params.name == "exec" and self.params.request_state is None
            if must_propagate(error) and began_it and result["status"] == "waiting":
                with anyio.CancelScope(shield=True):
                    await self.code_mode.abort(str(result["runId"]))
            raise

    @property
    def _capabilities(self) -> _Asking:
        told = self.context.session.client_capabilities
        elicitation = None if told is None else told.elicitation
        if elicitation is None:
            return _Asking(form=False, url=False)
        # Who names neither takes forms: there was nothing else once.
        return _Asking(
            form=elicitation.form is not None or elicitation.url is None,
            url=elicitation.url is not None,
        )

    def _can_ask(self, question: Question | InputQuestion) -> bool:
        wants_url = isinstance(question, InputQuestion) and question.request.url is not None
        return self._capabilities.url if wants_url else self._capabilities.form

    async def _elicit(
        self, question: Question | InputQuestion, request: types.ElicitRequestParams
    ) -> None:
        """Asks the client's person, and settles the question."""
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
        """Nobody can be asked: the program is told so, and so is whoever reads stderr."""
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
    async def _progress_told(self) -> AsyncIterator[None]:
        """Tells the client of nested calls meanwhile, if it wants to know."""
        send, receive = anyio.create_memory_object_stream[CallEvent](MAX_EVENTS)
        ours = threading.get_ident()
        run_id = str((self.params.arguments or {}).get("runId", "")) or self.params.request_state

        def note(event: CallEvent) -> None:
            mine = event.parent_id == self.id or event.call_id.startswith(f"{run_id}:")
            # A tool that is not async reports from its thread, where no stream can be written.
            if mine and threading.get_ident() == ours:
                with contextlib.suppress(anyio.WouldBlock, anyio.ClosedResourceError):
                    send.send_nowait(event)

        unwatch = self.code_mode.watch(note)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._tell, receive)
            try:
                yield
            finally:
                unwatch()
                send.close()

    async def _tell(self, events: "anyio.abc.ObjectReceiveStream[CallEvent]") -> None:
        # Counted are the reports: the number has to rise with each of them.
        reports = 0
        async with events:
            async for event in events:
                reports += 1
                words = f"{event.tool_id} {event.state or event.phase}"
                await self.context.session.report_progress(reports, None, words)


_FORM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "decision": {"type": "string", "enum": list(DECISIONS), "title": "May it run?"},
    },
    "required": ["decision"],
}

_NOTHING: dict[str, Any] = {"type": "object", "properties": {}}


def _words(question: Question) -> str:
    arguments = json.dumps(question.input, ensure_ascii=False)
    text = f"{question.title}\n{question.tool_id} with {truncate(arguments, 4000)}"
    return f"{text}\n`allow-always` would remember {question.always}."


def _elicitation(question: Question | InputQuestion) -> types.ElicitRequestParams:
    if isinstance(question, Question):
        return types.ElicitRequestFormParams(message=_words(question), requested_schema=_FORM)
    message = f"{question.tool_id} asks:\n{question.request.message}"
    if question.request.url is not None:
        return types.ElicitRequestURLParams(
            message=message, url=question.request.url, elicitation_id=question.id
        )
    schema: dict[str, Any] = dict(question.request.schema or _NOTHING)
    return types.ElicitRequestFormParams(message=message, requested_schema=schema)
