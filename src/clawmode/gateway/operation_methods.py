"""The methods for operators: `commands.*`, `skills.*`, `logs.*`, `trajectory.*`, `cron.*`."""

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio

from clawmode.app.secrets import export_folder, export_session
from clawmode.config.operations import DAY_SECONDS
from clawmode.cron.job import Job, check_named
from clawmode.cron.jobs import JobError, JobsUnavailable, UnknownJob
from clawmode.exceptions import ConfigurationError
from clawmode.gateway import logs
from clawmode.gateway.logins import CODE_SECONDS, Grant
from clawmode.gateway.methods import (
    BOOLEAN,
    MAX_NUMBER,
    NAME,
    SESSION,
    STRING,
    TEXT,
    MethodCall,
    choice,
    integer,
    method,
    params,
)
from clawmode.messaging.slash import COMMANDS
from clawmode.models.base import THINKING_LEVELS
from clawmode.rpc.protocol import RpcError
from clawmode.sessions.export import ExportError, read_bundle
from clawmode.sessions.history import read_transcript
from clawmode.types import JsonObject, JsonValue

LINK = "/login#code="
"""The address of the login page, before a code. A browser sends nothing of what follows `#`."""

LEVELS = ("debug", "info", "warning", "error", "critical")
LINES = 200
PART_BYTES = 512 << 10
"""The bytes of a file in one answer of `trajectory.read`."""


# ---- Commands, skills, logs ----


async def _commands(call: MethodCall) -> JsonObject:
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


async def _skills(call: MethodCall) -> JsonObject:
    agent_id = call.agent_id()
    found = await call.host.resolver.skills(agent_id)
    return {
        "agentId": agent_id,
        "skills": [
            {"name": skill.name, "description": skill.description, "file": str(skill.file)}
            for skill in found.skills
        ],
        "notes": list[JsonValue](found.notes),
    }


async def _tail(call: MethodCall) -> JsonObject:
    """Returns the last lines of the gateway's log. Secrets were redacted when they were written."""
    wanted = LEVELS[LEVELS.index(call.params.text("level", "debug")) :]
    recent = tuple(logs.RECENT)
    last = int(str(recent[-1]["n"])) if recent else 0
    after = int(call.params.number("after", 0))
    # A number that is too high comes from an earlier process.
    first = after if after <= last else 0
    lines: list[JsonValue] = [
        line for line in recent if line["level"] in wanted and int(str(line["n"])) > first
    ]
    return {"lines": lines[-int(call.params.number("limit", LINES)) :], "next": last}


async def _link(call: MethodCall) -> JsonObject:
    """Returns a link that logs a browser in, once, with the rights of the client."""
    client = call.client
    grant = Grant(client.token, client.principal, tuple(sorted(client.scopes)))
    code = call.gateway.logins.new_code(grant)
    return {"path": LINK + code, "expiresInMs": int(CODE_SECONDS * 1000)}


# ---- Trajectories ----


async def _export(call: MethodCall) -> JsonObject:
    """Exports a session without secrets to a folder in its workspace."""
    session, name = await call.session(), call.params.text("name")
    setup = call.host.setup
    if not session.transcript.exists():
        raise RpcError("NOT_FOUND", "this session has no messages yet", field="sessionKey")
    try:
        return await anyio.to_thread.run_sync(
            lambda: export_session(setup, session, read_transcript(session.transcript), name)
        )
    except ExportError as error:
        if not name:
            raise
        raise RpcError("INVALID_REQUEST", str(error), field="name") from None


async def _read_export(call: MethodCall) -> JsonObject:
    """Returns a part of a file of an exported bundle, so that a client can save it."""
    session, given = await call.session(), call.params
    workspace = export_folder(call.host.setup, session)
    after = int(given.number("after", 0))
    try:
        size, data = await anyio.to_thread.run_sync(
            read_bundle, workspace, given.text("name"), given.text("file"), after, PART_BYTES
        )
    except ExportError as error:
        raise RpcError("NOT_FOUND", str(error), field="name") from None
    end = after + len(data)
    return {
        "size": size,
        "data": base64.b64encode(data).decode(),
        "next": end if data and end < size else None,
    }


# ---- Schedules ----


@contextmanager
def _translated(field: str) -> Iterator[None]:
    """Turns errors about a job into errors about a parameter."""
    try:
        yield
    except UnknownJob as error:
        raise RpcError("NOT_FOUND", str(error), field=field) from None
    except JobsUnavailable:  # a JobError, but not the fault of the request
        raise
    except JobError as error:
        raise RpcError("CONFLICT", str(error), field=field) from None
    except ConfigurationError as error:
        raise RpcError("INVALID_REQUEST", str(error), field=error.path) from None


async def _jobs(call: MethodCall) -> JsonObject:
    return {"jobs": [standing.described() for standing in await call.gateway.jobs.list()]}


async def _cron_status(call: MethodCall) -> JsonObject:
    standings = await call.gateway.jobs.list()
    due = [standing.due for standing in standings if standing.due is not None]
    running = [standing.job.id for standing in standings if standing.running]
    return {
        "enabled": call.host.setup.configuration.cron.enabled,
        "jobs": len(standings),
        "running": list[JsonValue](running),
        "nextAt": int(min(due) * 1000) if due else None,
    }


async def _add_job(call: MethodCall) -> JsonObject:
    given: dict[str, Any] = {name: it for name, it in call.params.items() if name in JOB}
    job = Job(timeout_seconds=given.pop("timeoutSeconds", None), **given)
    with _translated("id"):
        check_named(call.host.setup.configuration, job)
        added = await call.gateway.jobs.add(job)
    call.gateway.scheduler.wake()
    return {"job": added.described()}


async def _remove_job(call: MethodCall) -> JsonObject:
    with _translated("id"):
        await call.gateway.jobs.remove(call.params.text("id"))
    call.gateway.scheduler.wake()
    return {"id": call.params.text("id")}


async def _run_job(call: MethodCall) -> JsonObject:
    """Starts a run of a job now, whatever its schedule is. `agent.wait` waits for its end."""
    with _translated("id"):
        claim = await call.gateway.scheduler.claim_now(call.params.text("id"))
    call.client.runs.add(claim.run_id)
    call.gateway.begin(call.gateway.scheduler.carry_out, claim)
    return {"id": claim.job.id, "runId": claim.run_id}


# Like the fields of `Job`, but for the time limit.
JOB: dict[str, JsonObject] = {
    **dict.fromkeys(("cron", "every", "at", "tz", "agent", "model", "channel", "target"), STRING),
    "id": NAME,
    "message": TEXT,
    "enabled": BOOLEAN,
    "thinking": choice(*THINKING_LEVELS),
    "timeoutSeconds": integer(1, DAY_SECONDS),
}

METHODS = (
    method("dashboard.link", "operator.read", _link),
    method("commands.list", "operator.read", _commands),
    method("skills.list", "operator.read", _skills, params(agentId=NAME)),
    method(
        "logs.tail",
        "operator.admin",
        _tail,
        params(
            limit=integer(1, logs.MAX_LINES), level=choice(*LEVELS), after=integer(0, MAX_NUMBER)
        ),
    ),
    method(
        "trajectory.export", "operator.admin", _export, params(**SESSION, name=NAME), effect=True
    ),
    method(
        "trajectory.read",
        "operator.admin",
        _read_export,
        params("name", "file", **SESSION, name=NAME, file=NAME, after=integer(0, MAX_NUMBER)),
    ),
    method("cron.list", "operator.read", _jobs),
    method("cron.status", "operator.read", _cron_status),
    method("cron.add", "operator.admin", _add_job, params("id", "message", **JOB), effect=True),
    method("cron.remove", "operator.admin", _remove_job, params("id", id=NAME), effect=True),
    method("cron.run", "operator.admin", _run_job, params("id", id=NAME), effect=True),
)
