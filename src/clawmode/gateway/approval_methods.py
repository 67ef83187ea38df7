"""The methods for questions to people: `exec.approval.*`, `plugin.approval.*`, `input.*`.

`approval.group.*` is about questions that one program asks at the same time.

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
from clawmode.core_tools.exec_approvals import HOST_FILE, FileChanged, HostFile, digest
from clawmode.core_tools.exec_policy import EXEC_ID, analyse
from clawmode.gateway.approvals import (
    QuestionRecord,
    answer_of,
    describe,
    describe_group,
    describe_input,
    describe_settled,
)
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
from clawmode.tools.tool import SEVERITIES
from clawmode.tools.validation import InvalidSchema, Validator
from clawmode.types import JsonObject, JsonValue

Family: TypeAlias = Literal["exec", "plugin"]

EXPIRY_MS = 1_800_000
WAIT_MS = 30_000
MAX_WAITING = 500
"""The most pending questions; then clients cannot ask more."""

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
    return describe(record) | {"settled": record.settled.is_set(), **answer_of(record)}


async def _list(family: Family, call: MethodCall) -> JsonObject:
    pending = call.gateway.questions.waiting()
    return {
        "approvals": [describe(record) for record in pending if record.family == family],
        "settled": [
            describe_settled(record)
            for record in call.gateway.questions.settled()
            if record.family == family
        ],
    }


async def _resolve(family: Family, call: MethodCall) -> JsonObject:
    """Answers a question. The same answer again succeeds; another answer comes too late."""
    families: tuple[Family, ...] = ("exec", "plugin") if family == "exec" else ("plugin",)
    record, wanted = _find(call, *families), call.params.text("decision")
    decision: Decision = next(known for known in DECISIONS if known == wanted)
    by = call.client.principal
    resolved = call.gateway.approvals.resolve(record.question.id, decision, by)
    if not resolved and record.resolution != decision:
        raise RpcError("NOT_FOUND", "this question is no longer pending", field="id")
    return {"id": record.question.id, "decision": decision, "by": record.by or None}


async def _wait(family: Family, call: MethodCall) -> JsonObject:
    record = _find(call, family)
    seconds = call.params.number("timeoutMs", WAIT_MS) / 1000
    decision = await call.gateway.questions.decision(record.question.id, seconds)
    return {"id": record.question.id, "decision": decision}


# ---- Groups ----


def _find_group(call: MethodCall) -> list[QuestionRecord]:
    group_id, questions = call.params.text("id"), call.gateway.questions
    group = questions.groups().get(group_id)
    if group is None:
        text = f"there is no group {group_id[:80]!r}, or it was answered long ago"
        raise RpcError("NOT_FOUND", text, field="id")
    return questions.members(group)


async def _get_group(call: MethodCall) -> JsonObject:
    return describe_group(_find_group(call), int(call.params.number("first", 0)))


async def _list_groups(call: MethodCall) -> JsonObject:
    questions = call.gateway.questions
    groups = [questions.members(group) for group in questions.groups().values()]
    pending = [each for each in groups if any(not it.settled.is_set() for it in each)]
    return {"groups": [describe_group(each) for each in pending]}


async def _resolve_group(call: MethodCall) -> JsonObject:
    """Answers all questions of a group that are still pending, or those that are named.

    The first answer to a question counts. Questions that were answered before are not an error.
    """
    records, decision = _find_group(call), call.params.text("decision")
    named = call.params.object("decisions")
    ids = {record.question.id for record in records}
    if bool(decision) == bool(named):
        text = "give `decision` for all questions, or `decisions` by their ids"
        raise RpcError("INVALID_REQUEST", text, field="decision")
    if strangers := [each for each in named if each not in ids]:
        text = f"{strangers[0][:80]!r} is not a question of this group"
        raise RpcError("INVALID_REQUEST", text, field="decisions")
    wanted = named or dict.fromkeys(ids, decision)
    answer = {each: known for each in ids for known in DECISIONS if known == wanted.get(each)}
    group = records[0].group
    assert group is not None
    answered = call.gateway.approvals.resolve_group(group, answer, call.client.principal)
    if not answered and all(record.settled.is_set() for record in records):
        raise RpcError("NOT_FOUND", "this group is no longer pending", field="id")
    left = sum(each.id in ids for it in call.gateway.approvals.groups() for each in it.questions)
    return {"id": group.id, "answered": list[JsonValue](answered), "pending": left}


# ---- Input for tools ----


async def _inputs(call: MethodCall) -> JsonObject:
    pending = call.gateway.approvals.pending_inputs()
    return {
        "inputs": [describe_input(question) for question in pending],
        "settled": call.gateway.questions.settled_inputs(),
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
    if not call.gateway.approvals.answer(question_id, content, call.client.principal):
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
    except FileChanged as error:
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
CHOICES: JsonObject = {"type": "object", "additionalProperties": choice(*DECISIONS)}


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
    method("approval.group.list", "operator.approvals", _list_groups),
    method(
        "approval.group.get",
        "operator.approvals",
        _get_group,
        params("id", id=NAME, first=integer(0, 10_000)),
    ),
    method(
        "approval.group.resolve",
        "operator.approvals",
        _resolve_group,
        params("id", id=NAME, decision=choice(*DECISIONS), decisions=CHOICES),
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
