"""The methods for the operation of a gateway: `tokens.*`, `doctor.run`, `mcp.servers`, plugins."""

import json
import logging
import os
import sys
from typing import Any

import anyio

from clawmode.gateway.methods import NAME, MethodCall, choice, items, method, params
from clawmode.rpc.protocol import RpcError
from clawmode.rpc.scopes import SCOPES, Scope
from clawmode.rpc.tokens import RESERVED, TokenError, is_name
from clawmode.types import JsonObject, JsonValue

logger = logging.getLogger("clawmode.gateway")

MAX_NAMED = 500
"""The most tools of a server that are named."""

DOCTOR_SECONDS = 180.0
MAX_REPORT = 1 << 20


# ---- Tokens ----


async def _tokens(call: MethodCall) -> JsonObject:
    """Returns the tokens of the file, without secrets and hashes."""
    found = await anyio.to_thread.run_sync(call.gateway.tokens.list)
    connected = [client.principal for client in call.gateway.clients.values()]
    return {
        "tokens": [
            {
                "name": token.name,
                "scopes": list[JsonValue](token.scopes),
                "createdAt": token.created_at * 1000,
                "clients": connected.count(token.name),
            }
            for token in found
        ],
        "scopes": list[JsonValue](SCOPES),
    }


async def _create(call: MethodCall) -> JsonObject:
    """Creates a token. The response is not recorded: only the client learns the secret."""
    name, wanted = call.params.text("name"), call.params.list("scopes")
    scopes: tuple[Scope, ...] = tuple(it for it in SCOPES if it in wanted) or SCOPES
    if not is_name(name):
        text = "`name` must have 1 to 100 printable characters, without spaces around them"
        raise RpcError("INVALID_REQUEST", text, field="name")
    known = [token.name for token in await anyio.to_thread.run_sync(call.gateway.tokens.list)]
    if name in known or name in RESERVED:
        text = f"a token named {name!r} already exists: choose another name, or revoke it"
        raise RpcError("CONFLICT", text, field="name")
    secret = await anyio.to_thread.run_sync(call.gateway.tokens.add, name, scopes)
    who = call.client.principal
    logger.info("token %r was created by %s: %s", name, who, ", ".join(scopes))
    return {"name": name, "scopes": list[JsonValue](scopes), "token": secret}


async def _revoke(call: MethodCall) -> JsonObject:
    """Revokes a token, and ends the connections and browser sessions that it opened."""
    gateway, name = call.gateway, call.params.text("name")
    found = await anyio.to_thread.run_sync(gateway.tokens.list)
    token = next((token for token in found if token.name == name), None)
    if token is None:
        raise RpcError("NOT_FOUND", f"there is no token named {name[:100]!r}", field="name")
    try:
        await anyio.to_thread.run_sync(gateway.tokens.revoke, name)
    except TokenError as error:
        raise RpcError("UNAVAILABLE", str(error)) from None
    logger.info("token %r was revoked by %s", name, call.client.principal)
    closed = sum(client.token == token.digest for client in gateway.clients.values())
    gateway.begin(gateway.drop, {token.digest})
    return {"name": name, "closed": closed}


# ---- Health ----


async def _doctor(call: MethodCall) -> JsonObject:
    """Runs `clawmode doctor` in a process of its own, as it opens everything a second time."""
    setup, lock = call.host.setup, call.gateway.doctor_lock
    if lock.locked():
        text = "another client has the doctor check everything already"
        raise RpcError("UNAVAILABLE", text, retry_after_ms=5_000)
    command = [sys.executable, "-m", "clawmode", "doctor", "--json", "--state", str(setup.state)]
    command += [] if setup.file is None else ["--config", str(setup.file)]
    async with lock:
        with anyio.move_on_after(DOCTOR_SECONDS):
            done = await anyio.run_process(
                command, check=False, cwd=os.getcwd(), stdin=None, input=b""
            )
            return _report(done.stdout[:MAX_REPORT], done.returncode)
    raise RpcError("UNAVAILABLE", f"the checks took longer than {DOCTOR_SECONDS:g} s")


def _report(output: bytes, status: int) -> JsonObject:
    try:
        found: Any = json.loads(output)
        findings: list[JsonValue] = [
            {"what": it["what"], "health": it["health"], "detail": it["detail"]}
            for it in found["findings"]
        ]
    except (ValueError, TypeError, KeyError):
        text = f"the doctor failed with the exit status {status}: run `clawmode doctor` on the host"
        raise RpcError("UNAVAILABLE", text) from None
    return {"ok": status == 0, "findings": findings}


async def _servers(call: MethodCall) -> JsonObject:
    return {
        "servers": [
            {
                "name": view.name,
                "state": view.state,
                "error": view.problem,
                "notes": list[JsonValue](view.notes),
                "since": int(view.since * 1000),
                "toolCount": len(view.tools),
                "tools": list[JsonValue]([tool.name for tool in view.tools[:MAX_NAMED]]),
            }
            for view in call.runtime.servers()
        ]
    }


async def _plugins(call: MethodCall) -> JsonObject:
    return {"plugins": [view.to_json() for view in call.host.plugins.views]}


METHODS = (
    method("mcp.servers", "operator.read", _servers),
    method("plugins.list", "operator.read", _plugins),
    method("doctor.run", "operator.admin", _doctor),
    method("tokens.list", "operator.admin", _tokens),
    method(
        "tokens.create",
        "operator.admin",
        _create,
        params(
            "name",
            name={"type": "string", "minLength": 1, "maxLength": 100},
            scopes=items(choice(*SCOPES), len(SCOPES)) | {"minItems": 1},
        ),
    ),
    method("tokens.revoke", "operator.admin", _revoke, params("name", name=NAME), effect=True),
)
