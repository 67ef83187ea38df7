"""Questions of an agent to the person at an ACP client: approvals of calls, and input for tools."""

import logging
import time
from collections.abc import Sequence
from pathlib import Path

import anyio
from acp import schema
from acp.connection import Connection
from acp.exceptions import RequestError
from acp.meta import CLIENT_METHODS
from acp.utils import notify_model, request_model
from anyio.abc import TaskGroup

from clawmode.exceptions import message_of
from clawmode.terminal import acp_updates
from clawmode.text import escape, one_line
from clawmode.tools.approvals import Approvals, may_change
from clawmode.tools.questions import Decision, InputQuestion, Question, QuestionGroup, Resolution
from clawmode.types import JsonObject, dataclass

logger = logging.getLogger("clawmode.acp")

DECISIONS: dict[str, Decision] = {
    "allow_once": "allow-once",
    "allow_always": "allow-always",
    "reject_once": "deny",
}
ONE_BY_ONE = "one_by_one"
LINE_BREAK = "\n"


@dataclass(frozen=True, slots=True)
class Editor:
    """The client, as a session uses it.

    Attributes:
        forms: Which kinds of input the client can ask a person for: `form`, `url`.
    """

    connection: Connection
    forms: frozenset[str] = frozenset()

    async def update(self, session_id: str, update: acp_updates.Update) -> None:
        """Sends an update of a session to the client."""
        about = schema.SessionNotification(session_id=session_id, update=update)
        await notify_model(self.connection, CLIENT_METHODS["session_update"], about)

    async def ask(self, request: schema.RequestPermissionRequest) -> str:
        """Asks the person at the client; returns the id of the chosen option, or nothing."""
        method = CLIENT_METHODS["session_request_permission"]
        reply = await request_model(
            self.connection, method, request, schema.RequestPermissionResponse
        )
        outcome = reply.outcome
        return outcome.option_id if isinstance(outcome, schema.AllowedOutcome) else ""

    async def fill_in(self, session_id: str, question: InputQuestion) -> JsonObject | None:
        """Asks the person at the client for input; returns None if the person declines."""
        wanted = question.request
        mode = "form" if wanted.url is None else "url"
        if mode not in self.forms:
            return None
        form: JsonObject = {"requestedSchema": wanted.schema or {"type": "object"}}
        address: JsonObject = {"elicitationId": question.id, "url": wanted.url}
        asker = one_line(question.tool_id, acp_updates.MAX_TITLE_CHARS)
        about: JsonObject = {
            "sessionId": session_id,
            "toolCallId": question.call_id,
            "message": f"{asker} asks: {escape(wanted.message, LINE_BREAK)}",
            "mode": mode,
            **(form if wanted.url is None else address),
        }
        method = CLIENT_METHODS["elicitation_create"]
        reply = await self.connection.send_request(method, acp_updates.printable_value(about))
        if not isinstance(reply, dict) or reply.get("action") != "accept":
            return None
        content = reply.get("content")
        return content if isinstance(content, dict) else {}


class Questions:
    """Puts the questions of one session to the person at the client; a `GroupAsker`.

    A question that nobody has to answer any more, because its prompt was cancelled, for example, is
    dropped: a late answer has no effect.

    Args:
        session_id: The session.
        editor: The client.
        calls: The calls of the session.
        workspace: The folder that relative paths are in.

    Attributes:
        approvals: The approvals whose questions are put.
        tasks: Runs the questions, while the session is open.
    """

    tasks: TaskGroup

    def __init__(
        self, session_id: str, editor: Editor, calls: acp_updates.Calls, workspace: Path
    ) -> None:
        inputs = "ask" if editor.forms else "decline"
        self.approvals = Approvals(ask_for=may_change, inputs=inputs, asker=self)
        self._session_id = session_id
        self._editor = editor
        self._calls = calls
        self._workspace = workspace
        self._asked: dict[str, tuple[set[str], anyio.CancelScope]] = {}

    def put(self, question: Question | InputQuestion) -> None:
        if isinstance(question, Question):
            self.tasks.start_soon(self._ask_one, question)
        else:
            self.tasks.start_soon(self._ask_input, question)

    def put_group(self, group: QuestionGroup) -> None:
        self.tasks.start_soon(self._ask_group, group)

    def settle(
        self, question: Question | InputQuestion, answer: Resolution | JsonObject | None
    ) -> None:
        ids, scope = self._asked.pop(question.id, (set[str](), None))
        ids.discard(question.id)
        if scope is not None and not ids:  # otherwise the siblings of the question are still open
            scope.cancel()

    async def _ask_input(self, question: InputQuestion) -> None:
        content: JsonObject | None = None
        with anyio.move_on_after(question.expires - time.time()) as scope:
            self._asked[question.id] = ({question.id}, scope)
            try:
                content = await self._editor.fill_in(self._session_id, question)
            except (RequestError, ConnectionError, ValueError) as error:
                logger.error("the editor could not ask for input: %s", message_of(error))
        self.approvals.answer(question.id, content)

    async def _ask_one(self, question: Question) -> None:
        here = self._workspace
        call = schema.ToolCallUpdate(
            tool_call_id=question.call_id,
            title=acp_updates.title_of(question.tool_id, question.input),
            kind=acp_updates.kind_of(question.tool_id),
            status="pending",
            content=[
                *_reason(question),
                *acp_updates.input_content(question.tool_id, question.input, here),
            ],
            locations=acp_updates.locations_of(question.tool_id, question.input, here),
            raw_input=acp_updates.printable_value(question.input),
        )
        chosen = await self._choose([question], call)
        if chosen is not None:
            self.approvals.resolve(question.id, DECISIONS.get(chosen, "deny"))

    async def _ask_group(self, group: QuestionGroup) -> None:
        """Asks about calls that a program makes at once: about all of them, or one by one."""
        asked, here = group.questions, self._workspace
        content: list[acp_updates.ToolCallContentVariant] = []
        for question in asked:
            content += _reason(question)
            content += [acp_updates.code_block(question.tool_id)]
            content += acp_updates.input_content(question.tool_id, question.input, here)
        names = ", ".join(dict.fromkeys(it.tool_id for it in asked))
        call = schema.ToolCallUpdate(
            tool_call_id=self._calls.program_of(asked[0].call_id),
            title=f"{len(asked)} calls at once: {acp_updates.code_span(names)}",
            status="pending",
            content=content,
            raw_input=acp_updates.printable_value([{it.tool_id: it.input} for it in asked]),
        )
        chosen = await self._choose(asked, call)
        if chosen == ONE_BY_ONE:
            pending = {each.id for each in self.approvals.pending()}
            for question in asked:
                if question.id in pending:
                    self.tasks.start_soon(self._ask_one, question)
        elif chosen is not None:
            self.approvals.resolve_group(group, DECISIONS.get(chosen, "deny"))

    async def _choose(self, asked: Sequence[Question], call: schema.ToolCallUpdate) -> str | None:
        """Returns what the person chose; None if the questions are not open any more."""
        every = " all" if len(asked) > 1 else ""
        remembered = one_line(", ".join(dict.fromkeys(it.always for it in asked)), 120)
        options = [
            schema.PermissionOption(
                option_id="allow_once", name=f"Allow{every} once", kind="allow_once"
            ),
            schema.PermissionOption(
                option_id="allow_always", name=f"Always allow {remembered}", kind="allow_always"
            ),
            schema.PermissionOption(
                option_id="reject_once", name=f"Deny{every}", kind="reject_once"
            ),
        ]
        if len(asked) > 1:
            options.append(
                schema.PermissionOption(
                    option_id=ONE_BY_ONE, name="Decide one by one", kind="reject_once"
                )
            )
        request = schema.RequestPermissionRequest(
            session_id=self._session_id, tool_call=call, options=options
        )
        ids = {it.id for it in asked} & {it.id for it in self.approvals.pending()}
        chosen: str | None = None
        with anyio.move_on_after(max(it.expires for it in asked) - time.time()) as scope:
            if not ids:
                return None
            self._asked |= dict.fromkeys(ids, (ids, scope))
            try:
                chosen = await self._editor.ask(request)
            except (RequestError, ConnectionError, ValueError) as error:
                reason = f"the editor could not be asked: {message_of(error)}"
                for question in asked:
                    self.approvals.reject(question.id, reason)
                return None
        if chosen is not None:
            await self._editor.update(self._session_id, self._calls.resumed(call.tool_call_id))
        return chosen


def _reason(question: Question) -> list[schema.ContentToolCallContent]:
    """Returns what a hook or a rule says about a question."""
    text = "\n".join(filter(None, (question.title, question.description)))
    return [acp_updates.code_block(text)]
