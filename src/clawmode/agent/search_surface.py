"""Tool Search for one run: which mode it can have, its toolbox, its part of the prompt."""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from clawmode.agent.search_tools import DirectoryTools, SearchCodeTools, SearchTools
from clawmode.agent.tool_directory import (
    check_names,
    choose_schemas,
    directory_text,
    without_collisions,
)
from clawmode.agent.tool_search import ToolSearch
from clawmode.agent.tool_search_code import SearchCode
from clawmode.agent.toolbox import Toolbox
from clawmode.config.tool_search import SearchMode, ToolSearchConfig
from clawmode.context import RunContext
from clawmode.sandbox.pool import Pool
from clawmode.tools.executor import Executor
from clawmode.tools.tool import Tool
from clawmode.types import JsonObject

if TYPE_CHECKING:
    from clawmode.mcp.servers import McpServers

logger = logging.getLogger("clawmode.tool_search")

MAX_REASON = 300

NOT_TO_BE_HAD = "run %s: tool_search_code is not to be had, the model gets structured tools: %s"


@dataclass(slots=True, kw_only=True)
class SearchSurface:
    """What the model of a run sees, and gets at, by Tool Search.

    Attributes:
        mode: The one that is in use.
        reason: Why that is not the one that was configured.
        directory: For the prompt.
        schemas: How many the model sees at the start.
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
        """For the metadata of the run."""
        told = self.search.report(self.mode)
        if self.reason is not None:
            told |= {"fallbackFrom": "code", "fallbackReason": self.reason}
        return {"codeModeEngaged": False, "visibleTools": self.schemas, "toolSearch": told}


@asynccontextmanager
async def open_search(
    config: ToolSearchConfig,
    tools: Callable[[], tuple[Tool, ...]],
    *,
    executor: Executor,
    context: RunContext,
    pool: Pool,
    servers: "McpServers | None" = None,
    message: str = "",
) -> AsyncIterator[SearchSurface]:
    """Opens Tool Search, and keeps its catalog up with `tools`: what policy lets through.

    Schemas for the directory are chosen by the message.

    Raises:
        DuplicateTool: A name stands for two tools.
    """
    search, mode = ToolSearch(config), config.mode
    code, reason = None, None
    async with AsyncExitStack() as opened:
        if mode == "code":
            code = SearchCode(search, executor, context, pool)
            await opened.enter_async_context(code)
            # Before anything is compacted: there may be no runtime to reach a catalog from.
            reason = await code.unavailable()
            if reason is not None:
                mode = "tools"
                logger.warning(NOT_TO_BE_HAD, context.run_id, reason)
        _offer(search, code, mode, tools(), start=True)
        if servers is not None:
            opened.callback(servers.watch(lambda view: _offer(search, code, mode, tools())))
        yield await _surface(mode, search, executor, context, code, message, reason)


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
        tools = without_collisions(tools)
    if start or sorted(tools, key=lambda tool: tool.id) != list(search.catalog.entries):
        search.offer(tools)
        if code is not None:
            code.refresh()


async def _surface(
    mode: SearchMode,
    search: ToolSearch,
    executor: Executor,
    context: RunContext,
    code: SearchCode | None,
    message: str,
    reason: str | None,
) -> SearchSurface:
    text = ""
    toolbox: Toolbox
    if mode == "code" and code is not None:
        toolbox = SearchCodeTools(code)
    elif mode == "directory":
        text = directory_text(search.catalog.entries)
        shown = await choose_schemas(search, message)
        toolbox = DirectoryTools(search, executor, context, shown)
    else:
        toolbox = SearchTools(search, executor, context)
    told = None if reason is None else reason[:MAX_REASON]
    return SearchSurface(mode=mode, search=search, toolbox=toolbox, reason=told, directory=text)
