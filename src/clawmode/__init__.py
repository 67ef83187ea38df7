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
    from clawmode.agent.agent import Agent, EventStream, ResultEvent
    from clawmode.agent.events import AgentEvent
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
    from clawmode.agent.models import ModelPool
    from clawmode.agent.requests import AgentRequest, RunFailed, RunResult
    from clawmode.agent.resolver import ConfigResolver
    from clawmode.agent.runtime import AgentRuntime
    from clawmode.catalog.namespaces import (
        NamespaceContext,
        NamespaceRegistration,
        NamespaceRegistry,
        namespace_tool,
    )
    from clawmode.code_mode.code_mode import CodeMode
    from clawmode.code_mode.config import CodeModeConfig
    from clawmode.code_mode.memory_store import MemoryStore
    from clawmode.code_mode.results import CodeModeResult, compact
    from clawmode.code_mode.sqlite_store import SqliteStore
    from clawmode.code_mode.sync import SyncCodeMode
    from clawmode.config.agents import Configuration
    from clawmode.config.mcp import read_servers
    from clawmode.config.resolve import read as read_configuration
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
        InvalidTool,
        NotOpen,
        ProgramFailed,
        ProgramWaiting,
        UnexpectedValue,
        UnknownHook,
        UnknownTool,
    )
    from clawmode.mcp.servers import McpServers
    from clawmode.messages import ToolMessage
    from clawmode.models.base import Model, ModelError
    from clawmode.plugins.loader import PluginApi, Plugins
    from clawmode.postgres.cells import PostgresStore
    from clawmode.rpc.client import GatewayClient, TurnResult
    from clawmode.rpc.events import EventsLost
    from clawmode.rpc.presence import GatewayUnreachable
    from clawmode.rpc.protocol import RpcError
    from clawmode.sandbox.pool import Pool
    from clawmode.sessions.history import read_transcript
    from clawmode.sessions.lock import SessionBusy
    from clawmode.sessions.store import SessionStore
    from clawmode.terminal.trajectory_view import render as render_transcript
    from clawmode.tools.approvals import (
        Approvals,
        Decision,
        InputQuestion,
        Question,
        QuestionGroup,
    )
    from clawmode.tools.executor import CallEvent
    from clawmode.tools.function import tool
    from clawmode.tools.hooks import (
        AfterToolCall,
        ApprovalNeeded,
        BeforeToolCall,
        Hooks,
        RequireApproval,
        ToolCallDecision,
    )
    from clawmode.tools.policy import Policy
    from clawmode.tools.tool import InputRequest, Tool, ToolContext, ToolResult
    from clawmode.types import ErrorCode, JsonObject, JsonValue

__all__ = [
    "AbortUnconfirmed",
    "AfterToolCall",
    "Agent",
    "AgentEnd",
    "AgentEvent",
    "AgentRequest",
    "AgentRuntime",
    "ApprovalNeeded",
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
    "EventStream",
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
    "PostgresStore",
    "ProgramFailed",
    "ProgramWaiting",
    "PromptAdditions",
    "PromptBuild",
    "Question",
    "QuestionGroup",
    "RequireApproval",
    "ResultEvent",
    "RpcError",
    "RunContext",
    "RunFailed",
    "RunResult",
    "Scheduler",
    "SendDecision",
    "SessionBusy",
    "SessionEvent",
    "SessionStore",
    "ShellSettings",
    "SqliteStore",
    "SyncCodeMode",
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
    "AfterToolCall": "tools.hooks",
    "ApprovalNeeded": "tools.hooks",
    "Approvals": "tools.approvals",
    "BeforeToolCall": "tools.hooks",
    "CallEvent": "tools.executor",
    "ClawmodeError": "exceptions",
    "ClawmodeWarning": "exceptions",
    "CodeMode": "code_mode.code_mode",
    "CodeModeConfig": "code_mode.config",
    "CodeModeResult": "code_mode.results",
    "ConfigurationError": "exceptions",
    "CoreTools": "core_tools.suite",
    "Decision": "tools.approvals",
    "DuplicateTool": "exceptions",
    "ErrorCode": "types",
    "FileLimits": "core_tools.confined",
    "FileSettings": "core_tools.files",
    "Hooks": "tools.hooks",
    "InputQuestion": "tools.approvals",
    "InputRequest": "tools.tool",
    "InvalidTool": "exceptions",
    "JsonObject": "types",
    "JsonValue": "types",
    "McpServers": "mcp.servers",
    "MemoryStore": "code_mode.memory_store",
    "NamespaceContext": "catalog.namespaces",
    "NamespaceRegistration": "catalog.namespaces",
    "NamespaceRegistry": "catalog.namespaces",
    "NotOpen": "exceptions",
    "Policy": "tools.policy",
    "Pool": "sandbox.pool",
    "PostgresStore": "postgres.cells",
    "ProgramFailed": "exceptions",
    "ProgramWaiting": "exceptions",
    "Question": "tools.approvals",
    "QuestionGroup": "tools.approvals",
    "RequireApproval": "tools.hooks",
    "RunContext": "context",
    "ShellSettings": "core_tools.shell",
    "SqliteStore": "code_mode.sqlite_store",
    "SyncCodeMode": "code_mode.sync",
    "Tool": "tools.tool",
    "ToolCallDecision": "tools.hooks",
    "ToolContext": "tools.tool",
    "ToolResult": "tools.tool",
    "UnexpectedValue": "exceptions",
    "UnknownHook": "exceptions",
    "UnknownTool": "exceptions",
    "WebSettings": "core_tools.web",
    "compact": "code_mode.results",
    "make_core_tools": "core_tools.suite",
    "namespace_tool": "catalog.namespaces",
    "read_servers": "config.mcp",
    "tool": "tools.function",
}
"""Run programs: `CodeMode`, and everything that can be given to it."""

AGENT = {
    "Agent": "agent.agent",
    "AgentEnd": "agent.hooks",
    "AgentEvent": "agent.events",
    "AgentRequest": "agent.requests",
    "AgentRuntime": "agent.runtime",
    "ClaimedReply": "agent.hooks",
    "CompactionEvent": "agent.hooks",
    "ConfigResolver": "agent.resolver",
    "Configuration": "config.agents",
    "EventStream": "agent.agent",
    "GatewayEvent": "agent.hooks",
    "Install": "agent.hooks",
    "InstallDecision": "agent.hooks",
    "Jobs": "cron.jobs",
    "MessageEvent": "agent.hooks",
    "Model": "models.base",
    "ModelError": "models.base",
    "ModelOverride": "agent.hooks",
    "ModelPool": "agent.models",
    "ModelResolve": "agent.hooks",
    "PluginApi": "plugins.loader",
    "Plugins": "plugins.loader",
    "PromptAdditions": "agent.hooks",
    "PromptBuild": "agent.hooks",
    "ResultEvent": "agent.agent",
    "RunFailed": "agent.requests",
    "RunResult": "agent.requests",
    "Scheduler": "cron.scheduler",
    "SendDecision": "agent.hooks",
    "SessionBusy": "sessions.lock",
    "SessionEvent": "agent.hooks",
    "SessionStore": "sessions.store",
    "ToolMessage": "messages",
    "configured_jobs": "cron.job",
    "read_configuration": "config.resolve:read",
    "read_transcript": "sessions.history",
    "render_transcript": "terminal.trajectory_view:render",
}
"""Run agents: models, sessions, hooks, plugins and schedules."""

GATEWAY = {
    "EventsLost": "rpc.events",
    "GatewayClient": "rpc.client",
    "GatewayUnreachable": "rpc.presence",
    "RpcError": "rpc.protocol",
    "TurnResult": "rpc.client",
}
"""Use agents of a gateway, from another process or machine."""

_HOMES = {**LIBRARY, **AGENT, **GATEWAY}
# "module", or "module:name" where the module calls the object by another name


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'clawmode' has no attribute {name!r}")
    module, _, inner = _HOMES[name].partition(":")
    from clawmode.exceptions import naming_extras

    with naming_extras():
        return getattr(import_module(f"clawmode.{module}"), inner or name)


def __dir__() -> list[str]:
    return __all__
