"""A Python runtime that gives a language model two tools, `exec` and `wait`.

The public names are in three groups: `LIBRARY`, `AGENT` and `GATEWAY`. Everything else may move
between modules at any time.

A name is imported when it is first used: a worker process imports this package too, and every
module that it loads adds to its start-up time and its attack surface. For the same reason no name
may be that of a module of the package: an imported module would take its place.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clawmode.agent.events import AgentEvent
    from clawmode.agent.history import read_transcript
    from clawmode.agent.hooks import (
        AgentEnd,
        ClaimedReply,
        CompactionEvent,
        GatewayEvent,
        Install,
        InstallDecision,
        MessageEvent,
        ModelOverride,
        ModelResolve,
        PromptAdditions,
        PromptBuild,
        SendDecision,
        SessionEvent,
    )
    from clawmode.agent.model_choice import Models as ModelPool
    from clawmode.agent.requests import AgentRequest, RunResult
    from clawmode.agent.resolve import Configured as ConfigResolver
    from clawmode.agent.runtime import AgentRuntime
    from clawmode.agent.sections import Configuration
    from clawmode.agent.sessions import SessionStore
    from clawmode.agent.settings import read as read_configuration
    from clawmode.agent.trajectory_view import render as render_transcript
    from clawmode.approvals import Approvals, Decision, InputQuestion, Question
    from clawmode.code_mode import CodeMode
    from clawmode.config import CodeModeConfig
    from clawmode.context import RunContext
    from clawmode.core_tools.confined import FileLimits
    from clawmode.core_tools.files import FileSettings
    from clawmode.core_tools.shell import ShellSettings
    from clawmode.core_tools.suite import CoreTools, make_core_tools
    from clawmode.core_tools.web import WebSettings
    from clawmode.cron.job import configured_jobs
    from clawmode.cron.jobs import Jobs
    from clawmode.cron.scheduler import Scheduler
    from clawmode.exceptions import (
        AbortUnconfirmed,
        ClawmodeError,
        ClawmodeWarning,
        ConfigurationError,
        DuplicateTool,
        ErrorCode,
        InvalidTool,
        NotOpen,
        ProgramFailed,
        ProgramWaiting,
        UnexpectedValue,
        UnknownHook,
        UnknownTool,
    )
    from clawmode.executor import CallEvent
    from clawmode.gateway.client import GatewayClient, TurnResult
    from clawmode.gateway.event_buffer import EventsLost
    from clawmode.gateway.link import GatewayUnreachable
    from clawmode.gateway.protocol import RpcError
    from clawmode.hooks import (
        AfterToolCall,
        BeforeToolCall,
        Hooks,
        RequireApproval,
        ToolCallDecision,
    )
    from clawmode.mcp.client import McpServers
    from clawmode.mcp.config import read_servers
    from clawmode.messages import ToolMessage
    from clawmode.models.base import Model, ModelError
    from clawmode.namespaces import (
        NamespaceContext,
        NamespaceRegistration,
        NamespaceRegistry,
        namespace_tool,
    )
    from clawmode.plugins.host import PluginApi, Plugins
    from clawmode.policy import Policy
    from clawmode.results import CodeModeResult, compact
    from clawmode.sandbox.pool import Pool
    from clawmode.sqlite_store import SqliteStore
    from clawmode.stores import MemoryStore
    from clawmode.tool_function import tool
    from clawmode.tools import InputRequest, JsonObject, Tool, ToolContext, ToolResult
    from clawmode.types import JsonValue

__all__ = [
    "AbortUnconfirmed",
    "AfterToolCall",
    "AgentEnd",
    "AgentEvent",
    "AgentRequest",
    "AgentRuntime",
    "Approvals",
    "BeforeToolCall",
    "CallEvent",
    "ClaimedReply",
    "ClawmodeError",
    "ClawmodeWarning",
    "CodeMode",
    "CodeModeConfig",
    "CodeModeResult",
    "CompactionEvent",
    "ConfigResolver",
    "Configuration",
    "ConfigurationError",
    "CoreTools",
    "Decision",
    "DuplicateTool",
    "ErrorCode",
    "EventsLost",
    "FileLimits",
    "FileSettings",
    "GatewayClient",
    "GatewayEvent",
    "GatewayUnreachable",
    "Hooks",
    "InputQuestion",
    "InputRequest",
    "Install",
    "InstallDecision",
    "InvalidTool",
    "Jobs",
    "JsonObject",
    "JsonValue",
    "McpServers",
    "MemoryStore",
    "MessageEvent",
    "Model",
    "ModelError",
    "ModelOverride",
    "ModelPool",
    "ModelResolve",
    "NamespaceContext",
    "NamespaceRegistration",
    "NamespaceRegistry",
    "NotOpen",
    "PluginApi",
    "Plugins",
    "Policy",
    "Pool",
    "ProgramFailed",
    "ProgramWaiting",
    "PromptAdditions",
    "PromptBuild",
    "Question",
    "RequireApproval",
    "RpcError",
    "RunContext",
    "RunResult",
    "Scheduler",
    "SendDecision",
    "SessionEvent",
    "SessionStore",
    "ShellSettings",
    "SqliteStore",
    "Tool",
    "ToolCallDecision",
    "ToolContext",
    "ToolMessage",
    "ToolResult",
    "TurnResult",
    "UnexpectedValue",
    "UnknownHook",
    "UnknownTool",
    "WebSettings",
    "__version__",
    "compact",
    "configured_jobs",
    "make_core_tools",
    "namespace_tool",
    "read_configuration",
    "read_servers",
    "read_transcript",
    "render_transcript",
    "tool",
]

__version__ = "0.1.0"

LIBRARY = {
    "AbortUnconfirmed": "exceptions",
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
    "CoreTools": "core_tools.suite",
    "Decision": "approvals",
    "DuplicateTool": "exceptions",
    "ErrorCode": "exceptions",
    "FileLimits": "core_tools.confined",
    "FileSettings": "core_tools.files",
    "Hooks": "hooks",
    "InputQuestion": "approvals",
    "InputRequest": "tools",
    "InvalidTool": "exceptions",
    "JsonObject": "tools",
    "JsonValue": "types",
    "McpServers": "mcp.client",
    "MemoryStore": "stores",
    "NamespaceContext": "namespaces",
    "NamespaceRegistration": "namespaces",
    "NamespaceRegistry": "namespaces",
    "NotOpen": "exceptions",
    "Policy": "policy",
    "Pool": "sandbox.pool",
    "ProgramFailed": "exceptions",
    "ProgramWaiting": "exceptions",
    "Question": "approvals",
    "RequireApproval": "hooks",
    "RunContext": "context",
    "ShellSettings": "core_tools.shell",
    "SqliteStore": "sqlite_store",
    "Tool": "tools",
    "ToolCallDecision": "hooks",
    "ToolContext": "tools",
    "ToolResult": "tools",
    "UnexpectedValue": "exceptions",
    "UnknownHook": "exceptions",
    "UnknownTool": "exceptions",
    "WebSettings": "core_tools.web",
    "compact": "results",
    "make_core_tools": "core_tools.suite",
    "namespace_tool": "namespaces",
    "read_servers": "mcp.config",
    "tool": "tool_function",
}
"""Run programs: `CodeMode`, and everything that can be given to it."""

AGENT = {
    "AgentEnd": "agent.hooks",
    "AgentEvent": "agent.events",
    "AgentRequest": "agent.requests",
    "AgentRuntime": "agent.runtime",
    "ClaimedReply": "agent.hooks",
    "CompactionEvent": "agent.hooks",
    "ConfigResolver": "agent.resolve:Configured",
    "Configuration": "agent.sections",
    "GatewayEvent": "agent.hooks",
    "Install": "agent.hooks",
    "InstallDecision": "agent.hooks",
    "Jobs": "cron.jobs",
    "MessageEvent": "agent.hooks",
    "Model": "models.base",
    "ModelError": "models.base",
    "ModelOverride": "agent.hooks",
    "ModelPool": "agent.model_choice:Models",
    "ModelResolve": "agent.hooks",
    "PluginApi": "plugins.host",
    "Plugins": "plugins.host",
    "PromptAdditions": "agent.hooks",
    "PromptBuild": "agent.hooks",
    "RunResult": "agent.requests",
    "Scheduler": "cron.scheduler",
    "SendDecision": "agent.hooks",
    "SessionEvent": "agent.hooks",
    "SessionStore": "agent.sessions",
    "ToolMessage": "messages",
    "configured_jobs": "cron.job",
    "read_configuration": "agent.settings:read",
    "read_transcript": "agent.history",
    "render_transcript": "agent.trajectory_view:render",
}
"""Run agents: models, sessions, hooks, plugins and schedules."""

GATEWAY = {
    "EventsLost": "gateway.event_buffer",
    "GatewayClient": "gateway.client",
    "GatewayUnreachable": "gateway.link",
    "RpcError": "gateway.protocol",
    "TurnResult": "gateway.client",
}
"""Use agents of a gateway, from another process or machine."""

_HOMES = {**LIBRARY, **AGENT, **GATEWAY}
# "module", or "module:name" where the module calls the object by another name


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'clawmode' has no attribute {name!r}")
    module, _, inner = _HOMES[name].partition(":")
    return getattr(import_module(f"clawmode.{module}"), inner or name)


def __dir__() -> list[str]:
    return __all__
