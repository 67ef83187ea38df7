"""Whether a run of an agent shows its tools, or what leads to all of them instead."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from clawmode.catalog.catalog import EXEC, SEARCH_CODE, SEARCH_TOOLS, WAIT, is_control
from clawmode.code_mode.config import CodeModeConfig
from clawmode.config.tool_search import DEFAULTS, SearchMode, ToolSearchConfig
from clawmode.tools.policy import Policy
from clawmode.tools.tool import Tool


@dataclass(frozen=True, slots=True)
class ToolSurface:
    """What one run shows the model, and what it can call.

    Attributes:
        code_mode: Whether `exec` and `wait` stand for all tools.
        tools: What the policy leaves: shown themselves, or in the hidden catalog.
        search: The mode of Tool Search, if that stands for them.
    """

    code_mode: bool
    tools: tuple[Tool, ...]
    search: SearchMode | None = None

    @property
    def visible(self) -> tuple[Tool, ...]:
        """The tools that the model sees; in a directory there may be a few more."""
        if self.code_mode:
            return (EXEC, WAIT)
        match self.search:
            case None:
                return self.tools
            case "code":
                return (SEARCH_CODE,)
            case "tools":
                return tuple(SEARCH_TOOLS)
            case "directory":
                return (*SEARCH_TOOLS, *(tool for tool in self.tools if tool.source == "client"))


def activate(
    config: CodeModeConfig,
    policy: Policy,
    *,
    core: Iterable[Tool],
    plugin: Iterable[Tool] = (),
    mcp: Iterable[Tool] = (),
    client: Iterable[Tool] = (),
    disable_tools: bool = False,
    raw_model_call: bool = False,
    tool_search: ToolSearchConfig = DEFAULTS,
) -> ToolSurface:
    """Takes the page's steps, in its order.

    Args:
        config: `tools.codeMode`, resolved for the agent.
        policy: Resolved for agent, model, provider, sandbox, channel and sender.
        core: Our own tools.
        plugin: Those of plugins.
        mcp: Those of MCP servers.
        client: Those that the client brought along for this run.
        disable_tools: The run is to have none.
        raw_model_call: The model is asked without any surroundings.
        tool_search: `tools.toolSearch`, resolved for the agent. Code mode comes before it.
    """
    if disable_tools or raw_model_call:
        return ToolSurface(False, ())
    found = chain(core, plugin, mcp, client)
    tools = tuple(tool for tool in policy.effective(found) if not is_control(tool))
    # A run that is left without tools has nothing to write programs for.
    if config.enabled and tools:
        return ToolSurface(True, tools)
    return ToolSurface(False, tools, tool_search.mode if tool_search.enabled and tools else None)
