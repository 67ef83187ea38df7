"""`codemode.*`: programs that run or wait, of whatever session."""

import time
from dataclasses import dataclass

from clawmode.code_mode.stores import CellState, abort_cell
from clawmode.context import Scope
from clawmode.gateway.clients import Client
from clawmode.gateway.gateway import Gateway
from clawmode.gateway.methods import NAME, Params, method, params
from clawmode.rpc.protocol import RpcError
from clawmode.sessions.keys import session_key
from clawmode.types import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cell:
    """Attributes: expires: None while it runs here."""

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


async def _cells(gateway: Gateway) -> dict[str, _Cell]:
    """All programs that have not ended, those of other processes too."""
    runtime, now = gateway.host.runtime, time.time()
    found: dict[str, _Cell] = {}
    for known in await runtime.store.cells():
        left = None if known.state == "running" else now + known.left
        found[known.id] = _Cell(
            id=known.id,
            scope=known.scope,
            state=known.state,
            since=now - known.age,
            expires=left,
        )
    for programs in runtime.programs():
        for cell_id, since in programs.cells().items():
            scope = programs.context.scope
            found[cell_id] = _Cell(id=cell_id, scope=scope, state="running", since=since)
    return found


async def _runs(gateway: Gateway, client: Client, given: Params) -> JsonObject:
    key, run_id = given.text("sessionKey"), given.text("runId")
    key = session_key(key) if key else ""
    cells = sorted((await _cells(gateway)).values(), key=lambda cell: cell.since)
    return {
        "cells": [
            cell.to_json()
            for cell in cells
            if key in ("", cell.scope.session_key) and run_id in ("", cell.scope.run_id)
        ]
    }


async def _abort(gateway: Gateway, client: Client, given: Params) -> JsonObject:
    """Ends a program, or all of a run; the run goes on without them."""
    cell_id, run_id = given.text("cellId"), given.text("runId")
    if bool(cell_id) is bool(run_id):
        text = "one of `cellId` and `runId` is needed"
        raise RpcError("INVALID_REQUEST", text, field="cellId")
    cells = await _cells(gateway)
    meant = [it for it in cells.values() if cell_id == it.id or run_id == it.scope.run_id]
    ended = [cell for cell in meant if await _end(gateway, cell)]
    if cell_id and not ended:
        raise RpcError("NOT_FOUND", f"there is no program {cell_id[:80]!r}", field="cellId")
    return {"aborted": len(ended)}


async def _end(gateway: Gateway, cell: _Cell) -> bool:
    """By whoever has it, so that its calls end too."""
    runtime = gateway.host.runtime
    for programs in runtime.programs():
        if programs.context.scope == cell.scope:
            return await programs.abort(cell.id)
    return await abort_cell(runtime.store, cell.id, cell.scope)


METHODS = (
    method("codemode.runs", "operator.read", _runs, params(sessionKey=NAME, runId=NAME)),
    method("codemode.abort", "operator.write", _abort, params(cellId=NAME, runId=NAME)),
)
