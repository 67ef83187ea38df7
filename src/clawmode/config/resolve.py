"""Reads the whole of `clawmode.json5`, and resolves the settings that apply to one agent."""

import getpass
import os
from collections.abc import Sequence
from dataclasses import dataclass

from clawmode import records
from clawmode.code_mode.config import CodeModeConfig
from clawmode.config.agents import (
    AgentEntry,
    AgentOptions,
    Break,
    Configuration,
    Reasoning,
    SandboxMode,
    Verbosity,
)
from clawmode.config.agents import AuthProfile as AuthProfile
from clawmode.config.agents import KeySource as KeySource
from clawmode.config.agents import ProviderEntry as ProviderEntry
from clawmode.config.tools import (
    ExecSettings,
    FetchSettings,
    FileSection,
    MessageSection,
    ToolRules,
    ToolSearchConfig,
    ToolSettings,
)
from clawmode.exceptions import ConfigurationError
from clawmode.models.base import ThinkingLevel
from clawmode.text import show
from clawmode.tools.approvals import Mode
from clawmode.tools.policy import Policy
from clawmode.types import JsonObject, JsonValue

MAIN = "main"
"""The agent that exists even if it is not listed."""


def read(data: JsonValue) -> records.ReadResult[Configuration]:
    """Reads a whole configuration, except for MCP servers, which `config.mcp` reads."""
    return records.read(Configuration, data)


def schema() -> JsonObject:
    """Returns the JSON Schema of a configuration file."""
    head: JsonObject = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "clawmode.json5",
    }
    return head | records.schema_of(Configuration)


# ---- Settings of one agent ----


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """The effective settings of an agent: its own, else the defaults of all agents, else built-in.

    Attributes:
        model: The primary model; empty if none is set.
        workspace: The folder, with `~` expanded; empty if none is set.
        timeout_is_set: True if the configuration sets `timeout_seconds`. Then it also limits how
            long a model may send nothing.
        context_tokens: None means the model's own limit.
        compaction_model: None means the agent's model.
        bootstrap_files: None means the built-in list.
    """

    id: str
    name: str
    model: str
    fallbacks: tuple[str, ...]
    thinking: ThinkingLevel
    verbose: Verbosity
    trace: bool
    reasoning: Reasoning
    block_streaming: bool
    block_streaming_break: Break
    workspace: str
    timeout_seconds: int
    timeout_is_set: bool
    max_turns: int
    context_tokens: int | None
    compaction: bool
    reserve_tokens: int
    keep_recent_tokens: int
    compaction_model: str | None
    bootstrap_files: tuple[str, ...] | None
    bootstrap_chars: int
    sandbox_mode: SandboxMode
    sandbox_workspace_root: str
    code_mode: CodeModeConfig
    tool_search: ToolSearchConfig

    def is_sandboxed(self, *, main_session: bool = True) -> bool:
        """True if a run of the agent is sandboxed."""
        return self.sandbox_mode == "all" or (self.sandbox_mode == "non-main" and not main_session)


def default_agent(configuration: Configuration) -> str:
    """Returns the id of the agent that handles requests that name no agent."""
    return next((entry.id for entry in configuration.agents.list if entry.default), MAIN)


def agent(configuration: Configuration, agent_id: str | None = None) -> AgentSettings:
    """Returns the settings of an agent, by default of the default agent.

    Raises:
        ConfigurationError: The agent is not listed, and is not `main`.
    """
    agent_id = default_agent(configuration) if agent_id is None else agent_id
    check_agent(configuration, agent_id)
    entry = _entry(configuration, agent_id)
    used: AgentOptions = configuration.agents.defaults
    if entry:
        used = entry.over(used)
    return AgentSettings(
        id=agent_id,
        name=(entry.name if entry else None) or agent_id,
        model=used.model.primary or "",
        fallbacks=used.model.fallbacks,
        thinking=used.thinking,
        verbose=used.verbose,
        trace=used.trace != "off",
        reasoning=used.reasoning,
        block_streaming=used.block_streaming,
        block_streaming_break=used.block_streaming_break,
        workspace=os.path.expanduser(used.workspace or ""),
        timeout_seconds=used.timeout_seconds,
        timeout_is_set="timeout_seconds" in used.model_fields_set,
        max_turns=used.max_turns,
        context_tokens=used.context_tokens,
        compaction=used.compaction.enabled,
        reserve_tokens=used.compaction.reserve_tokens,
        keep_recent_tokens=used.compaction.keep_recent_tokens,
        compaction_model=used.compaction.model,
        bootstrap_files=used.bootstrap.files,
        bootstrap_chars=used.bootstrap.max_chars,
        sandbox_mode=used.sandbox.mode,
        sandbox_workspace_root=os.path.expanduser(used.sandbox.workspace_root or ""),
        code_mode=code_mode(configuration, agent_id),
        tool_search=tool_search(configuration, agent_id),
    )


def check_agent(configuration: Configuration, agent_id: str) -> None:
    """Checks that an agent exists.

    Raises:
        ConfigurationError: The agent is not listed, and is not `main`.
    """
    if agent_id == MAIN or _entry(configuration, agent_id) is not None:
        return
    known = dict.fromkeys((MAIN, *(entry.id for entry in configuration.agents.list)))
    listed = "one of " + ", ".join(map(show, known))
    raise ConfigurationError(
        f"there is no agent {show(agent_id)}, expected {listed}", expected=listed
    )


def _entry(configuration: Configuration, agent_id: str | None) -> AgentEntry | None:
    return next((entry for entry in configuration.agents.list if entry.id == agent_id), None)


@dataclass(frozen=True, slots=True)
class ToolOptions:
    """The settings of the core tools for one agent."""

    exec: ExecSettings
    fetch: FetchSettings
    files: FileSection
    message: MessageSection


def tool_options(configuration: Configuration, agent_id: str | None = None) -> ToolOptions:
    """Returns the settings of the core tools: the agent's own, else the global ones."""
    entry = _entry(configuration, agent_id)
    everyone, own = configuration.tools, entry.tools if entry else ToolSettings()
    return ToolOptions(
        own.exec.over(everyone.exec),
        own.web.fetch.over(everyone.web.fetch),
        own.fs.over(everyone.fs),
        own.message.over(everyone.message),
    )


def approve_mode(configuration: Configuration, agent_id: str | None = None) -> Mode:
    """Returns how an agent's calls of tools that do not only read are decided."""
    entry = _entry(configuration, agent_id)
    is_own = entry is not None and "approve" in entry.tools.model_fields_set
    return entry.tools.approve if entry and is_own else configuration.tools.approve


def approval_warning(configuration: Configuration) -> str:
    """Returns a warning if agents need no approval; empty if all agents need one."""
    # Senders can name `main` even if the list has only other agents.
    ids = dict.fromkeys((MAIN, *(entry.id for entry in configuration.agents.list)))
    free = [name for name in ids if approve_mode(configuration, name) == "always"]
    if not free:
        return ""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.geteuid())
    return (
        f'tools.approve is "always" for {", ".join(free)}: anyone who can write to such an agent '
        f"can change files and run commands as the user {user}, without approval"
    )


def max_concurrent(configuration: Configuration) -> int:
    """Returns the maximum number of concurrent runs of all agents."""
    return configuration.agents.defaults.max_concurrent or max(8, 4 * (os.cpu_count() or 1))


def code_mode(configuration: Configuration, agent_id: str | None = None) -> CodeModeConfig:
    """Returns the code mode of an agent: its own settings merged over the global ones."""
    entry = _entry(configuration, agent_id)
    everyone = configuration.tools.code_mode
    return entry.tools.code_mode.over(everyone) if entry else everyone


def tool_search(configuration: Configuration, agent_id: str | None = None) -> ToolSearchConfig:
    """Returns the Tool Search of an agent: its own settings merged over the global ones.

    If `enabled` is not set, Tool Search is enabled by any of its other settings.
    """
    entry = _entry(configuration, agent_id)
    used = configuration.tools.tool_search
    if entry:
        used = entry.tools.tool_search.over(used)
    is_set = used.model_fields_set
    return used if "enabled" in is_set else used.model_copy(update={"enabled": bool(is_set)})


def policy(
    configuration: Configuration,
    agent_id: str | None = None,
    *,
    provider: str = "",
    model: str = "",
    sender: Sequence[str] = (),
    sandboxed: bool = False,
) -> Policy:
    """Returns the tool policy of an agent's run: the global rules and the agent's own.

    Args:
        configuration: A configuration without errors.
        agent_id: The agent; an agent that is not listed has only the global rules.
        provider: The provider of the model.
        model: The name of the model at the provider.
        sender: Keys of `toolsBySender` that match the sender, most specific first. `*` is added.
        sandboxed: True if the run is sandboxed.
    """
    everyone = configuration.tools
    entry = _entry(configuration, agent_id)
    own = entry.tools if entry else ToolSettings()
    sandbox = own.sandbox.tools or everyone.sandbox.tools or ToolRules()
    made = Policy.from_config(
        everyone.rules(),
        agent=own.rules(),
        **_scopes(everyone, provider, model, sender),
        sandbox=(sandbox.rules() or {}) if sandboxed else None,
    )
    more = Policy.from_config(**_scopes(own, provider, model, sender))
    return Policy(made.layers + more.layers)


def _scopes(
    tools: ToolSettings, provider: str, model: str, sender: Sequence[str]
) -> dict[str, JsonObject | None]:
    """Returns the rules for the provider, the model and the sender."""
    by_sender = (tools.tools_by_sender.get(key) for key in (*sender, "*"))
    chosen = {
        "provider": tools.by_provider.get(provider),
        "model": tools.by_provider.get(f"{provider}/{model}"),
        "sender": next((rules for rules in by_sender if rules), None),
    }
    return {name: rules.rules() if rules else None for name, rules in chosen.items()}
