"""Whether a run of an agent shows its tools, or `exec` and `wait` instead of all of them."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from clawmode.config import CodeModeConfig
from clawmode.control import EXEC, WAIT, is_control
from clawmode.policy import Policy
from clawmode.tools import Tool


@dataclass(frozen=True, slots=True)
class ToolSurface:
    """What one run shows the model, and what it can call.

    Attributes:
        code_mode: Whether `exec` and `wait` stand for all tools.
        tools: What the policy leaves: shown themselves, or in the hidden catalog.
    """

    code_mode: bool
    tools: tuple[Tool, ...]

    @property
    def visible(self) -> tuple[Tool, ...]:
        """The tools that the model sees."""
        return (EXEC, WAIT) if self.code_mode else self.tools


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
    """
    if disable_tools or raw_model_call:
        return ToolSurface(False, ())
    found = chain(core, plugin, mcp, client)
    tools = tuple(tool for tool in policy.effective(found) if not is_control(tool))
    # A run that is left without tools has nothing to write programs for.
    return ToolSurface(config.enabled and bool(tools), tools)
