"""Questions of a gateway's run, read from the wire; answers go back to the gateway.

The questions are read by hand. Their types have other members than the wire (the run is spread over
four of them), and a gateway of another version may leave out members or add a severity: an unknown
severity counts as critical, and only a question that could mislead the user is rejected.
"""

import logging
from typing import Any

import anyio
from anyio.abc import TaskGroup

from clawmode.context import RunContext
from clawmode.rpc.client import Event, GatewayClient, RpcError
from clawmode.tools.approvals import Approvals, InputQuestion, Question
from clawmode.tools.tool import SEVERITIES, InputRequest
from clawmode.types import JsonObject

logger = logging.getLogger("clawmode.gateway")


class RemoteQuestions:
    """Gets answers to questions of a gateway's runs.

    Args:
        client: The connection to the gateway.
        approvals: Decides about the questions.
        only: Fields that a question must have, such as `runId`; other questions are ignored.
    """

    def __init__(self, client: GatewayClient, approvals: Approvals, **only: str) -> None:
        self._client = client
        self._approvals = approvals
        self._only = only
        self._asked_ids: set[str] = set()
        self._open: dict[str, anyio.CancelScope] = {}

    def take(self, event: Event, tasks: TaskGroup) -> None:
        """Asks the question of an event in a task; withdraws one that was answered elsewhere."""
        if self._is_new(event):
            tasks.start_soon(self._answer, event)

    def _is_new(self, event: Event) -> bool:
        question_id = str(event.payload.get("id"))
        if event.name.endswith(".resolved"):
            if (scope := self._open.get(question_id)) is not None:
                scope.cancel()
            return False
        is_ours = all(event.payload.get(name) == value for name, value in self._only.items())
        # The event of a group repeats questions that have events of their own.
        asks = event.name.endswith(".requested") and is_ours
        asks = asks and not event.name.startswith("approval.group.")
        if not asks or question_id in self._asked_ids:
            return False
        self._asked_ids.add(question_id)
        return True

    async def refresh(self, tasks: TaskGroup) -> None:
        """Withdraws questions that are no longer open; asks those that are.

        No event may be handled while this waits: a question that is newer than the gateway's
        answer would be withdrawn.
        """
        waiting: list[Event] = []
        for family in ("exec.approval", "plugin.approval"):
            answer: dict[str, Any] = await self._client.call(f"{family}.list")
            waiting += [Event(f"{family}.requested", item) for item in answer["approvals"]]
        inputs: dict[str, Any] = await self._client.call("input.list")
        waiting += [Event("input.requested", item) for item in inputs["inputs"]]
        ids = {str(event.payload.get("id")) for event in waiting}
        for question_id, scope in self._open.items():
            if question_id not in ids:
                scope.cancel()
        # A question that is not shown here, but still open, is asked again: its answer was lost.
        self._asked_ids &= set(self._open)
        for event in waiting:
            self.take(event, tasks)

    async def _answer(self, event: Event) -> None:
        """Asks the question of an event, and sends the answer to the gateway."""
        payload: dict[str, Any] = event.payload
        question_id = str(payload.get("id"))
        with anyio.CancelScope() as scope:
            self._open[question_id] = scope
            try:
                if event.name == "input.requested":
                    question = read_input(payload)
                    content = None
                    if self._approvals.takes_input:
                        content = await self._approvals.ask_input(question)
                    await self._client.call("input.answer", {"id": question.id, "content": content})
                else:
                    approval = read_question(payload)
                    decision = await self._approvals.ask(approval)
                    if decision != "timeout":  # the gateway's own clock ends the question
                        answer: JsonObject = {"id": approval.id, "decision": decision}
                        await self._client.call("exec.approval.resolve", answer)
            except RpcError as error:
                logger.warning("the gateway rejected the answer to a question: %s", error)
            except (KeyError, TypeError, ValueError):
                logger.warning("a question of the gateway cannot be read: %s", question_id)
            finally:
                self._open.pop(question_id, None)


# ---- From the wire ----


def read_question(data: dict[str, Any]) -> Question:
    """Parses a question whether a call may run."""
    return Question(
        id=str(data["id"]),
        title=str(data["title"]),
        description=str(data.get("description", "")),
        severity=next((it for it in SEVERITIES if it == data.get("severity")), "critical"),
        tool_id=str(data["toolId"]),
        input=dict(data["input"]),
        run=_run_of(data),
        call_id=str(data.get("callId", "")),
        program=str(data.get("groupId", "")),  # what the gateway puts together is put so here, too
        always=str(data["always"]),
        expires=float(data["expiresAtMs"]) / 1000,
    )


def read_input(data: dict[str, Any]) -> InputQuestion:
    """Parses a tool's question for input."""
    url, schema = data.get("url"), data.get("schema")
    return InputQuestion(
        id=str(data["id"]),
        tool_id=str(data["toolId"]),
        request=InputRequest(
            message=str(data["message"]),
            schema=schema if isinstance(schema, dict) else None,
            url=None if url is None else str(url),
        ),
        run=_run_of(data),
        expires=float(data["expiresAtMs"]) / 1000,
    )


def _run_of(data: dict[str, Any]) -> RunContext:
    return RunContext(
        agent_id=str(data.get("agentId", "")),
        session_key=str(data.get("sessionKey", "")),
        run_id=str(data.get("runId", "")),
        sender=str(data.get("sender", "")),
    )
