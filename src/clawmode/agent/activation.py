"""Which tools the model of a run sees: the tools themselves, code mode's two, or Tool Search's."""

from collections.abc import Iterable
from dataclasses import dataclass

from clawmode.catalog.catalog import EXEC, SEARCH_CODE, SEARCH_TOOLS, WAIT, is_control
from clawmode.config.tools import SearchMode, ToolSettings
from clawmode.tools.policy import Policy
from clawmode.tools.tool import Tool


@dataclass(frozen=True, slots=True)
class ToolSurface:
    """The tools that the model of one run sees, and those that it can reach.

    Attributes:
        code_mode: Whether the model sees `exec` and `wait` instead of the tools.
        tools: The tools that the policy allows: visible themselves, or in the hidden catalog.
        search: The mode of Tool Search, if the model sees its controls instead of the tools.
    """

    code_mode: bool
    tools: tuple[Tool, ...]
    search: SearchMode | None = None

    @property
    def visible(self) -> tuple[Tool, ...]:
        """The tools that the model sees. With a directory it may see a few more."""
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
    settings: ToolSettings, policy: Policy, tools: Iterable[Tool], *, without_tools: bool = False
) -> ToolSurface:
    """Applies the policy, and decides which tools the model sees.

    Args:
        settings: The section `tools` of the agent: code mode takes precedence over Tool Search.
        policy: The rules for agent, model, provider, sandbox, channel and sender.
        tools: All tools of the run.
        without_tools: The run has no tools.
    """
    if without_tools:
        return ToolSurface(False, ())
    allowed = tuple(tool for tool in policy.effective(tools) if not is_control(tool))
    # Without tools, a program would have nothing to call.
    if settings.code_mode.enabled and allowed:
        return ToolSurface(True, allowed)
    search = settings.tool_search
    return ToolSurface(False, allowed, search.mode if search.enabled and allowed else None)
