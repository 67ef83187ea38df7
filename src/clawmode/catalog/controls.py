"""The control tools: `EXEC`, `WAIT` and those of Tool Search, which lead to a catalog.

A catalog never contains them. Also the names by which a model calls tools directly.
"""

import re

from clawmode.exceptions import ClawmodeError
from clawmode.tools.rules import safe_server_name
from clawmode.tools.tool import Tool, ToolContext
from clawmode.types import JsonObject, dataclass

MAX_NAME = 64
"""The longest tool name that every provider accepts."""


def _not_called(given: JsonObject, context: ToolContext) -> None:
    raise AssertionError("control tools are never called through a catalog")


# Compared by identity, because a shell tool may also be named `exec` (with another id).
EXEC = Tool("exec", "Run a program.", {"type": "object"}, _not_called, owner="code_mode")
WAIT = Tool("wait", "Continue a program.", {"type": "object"}, _not_called, owner="code_mode")

SEARCH_CODE, *SEARCH_TOOLS = (
    Tool(name, "Tool Search.", {"type": "object"}, _not_called, owner="tool_search")
    for name in ("tool_search_code", "tool_search", "tool_describe", "tool_call")
)
CONTROL_NAMES = frozenset(tool.name for tool in (SEARCH_CODE, *SEARCH_TOOLS))
"""The names of Tool Search's controls, which no other tool can have."""


def is_control(tool: Tool) -> bool:
    """True if the tool leads to a catalog, and therefore is in none."""
    return tool is EXEC or tool is WAIT or tool.name in CONTROL_NAMES


@dataclass(frozen=True, slots=True)
class Control:
    """A control of Tool Search as the model sees it."""

    name: str
    description: str
    parameters: JsonObject


class ControlRefused(ClawmodeError):
    """A call of a control names no tool, or its arguments are invalid.

    Attributes:
        code: An error code for the model.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def exposed_name(tool: Tool) -> str:
    """Returns the name by which a model calls a tool directly: one that every provider accepts."""
    name = tool.name
    if tool.source == "mcp":
        name = f"{safe_server_name(tool.owner)}__{tool.name}"
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:MAX_NAME]
