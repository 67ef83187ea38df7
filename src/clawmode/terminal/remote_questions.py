"""Questions of a gateway's run, put to whoever sits at this terminal; answers go back to it."""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import anyio

from clawmode.app.console import print_note
from clawmode.context import RunContext
from clawmode.rpc.client import Event, GatewayClient, RpcError
from clawmode.terminal.desk import Mode, SharedDesk, Terminal, make_approvals
from clawmode.tools.approvals import Approvals, InputQuestion, Question
from clawmode.tools.hooks import Severity
from clawmode.tools.tool import InputRequest
from clawmode.types import JsonObject

logger = logging.getLogger("clawmode.gateway")

SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")


class RemoteDesk(SharedDesk):
    """Puts the questions of a gateway. One that was answered elsewhere stands there no more."""

    until = "the gateway stops"

    def __init__(
        self, terminal: Terminal, paused: Callable[[], AbstractContextManager[None]]
    ) -> None:
        super().__init__(ask_for=lambda tool: True, terminal=terminal, paused=paused)


def remote_approvals(
    mode: Mode, terminal: Terminal | None, paused: Callable[[], AbstractContextManager[None]]
) -> Approvals:
    """Who answers for a gateway's run: a person, or the mode in their place."""
    if mode == "ask" and terminal is not None:
        return RemoteDesk(terminal, paused)
    return make_approvals(mode, later=False, terminal=None, paused=paused, tell=print_note)


class RemoteQuestions:
    """Has the questions of one run answered.

    Args:
        client: The gateway's.
        approvals: Who answers.
        run_id: Of that run alone.
    """

    def __init__(self, client: GatewayClient, approvals: Approvals, run_id: str) -> None:
        self._client = client
        self._approvals = approvals
        self._run_id = run_id
        self._open: dict[str, anyio.CancelScope] = {}

    def is_new(self, event: Event) -> bool:
        """Whether somebody has to be asked; what was answered elsewhere is taken away."""
        question_id = str(event.payload.get("id"))
        if event.name.endswith(".resolved"):
            if (scope := self._open.get(question_id)) is not None:
                scope.cancel()
            return False
        asks = event.name.endswith(".requested") and event.payload.get("runId") == self._run_id
        return asks and question_id not in self._open

    async def answer(self, event: Event) -> None:
        """Asks, and tells the gateway."""
        payload: dict[str, Any] = event.payload
        question_id = str(payload.get("id"))
        with anyio.CancelScope() as scope:
            self._open[question_id] = scope
            try:
                if event.name == "input.requested":
                    await self._answer_input(read_input(payload))
                else:
                    await self._answer(read_question(payload))
            except RpcError as error:
                logger.warning("the answer was not taken: %s", error)
            except (KeyError, TypeError, ValueError):
                logger.warning("a question of the gateway's is not understood: %s", question_id)
            finally:
                self._open.pop(question_id, None)

    async def _answer(self, question: Question) -> None:
        decision = await self._approvals.ask(question)
        if decision != "timeout":
            answer: JsonObject = {"id": question.id, "decision": decision}
            await self._client.call("exec.approval.resolve", answer)

    async def _answer_input(self, question: InputQuestion) -> None:
        content = None
        if self._approvals.takes_input:
            content = await self._approvals.ask_input(question)
        await self._client.call("input.answer", {"id": question.id, "content": content})

    async def waiting(self) -> list[Event]:
        """Those that were asked before anybody listened here."""
        found: list[Event] = []
        for family in ("exec.approval", "plugin.approval"):
            answer: dict[str, Any] = await self._client.call(f"{family}.list")
            found += [Event(f"{family}.requested", it) for it in answer["approvals"]]
        inputs: dict[str, Any] = await self._client.call("input.list")
        found += [Event("input.requested", it) for it in inputs["inputs"]]
        return found


# ---- From the wire ----


def read_question(data: dict[str, Any]) -> Question:
    """A question as the gateway tells it."""
    return Question(
        id=str(data["id"]),
        title=str(data["title"]),
        description=str(data.get("description", "")),
        severity=next((it for it in SEVERITIES if it == data.get("severity")), "critical"),
        tool_id=str(data["toolId"]),
        input=dict(data["input"]),
        run=_run_of(data),
        call_id=str(data.get("callId", "")),
        always=str(data["always"]),
        expires=float(data["expiresAtMs"]) / 1000,
    )


def read_input(data: dict[str, Any]) -> InputQuestion:
    """What a tool wants to know, as the gateway tells it."""
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
