"""`health`, `status`, `agent`, `agent.wait`, `agents.list`, `models.list`."""

import hashlib
import json
import os
import time
from typing import Any

from clawmode import __version__
from clawmode.agent.requests import AgentRequest
from clawmode.config import resolve as settings
from clawmode.gateway.clients import Client
from clawmode.gateway.gateway import Gateway
from clawmode.gateway.methods import (
    BOOLEAN,
    IDEMPOTENCY,
    NAME,
    OBJECT,
    STRING,
    TEXT,
    Params,
    choice,
    integer,
    items,
    method,
    params,
)
from clawmode.messages import Image
from clawmode.models.base import THINKING_LEVELS
from clawmode.rpc.protocol import RpcError
from clawmode.types import JsonObject, JsonValue

WAIT_MS = 30_000
DAY_MS = 86_400_000
MAX_CLIENT_TOOLS = 256
MAX_CLIENT_TOOL_CHARS = 256 << 10

IMAGE: JsonObject = {
    "type": "object",
    "properties": {
        "data": {"type": "string", "maxLength": 16 << 20},
        "mediaType": {"type": "string", "maxLength": 100},
    },
    "required": ["data", "mediaType"],
}
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
SESSION: dict[str, JsonObject] = {"sessionKey": NAME, "sessionId": NAME, "agentId": NAME}


def run_id_for(principal: str, key: str) -> str:
    """The run of a request: the same for the same key, so that it is not begun twice."""
    return hashlib.sha256(f"{principal}\0{key}".encode()).hexdigest()[:32]


# ---- The process ----


async def _health(gateway: Gateway, client: Client, given: Params) -> JsonObject:
    uptime = time.time() - gateway.started_at
    return {"ok": True, "ready": gateway.ready, "uptimeMs": int(uptime * 1000)}


async def _status(gateway: Gateway, client: Client, given: Params) -> JsonObject:
    runs = gateway.host.runtime.runs()
    under_way = [run for run in runs if not run.ended.is_set()]
    plugins: list[JsonValue] = [view.to_json() for view in gateway.host.plugins.views]
    clients: list[JsonValue] = [each.describe() for each in gateway.clients.values()]
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
            for run in under_way
        ],
        "questions": len(gateway.approvals.pending()),
        "plugins": plugins,
        "channels": list[JsonValue]([it.name for it in gateway.host.webhooks]),
    }


# ---- Turns ----


async def _agent(gateway: Gateway, client: Client, given: Params) -> JsonObject:
    """Accepts a turn, and answers before it begins."""
    images: list[Any] = given.list("images")
    thinking = given.text("thinking")
    request = AgentRequest(
        message=given.text("message"),
        images=tuple(Image(it["data"], it["mediaType"]) for it in images),
        agent_id=given.text("agentId"),
        session_key=given.text("sessionKey"),
        session_id=given.text("sessionId"),
        run_id=run_id_for(client.principal, given.text(IDEMPOTENCY)),
        model=given.text("model"),
        thinking=next((it for it in THINKING_LEVELS if it == thinking), None),
        timeout_seconds=given.number("timeoutMs", 0) / 1000 or None,
        client_tools=tuple(
            gateway.client_tools.tool(client, it) for it in given.list("clientTools")
        ),
        system=given.text("extraSystemPrompt"),
        disable_tools=given.flag("disableTools"),
        raw_model_call=given.flag("rawModelCall"),
        sender=client.principal,
        channel=given.text("channel"),
        origin="gateway",
        target=given.text("to") if given.flag("deliver") else "",
    )
    _check_delivery(gateway, request, given)
    if len(json.dumps(given.list("clientTools"))) > MAX_CLIENT_TOOL_CHARS:
        text = f"tools of clients have up to {MAX_CLIENT_TOOL_CHARS} characters together"
        raise RpcError("INVALID_REQUEST", text, field="clientTools")
    client.runs.add(request.run_id)
    known = await gateway.ledger.run(request.run_id)
    if known is not None and gateway.host.runtime.find(request.run_id) is None:
        # It was accepted by a process before this one, which took it up or noted its end.
        return {"runId": known.id, "acceptedAt": int(known.accepted_at * 1000)}
    run = await gateway.host.runtime.start(request)
    return {
        "runId": run.id,
        "sessionKey": run.session.key,
        "sessionId": run.session.id,
        "acceptedAt": int(run.accepted_at * 1000),
    }


def _check_delivery(gateway: Gateway, request: AgentRequest, given: Params) -> None:
    """A reply that is to be delivered has somewhere to go; unless that is not so important."""
    if not given.flag("deliver") or given.flag("bestEffortDeliver"):
        return
    if not gateway.host.outbox.has(request.channel):
        raise RpcError("INVALID_REQUEST", "there is no such channel", field="channel")
    if not request.target:
        raise RpcError("INVALID_REQUEST", "it is not said to whom", field="to")


async def _wait(gateway: Gateway, client: Client, given: Params) -> JsonObject:
    """Waits for a run's end. To give up waiting does not stop it."""
    run_id = given.text("runId")
    runtime = gateway.host.runtime
    if runtime.find(run_id) is not None:
        waited = await runtime.wait(run_id, given.number("timeoutMs", WAIT_MS) / 1000)
        run = runtime.find(run_id)
        result = None if run is None else run.result
        return waited | ({} if result is None else {"result": result.to_json()})
    row = await gateway.ledger.run(run_id)
    if row is None:
        raise RpcError("NOT_FOUND", f"there is no run {run_id[:80]!r}", field="runId")
    told: JsonObject = {
        "status": "ok" if row.status == "ok" else "error" if row.ended_at else "timeout",
        "startedAt": int(row.started_at * 1000),
        "endedAt": int(row.ended_at * 1000),
    }
    if row.result is not None:
        told["result"] = row.result
        if row.result.get("error"):
            told["error"] = row.result["error"]
    return told


# ---- What there is ----


async def _agents(gateway: Gateway, client: Client, given: Params) -> JsonObject:
    configuration = gateway.host.setup.configuration
    ids = dict.fromkeys((settings.MAIN, *(it.id for it in configuration.agents.list)))
    agents: list[JsonValue] = []
    for agent_id in ids:
        known = settings.agent(configuration, agent_id)
        agents.append({"id": agent_id, "name": known.name, "model": known.model})
    return {"defaultId": settings.default_agent(configuration), "agents": agents}


async def _models(gateway: Gateway, client: Client, given: Params) -> JsonObject:
    configuration = gateway.host.setup.configuration
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
    used = {settings.agent(configuration, None).model} - {""}
    listed = {it["id"] for it in models if isinstance(it, dict)}
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
