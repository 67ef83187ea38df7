"""A Python runtime that gives a language model two tools, `exec` and `wait`.

Names are looked up when they are first used: a worker imports this package too, and what it loads
is its start-up time and its attack surface.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clawmode.approvals import Approvals, Decision, InputQuestion, Question
    from clawmode.code_mode import CodeMode
    from clawmode.config import CodeModeConfig
    from clawmode.context import RunContext
    from clawmode.exceptions import (
        ClawmodeError,
        ClawmodeWarning,
        ConfigurationError,
        ErrorCode,
        ProgramFailed,
        ProgramWaiting,
        UnexpectedValue,
    )
    from clawmode.executor import CallEvent
    from clawmode.hooks import (
        AfterToolCall,
        BeforeToolCall,
        Hooks,
        RequireApproval,
        ToolCallDecision,
    )
    from clawmode.policy import Policy
    from clawmode.results import CodeModeResult, compact
    from clawmode.sandbox.pool import Pool
    from clawmode.sqlite_store import SqliteStore
    from clawmode.stores import MemoryStore
    from clawmode.tool_function import tool
    from clawmode.tools import InputRequest, Tool, ToolContext, ToolResult

__all__ = [
    "AfterToolCall",
    "Approvals",
    "BeforeToolCall",
    "CallEvent",
    "ClawmodeError",
    "ClawmodeWarning",
    "CodeMode",
    "CodeModeConfig",
    "CodeModeResult",
    "ConfigurationError",
    "Decision",
    "ErrorCode",
    "Hooks",
    "InputQuestion",
    "InputRequest",
    "MemoryStore",
    "Policy",
    "Pool",
    "ProgramFailed",
    "ProgramWaiting",
    "Question",
    "RequireApproval",
    "RunContext",
    "SqliteStore",
    "Tool",
    "ToolCallDecision",
    "ToolContext",
    "ToolResult",
    "UnexpectedValue",
    "__version__",
    "compact",
    "tool",
]

__version__ = "0.1.0"

_HOMES = {
    "AfterToolCall": "hooks",
    "Approvals": "approvals",
    "BeforeToolCall": "hooks",
    "CallEvent": "executor",
    "ClawmodeError": "exceptions",
    "ClawmodeWarning": "exceptions",
    "CodeMode": "code_mode",
    "CodeModeConfig": "config",
    "CodeModeResult": "results",
    "ConfigurationError": "exceptions",
    "Decision": "approvals",
    "ErrorCode": "exceptions",
    "Hooks": "hooks",
    "InputQuestion": "approvals",
    "InputRequest": "tools",
    "MemoryStore": "stores",
    "Policy": "policy",
    "Pool": "sandbox.pool",
    "ProgramFailed": "exceptions",
    "ProgramWaiting": "exceptions",
    "Question": "approvals",
    "RequireApproval": "hooks",
    "RunContext": "context",
    "SqliteStore": "sqlite_store",
    "Tool": "tools",
    "ToolCallDecision": "hooks",
    "ToolContext": "tools",
    "ToolResult": "tools",
    "UnexpectedValue": "exceptions",
    "compact": "results",
    "tool": "tool_function",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'clawmode' has no attribute {name!r}")
    return getattr(import_module(f"clawmode.{_HOMES[name]}"), name)
