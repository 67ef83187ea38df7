"""The methods `events.since`, `runs.*` and `system.figures`: what happens, and what was missed."""

import os
import time
from contextlib import suppress

from clawmode.exceptions import StoreUnavailable
from clawmode.gateway.methods import BOOLEAN, MAX_NUMBER, NAME, MethodCall, integer, method, params
from clawmode.gateway.metrics import resident_bytes
from clawmode.sessions.keys import session_key
from clawmode.types import JsonObject, JsonValue

NODES, MAX_NODES = 500, 2_000


async def _since(call: MethodCall) -> JsonObject:
    """Returns the events after a number, as far as the client would have received them."""
    given, client = call.params, call.client
    return call.gateway.log.since(given.text("epoch"), int(given.number("at", 0)), client.receives)


async def _tree(call: MethodCall) -> JsonObject:
    tree, given = call.gateway.feed.tree, call.params
    key = given.text("sessionKey")
    tree.look()
    nodes, following = tree.page(
        int(given.number("after", 0)),
        int(given.number("limit", NODES)),
        session_key(key) if key else "",
    )
    position = call.gateway.log.position
    return {**position, "nodes": nodes, "next": following, "leftOut": tree.left_out}


async def _follow(call: MethodCall) -> JsonObject:
    call.client.follows_runs = call.params.flag("on", True)
    call.client.missed_runs = False
    return {"following": call.client.follows_runs}


async def _figures(call: MethodCall) -> JsonObject:
    """Returns the load of the gateway and its workers."""
    gateway, runtime = call.gateway, call.runtime
    programs = gateway.feed.programs()
    cells = {view.pid: view.id for it in programs for view in it.views() if view.pid}
    workers: list[JsonValue] = [
        {
            "id": view.pid,
            "state": view.state,
            "memoryBytes": resident_bytes(view.pid) if view.pid else 0,
            "cells": view.cells,
            "cellId": cells.get(view.pid),
        }
        for view in runtime.pool.views()
    ]
    parked: int | None = None
    with suppress(StoreUnavailable):
        parked = await runtime.store.count_parked()
    states = [run.state for run in runtime.runs()]
    approvals = gateway.approvals
    return {
        "at": int(time.time() * 1000),
        "uptimeMs": int((time.time() - gateway.started_at) * 1000),
        "pid": os.getpid(),
        "memoryBytes": resident_bytes(),
        "workers": workers,
        "workersMax": runtime.pool.max_size,
        "queue": {
            "cells": runtime.pool.queued,
            "runs": states.count("queued"),
            "messages": call.host.inbox.waiting_total(),
        },
        "running": states.count("running"),
        "parked": parked,
        "questions": len(approvals.pending()) + len(approvals.pending_inputs()),
        "clients": len(gateway.clients),
    }


METHODS = (
    method(
        "events.since",
        None,
        _since,
        params("epoch", "at", epoch=NAME, at=integer(0, MAX_NUMBER)),
    ),
    method(
        "runs.tree",
        "operator.read",
        _tree,
        params(sessionKey=NAME, after=integer(0, MAX_NUMBER), limit=integer(1, MAX_NODES)),
    ),
    method("runs.follow", "operator.read", _follow, params(on=BOOLEAN)),
    method("system.figures", "operator.read", _figures),
)
