"""Runs and messages that survive a restart: recorded when accepted, continued at the next start."""

import json
import logging
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import anyio
from anyio.abc import TaskGroup

from clawmode.agent.requests import AgentRequest, RunResult
from clawmode.cron.turns import CRON
from clawmode.exceptions import ClawmodeError, message_of
from clawmode.gateway.ledger import Ledger, LedgerUnavailable, RunRow
from clawmode.messages import Image
from clawmode.messaging.channel import InboundMessage
from clawmode.sessions.history import read_transcript
from clawmode.sessions.store import Session
from clawmode.types import JsonObject, JsonValue

if TYPE_CHECKING:
    from clawmode.agent.run import AgentRun
    from clawmode.agent.runtime import AgentRuntime
    from clawmode.cron.scheduler import Scheduler
    from clawmode.messaging.inbox import Inbox

logger = logging.getLogger("clawmode.gateway")

LOST = "the job was removed or started again, or this run has crashed its process too often"

LEFT_OUT = ("client_tools", "images", "message_ids", "run_id", "resume")
"""The fields of a request that cannot be stored, or are stored in another form."""


async def restore_messages(inbox: "Inbox", ledger: Ledger) -> None:
    """Restores the messages that no run had read when the last process ended."""
    for message_id, session_key, text in await ledger.messages():
        try:
            await inbox.restore(message_id, session_key, InboundMessage.from_json(json.loads(text)))
        except (ClawmodeError, ValueError, TypeError, KeyError) as error:
            logger.error("a message for %s cannot be restored: %s", session_key, error)
            await ledger.release([message_id])


def row_of(run: "AgentRun") -> RunRow:
    """Returns a run as it is recorded before it starts."""
    request = run.request
    kept: JsonObject = {
        member.name: getattr(request, member.name)
        for member in fields(AgentRequest)
        if member.name not in LEFT_OUT
    }
    kept["message_ids"] = list[JsonValue](request.message_ids)
    pictures: list[JsonValue] = [
        {"data": image.data, "mediaType": image.media_type} for image in request.images
    ]
    return RunRow(
        id=run.id,
        session_key=run.session.key,
        session_id=run.session.id,
        agent_id=run.session.agent_id,
        request={**kept, "images": pictures},
        accepted_at=run.accepted_at,
    )


async def note(ledger: Ledger, run: "AgentRun", pause: float) -> None:
    """Records the start or the end of a run.

    Retried without end: a run whose end is missing would be continued at the next start.

    Args:
        ledger: The ledger.
        run: The run.
        pause: The seconds before another attempt.
    """
    while True:
        result = run.result
        try:
            if result is None:
                await ledger.start(run.id, run.started_at)
            else:
                await ledger.end(run.id, result.ended_at, result.status, result.to_json())
            return
        except LedgerUnavailable as error:
            logger.error("run %s: %s", run.id, message_of(error))
            await anyio.sleep(pause)


def request_of(row: RunRow, *, resume: bool) -> AgentRequest:
    """Returns the request of a recorded run, to start the run or to resume it."""
    known = {member.name for member in fields(AgentRequest)} - set(LEFT_OUT)
    given: dict[str, Any] = {key: value for key, value in row.request.items() if key in known}
    stored: Any = row.request.get("images") or []
    images = tuple(Image(image["data"], image["mediaType"]) for image in stored)
    # The id names the session uniquely: the key may belong to a newer session by now.
    given |= {"session_id": row.session_id, "session_key": "", "agent_id": ""}
    return AgentRequest(**given, images=images, run_id=row.id, resume=resume)


async def continue_runs(
    runtime: "AgentRuntime", ledger: Ledger, scheduler: "Scheduler", tasks: TaskGroup
) -> None:
    """Continues the runs that the last process left: resumes, starts, or records their end.

    The scheduler continues the runs of jobs; otherwise it would start them again.
    """
    for row in await ledger.unfinished():
        try:
            if row.request.get("trigger") == CRON:
                await _continue_job(runtime, ledger, row, scheduler, tasks)
                continue
            request = await _request(runtime, ledger, row)
            if isinstance(request, AgentRequest):
                await runtime.start(request)
        except (ClawmodeError, ValueError, TypeError, KeyError) as error:
            logger.error("run %s cannot be continued: %s", row.id, error)
            result: JsonObject = {"runId": row.id, "status": "error", "error": str(error)}
            await ledger.end(row.id, row.accepted_at, "error", result)


async def _continue_job(
    runtime: "AgentRuntime", ledger: Ledger, row: RunRow, scheduler: "Scheduler", tasks: TaskGroup
) -> None:
    claim = await scheduler.adopt(row.id)
    if claim is None:
        result: JsonObject = {"runId": row.id, "status": "error", "error": LOST}
        await ledger.end(row.id, row.accepted_at, "error", result)
        return
    request = await _request(runtime, ledger, row)
    if isinstance(request, AgentRequest):
        tasks.start_soon(scheduler.go_on, claim, request)
    else:
        await scheduler.settle(claim, request)


async def _request(
    runtime: "AgentRuntime", ledger: Ledger, row: RunRow
) -> AgentRequest | RunResult:
    """Returns the request that resumes or starts a run; or its result, if it has ended."""
    session = await runtime.sessions.get(row.session_id)
    state = await anyio.to_thread.run_sync(_state_of, session, row.id)
    if isinstance(state, dict):
        await ledger.end(row.id, state["endedAt"], state["status"], state)
        return RunResult(
            run_id=row.id,
            session_key=row.session_key,
            session_id=row.session_id,
            status=state["status"],
            error=state["error"],
        )
    logger.info("run %s of %s is %s", row.id, row.session_key, "resumed" if state else "started")
    return request_of(row, resume=state)


def _state_of(session: Session, run_id: str) -> bool | dict[str, Any]:
    """Returns whether a run has started; or its result, if the transcript has its end."""
    if not session.transcript.exists():
        return False
    history = read_transcript(session.transcript)
    if run_id in history.open_runs():
        return True
    for entry in history.entries:
        if entry.type == "run" and entry.run_id == run_id and entry.data.get("phase") == "end":
            status = entry.data.get("status", "error")
            error = entry.data.get("error")
            return {"runId": run_id, "status": status, "error": error, "endedAt": entry.at}
    return False
