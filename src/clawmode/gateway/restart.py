"""What the gateway knows of runs beyond its own life: written as it starts them, and taken up."""

import json
import logging
from dataclasses import fields
from typing import Any

import anyio
from anyio.abc import TaskGroup

from clawmode.agent.requests import AgentRequest, RunResult
from clawmode.agent.runtime import AgentRuntime, Run
from clawmode.cron.scheduler import Scheduler
from clawmode.cron.turns import CRON
from clawmode.exceptions import ClawmodeError
from clawmode.gateway.ledger import Ledger, RunRow
from clawmode.messages import Image
from clawmode.messaging.channel import Inbound
from clawmode.messaging.inbox import Inbox
from clawmode.rpc.protocol import RpcError
from clawmode.sessions.history import read_transcript
from clawmode.sessions.keys import InvalidSession, SessionError
from clawmode.sessions.lock import SessionBusy
from clawmode.sessions.store import Session, UnknownSession
from clawmode.types import JsonObject, JsonValue

logger = logging.getLogger("clawmode.gateway")

LOST = "the job was removed, or its run was begun anew or ended its process too often"

LEFT_OUT = ("client_tools", "images", "message_ids", "run_id", "resume")
"""Of a request: what cannot be kept, or is kept otherwise."""


async def take_messages(inbox: Inbox, ledger: Ledger) -> None:
    """Takes up the messages that no run had when the process before ended."""
    for message_id, session_key, text in await ledger.messages():
        try:
            await inbox.restore(message_id, session_key, Inbound.from_json(json.loads(text)))
        except (ClawmodeError, ValueError, TypeError, KeyError) as error:
            logger.error("a message of %s is lost: %s", session_key, error)
            await ledger.release([message_id])


def row_of(run: Run) -> RunRow:
    """A run as it is noted before it begins."""
    request = run.request
    kept: JsonObject = {
        each.name: getattr(request, each.name)
        for each in fields(AgentRequest)
        if each.name not in LEFT_OUT
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


def request_of(row: RunRow, *, resume: bool) -> AgentRequest:
    """The request of a run that is noted, to be made again or gone on with."""
    known = {each.name for each in fields(AgentRequest)} - set(LEFT_OUT)
    given: dict[str, Any] = {key: it for key, it in row.request.items() if key in known}
    found: Any = row.request.get("images") or []
    images = tuple(Image(it["data"], it["mediaType"]) for it in found)
    given |= {"session_id": row.session_id, "session_key": "", "agent_id": ""}
    return AgentRequest(**given, images=images, run_id=row.id, resume=resume)


async def continue_runs(
    runtime: AgentRuntime, ledger: Ledger, scheduler: Scheduler, tasks: TaskGroup
) -> None:
    """Takes up the runs that the process before left: goes on, begins, or notes how they ended.

    Runs of jobs are continued by the scheduler, which would else begin them anew.
    """
    for row in await ledger.unfinished():
        try:
            if row.request.get("trigger") == CRON:
                await _continue_job(runtime, ledger, row, scheduler, tasks)
            else:
                await _continue(runtime, ledger, row)
        except (ClawmodeError, ValueError, TypeError, KeyError) as error:
            logger.error("run %s cannot be continued: %s", row.id, error)
            result: JsonObject = {"runId": row.id, "status": "error", "error": str(error)}
            await ledger.end(row.id, row.accepted_at, "error", result)


async def _continue(runtime: AgentRuntime, ledger: Ledger, row: RunRow) -> None:
    request = await _request(runtime, ledger, row)
    if isinstance(request, AgentRequest):
        await runtime.start(request)


async def _continue_job(
    runtime: AgentRuntime, ledger: Ledger, row: RunRow, scheduler: Scheduler, tasks: TaskGroup
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


async def _request(runtime: AgentRuntime, ledger: Ledger, row: RunRow) -> AgentRequest | RunResult:
    """What continues a run, or begins it; or its result, if it had ended."""
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
    logger.info("run %s of %s is %s", row.id, row.session_key, "continued" if state else "begun")
    return request_of(row, resume=state)


def _state_of(session: Session, run_id: str) -> bool | dict[str, Any]:
    """Whether a run has begun; or how it ended, if that is written down."""
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


def as_rpc_error(error: ClawmodeError) -> RpcError:
    """What of ours went wrong, in the words of the protocol."""
    if isinstance(error, UnknownSession):
        return RpcError("NOT_FOUND", str(error))
    if isinstance(error, InvalidSession):
        return RpcError("INVALID_REQUEST", str(error), field="sessionKey")
    if isinstance(error, SessionBusy | SessionError):
        return RpcError("UNAVAILABLE", str(error), retry_after_ms=1_000)
    return RpcError("UNAVAILABLE", str(error))
