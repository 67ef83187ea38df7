"""The methods `codemode.*`: programs of all sessions, running or parked, and those of clients."""

import time

from clawmode.code_mode.aborts import abort_cell
from clawmode.code_mode.stores import CellState, Only
from clawmode.context import Scope
from clawmode.gateway.methods import NAME, MethodCall, choice, integer, method, params
from clawmode.rpc.protocol import RpcError
from clawmode.sandbox.protocol import LANGUAGES
from clawmode.sessions.keys import session_key
from clawmode.types import JsonObject, dataclass

MOST = 1_000
"""The number of programs that are listed or aborted at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cell:
    """A program that has not ended.

    Attributes:
        expires: When a parked program is discarded; None while it runs.
    """

    id: str
    scope: Scope
    state: CellState
    since: float
    expires: float | None = None

    def to_json(self) -> JsonObject:
        agent_id, session_id, session_key, run_id = self.scope
        return {
            "cellId": self.id,
            "agentId": agent_id,
            "sessionId": session_id,
            "sessionKey": session_key,
            "runId": run_id,
            "state": self.state,
            "sinceMs": int(self.since * 1000),
            "expiresAtMs": None if self.expires is None else int(self.expires * 1000),
        }


async def _cells(call: MethodCall, only: Only, limit: int) -> dict[str, _Cell]:
    """Returns programs that have not ended, with those of other processes, by id.

    Those of this process are all there, and up to `limit` others: those that expire first.
    """
    runtime, now = call.runtime, time.time()
    found: dict[str, _Cell] = {}
    for known in await runtime.store.cells(limit=limit, only=only):
        expires = None if known.state == "running" else now + known.left
        found[known.id] = _Cell(
            id=known.id,
            scope=known.scope,
            state=known.state,
            since=now - known.age,
            expires=expires,
        )
    # For a program of this process, what the process knows is newer than the store.
    for programs in call.gateway.feed.programs():
        scope = programs.context.scope
        for cell_id, since in programs.cells().items():
            if only.fits(cell_id, scope):
                found[cell_id] = _Cell(id=cell_id, scope=scope, state="running", since=since)
    return found


async def _runs(call: MethodCall) -> JsonObject:
    key, run_id = call.params.text("sessionKey"), call.params.text("runId")
    only = Only(session_key=session_key(key) if key else "", run_id=run_id)
    limit = int(call.params.number("limit", 200))
    # One more than is listed, to know if there are more. Those that run come first.
    found = (await _cells(call, only, limit + 1)).values()
    shown = sorted(found, key=lambda cell: cell.state != "running")[:limit]
    return {
        "cells": [cell.to_json() for cell in sorted(shown, key=lambda cell: cell.since)],
        "more": len(found) > limit,
        "parked": await call.runtime.store.count_parked(),
    }


async def _abort(call: MethodCall) -> JsonObject:
    """Aborts a program, or all programs of a run. The run continues without them."""
    cell_id, run_id = call.params.text("cellId"), call.params.text("runId")
    if bool(cell_id) is bool(run_id):
        text = "exactly one of `cellId` and `runId` is required"
        raise RpcError("INVALID_REQUEST", text, field="cellId")
    only, aborted = Only(cell_id=cell_id, run_id=run_id), 0
    while True:
        found = await _cells(call, only, MOST)
        ended = sum([await _end(call, cell) for cell in found.values()])
        aborted += ended
        if len(found) < MOST or not ended:
            break
    if cell_id and not aborted:
        raise RpcError("NOT_FOUND", f"there is no program {cell_id[:80]!r}", field="cellId")
    return {"aborted": aborted}


async def _end(call: MethodCall, cell: _Cell) -> bool:
    """Aborts a program through its owner in this process, if any, so that its calls end too."""
    for programs in call.gateway.feed.programs():
        if programs.context.scope == cell.scope:
            return await programs.abort(cell.id)
    return await abort_cell(call.runtime.store, cell.id, cell.scope)


# ---- Programs of clients ----


async def _run(call: MethodCall) -> JsonObject:
    """Runs a program against the catalog of an agent, under its policy and approvals."""
    given = call.params
    yield_ms = given.number("timeoutMs", 0) or None
    lone = call.gateway.feed.lone
    return await lone.run(call.request(), given.text("code"), given.text("language"), yield_ms)


async def _wait(call: MethodCall) -> JsonObject:
    yield_ms = call.params.number("timeoutMs", 0) or None
    return await call.gateway.feed.lone.wait(call.params.text("runId"), yield_ms)


CODE: JsonObject = {"type": "string", "minLength": 1, "maxLength": 256 << 10}

METHODS = (
    method(
        "codemode.runs",
        "operator.read",
        _runs,
        params(sessionKey=NAME, runId=NAME, limit=integer(1, MOST)),
    ),
    method("codemode.abort", "operator.write", _abort, params(cellId=NAME, runId=NAME)),
    method(
        "codemode.run",
        "operator.admin",
        _run,
        params(
            "code",
            code=CODE,
            language=choice(*LANGUAGES),
            agentId=NAME,
            sessionKey=NAME,
            timeoutMs=integer(1, 60_000),
        ),
        effect=True,
    ),
    method(
        "codemode.wait",
        "operator.admin",
        _wait,
        params("runId", runId=NAME, timeoutMs=integer(1, 60_000)),
    ),
)
