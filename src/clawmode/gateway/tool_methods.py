"""`tools.*`: which tools there are, what of them a session has, and calls without a model."""

import uuid
from collections.abc import Iterable

from clawmode.agent.requests import AgentRequest
from clawmode.agent.run import SessionRun
from clawmode.catalog.catalog import CONTROL_NAMES, EXEC, WAIT, Catalog, exposed_name
from clawmode.exceptions import AmbiguousTool, UnknownTool
from clawmode.gateway.clients import Client
from clawmode.gateway.gateway import Gateway
from clawmode.gateway.methods import (
    ANYTHING,
    BOOLEAN,
    NAME,
    OBJECT,
    STRING,
    Params,
    agent_of,
    method,
    params,
)
from clawmode.rpc.protocol import RpcError
from clawmode.tools.executor import Call, CallEvent, CallState, Executor, ToolFailure
from clawmode.tools.tool import Tool, ToolResult
from clawmode.types import JsonObject, JsonValue

MAX_OUTPUT = 4 << 20
"""Bytes of an output, which the ledger keeps too."""

CONTROLS = frozenset({"exec", "wait", EXEC.id, WAIT.id, *CONTROL_NAMES})


def describe(tool: Tool, schemas: bool) -> JsonObject:
    """A tool as clients see it."""
    about: JsonObject = {
        "id": tool.id,
        "name": tool.name,
        "label": tool.label or tool.name,
        "description": tool.description,
        "source": tool.source,
        "owner": tool.owner,
        "effect": tool.effect,
        "idempotent": tool.idempotent,
    }
    return about | {"parameters": dict(tool.parameters)} if schemas else about


def _listed(tools: Iterable[Tool], given: Params) -> list[JsonValue]:
    schemas = given.flag("schemas")
    return [describe(tool, schemas) for tool in sorted(tools, key=lambda tool: tool.id)]


def _request(gateway: Gateway, client: Client, given: Params) -> AgentRequest:
    return AgentRequest(
        agent_id=agent_of(gateway, given),
        session_key=given.text("sessionKey"),
        sender=client.principal,
    )


# ---- What there is ----


async def _catalog(gateway: Gateway, client: Client, given: Params) -> JsonObject:
    async with gateway.host.runtime.preview_run(_request(gateway, client, given)) as run:
        run.activate()
        tools = run.offered()
    return {"agentId": run.settings.agent_id, "tools": _listed(tools, given)}


async def _effective(gateway: Gateway, client: Client, given: Params) -> JsonObject:
    """What the policy leaves for whoever asks, and what of that the model would see."""
    async with gateway.host.runtime.preview_run(_request(gateway, client, given)) as run:
        surface = run.activate()
        offered = run.offered()
    policy, model = run.settings.policy, run.settings.models[0]
    reasons = {tool.id: policy.why_denied(tool) for tool in offered}
    visible: list[JsonValue] = [
        tool.name if surface.code_mode else exposed_name(tool) for tool in surface.visible
    ]
    return {
        "sessionKey": run.session.key,
        "agentId": run.settings.agent_id,
        "model": f"{model.provider}/{model.name}",
        "codeMode": surface.code_mode,
        "visible": visible,
        "tools": _listed(surface.tools, given),
        "denied": [{"id": it, "reason": why} for it, why in sorted(reasons.items()) if why],
    }


# ---- Calls ----


async def _invoke(gateway: Gateway, client: Client, given: Params) -> JsonObject:
    """Makes one call on the path of all calls; a refusal of it is an answer."""
    runtime = gateway.host.runtime
    async with runtime.preview_run(_request(gateway, client, given), create=True) as run:
        tool = _find(run, given.text("name"))
        executor = Executor(run.settings.policy, runtime.hooks, runtime.approvals)
        executor.watchers.append(lambda event: _tell(gateway, run, event))
        call = Call(
            id=f"inv_{uuid.uuid4().hex}",
            tool=tool,
            input=given.object("args"),
            run=run.context,
            on_state=_wait if given.flag("confirm", True) else _refuse_to_wait,
        )
        try:
            return {"ok": True, "toolName": tool.name, "output": _output(await executor.call(call))}
        except ToolFailure as failure:
            error: JsonObject = {"code": failure.code, "message": str(failure)}
            return {"ok": False, "toolName": tool.name, "error": error}


async def _wait(state: CallState) -> None:
    """A person may take their time."""


async def _refuse_to_wait(state: CallState) -> None:
    if state == "approval":
        raise ToolFailure("requires_approval", "this call needs approval, and none was asked for")


def _output(result: ToolResult) -> JsonValue:
    if len(result.encoded) > MAX_OUTPUT:
        text = f"the output has {len(result.encoded)} bytes: up to {MAX_OUTPUT} are passed on"
        raise ToolFailure("output_limit_exceeded", text)
    return result.value


def _find(run: SessionRun, name: str) -> Tool:
    """The tool with this id or name: of those that are allowed, else one that is denied."""
    surface = run.activate()
    for tools in (surface.tools, run.offered()):
        try:
            return Catalog(tools).resolve(name, include_mcp=True)
        except AmbiguousTool as error:
            ids = list[JsonValue](error.ids)
            text = f"several tools are named {name[:80]!r}: give an id"
            raise RpcError("INVALID_REQUEST", text, field="name", details={"ids": ids}) from None
        except UnknownTool as error:
            near = list[JsonValue](error.ids)
    if name in CONTROLS:
        text = f"{name!r} is for programs of a model, and is not called from outside"
        raise RpcError("INVALID_REQUEST", text, field="name")
    text = f"there is no tool {name[:80]!r}"
    raise RpcError("NOT_FOUND", text, field="name", details={"near": near})


def _tell(gateway: Gateway, run: SessionRun, event: CallEvent) -> None:
    """Whoever follows the session sees the call, as those of models."""
    if event.phase == "update":
        return  # it may come from a thread
    key = run.session.key
    about: JsonObject = {"phase": event.phase, "callId": event.call_id, "name": event.tool_id}
    if event.phase == "end":
        about |= {"state": event.state, "ms": round(event.seconds * 1000)}
        about |= {"isError": event.state != "completed"}
    gateway.broadcast("session.tool", {"sessionKey": key, "trigger": "tools.invoke", **about}, key)


async def _result(gateway: Gateway, client: Client, given: Params) -> JsonObject:
    """Takes what came of a call of the client's own tool."""
    error = given.text("error") if "error" in given else None
    if (error is None) == ("result" not in given):
        text = "one of `result` and `error` is needed"
        raise RpcError("INVALID_REQUEST", text, field="result")
    call_id = given.text("callId")
    if not gateway.client_tools.answer(client, call_id, given.get("result"), error):
        text = f"no call {call_id[:80]!r} of yours waits for an answer"
        raise RpcError("NOT_FOUND", text, field="callId")
    return {"callId": call_id}


METHODS = (
    method("tools.catalog", "operator.read", _catalog, params(agentId=NAME, schemas=BOOLEAN)),
    method(
        "tools.effective",
        "operator.read",
        _effective,
        params("sessionKey", sessionKey=NAME, agentId=NAME, schemas=BOOLEAN),
    ),
    method(
        "tools.invoke",
        "operator.write",
        _invoke,
        params("name", name=NAME, args=OBJECT, sessionKey=NAME, agentId=NAME, confirm=BOOLEAN),
        effect=True,
    ),
    method(
        "tools.result",
        "operator.write",
        _result,
        params("callId", callId=NAME, result=ANYTHING, error=STRING),
    ),
)
