"""A Python runtime that gives a language model two tools, `exec` and `wait`.

Names are looked up when they are first used: a worker imports this package too, and what it loads
is its start-up time and its attack surface.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clawmode.approvals import Approvals, InputQuestion, Question
    from clawmode.code_mode import CodeMode
    from clawmode.config import CodeModeConfig
    from clawmode.context import RunContext
    from clawmode.exceptions import ClawmodeError, ErrorCode
    from clawmode.hooks import Hooks, RequireApproval, ToolCallDecision
    from clawmode.policy import Policy
    from clawmode.results import CodeModeResult, compact
    from clawmode.sandbox.pool import Pool
    from clawmode.sqlite_store import SqliteStore
    from clawmode.stores import MemoryStore
    from clawmode.tool_function import tool
    from clawmode.tools import InputRequest, Tool, ToolContext, ToolResult

__all__ = [
    "Approvals",
    "ClawmodeError",
    "CodeMode",
    "CodeModeConfig",
    "CodeModeResult",
    "ErrorCode",
    "Hooks",
    "InputQuestion",
    "InputRequest",
    "MemoryStore",
    "Policy",
    "Pool",
    "Question",
    "RequireApproval",
    "RunContext",
    "SqliteStore",
    "Tool",
    "ToolCallDecision",
    "ToolContext",
    "ToolResult",
    "__version__",
    "compact",
    "tool",
]

__version__ = "0.1.0"

_HOMES = {
    "Approvals": "approvals",
    "ClawmodeError": "exceptions",
    "CodeMode": "code_mode",
    "CodeModeConfig": "config",
    "CodeModeResult": "results",
    "ErrorCode": "exceptions",
    "Hooks": "hooks",
    "InputQuestion": "approvals",
    "InputRequest": "tools",
    "MemoryStore": "stores",
    "Policy": "policy",
    "Pool": "sandbox.pool",
    "Question": "approvals",
    "RequireApproval": "hooks",
    "RunContext": "context",
    "SqliteStore": "sqlite_store",
    "Tool": "tools",
    "ToolCallDecision": "hooks",
    "ToolContext": "tools",
    "ToolResult": "tools",
    "compact": "results",
    "tool": "tool_function",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'clawmode' has no attribute {name!r}")
    return getattr(import_module(f"clawmode.{_HOMES[name]}"), name)
