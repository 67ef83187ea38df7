"""The methods `health`, `status`, `agent`, `agent.wait`, `agents.list`, `models.list`."""

import json
import os
import time

from clawmode import __version__
from clawmode.agent.requests import AgentRequest
from clawmode.config import resolve as settings
from clawmode.gateway.methods import (
    BOOLEAN,
    IMAGE,
    NAME,
    OBJECT,
    SESSION,
    STRING,
    TEXT,
    MethodCall,
    choice,
    integer,
    items,
    method,
    params,
)
from clawmode.models.base import THINKING_LEVELS
from clawmode.rpc.protocol import RpcError
from clawmode.types import JsonObject, JsonValue

WAIT_MS = 30_000
DAY_MS = 86_400_000
MAX_CLIENT_TOOLS = 256
MAX_CLIENT_TOOL_CHARS = 256 << 10

CLIENT_TOOL: JsonObject = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 64},
        "description": {"type": "string", "maxLength": 4_096},
        "parameters": OBJECT,
        "effect": choice("read", "write"),
    },
    "required": ["name"],
    "additionalProperties": False,
}

# ---- The process ----


async def _health(call: MethodCall) -> JsonObject:
    uptime = time.time() - call.gateway.started_at
    return {"ok": True, "ready": call.gateway.ready, "uptimeMs": int(uptime * 1000)}


async def _status(call: MethodCall) -> JsonObject:
    gateway = call.gateway
    plugins: list[JsonValue] = [view.to_json() for view in call.host.plugins.views]
    clients: list[JsonValue] = [client.describe() for client in gateway.clients.values()]
    return {
        "version": __version__,
        "pid": os.getpid(),
        "uptimeMs": int((time.time() - gateway.started_at) * 1000),
        "ready": gateway.ready,
        "stopping": gateway.stopping,
        "clients": clients,
        "runs": [
            {
                "runId": run.id,
                "sessionKey": run.session.key,
                "state": run.state,
                "acceptedAt": int(run.accepted_at * 1000),
            }
            for run in call.runtime.runs()
            if not run.ended.is_set()
        ],
        "questions": len(gateway.approvals.pending()),
        "plugins": plugins,
        "channels": list[JsonValue]([channel.name for channel in call.host.webhooks]),
    }


# ---- Turns ----


async def _agent(call: MethodCall) -> JsonObject:
    """Accepts a turn, and responds before the turn starts."""
    gateway, given = call.gateway, call.params
    thinking = given.text("thinking")
    client_tools = given.list("clientTools")
    request = AgentRequest(
        message=given.text("message"),
        images=given.images(),
        agent_id=given.text("agentId"),
        session_key=given.text("sessionKey"),
        session_id=given.text("sessionId"),
        run_id=call.derived_id,
        model=given.text("model"),
        thinking=next((level for level in THINKING_LEVELS if level == thinking), None),
        timeout_seconds=given.number("timeoutMs", 0) / 1000 or None,
        client_tools=tuple(gateway.client_tools.tool(call.client, tool) for tool in client_tools),
        system=given.text("extraSystemPrompt"),
        disable_tools=given.flag("disableTools"),
        raw_model_call=given.flag("rawModelCall"),
        sender=call.client.principal,
        channel=given.text("channel"),
        origin="gateway",
        target=given.text("to") if given.flag("deliver") else "",
    )
    if given.flag("deliver") and not given.flag("bestEffortDeliver"):
        if not call.host.outbox.has(request.channel):
            text = f"there is no channel {request.channel[:80]!r}"
            raise RpcError("INVALID_REQUEST", text, field="channel")
        if not request.target:
            raise RpcError("INVALID_REQUEST", "`to` is required when `deliver` is true", field="to")
    if len(json.dumps(client_tools)) > MAX_CLIENT_TOOL_CHARS:
        text = f"`clientTools` has more than {MAX_CLIENT_TOOL_CHARS} characters in total"
        raise RpcError("INVALID_REQUEST", text, field="clientTools")
    # Before the run starts, so that the client receives its first events.
    call.client.runs.add(request.run_id)
    known = await gateway.ledger.run(request.run_id)
    if known is not None and call.runtime.find(request.run_id) is None:
        # An earlier process accepted the request. This process continued the run at its start, or
        # recorded its end.
        return {"runId": known.id, "acceptedAt": int(known.accepted_at * 1000)}
    run = await call.runtime.start(request)
    return {
        "runId": run.id,
        "sessionKey": run.session.key,
        "sessionId": run.session.id,
        "acceptedAt": int(run.accepted_at * 1000),
    }


async def _wait(call: MethodCall) -> JsonObject:
    """Waits for the end of a run. A timeout does not stop the run."""
    run_id = call.params.text("runId")
    runtime = call.runtime
    if runtime.find(run_id) is not None:
        waited = await runtime.wait(run_id, call.params.number("timeoutMs", WAIT_MS) / 1000)
        run = runtime.find(run_id)
        result = None if run is None else run.result
        return waited | ({} if result is None else {"result": result.to_json()})
    row = await call.gateway.ledger.run(run_id)
    if row is None:
        raise RpcError("NOT_FOUND", f"there is no run {run_id[:80]!r}", field="runId")
    answer: JsonObject = {
        "status": "ok" if row.status == "ok" else "error" if row.ended_at else "timeout",
        "startedAt": int(row.started_at * 1000),
        "endedAt": int(row.ended_at * 1000),
    }
    if row.result is not None:
        answer["result"] = row.result
        if row.result.get("error"):
            answer["error"] = row.result["error"]
    return answer


# ---- Agents and models ----


async def _agents(call: MethodCall) -> JsonObject:
    configuration = call.host.setup.configuration
    ids = dict.fromkeys((settings.MAIN, *(agent.id for agent in configuration.agents.list)))
    agents: list[JsonValue] = []
    for agent_id in ids:
        agent = settings.agent(configuration, agent_id)
        agents.append(
            {"id": agent_id, "name": agent.name or agent_id, "model": agent.model.primary or ""}
        )
    return {"defaultId": settings.default_agent(configuration), "agents": agents}


async def _models(call: MethodCall) -> JsonObject:
    configuration = call.host.setup.configuration
    models: list[JsonValue] = [
        {
            "id": f"{provider}/{model.id}",
            "name": model.name or model.id,
            "provider": provider,
            "contextWindow": model.context_window,
            "reasoning": model.reasoning,
        }
        for provider, entry in configuration.models.providers.items()
        for model in entry.models
    ]
    # The default model may be one that no provider of the configuration lists.
    used = {settings.agent(configuration).model.primary or ""} - {""}
    listed = {model["id"] for model in models if isinstance(model, dict)}
    others: list[JsonValue] = [
        {"id": name, "name": name, "provider": name.partition("/")[0]} for name in used - listed
    ]
    return {"models": models + others}


METHODS = (
    method("health", "operator.read", _health),
    method("status", "operator.read", _status),
    method(
        "agent",
        "operator.write",
        _agent,
        params(
            "message",
            message=TEXT,
            images=items(IMAGE, 20),
            **SESSION,
            model=NAME,
            thinking=choice(*THINKING_LEVELS),
            timeoutMs=integer(1, DAY_MS),
            clientTools=items(CLIENT_TOOL, MAX_CLIENT_TOOLS),
            extraSystemPrompt=TEXT,
            disableTools=BOOLEAN,
            rawModelCall=BOOLEAN,
            channel=NAME,
            to=STRING,
            deliver=BOOLEAN,
            bestEffortDeliver=BOOLEAN,
        ),
        effect=True,
        repeatable=True,
    ),
    method(
        "agent.wait",
        "operator.read",
        _wait,
        params("runId", runId=NAME, timeoutMs=integer(0, DAY_MS)),
    ),
    method("agents.list", "operator.read", _agents),
    method("models.list", "operator.read", _models),
)
