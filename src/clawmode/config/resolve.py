"""Reads the whole of `clawmode.json5`, and resolves the settings that apply to one agent."""

import getpass
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from clawmode.code_mode.config import PATH, CodeModeConfig, Setting, resolve
from clawmode.config.agents import (
    BOOTSTRAP_CHARS,
    KEEP_RECENT_TOKENS,
    MAX_TURNS,
    RESERVE_TOKENS,
    TIMEOUT_SECONDS,
    AgentEntry,
    AgentOptions,
    Bootstrap,
    Break,
    Compaction,
    Configuration,
    ModelChoice,
    Reasoning,
    Sandbox,
    SandboxMode,
    Verbosity,
)
from clawmode.config.agents import AuthProfile as AuthProfile
from clawmode.config.agents import KeySource as KeySource
from clawmode.config.agents import ProviderEntry as ProviderEntry
from clawmode.config.reader import Reader, ReadResult, schema_of
from clawmode.config.tools import (
    TOOL_SEARCH_DEFAULTS,
    ExecSettings,
    FetchSettings,
    FileSection,
    MessageSection,
    ToolRules,
    ToolSearchConfig,
    ToolSearchSection,
    ToolSettings,
    WebSection,
)
from clawmode.exceptions import ConfigurationError
from clawmode.models.base import ThinkingLevel
from clawmode.text import show
from clawmode.tools.approvals import Mode
from clawmode.tools.policy import Policy
from clawmode.types import JsonObject, JsonValue

MAIN = "main"
"""The agent that exists even if it is not listed."""


def read(data: JsonValue) -> ReadResult[Configuration]:
    """Reads a whole configuration, except for MCP servers, which `config.mcp` reads."""
    reader = Reader()
    made = reader.section(Configuration, Setting("", data))
    base = made.tools.code_mode or Setting(PATH, {})
    own = [entry.tools.code_mode for entry in made.agents.list]
    for layers in ((base,), *((base, setting) for setting in own if setting is not None)):
        found = resolve(*layers)
        reader.add(found.errors)
        reader.add(found.warnings)
    return ReadResult(made, reader.errors, reader.warnings)


def schema() -> JsonObject:
    """Returns the JSON Schema of a configuration file."""
    head: JsonObject = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "clawmode.json5",
    }
    return head | schema_of(Configuration)


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
    defaults: AgentOptions = configuration.agents.defaults
    used = defaults
    if entry:
        names = [item.name for item in fields(AgentOptions)]
        merged: dict[str, Any] = {
            name: _merged(getattr(entry, name), getattr(defaults, name)) for name in names
        }
        used = replace(entry, **merged)
    compaction, sandbox = used.compaction or Compaction(), used.sandbox or Sandbox()
    model, files = used.model or ModelChoice(), used.bootstrap or Bootstrap()
    return AgentSettings(
        id=agent_id,
        name=(entry.name if entry else None) or agent_id,
        model=model.primary or "",
        fallbacks=model.fallbacks or (),
        thinking=used.thinking or "off",
        verbose=used.verbose or "off",
        trace=used.trace != "off",
        reasoning=used.reasoning or "off",
        block_streaming=used.block_streaming is True,
        block_streaming_break=used.block_streaming_break or "text_end",
        workspace=os.path.expanduser(used.workspace or ""),
        timeout_seconds=used.timeout_seconds or TIMEOUT_SECONDS,
        timeout_is_set=used.timeout_seconds is not None,
        max_turns=used.max_turns or MAX_TURNS,
        context_tokens=used.context_tokens,
        compaction=compaction.enabled is not False,
        reserve_tokens=_or_default(compaction.reserve_tokens, RESERVE_TOKENS),
        keep_recent_tokens=_or_default(compaction.keep_recent_tokens, KEEP_RECENT_TOKENS),
        compaction_model=compaction.model,
        bootstrap_files=files.files,
        bootstrap_chars=_or_default(files.max_chars, BOOTSTRAP_CHARS),
        sandbox_mode=sandbox.mode or "off",
        sandbox_workspace_root=os.path.expanduser(sandbox.workspace_root or ""),
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


def _merged(own: Any, inherited: Any) -> Any:
    """Returns a value, or the inherited value if it is None. Sections are merged field by field."""
    if own is None or inherited is None or not is_dataclass(own):
        return inherited if own is None else own
    names = [item.name for item in fields(own)]
    missing = {name: getattr(inherited, name) for name in names if getattr(own, name) is None}
    return replace(own, **missing)


def _or_default(number: int | None, default: int) -> int:
    # `number or default` would replace 0, which is a valid setting.
    return default if number is None else number


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
        _merged(own.exec, everyone.exec) or ExecSettings(),
        _merged((own.web or WebSection()).fetch, (everyone.web or WebSection()).fetch)
        or FetchSettings(),
        _merged(own.fs, everyone.fs) or FileSection(),
        _merged(own.message, everyone.message) or MessageSection(),
    )


def approve_mode(configuration: Configuration, agent_id: str | None = None) -> Mode:
    """Returns how an agent's calls of tools that do not only read are decided."""
    entry = _entry(configuration, agent_id)
    own = entry.tools.approve if entry else None
    return own or configuration.tools.approve or "ask"


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
    """Returns the code mode of an agent: its own settings merged over the global ones.

    Raises:
        ConfigurationError: The configuration was read with errors.
    """
    entry = _entry(configuration, agent_id)
    own = entry.tools.code_mode if entry else None
    base = configuration.tools.code_mode or Setting(PATH, {})
    return resolve(base, *([own] if own else [])).unwrap()[0]


def tool_search(configuration: Configuration, agent_id: str | None = None) -> ToolSearchConfig:
    """Returns the Tool Search of an agent: its own settings merged over the global ones.

    If `enabled` is not set, Tool Search is enabled by any of its other settings.
    """
    entry = _entry(configuration, agent_id)
    own = entry.tools.tool_search if entry else None
    used: ToolSearchSection = _merged(own, configuration.tools.tool_search) or ToolSearchSection()
    is_set = any(getattr(used, item.name) is not None for item in fields(used))
    most = _or_default(used.max_search_limit, TOOL_SEARCH_DEFAULTS.max_search_limit)
    return ToolSearchConfig(
        enabled=is_set if used.enabled is None else used.enabled,
        mode=used.mode or TOOL_SEARCH_DEFAULTS.mode,
        code_timeout_ms=_or_default(used.code_timeout_ms, TOOL_SEARCH_DEFAULTS.code_timeout_ms),
        search_default_limit=min(
            _or_default(used.search_default_limit, TOOL_SEARCH_DEFAULTS.search_default_limit), most
        ),
        max_search_limit=most,
    )


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
