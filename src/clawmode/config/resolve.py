"""Reads the whole of `clawmode.json5`, and resolves the settings that apply to one agent."""

import getpass
import os
from collections.abc import Sequence

from clawmode import records, sections
from clawmode.config.agents import AgentEntry, Configuration
from clawmode.config.agents import AuthProfile as AuthProfile
from clawmode.config.agents import KeySource as KeySource
from clawmode.config.agents import ProviderEntry as ProviderEntry
from clawmode.config.tools import ToolRules, ToolSettings
from clawmode.exceptions import ConfigurationError
from clawmode.text import show
from clawmode.tools.approvals import Mode
from clawmode.tools.policy import Policy
from clawmode.types import JsonObject, JsonValue

MAIN = "main"
"""The agent that exists even if it is not listed."""

INHERITED = {"approve", "code_mode", "tool_search", "exec", "web", "fs", "message"}
"""The settings of tools that an agent has from the global section, as far as it sets no other."""


def read(data: JsonValue) -> sections.ReadResult[Configuration]:
    """Reads a whole configuration, except for MCP servers, which `config.mcp` reads."""
    return sections.read(Configuration, data)


def schema() -> JsonObject:
    """Returns the JSON Schema of a configuration file."""
    head: JsonObject = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "clawmode.json5",
    }
    return head | records.schema_of(Configuration)


# ---- Settings of one agent ----


def default_agent(configuration: Configuration) -> str:
    """Returns the id of the agent that handles requests that name no agent."""
    return next((entry.id for entry in configuration.agents.list if entry.default), MAIN)


def agent(configuration: Configuration, agent_id: str | None = None) -> AgentEntry:
    """Returns the section of an agent, by default of the default agent, with all that it inherits.

    The options are inherited from `agents.defaults`; for the section `tools`, see `tools`.

    Raises:
        ConfigurationError: The agent is not listed, and is not `main`.
    """
    agent_id = default_agent(configuration) if agent_id is None else agent_id
    check_agent(configuration, agent_id)
    entry = _entry(configuration, agent_id) or AgentEntry.model_construct(id=agent_id)
    own = {"tools": tools(configuration, agent_id)}
    return entry.over(configuration.agents.defaults).model_copy(update=own)


def tools(configuration: Configuration, agent_id: str | None = None) -> ToolSettings:
    """Returns the section `tools` of an agent, with the settings of tools that it inherits.

    Rules for tools are not inherited: `policy` combines them. An agent that is not listed has the
    global settings.
    """
    entry, everyone = _entry(configuration, agent_id), configuration.tools
    given = {name: getattr(everyone, name) for name in everyone.model_fields_set & INHERITED}
    used = ToolSettings.model_construct(**given)
    used = entry.tools.over(used) if entry else used
    # Any setting of Tool Search enables it, unless `enabled` is set.
    search = used.tool_search
    if "enabled" not in search.model_fields_set:
        search = search.model_copy(update={"enabled": bool(search.model_fields_set)})
    return used.model_copy(update={"tool_search": search})


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


def approve_mode(configuration: Configuration, agent_id: str | None = None) -> Mode:
    """Returns how an agent's calls of tools that do not only read are decided."""
    return tools(configuration, agent_id).approve


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
    own = entry.tools if entry else ToolSettings.model_construct()
    sandbox = own.sandbox.tools or everyone.sandbox.tools or ToolRules.model_construct()
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
