"""Tools that lead to the catalog, as things that hooks, approvals and the catalog can recognize.

Code mode's own two are known by identity: a shell's tool may be named `exec` too, and has another
id.
"""

from clawmode.tools.tool import Tool, ToolContext
from clawmode.types import JsonObject


def _not_called(given: JsonObject, context: ToolContext) -> None:
    raise AssertionError("what leads to the catalog is not in it")


EXEC = Tool("exec", "Run a program.", {"type": "object"}, _not_called, owner="code_mode")
WAIT = Tool("wait", "Continue a program.", {"type": "object"}, _not_called, owner="code_mode")

SEARCH_CODE, *SEARCH_TOOLS = (
    Tool(name, "Tool Search.", {"type": "object"}, _not_called, owner="tool_search")
    for name in ("tool_search_code", "tool_search", "tool_describe", "tool_call")
)
CONTROL_NAMES = frozenset(tool.name for tool in (SEARCH_CODE, *SEARCH_TOOLS))
"""Those of Tool Search; no tool of another kind can be called so."""


def is_control(tool: Tool) -> bool:
    """Whether a tool leads to the catalog, and so is in none."""
    return tool is EXEC or tool is WAIT or tool.name in CONTROL_NAMES
