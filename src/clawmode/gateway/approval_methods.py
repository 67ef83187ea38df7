"""The methods for questions to people: `exec.approval.*`, `plugin.approval.*`, `input.*`.

And `exec.approvals.*`: the commands that agents may run on this host.
"""

import os
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias

import anyio
from anyio.lowlevel import checkpoint

from clawmode.context import RunContext
from clawmode.core_tools.exec_approvals import HOST_FILE, Changed, HostFile, digest
from clawmode.core_tools.exec_policy import EXEC_ID, analyse
from clawmode.gateway.approvals import QuestionRecord, describe, describe_input
from clawmode.gateway.methods import (
    NAME,
    OBJECT,
    STRING,
    Handler,
    Method,
    MethodCall,
    choice,
    integer,
    method,
    params,
)
from clawmode.messaging.slash import DECISIONS
from clawmode.rpc.protocol import RpcError
from clawmode.sessions.keys import session_key
from clawmode.tools.approvals import Decision, Question, Resolution
from clawmode.tools.hooks import Severity
from clawmode.tools.validation import InvalidSchema, Validator
from clawmode.types import JsonObject

Family: TypeAlias = Literal["exec", "plugin"]

EXPIRY_MS = 1_800_000
WAIT_MS = 30_000
MAX_WAITING = 500
"""The most pending questions; then clients cannot ask more."""

SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")
NOTHING_MORE = "nothing beyond this"
REQUEST_ID = "client:client:request"
"""The `toolId` of a question that a client asks, and that is not about a command."""


# ---- Asking ----


async def _request_exec(call: MethodCall) -> JsonObject:
    """Asks whether the client may run a command."""
    run = _asker(call)
    command, host = call.params.text("command"), _host_file(call)
    plan: JsonObject = {"command": command}
    if call.params.text("cwd"):
        plan["workdir"] = call.params.text("cwd")

    def find_missing() -> list[str]:
        """Returns the programs of the command that are not on the allowlist."""
        allowed = host.for_agent(run.agent_id).allowlist
        return list(analyse(plan, allowed, os.environ.get("PATH", os.defpath)).missed)

    # In a thread: the programs are searched in the folders of PATH.
    missing = await anyio.to_thread.run_sync(find_missing)

    def resolved(resolution: Resolution) -> None:
        if resolution == "allow-always" and missing:
            host.remember(run.agent_id, missing, command)

    question = Question(
        title="Run a command?",
        tool_id=EXEC_ID,
        input=plan,
        run=run,
        always=f"{', '.join(missing) or NOTHING_MORE} for the agent {run.agent_id}",
        expires=_expiry(call),
        on_resolution=(resolved,),
    )
    return await _ask(call, question)


async def _request_plugin(call: MethodCall) -> JsonObject:
    """Asks any question that a decision can answer."""
    severity = call.params.text("severity")
    question = Question(
        title=call.params.text("title"),
        description=call.params.text("description"),
        severity=next((level for level in SEVERITIES if level == severity), "warning"),
        tool_id=REQUEST_ID,
        input={},
        run=_asker(call),
        always=NOTHING_MORE,
        expires=_expiry(call),
        # A question with a callback is not remembered: `allow-always` then allows this once only.
        on_resolution=(lambda resolution: None,),
    )
    return await _ask(call, question)


async def _ask(call: MethodCall, question: Question) -> JsonObject:
    if len(call.gateway.approvals.pending()) >= MAX_WAITING:
        text = f"{MAX_WAITING} questions are already pending; answer some first"
        raise RpcError("RATE_LIMITED", text, retry_after_ms=60_000)
    call.gateway.begin(call.gateway.approvals.ask, question)
    # Lets the task register the question, so that the client can use its id at once.
    await checkpoint()
    return {"id": question.id, "expiresAtMs": int(question.expires * 1000)}


def _asker(call: MethodCall) -> RunContext:
    agent_id, key = call.agent_id(), call.params.text("sessionKey")
    return RunContext(
        agent_id=agent_id,
        session_key=session_key(key, agent_id) if key else "",
        run_id="",
        sender=call.client.principal,
    )


def _expiry(call: MethodCall) -> float:
    return time.time() + call.params.number("timeoutMs", EXPIRY_MS) / 1000


# ---- Listing and answering ----


def _find(call: MethodCall, *families: Family) -> QuestionRecord:
    question_id = call.params.text("id")
    record = call.gateway.questions.find(question_id)
    if record is None or record.family not in families:
        text = f"there is no question {question_id[:80]!r}, or it was answered long ago"
        raise RpcError("NOT_FOUND", text, field="id")
    return record


async def _get(family: Family, call: MethodCall) -> JsonObject:
    record = _find(call, family)
    return describe(record) | {"decision": record.resolution, "settled": record.settled.is_set()}


async def _list(family: Family, call: MethodCall) -> JsonObject:
    pending = call.gateway.questions.waiting()
    return {"approvals": [describe(record) for record in pending if record.family == family]}


async def _resolve(family: Family, call: MethodCall) -> JsonObject:
    """Answers a question. The same answer again succeeds; another answer comes too late."""
    families: tuple[Family, ...] = ("exec", "plugin") if family == "exec" else ("plugin",)
    record, wanted = _find(call, *families), call.params.text("decision")
    decision: Decision = next(known for known in DECISIONS if known == wanted)
    resolved = call.gateway.approvals.resolve(record.question.id, decision)
    if not resolved and record.resolution != decision:
        raise RpcError("NOT_FOUND", "this question is no longer pending", field="id")
    return {"id": record.question.id, "decision": decision}


async def _wait(family: Family, call: MethodCall) -> JsonObject:
    record = _find(call, family)
    seconds = call.params.number("timeoutMs", WAIT_MS) / 1000
    decision = await call.gateway.questions.decision(record.question.id, seconds)
    return {"id": record.question.id, "decision": decision}


# ---- Input for tools ----


async def _inputs(call: MethodCall) -> JsonObject:
    return {
        "inputs": [describe_input(question) for question in call.gateway.approvals.pending_inputs()]
    }


async def _answer(call: MethodCall) -> JsonObject:
    """Answers the question of a tool; `content` null declines."""
    question_id = call.params.text("id")
    pending = {question.id: question for question in call.gateway.approvals.pending_inputs()}
    content = call.params.object("content") if call.params["content"] is not None else None
    schema = pending[question_id].request.schema if question_id in pending else None
    if content is not None and schema is not None:
        # With an invalid schema the tool has to check the answer itself.
        with suppress(InvalidSchema):
            if problems := Validator(schema).validate(content):
                raise RpcError("INVALID_REQUEST", problems[0], field="content")
    if not call.gateway.approvals.answer(question_id, content):
        text = f"no question {question_id[:80]!r} is pending"
        raise RpcError("NOT_FOUND", text, field="id")
    return {"id": question_id}


# ---- The rules of this host ----


def _host_file(call: MethodCall) -> HostFile:
    return HostFile(call.host.setup.state / HOST_FILE)


async def _get_rules(call: MethodCall) -> JsonObject:
    host = _host_file(call)
    try:
        data = await anyio.to_thread.run_sync(host.read)
    except (OSError, ValueError) as error:
        text = f"{HOST_FILE} cannot be read: {getattr(error, 'strerror', None) or error}"
        raise RpcError("UNAVAILABLE", text) from None
    return _describe_rules(host.path, data)


async def _set_rules(call: MethodCall) -> JsonObject:
    host, data = _host_file(call), call.params.object("file")
    try:
        await anyio.to_thread.run_sync(host.replace, data, call.params.text("baseHash"))
    except Changed as error:
        raise RpcError("CONFLICT", str(error), field="baseHash") from None
    except ValueError as error:
        raise RpcError("INVALID_REQUEST", str(error), field="file") from None
    except OSError as error:
        text = f"{HOST_FILE} cannot be written: {error.strerror or error}"
        raise RpcError("UNAVAILABLE", text) from None
    return _describe_rules(host.path, data)


def _describe_rules(path: Path, data: JsonObject) -> JsonObject:
    return {"path": str(path), "exists": path.exists(), "hash": digest(data), "file": data}


# ---- The table ----

ASKING: dict[str, JsonObject] = {
    "agentId": NAME,
    "sessionKey": NAME,
    "timeoutMs": integer(1, EXPIRY_MS),
}
COMMAND: JsonObject = {"type": "string", "minLength": 1, "maxLength": 65_536}
CONTENT: JsonObject = {"type": ["object", "null"]}


def _family(family: Family, ask: Handler, asking: JsonObject) -> tuple[Method, ...]:
    """Returns the methods of one kind of question: the same five, but for what is asked."""
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
