"""What operators look at and do: commands, skills, logs, trajectories, schedules."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio

from clawmode.app.secrets import known_secrets
from clawmode.app.setup import Setup
from clawmode.config import resolve as settings
from clawmode.config.operations import DAY_SECONDS
from clawmode.cron.job import Job, check_named
from clawmode.cron.jobs import JobError, JobsUnavailable, UnknownJob
from clawmode.exceptions import ConfigurationError
from clawmode.gateway import logs
from clawmode.gateway.clients import Client
from clawmode.gateway.gateway import Gateway
from clawmode.gateway.methods import (
    BOOLEAN,
    NAME,
    STRING,
    TEXT,
    Params,
    agent_of,
    choice,
    integer,
    method,
    params,
)
from clawmode.gateway.run_methods import SESSION
from clawmode.gateway.session_methods import find
from clawmode.messaging.slash import COMMANDS
from clawmode.models.base import THINKING_LEVELS
from clawmode.redaction import Redactor
from clawmode.rpc.protocol import RpcError
from clawmode.sessions.export import ExportError, export
from clawmode.sessions.history import read_transcript
from clawmode.sessions.store import Session
from clawmode.sessions.trajectory import sidecar_path
from clawmode.sessions.workspaces import workspace_of
from clawmode.types import JsonObject, JsonValue

LEVELS = ("debug", "info", "warning", "error", "critical")
LINES = 200


# ---- Commands, skills, logs ----


async def _commands(gateway: Gateway, client: Client, given: Params) -> JsonObject:
    return {
        "commands": [
            {
                "name": name,
                "usage": entry.usage,
                "description": entry.help,
                "forOperators": entry.for_operators,
            }
            for name, entry in COMMANDS.items()
        ]
    }


async def _skills(gateway: Gateway, client: Client, given: Params) -> JsonObject:
    agent_id = agent_of(gateway, given)
    found = await gateway.host.resolver.skills(agent_id)
    return {
        "agentId": agent_id,
        "skills": [
            {"name": it.name, "description": it.description, "file": str(it.file)}
            for it in found.skills
        ],
        "notes": list[JsonValue](found.notes),
    }


async def _tail(gateway: Gateway, client: Client, given: Params) -> JsonObject:
    """The last lines that the gateway wrote about itself; secrets were struck out as it did."""
    wanted = LEVELS[LEVELS.index(given.text("level", "debug")) :]
    lines: list[JsonValue] = [line for line in logs.RECENT if line["level"] in wanted]
    return {"lines": lines[-int(given.number("limit", LINES)) :]}


# ---- Trajectories ----


async def _export(gateway: Gateway, client: Client, given: Params) -> JsonObject:
    """Writes what is known of a session's runs, without secrets, to a folder in its workspace."""
    session, name = await find(gateway, given), given.text("name")
    setup = gateway.host.setup
    if not session.transcript.exists():
        raise RpcError("NOT_FOUND", "nothing was said in this session yet", field="sessionKey")
    try:
        return await anyio.to_thread.run_sync(_write_bundle, setup, session, name)
    except ExportError as error:
        if not name:
            raise
        raise RpcError("INVALID_REQUEST", str(error), field="name") from None


def _write_bundle(setup: Setup, session: Session, name: str) -> JsonObject:
    agent = settings.agent(setup.configuration, session.agent_id)
    workspace = workspace_of(setup.state, agent.id, agent.workspace or None)
    made = export(
        read_transcript(session.transcript),
        sidecar_path(session.transcript, session.id),
        workspace=workspace,
        name=name or None,
        redactor=Redactor(known_secrets(setup), workspace=workspace, home=Path.home()),
    )
    return {
        "sessionKey": session.key,
        "folder": os.fspath(made.folder),
        "files": list[JsonValue](made.files),
        "events": made.events,
        "runtimeEvents": made.runtime_events,
        "skipped": made.skipped,
    }


# ---- Schedules ----


@contextmanager
def _told(field: str) -> Iterator[None]:
    """Trouble with a job, in the words of the protocol."""
    try:
        yield
    except UnknownJob as error:
        raise RpcError("NOT_FOUND", str(error), field=field) from None
    except JobsUnavailable:
        raise
    except JobError as error:
        raise RpcError("CONFLICT", str(error), field=field) from None
    except ConfigurationError as error:
        raise RpcError("INVALID_REQUEST", str(error), field=error.path) from None


async def _jobs(gateway: Gateway, client: Client, given: Params) -> JsonObject:
    return {"jobs": [standing.described() for standing in await gateway.jobs.list()]}


async def _cron_status(gateway: Gateway, client: Client, given: Params) -> JsonObject:
    standings = await gateway.jobs.list()
    due = [each.due for each in standings if each.due is not None]
    running = [each.job.id for each in standings if each.running]
    return {
        "enabled": gateway.host.setup.configuration.cron.enabled,
        "jobs": len(standings),
        "running": list[JsonValue](running),
        "nextAt": int(min(due) * 1000) if due else None,
    }


async def _add_job(gateway: Gateway, client: Client, given: Params) -> JsonObject:
    thinking = given.text("thinking")
    seconds = given.number("timeoutSeconds", 0)
    job = Job(
        id=given.text("id"),
        message=given.text("message"),
        cron=given.text("cron"),
        every=given.text("every"),
        at=given.text("at"),
        tz=given.text("tz"),
        enabled=given.flag("enabled", True),
        agent=given.text("agent"),
        model=given.text("model"),
        thinking=next((it for it in THINKING_LEVELS if it == thinking), None),
        timeout_seconds=seconds or None,
        channel=given.text("channel"),
        target=given.text("target"),
    )
    try:
        check_named(gateway.host.setup.configuration, job)
    except ConfigurationError as error:
        raise RpcError("INVALID_REQUEST", str(error), field=error.path) from None
    with _told("id"):
        added = await gateway.jobs.add(job)
    gateway.scheduler.wake()
    return {"job": added.described()}


async def _remove_job(gateway: Gateway, client: Client, given: Params) -> JsonObject:
    with _told("id"):
        await gateway.jobs.remove(given.text("id"))
    gateway.scheduler.wake()
    return {"id": given.text("id")}


async def _run_job(gateway: Gateway, client: Client, given: Params) -> JsonObject:
    """Begins a run of a job, whatever its times are; `agent.wait` knows when it ends."""
    with _told("id"):
        claim = await gateway.scheduler.claim_now(given.text("id"))
    client.runs.add(claim.run_id)
    gateway.begin(gateway.scheduler.carry_out, claim)
    return {"id": claim.job.id, "runId": claim.run_id}


JOB: dict[str, JsonObject] = {
    **dict.fromkeys(("cron", "every", "at", "tz", "agent", "model", "channel", "target"), STRING),
    "id": NAME,
    "message": TEXT,
    "enabled": BOOLEAN,
    "thinking": choice(*THINKING_LEVELS),
    "timeoutSeconds": integer(1, DAY_SECONDS),
}

METHODS = (
    method("commands.list", "operator.read", _commands),
    method("skills.list", "operator.read", _skills, params(agentId=NAME)),
    method(
        "logs.tail",
        "operator.admin",
        _tail,
        params(limit=integer(1, logs.MAX_LINES), level=choice(*LEVELS)),
    ),
    method(
        "trajectory.export",
        "operator.admin",
        _export,
        params(**SESSION, name=NAME),
        effect=True,
    ),
    method("cron.list", "operator.read", _jobs),
    method("cron.status", "operator.read", _cron_status),
    method("cron.add", "operator.admin", _add_job, params("id", "message", **JOB), effect=True),
    method("cron.remove", "operator.admin", _remove_job, params("id", id=NAME), effect=True),
    method("cron.run", "operator.admin", _run_job, params("id", id=NAME), effect=True),
)
