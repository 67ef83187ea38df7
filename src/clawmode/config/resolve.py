"""The whole of `clawmode.json5`: how it is read, and what it says for one agent."""

import getpass
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

from clawmode.code_mode.config import PATH, CodeModeConfig, Setting, resolve, show
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
from clawmode.tools.approvals import Mode
from clawmode.tools.policy import Policy
from clawmode.types import JsonObject, JsonValue

MAIN = "main"
"""The agent that is there without being listed."""


def read(data: JsonValue) -> ReadResult[Configuration]:
    """Reads a whole configuration, but for MCP servers: `codeMode` and policies too."""
    reader = Reader()
    made = reader.section(Configuration, Setting("", data))
    base = made.tools.code_mode or Setting(PATH, {})
    own = [entry.tools.code_mode for entry in made.agents.list]
    for layers in ((base,), *((base, each) for each in own if each is not None)):
        found = resolve(*layers)
        reader.add(found.errors)
        reader.add(found.warnings)
    return ReadResult(made, reader.errors, reader.warnings)


def schema() -> JsonObject:
    """The JSON Schema of a configuration file."""
    head: JsonObject = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "clawmode.json5",
    }
    return head | schema_of(Configuration)


# ---- For one agent ----


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """What holds for an agent: its own settings over those of all, over what is built in.

    Attributes:
        model: The model to ask; empty if none is set.
        workspace: The folder, `~` resolved; empty if none is set.
        timeout_is_set: Whether somebody set `timeout_seconds`: then it bounds a model's silence.
        context_tokens: None leaves it to the model.
        compaction_model: None is the agent's own.
        bootstrap_files: None leaves it to us.
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
        """Whether a run of it is sandboxed."""
        return self.sandbox_mode == "all" or (self.sandbox_mode == "non-main" and not main_session)


def default_agent(configuration: Configuration) -> str:
    """The id of the agent that answers where none is named."""
    return next((entry.id for entry in configuration.agents.list if entry.default), MAIN)


def agent(configuration: Configuration, agent_id: str | None = None) -> AgentSettings:
    """What holds for an agent, by default for the default one.

    Raises:
        ConfigurationError: It is not listed, and is not `main`.
    """
    agent_id = default_agent(configuration) if agent_id is None else agent_id
    check_agent(configuration, agent_id)
    entry = _entry(configuration, agent_id)
    defaults: AgentOptions = configuration.agents.defaults
    used = _over(entry, defaults) if entry else defaults
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
        reserve_tokens=_given(compaction.reserve_tokens, RESERVE_TOKENS),
        keep_recent_tokens=_given(compaction.keep_recent_tokens, KEEP_RECENT_TOKENS),
        compaction_model=compaction.model,
        bootstrap_files=files.files,
        bootstrap_chars=_given(files.max_chars, BOOTSTRAP_CHARS),
        sandbox_mode=sandbox.mode or "off",
        sandbox_workspace_root=os.path.expanduser(sandbox.workspace_root or ""),
        code_mode=code_mode(configuration, agent_id),
        tool_search=tool_search(configuration, agent_id),
    )


def check_agent(configuration: Configuration, agent_id: str) -> None:
    """Checks that there is an agent.

    Raises:
        ConfigurationError: It is not listed, and is not `main`.
    """
    if agent_id == MAIN or _entry(configuration, agent_id) is not None:
        return
    known = dict.fromkeys((MAIN, *(each.id for each in configuration.agents.list)))
    listed = "one of " + ", ".join(map(show, known))
    raise ConfigurationError(
        f"there is no agent {show(agent_id)}, expected {listed}", expected=listed
    )


T = TypeVar("T", bound=AgentOptions)


def _over(own: T, below: AgentOptions) -> T:
    """An agent's options, and what it does not set from those of all; sections too."""
    inherited: dict[str, Any] = {}
    for each in fields(AgentOptions):
        mine, theirs = getattr(own, each.name), getattr(below, each.name)
        inherited[each.name] = _merged(mine, theirs)
    return replace(own, **inherited)


def _merged(mine: Any, theirs: Any) -> Any:
    if mine is None or theirs is None or not is_dataclass(mine):
        return theirs if mine is None else mine
    names = [each.name for each in fields(mine)]
    inherited = {name: getattr(theirs, name) for name in names if getattr(mine, name) is None}
    return replace(mine, **inherited)


def _given(number: int | None, otherwise: int) -> int:
    return otherwise if number is None else number


def _entry(configuration: Configuration, agent_id: str | None) -> AgentEntry | None:
    return next((each for each in configuration.agents.list if each.id == agent_id), None)


@dataclass(frozen=True, slots=True)
class ToolOptions:
    """What our own tools may do, for an agent."""

    exec: ExecSettings
    fetch: FetchSettings
    files: FileSection
    message: MessageSection


def tool_options(configuration: Configuration, agent_id: str | None = None) -> ToolOptions:
    """What our own tools may do for an agent: its settings over the global ones."""
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
    """What is done about an agent's calls that may change something."""
    entry = _entry(configuration, agent_id)
    own = entry.tools.approve if entry else None
    return own or configuration.tools.approve or "ask"


def approval_warning(configuration: Configuration) -> str:
    """What follows if agents need no approval, for the operator; empty if all of them do."""
    # `main` can be named by whoever writes, also where the list has other agents alone.
    ids = dict.fromkeys((MAIN, *(entry.id for entry in configuration.agents.list)))
    free = [each for each in ids if approve_mode(configuration, each) == "always"]
    if not free:
        return ""
    return (
        f'tools.approve is "always" for {", ".join(free)}: anyone who can write to such an agent '
        f"can change files and run commands as the user {_login()}, and nobody is asked"
    )


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.geteuid())


def max_concurrent(configuration: Configuration) -> int:
    """How many runs there may be at the same time."""
    return configuration.agents.defaults.max_concurrent or max(8, 4 * (os.cpu_count() or 1))


def code_mode(configuration: Configuration, agent_id: str | None = None) -> CodeModeConfig:
    """Code mode for an agent: its own settings over the global ones, which others have too.

    Raises:
        ConfigurationError: The configuration was read with errors.
    """
    entry = _entry(configuration, agent_id)
    own = entry.tools.code_mode if entry else None
    base = configuration.tools.code_mode or Setting(PATH, {})
    return resolve(base, *([own] if own else [])).unwrap()[0]


def tool_search(configuration: Configuration, agent_id: str | None = None) -> ToolSearchConfig:
    """Tool Search for an agent: its own settings over the global ones, field by field.

    On if that is said, or if anything else is set and it is not switched off.
    """
    entry = _entry(configuration, agent_id)
    own = entry.tools.tool_search if entry else None
    used: ToolSearchSection = _merged(own, configuration.tools.tool_search) or ToolSearchSection()
    touched = any(getattr(used, each.name) is not None for each in fields(used))
    most = _given(used.max_search_limit, TOOL_SEARCH_DEFAULTS.max_search_limit)
    return ToolSearchConfig(
        enabled=touched if used.enabled is None else used.enabled,
        mode=used.mode or TOOL_SEARCH_DEFAULTS.mode,
        code_timeout_ms=_given(used.code_timeout_ms, TOOL_SEARCH_DEFAULTS.code_timeout_ms),
        search_default_limit=min(
            _given(used.search_default_limit, TOOL_SEARCH_DEFAULTS.search_default_limit), most
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
    """Which tools an agent's run may use: the global rules, and its own.

    Args:
        configuration: What was read without errors.
        agent_id: Whose run it is; one that is not listed has the global rules.
        provider: The provider of the model.
        model: What the provider calls the model.
        sender: Who asked, as keys of `toolsBySender`, the most telling first; else it is `*`.
        sandboxed: Whether the run is sandboxed.
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
    """The rules that some runs have."""
    by_sender = (tools.tools_by_sender.get(key) for key in (*sender, "*"))
    chosen = {
        "provider": tools.by_provider.get(provider),
        "model": tools.by_provider.get(f"{provider}/{model}"),
        "sender": next((rules for rules in by_sender if rules), None),
    }
    return {name: rules.rules() if rules else None for name, rules in chosen.items()}
