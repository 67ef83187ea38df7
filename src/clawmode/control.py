"""Code mode's own two tools, as things that hooks, approvals and the catalog can recognize.

They are known by identity: a shell's tool may be named `exec` too, and has another id.
"""

from clawmode.tools import JsonObject, Tool, ToolContext


def _not_called(given: JsonObject, context: ToolContext) -> None:
    raise AssertionError("code mode's own tools are in no catalog")


EXEC = Tool("exec", "Run a program.", {"type": "object"}, _not_called, owner="code_mode")
WAIT = Tool("wait", "Continue a program.", {"type": "object"}, _not_called, owner="code_mode")

CONTROL_NAMES = frozenset({"tool_search_code", "tool_search", "tool_describe", "tool_call"})
"""Tools that lead to the catalog and are not in it."""


def is_control(tool: Tool) -> bool:
    """Whether a tool leads to the catalog, and so is in none."""
    return tool is EXEC or tool is WAIT or tool.name in CONTROL_NAMES
