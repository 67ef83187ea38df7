"""`exec.approval.*`, `plugin.approval.*`, `input.*`: questions, put and answered by clients.

And `exec.approvals.*`: what this host lets agents run.
"""

import os
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

import anyio
from anyio.lowlevel import checkpoint

from clawmode.app.own_tools import HOST_FILE
from clawmode.context import RunContext
from clawmode.core_tools.exec_approvals import Changed, HostFile, digest
from clawmode.core_tools.exec_policy import EXEC_ID, analyse
from clawmode.gateway.approvals import QuestionRecord, describe, describe_input
from clawmode.gateway.clients import Client
from clawmode.gateway.gateway import Gateway
from clawmode.gateway.methods import (
    NAME,
    OBJECT,
    STRING,
    Handler,
    Method,
    Params,
    agent_of,
    choice,
    integer,
    method,
    params,
)
from clawmode.messaging.slash import DECISIONS
from clawmode.rpc.protocol import RpcError
from clawmode.sessions.keys import session_key
from clawmode.tools.approvals import Decision, InputQuestion, Question, Resolution
from clawmode.tools.hooks import Severity
from clawmode.tools.validation import InvalidSchema, Validator
from clawmode.types import JsonObject

Family: TypeAlias = Literal["exec", "plugin"]

EXPIRY_MS = 1_800_000
WAIT_MS = 30_000
MAX_WAITING = 500
"""Questions that may wait for people, before clients may put no more."""

SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")
NOTHING_MORE = "nothing beyond this"
REQUEST_ID = "client:client:request"
"""What asks, where a client does, and it is about no command."""


# ---- Putting questions ----


async def _request_exec(gateway: Gateway, client: Client, given: Params) -> JsonObject:
    """Asks whether a command may be run, by whoever asks."""
    run = _asker(gateway, client, given)
    command, host = given.text("command"), _host_file(gateway)
    plan: JsonObject = {"command": command}
    if given.text("cwd"):
        plan["workdir"] = given.text("cwd")
    missed = await anyio.to_thread.run_sync(_missed, host, run.agent_id, plan)

    def resolved(resolution: Resolution) -> None:
        if resolution == "allow-always" and missed:
            host.remember(run.agent_id, missed, command)

    question = Question(
        title="Run a command?",
        tool_id=EXEC_ID,
        input=plan,
        run=run,
        always=f"{', '.join(missed) or NOTHING_MORE} for the agent {run.agent_id}",
        expires=_expiry(given),
        on_resolution=(resolved,),
    )
    return await _put(gateway, question)


async def _request_plugin(gateway: Gateway, client: Client, given: Params) -> JsonObject:
    """Asks anything that can be answered by a decision."""
    severity = given.text("severity")
    question = Question(
        title=given.text("title"),
        description=given.text("description"),
        severity=next((it for it in SEVERITIES if it == severity), "warning"),
        tool_id=REQUEST_ID,
        input={},
        run=_asker(gateway, client, given),
        always=NOTHING_MORE,
        expires=_expiry(given),
        # With somebody to tell, `allow-always` is remembered by nobody else.
        on_resolution=(lambda resolution: None,),
    )
    return await _put(gateway, question)


async def _put(gateway: Gateway, question: Question) -> JsonObject:
    if len(gateway.approvals.pending()) >= MAX_WAITING:
        text = f"{MAX_WAITING} questions wait for people already"
        raise RpcError("RATE_LIMITED", text, retry_after_ms=60_000)
    gateway.begin(gateway.approvals.ask, question)
    await checkpoint()  # it is known when its id is
    return {"id": question.id, "expiresAtMs": int(question.expires * 1000)}


def _asker(gateway: Gateway, client: Client, given: Params) -> RunContext:
    agent_id, key = agent_of(gateway, given), given.text("sessionKey")
    return RunContext(
        agent_id=agent_id,
        session_key=session_key(key, agent_id) if key else "",
        run_id="",
        sender=client.principal,
    )


def _expiry(given: Params) -> float:
    return time.time() + given.number("timeoutMs", EXPIRY_MS) / 1000


def _missed(host: HostFile, agent_id: str, plan: JsonObject) -> list[str]:
    """The programs of a command that the allowlist lacks."""
    allowed = host.for_agent(agent_id).allowlist
    return list(analyse(plan, allowed, os.environ.get("PATH", os.defpath)).missed)


# ---- Looking and answering ----


def _find(gateway: Gateway, given: Params, *families: Family) -> QuestionRecord:
    question_id = given.text("id")
    asked = gateway.approvals.find(question_id)
    if asked is None or asked.family not in families:
        text = f"there is no question {question_id[:80]!r}, or not any more"
        raise RpcError("NOT_FOUND", text, field="id")
    return asked


async def _get(family: Family, gateway: Gateway, client: Client, given: Params) -> JsonObject:
    asked = _find(gateway, given, family)
    return describe(asked) | {"decision": asked.resolution, "settled": asked.settled.is_set()}


async def _list(family: Family, gateway: Gateway, client: Client, given: Params) -> JsonObject:
    waiting = gateway.approvals.waiting()
    return {"approvals": [describe(asked) for asked in waiting if asked.family == family]}


async def _resolve(family: Family, gateway: Gateway, client: Client, given: Params) -> JsonObject:
    """Decides. To say the same again does no harm; whoever says otherwise is too late."""
    families: tuple[Family, ...] = ("exec", "plugin") if family == "exec" else ("plugin",)
    asked, wanted = _find(gateway, given, *families), given.text("decision")
    decision: Decision = next(it for it in DECISIONS if it == wanted)
    if not gateway.approvals.resolve(asked.question.id, decision) and asked.resolution != decision:
        raise RpcError("NOT_FOUND", "this question waits for no answer any more", field="id")
    return {"id": asked.question.id, "decision": decision}


async def _wait(family: Family, gateway: Gateway, client: Client, given: Params) -> JsonObject:
    asked = _find(gateway, given, family)
    seconds = given.number("timeoutMs", WAIT_MS) / 1000
    decision = await gateway.approvals.decision(asked.question.id, seconds)
    return {"id": asked.question.id, "decision": decision}


# ---- What tools want to know ----


async def _inputs(gateway: Gateway, client: Client, given: Params) -> JsonObject:
    return {"inputs": [describe_input(it) for it in gateway.approvals.pending_inputs()]}


async def _answer(gateway: Gateway, client: Client, given: Params) -> JsonObject:
    """Tells a tool what it asked for; null declines."""
    question_id = given.text("id")
    waiting = {it.id: it for it in gateway.approvals.pending_inputs()}
    content = given.object("content") if given["content"] is not None else None
    if content is not None and question_id in waiting:
        _check_answer(waiting[question_id], content)
    if not gateway.approvals.answer(question_id, content):
        text = f"nothing waits for an answer as {question_id[:80]!r}"
        raise RpcError("NOT_FOUND", text, field="id")
    return {"id": question_id}


def _check_answer(question: InputQuestion, content: JsonObject) -> None:
    schema = question.request.schema
    if schema is None:
        return
    with suppress(InvalidSchema):  # then it is the tool's business
        if problems := Validator(schema).validate(content):
            raise RpcError("INVALID_REQUEST", problems[0], field="content")


# ---- The host's rules ----


def _host_file(gateway: Gateway) -> HostFile:
    return HostFile(gateway.host.setup.state / HOST_FILE)


async def _get_rules(gateway: Gateway, client: Client, given: Params) -> JsonObject:
    host = _host_file(gateway)
    try:
        data = await anyio.to_thread.run_sync(host.read)
    except (OSError, ValueError) as error:
        raise RpcError("UNAVAILABLE", f"{HOST_FILE} cannot be used: {_reason(error)}") from None
    return _told(host.path, data)


async def _set_rules(gateway: Gateway, client: Client, given: Params) -> JsonObject:
    host, data = _host_file(gateway), given.object("file")
    try:
        await anyio.to_thread.run_sync(host.replace, data, given.text("baseHash"))
    except Changed as error:
        raise RpcError("CONFLICT", str(error), field="baseHash") from None
    except ValueError as error:
        raise RpcError("INVALID_REQUEST", str(error), field="file") from None
    except OSError as error:
        raise RpcError("UNAVAILABLE", f"{HOST_FILE}: {_reason(error)}") from None
    return _told(host.path, data)


def _told(path: Path, data: JsonObject) -> JsonObject:
    return {"path": str(path), "exists": path.exists(), "hash": digest(data), "file": data}


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


# ---- All of them ----

ASKING: dict[str, JsonObject] = {
    "agentId": NAME,
    "sessionKey": NAME,
    "timeoutMs": integer(1, EXPIRY_MS),
}
COMMAND: JsonObject = {"type": "string", "minLength": 1, "maxLength": 65_536}
CONTENT: JsonObject = {"type": ["object", "null"]}


def _family(family: Family, ask: Handler, asking: JsonObject) -> tuple[Method, ...]:
    name = f"{family}.approval"
    one = params("id", id=NAME)
    decide = params("id", "decision", id=NAME, decision=choice(*DECISIONS))
    wait = params("id", id=NAME, timeoutMs=integer(0, EXPIRY_MS))
    return (
        method(f"{name}.request", "operator.write", ask, asking, effect=True),
        method(f"{name}.get", "operator.approvals", partial(_get, family), one),
        method(f"{name}.list", "operator.approvals", partial(_list, family)),
        method(f"{name}.resolve", "operator.approvals", partial(_resolve, family), decide),
        method(f"{name}.waitDecision", "operator.write", partial(_wait, family), wait),
    )


METHODS = (
    *_family("exec", _request_exec, params("command", command=COMMAND, cwd=STRING, **ASKING)),
    *_family(
        "plugin",
        _request_plugin,
        params("title", title=NAME, description=STRING, severity=choice(*SEVERITIES), **ASKING),
    ),
    method("input.list", "operator.approvals", _inputs),
    method(
        "input.answer",
        "operator.approvals",
        _answer,
        params("id", "content", id=NAME, content=CONTENT),
    ),
    method("exec.approvals.get", "operator.admin", _get_rules),
    method(
        "exec.approvals.set",
        "operator.admin",
        _set_rules,
        params("file", file=OBJECT, baseHash=NAME),
        effect=True,
        repeatable=True,
    ),
)
