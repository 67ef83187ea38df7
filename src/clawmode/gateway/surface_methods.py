"""The methods that show the catalog of an agent as its model and its programs see it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio

from clawmode.agent.run import AgentRun
from clawmode.agent.turn import code_mode_of, preview
from clawmode.catalog.namespaces import NamespaceCallRefused
from clawmode.code_mode.code_mode import CodeMode
from clawmode.exceptions import ToolLookupError
from clawmode.gateway.methods import NAME, STRING, MethodCall, integer, method, params
from clawmode.gateway.tool_methods import describe
from clawmode.rpc.protocol import RpcError
from clawmode.text import shorten
from clawmode.tools.tool import Tool
from clawmode.types import JsonObject, JsonValue

TOOLS, MAX_TOOLS = 500, 2_000
HITS, MAX_HITS = 20, 50
MAX_DESCRIPTION = 1_000
"""Characters of a description in a list."""


@asynccontextmanager
async def _catalog(call: MethodCall) -> AsyncIterator[tuple[AgentRun, CodeMode]]:
    """Opens the catalog of an agent, or of a session, as programs get it."""
    async with call.runtime.preview_run(call.request()) as run:
        run.activate()
        async with code_mode_of(run) as programs:
            yield run, programs


async def _surface(call: MethodCall) -> JsonObject:
    """Returns what the model gets, and the tools behind it."""
    after, limit = int(call.params.number("after", 0)), int(call.params.number("limit", TOOLS))
    async with _catalog(call) as (run, programs):
        shown = await preview(run)
        # In a thread: types of a thousand tools are rendered.
        entries = programs.catalog.entries
        tools = await anyio.to_thread.run_sync(
            lambda: [_listed(tool, run, programs) for tool in entries[after : after + limit]]
        )
        total, files = len(entries), list(programs.mcp.files)
        in_code_mode = run.activate().code_mode
    return {
        "agentId": run.session.agent_id,
        "sessionKey": run.session.key,
        "model": shown.model,
        "codeMode": in_code_mode,
        "visible": [
            {"name": it.name, "description": it.description, "parameters": it.parameters}
            for it in shown.tools[: MAX_TOOLS if in_code_mode else limit]
        ],
        "files": list[JsonValue](files if programs.mcp else []),
        "tools": list[JsonValue](tools),
        "total": total,
        "next": after + limit if after + limit < total else None,
    }


def _listed(tool: Tool, run: AgentRun, programs: CodeMode) -> JsonObject:
    return describe(tool, schemas=False) | {
        "description": shorten(tool.description, MAX_DESCRIPTION),
        "signature": programs.call_text(tool),
        "asks": programs.approvals.needs_approval(tool, run.context),
    }


async def _declaration(call: MethodCall) -> JsonObject:
    """Returns the declaration of a tool, or a file with declarations."""
    wanted, file = call.params.text("id"), call.params.text("file")
    if bool(wanted) is bool(file):
        text = "exactly one of `id` and `file` is required"
        raise RpcError("INVALID_REQUEST", text, field="id")
    async with _catalog(call) as (_, programs):
        if file:
            files = programs.mcp.files
            if file not in files:
                raise RpcError("NOT_FOUND", f"there is no file {file[:80]!r}", field="file")
            return {"file": file, "declaration": files[file]}
        try:
            tool = programs.catalog.resolve(wanted, include_mcp=True)
        except ToolLookupError as error:
            near = list[JsonValue](error.ids)
            text = f"there is no tool {wanted[:80]!r}, or several have this name"
            raise RpcError("NOT_FOUND", text, field="id", details={"near": near}) from None
        return programs.catalog.describe(tool.id, include_mcp=True) | {
            "effect": tool.effect,
            "call": programs.call_text(tool),
            "declaration": _declare(tool, programs),
        }


def _declare(tool: Tool, programs: CodeMode) -> str:
    """Returns the TypeScript that a program can read about a tool."""
    if tool.source == "mcp":
        try:
            return str(programs.mcp.describe(tool.owner, tool.name, None)["header"])
        except NamespaceCallRefused:  # its server has just disconnected
            return programs.call_text(tool)
    return programs.catalog.signature_of(tool)


async def _search(call: MethodCall) -> JsonObject:
    """Searches with the ranker of `tools.search` and `MCP.$search`."""
    query, limit = call.params.text("query"), int(call.params.number("limit", HITS))
    async with _catalog(call) as (_, programs):
        catalog = programs.catalog

        def find() -> JsonObject:
            hits: list[JsonValue] = []
            for hit in catalog.search(query, limit, include_mcp=True):
                text: Any = hit["description"]
                about = {"description": shorten(text, MAX_DESCRIPTION), "rank": len(hits) + 1}
                tool = catalog.resolve(str(hit["id"]), include_mcp=True)
                hits.append(hit | about | {"call": programs.call_text(tool)})
            words = list[JsonValue](catalog.unmatched(query, include_mcp=True))
            return {"query": query, "hits": hits, "unmatched": words}

        # In a thread: the first search indexes the catalog.
        return await anyio.to_thread.run_sync(find)


PLACE: dict[str, JsonObject] = {"agentId": NAME, "sessionKey": NAME}

METHODS = (
    method(
        "tools.surface",
        "operator.read",
        _surface,
        params(**PLACE, after=integer(0, 1_000_000), limit=integer(1, MAX_TOOLS)),
    ),
    method(
        "tools.declaration",
        "operator.read",
        _declaration,
        params(**PLACE, id=STRING, file=STRING),
    ),
    method(
        "tools.search",
        "operator.read",
        _search,
        params("query", **PLACE, query=STRING, limit=integer(1, MAX_HITS)),
    ),
)
