"""The methods `tools.*`: the catalog, the tools of a session, calls without a model."""

import uuid
from collections.abc import Iterable

from clawmode.agent.events import call_data
from clawmode.agent.run import AgentRun
from clawmode.catalog.catalog import Catalog
from clawmode.catalog.controls import CONTROL_NAMES, EXEC, WAIT, exposed_name
from clawmode.exceptions import AmbiguousTool, UnknownTool
from clawmode.gateway.methods import (
    ANYTHING,
    BOOLEAN,
    NAME,
    OBJECT,
    STRING,
    MethodCall,
    method,
    params,
)
from clawmode.rpc.protocol import RpcError
from clawmode.tools.executor import Call, CallEvent, Executor, ToolFailure, unwatched
from clawmode.tools.tool import Tool
from clawmode.types import CallState, JsonObject, JsonValue

MAX_OUTPUT = 4 << 20
"""The largest output of a call, in bytes: the ledger stores it as well."""

CONTROLS = frozenset({"exec", "wait", EXEC.id, WAIT.id, *CONTROL_NAMES})


def describe(tool: Tool, schemas: bool) -> JsonObject:
    """Returns a tool as clients see it."""
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


def _listed(tools: Iterable[Tool], call: MethodCall) -> list[JsonValue]:
    schemas = call.params.flag("schemas")
    return [describe(tool, schemas) for tool in sorted(tools, key=lambda tool: tool.id)]


# ---- Listings ----


async def _catalog(call: MethodCall) -> JsonObject:
    async with call.runtime.preview_run(call.request()) as run:
        run.activate()
        tools = run.offered()
    return {"agentId": run.session.agent_id, "tools": _listed(tools, call)}


async def _effective(call: MethodCall) -> JsonObject:
    """Returns the tools that the policy allows, and those of them that the model would see."""
    async with call.runtime.preview_run(call.request()) as run:
        surface = run.activate()
        offered = run.offered()
    policy, model = run.resolved.policy, run.resolved.models[0]
    reasons = {tool.id: policy.why_denied(tool) for tool in offered}
    visible: list[JsonValue] = [
        tool.name if surface.code_mode else exposed_name(tool) for tool in surface.visible
    ]
    return {
        "sessionKey": run.session.key,
        "agentId": run.session.agent_id,
        "model": f"{model.provider}/{model.name}",
        "codeMode": surface.code_mode,
        "visible": visible,
        "tools": _listed(surface.tools, call),
        "denied": [{"id": name, "reason": why} for name, why in sorted(reasons.items()) if why],
    }


# ---- Calls ----


async def _invoke(call: MethodCall) -> JsonObject:
    """Calls a tool through the executor, as a model does. A denied call is a result, no error."""
    runtime = call.runtime
    async with runtime.preview_run(call.request(), create=True) as run:
        tool = _find(run, call.params.text("name"))
        executor = Executor(run.resolved.policy, runtime.hooks, runtime.approvals)
        executor.watchers.append(lambda event: _broadcast(call, run, event))
        tool_call = Call(
            id=f"inv_{uuid.uuid4().hex}",
            tool=tool,
            input=call.params.object("args"),
            run=run.context,
            on_state=unwatched if call.params.flag("confirm", True) else _reject_approval,
        )
        try:
            result = await executor.call(tool_call)
            if (size := len(result.encoded)) > MAX_OUTPUT:
                text = f"the output has {size} bytes; at most {MAX_OUTPUT} are returned"
                raise ToolFailure("output_limit_exceeded", text)
            return {"ok": True, "toolName": tool.name, "output": result.value}
        except ToolFailure as failure:
            error: JsonObject = {"code": failure.code, "message": str(failure)}
            return {"ok": False, "toolName": tool.name, "error": error}


async def _reject_approval(state: CallState) -> None:
    if state == "approval":
        text = "this call needs approval, and `confirm` is false"
        raise ToolFailure("requires_approval", text)


def _find(run: AgentRun, name: str) -> Tool:
    """Returns the tool with this id or name: an allowed one, else a denied one.

    A denied tool is returned so that the executor rejects the call with the reason.
    """
    surface = run.activate()
    for tools in (surface.tools, run.offered()):
        try:
            return Catalog(tools).resolve(name, include_mcp=True)
        except AmbiguousTool as error:
            ids = list[JsonValue](error.ids)
            text = f"several tools are named {name[:80]!r}: use one of the ids in `details`"
            raise RpcError("INVALID_REQUEST", text, field="name", details={"ids": ids}) from None
        except UnknownTool as error:
            near = list[JsonValue](error.ids)
    if name in CONTROLS:
        text = f"{name!r} runs programs of a model, and cannot be called by clients"
        raise RpcError("INVALID_REQUEST", text, field="name")
    text = f"there is no tool {name[:80]!r}"
    raise RpcError("NOT_FOUND", text, field="name", details={"near": near})


def _broadcast(call: MethodCall, run: AgentRun, event: CallEvent) -> None:
    """Sends an event of the call to clients that follow the session."""
    # Updates may come from a thread of the tool, where nothing can be sent.
    if event.phase == "update":
        return
    key = run.session.key
    about: JsonObject = {"sessionKey": key, "trigger": "tools.invoke", **call_data(event)}
    call.gateway.broadcast("session.tool", about, key)


async def _result(call: MethodCall) -> JsonObject:
    """Accepts the result of a call of the client's own tool."""
    error = call.params.text("error") if "error" in call.params else None
    if (error is None) == ("result" not in call.params):
        text = "exactly one of `result` and `error` is required"
        raise RpcError("INVALID_REQUEST", text, field="result")
    call_id = call.params.text("callId")
    if not call.gateway.client_tools.answer(call.client, call_id, call.params.get("result"), error):
        text = f"no call {call_id[:80]!r} of this client waits for a result"
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
