"""The tools of a run behind Tool Search: its mode, its toolbox, and its part of the prompt.

Every call of a tool is made by the run's executor, whichever control led to it.
"""

import difflib
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import field, replace
from typing import TYPE_CHECKING

from clawmode.agent.tool_directory import (
    check_names,
    choose_schemas,
    directory_text,
    without_collisions,
)
from clawmode.agent.tool_search import CONTROLS, ToolSearch
from clawmode.agent.tool_search_code import NAME, SearchCode
from clawmode.agent.toolbox import Toolbox, execute, fail, shorten
from clawmode.catalog.controls import MAX_NAME, Control, ControlRefused, exposed_name
from clawmode.config.tools import SearchMode, ToolSearchConfig
from clawmode.context import RunContext
from clawmode.messages import Text, ToolCall, ToolMessage
from clawmode.models.base import ToolDefinition
from clawmode.text import without_surrogates
from clawmode.tools.executor import Call, Executor
from clawmode.tools.tool import Tool
from clawmode.types import JsonObject, dataclass

if TYPE_CHECKING:
    from clawmode.mcp.servers import McpServers
    from clawmode.sandbox.pool import Pool

logger = logging.getLogger("clawmode.tool_search")

MAX_REASON = 300


# ---- Toolboxes ----


class SearchTools(Toolbox):
    """The mode `tools`: the model sees `tool_search`, `tool_describe` and `tool_call`."""

    def __init__(self, search: ToolSearch, executor: Executor, run: RunContext) -> None:
        self.search = search
        self._executor = executor
        self._run = run
        self.exact = frozenset(control.name for control in CONTROLS)

    def definitions(self) -> tuple[ToolDefinition, ...]:
        return tuple(map(_define, CONTROLS))

    def runs_alone(self, call: ToolCall) -> bool:
        if call.name != "tool_call":
            return False
        try:
            return self.search.read_call(call.arguments)[0].sequential
        except ControlRefused:
            return False

    async def call(self, call: ToolCall) -> ToolMessage:
        try:
            match call.name:
                case "tool_search":
                    return _answer(call, await self.search.search(call.arguments))
                case "tool_describe":
                    return _answer(call, self.search.describe(call.arguments))
                case "tool_call":
                    tool, given = self.search.read_call(call.arguments)
                    self.search.telemetry.call(tool.id)
                    made = Call(
                        id=f"{call.id}:1", tool=tool, input=given, run=self._run, parent_id=call.id
                    )
                    return await execute(self._executor, call, made)
            return await self._call_by_name(call)
        except ControlRefused as refused:
            return fail(call, str(refused), {"code": refused.code})

    async def _call_by_name(self, call: ToolCall) -> ToolMessage:
        text = (
            f"There is no tool {call.name[:MAX_NAME]!r}: find it with tool_search, then tool_call."
        )
        return fail(call, text)


class DirectoryTools(SearchTools):
    """The mode `directory`: the model also sees some tools, and may call all others by name.

    Args:
        search: The catalog.
        executor: Makes the calls.
        run: The run, for hooks and approvals.
        shown: Tools of the catalog whose schema the model sees, besides the client's tools.
    """

    def __init__(
        self, search: ToolSearch, executor: Executor, run: RunContext, shown: Iterable[Tool]
    ) -> None:
        super().__init__(search, executor, run)
        self._shown = frozenset(tool.id for tool in shown)

    def definitions(self) -> tuple[ToolDefinition, ...]:
        # From the current catalog: an MCP server may have withdrawn a tool meanwhile.
        made = [
            ToolDefinition(name, tool.description, dict(tool.parameters))
            for name, tool in self.search.by_name.items()
            if tool.source == "client" or tool.id in self._shown
        ]
        defined = (*super().definitions(), *made)
        self.exact = frozenset(definition.name for definition in defined)
        return defined

    def runs_alone(self, call: ToolCall) -> bool:
        tool = self.search.by_name.get(call.name)
        return tool.sequential if tool is not None else super().runs_alone(call)

    async def _call_by_name(self, call: ToolCall) -> ToolMessage:
        tool, given = self.search.by_name.get(call.name), call.arguments
        if tool is None:
            entries = self.search.catalog.entries
            if shared := [it.id for it in entries if exposed_name(it) == call.name][:10]:
                ids = ", ".join(shared)
                return fail(
                    call, f"Several tools are called {call.name!r}: tool_call one of {ids}."
                )
            near = difflib.get_close_matches(call.name[:MAX_NAME], self.search.by_name, n=3)
            hint = f"did you mean {', '.join(near)}?" if near else "find one with tool_search."
            return fail(call, f"There is no tool {call.name[:MAX_NAME]!r}: {hint}")
        if isinstance(given, str):
            text = f"The arguments of {call.name} are not a JSON object: {given[:200]!r}"
            return fail(call, text)
        self.search.telemetry.call(tool.id)
        made = Call(id=call.id, tool=tool, input=given, run=self._run)
        return await execute(self._executor, call, made)


class SearchCodeTools(Toolbox):
    """The mode `code`: the model sees `tool_search_code`."""

    exact: frozenset[str] | None = frozenset({NAME})

    def __init__(self, code: SearchCode) -> None:
        self._code = code

    def definitions(self) -> tuple[ToolDefinition, ...]:
        return (_define(self._code.control()),)

    async def call(self, call: ToolCall) -> ToolMessage:
        if call.name != NAME:
            text = f"There is no tool {call.name[:MAX_NAME]!r}: call it from {NAME}."
            return fail(call, text)
        try:
            result = await self._code.run(call.arguments, call.id)
        except ControlRefused as refused:
            return fail(call, str(refused), {"code": refused.code})
        return replace(_answer(call, result), is_error=result["status"] == "failed")


def _define(control: Control) -> ToolDefinition:
    return ToolDefinition(control.name, control.description, control.parameters)


def _answer(call: ToolCall, value: JsonObject) -> ToolMessage:
    # Descriptions come from anywhere, and may contain half of a surrogate pair.
    text = without_surrogates(json.dumps(value, separators=(",", ":"), ensure_ascii=False))
    return ToolMessage(call_id=call.id, name=call.name, content=(Text(shorten(text)),))


# ---- Tool Search in a run ----


@dataclass(slots=True, kw_only=True)
class SearchSurface:
    """Tool Search in one run.

    Attributes:
        mode: The mode in use.
        reason: Why that is not the configured mode.
        directory: The directory of tools for the prompt.
        schemas: The number of tool definitions that the model sees at the start.
    """

    mode: SearchMode
    search: ToolSearch
    toolbox: Toolbox
    reason: str | None = None
    directory: str = ""
    schemas: int = field(init=False)

    def __post_init__(self) -> None:
        self.schemas = len(self.toolbox.definitions())

    def report(self) -> JsonObject:
        """Returns the metadata of the run about its tools."""
        search = self.search.report(self.mode)
        if self.reason is not None:
            search |= {"fallbackFrom": "code", "fallbackReason": self.reason}
        return {"codeModeEngaged": False, "visibleTools": self.schemas, "toolSearch": search}


@asynccontextmanager
async def open_search(
    config: ToolSearchConfig,
    tools: Callable[[], tuple[Tool, ...]],
    *,
    executor: Executor,
    context: RunContext,
    pool: "Pool",
    servers: "McpServers | None" = None,
    message: str = "",
) -> AsyncIterator[SearchSurface]:
    """Opens Tool Search for a run.

    Args:
        config: The settings of `tools.toolSearch`.
        tools: Returns the tools that the policy allows; called again when an MCP server changes.
        executor: Makes the calls.
        context: The run, for hooks and approvals.
        pool: The workers for `tool_search_code`.
        servers: The MCP servers whose changes are watched.
        message: The message by which schemas for the directory are chosen.

    Raises:
        DuplicateTool: Two tools have the same name.
    """
    search, mode = ToolSearch(config), config.mode
    code, reason = None, None
    async with AsyncExitStack() as opened:
        if mode == "code":
            code = SearchCode(search, executor, context, pool)
            await opened.enter_async_context(code)
            # Before the model sees this tool only: without a worker it could reach no other tool.
            reason = await code.unavailable()
            if reason is not None:
                mode = "tools"
                logger.warning(
                    "run %s: tool_search_code is not available, so the model gets tool_search, "
                    "tool_describe and tool_call: %s",
                    context.run_id,
                    reason,
                )
        _offer(search, code, mode, tools(), start=True)
        if servers is not None:
            opened.callback(servers.watch(lambda view: _offer(search, code, mode, tools())))
        toolbox: Toolbox
        directory = ""
        if mode == "code" and code is not None:
            toolbox = SearchCodeTools(code)
        elif mode == "directory":
            directory = directory_text(search.catalog.entries)
            shown = await choose_schemas(search, message)
            toolbox = DirectoryTools(search, executor, context, shown)
        else:
            toolbox = SearchTools(search, executor, context)
        yield SearchSurface(
            mode=mode,
            search=search,
            toolbox=toolbox,
            reason=None if reason is None else reason[:MAX_REASON],
            directory=directory,
        )


def _offer(
    search: ToolSearch,
    code: SearchCode | None,
    mode: SearchMode,
    tools: tuple[Tool, ...],
    *,
    start: bool = False,
) -> None:
    if mode == "directory" and start:
        check_names(tools)
    elif mode == "directory":
        # A collision that appears during the run must not end the run.
        tools = without_collisions(tools)
    if start or sorted(tools, key=lambda tool: tool.id) != list(search.catalog.entries):
        search.offer(tools)
        if code is not None:
            code.refresh()
