"""The methods `codemode.*`: programs that are running or parked, of all sessions."""

import time
from dataclasses import dataclass

from clawmode.code_mode.stores import CellState, abort_cell
from clawmode.context import Scope
from clawmode.gateway.methods import NAME, MethodCall, method, params
from clawmode.rpc.protocol import RpcError
from clawmode.sessions.keys import session_key
from clawmode.types import JsonObject


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


async def _cells(call: MethodCall) -> dict[str, _Cell]:
    """Returns all programs that have not ended, with those of other processes, by id."""
    runtime, now = call.runtime, time.time()
    found: dict[str, _Cell] = {}
    for known in await runtime.store.cells():
        expires = None if known.state == "running" else now + known.left
        found[known.id] = _Cell(
            id=known.id,
            scope=known.scope,
            state=known.state,
            since=now - known.age,
            expires=expires,
        )
    # For a program of this process, what the process knows is newer than the store.
    for programs in runtime.programs():
        for cell_id, since in programs.cells().items():
            scope = programs.context.scope
            found[cell_id] = _Cell(id=cell_id, scope=scope, state="running", since=since)
    return found


async def _runs(call: MethodCall) -> JsonObject:
    key, run_id = call.params.text("sessionKey"), call.params.text("runId")
    key = session_key(key) if key else ""
    cells = sorted((await _cells(call)).values(), key=lambda cell: cell.since)
    return {
        "cells": [
            cell.to_json()
            for cell in cells
            if key in ("", cell.scope.session_key) and run_id in ("", cell.scope.run_id)
        ]
    }


async def _abort(call: MethodCall) -> JsonObject:
    """Aborts a program, or all programs of a run. The run continues without them."""
    cell_id, run_id = call.params.text("cellId"), call.params.text("runId")
    if bool(cell_id) is bool(run_id):
        text = "exactly one of `cellId` and `runId` is required"
        raise RpcError("INVALID_REQUEST", text, field="cellId")
    aborted = [
        cell
        for cell in (await _cells(call)).values()
        if (cell_id == cell.id or run_id == cell.scope.run_id) and await _end(call, cell)
    ]
    if cell_id and not aborted:
        raise RpcError("NOT_FOUND", f"there is no program {cell_id[:80]!r}", field="cellId")
    return {"aborted": len(aborted)}


async def _end(call: MethodCall, cell: _Cell) -> bool:
    """Aborts a program through its owner in this process, if any, so that its calls end too."""
    runtime = call.runtime
    for programs in runtime.programs():
        if programs.context.scope == cell.scope:
            return await programs.abort(cell.id)
    return await abort_cell(runtime.store, cell.id, cell.scope)


METHODS = (
    method("codemode.runs", "operator.read", _runs, params(sessionKey=NAME, runId=NAME)),
    method("codemode.abort", "operator.write", _abort, params(cellId=NAME, runId=NAME)),
)
