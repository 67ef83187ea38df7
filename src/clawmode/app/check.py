"""Checks that everything that a configuration names exists, before anything is started.

`config.resolve.read` and `config.mcp.read` check the values of a file one by one. This module
checks what the values mean together: models, providers and keys, agents, workspaces, hooks,
plugins, cron jobs, channels, rules for tools and the gateway. `config check`, `doctor`, a reload
and the start of an agent or a gateway all call `examine`, so they reject the same files with the
same messages.

The checks run no code of a plugin, a hook or a key's command, and they write nothing.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from clawmode.agent.models import ModelPool
from clawmode.agent.operator_hooks import hook_faults
from clawmode.config import resolve as settings
from clawmode.config.agents import AgentOptions, Configuration
from clawmode.config.file import read_secret
from clawmode.config.tools import ToolRules, ToolSettings
from clawmode.exceptions import ConfigurationError, ConfigWarning, MissingExtra, naming_extras
from clawmode.models.providers import ProviderSettings
from clawmode.plugins.setup import plugin_faults
from clawmode.records import Issue, join
from clawmode.sessions.keys import InvalidSession, check_agent_id
from clawmode.sessions.workspaces import check_workspace
from clawmode.text import nearest, show
from clawmode.tools.rules import GROUPS, find_unmatched
from clawmode.tools.tool import Tool

NO_KEY = "has no key"

OWN_TOOLS = tuple(
    Tool(name, "", {}, lambda given, context: None)
    for name in (*GROUPS["fs"], "exec", "process", "web_fetch", "session_status", "message", "wait")
)
"""The tools that every run has, with their names only."""


def examine(
    configuration: Configuration,
    *,
    folder: Path,
    state: Path,
    models: ModelPool | None = None,
    serves: bool = True,
) -> Iterator[Issue]:
    """Yields every error and warning about what a configuration names.

    Args:
        configuration: A configuration that was read without errors.
        folder: The base folder of relative paths in the configuration.
        state: The state folder.
        models: Models that need no provider in the configuration.
        serves: True if a gateway is to be started with the configuration.
    """
    models = ModelPool(configuration) if models is None else models.over(configuration)
    yield from _models(configuration, models)
    yield from _agents(configuration, state)
    yield from hook_faults(configuration.hooks.internal, folder)
    yield from plugin_faults(configuration, state)
    yield from _jobs(configuration, models)
    yield from _channels(configuration)
    yield from _rules(configuration)
    if configuration.state is not None:
        yield from _caught(lambda: _check_database(configuration.state), "state")
    for index, path in enumerate(configuration.skills.load.extra_dirs):
        if not os.path.isdir(os.path.expanduser(path)):
            yield ConfigWarning(f"skills.load.extraDirs[{index}]", "there is no such folder")
    if serves:
        yield from _gateway(configuration, state)


def _caught(make: Callable[[], object], path: str = "") -> Iterator[ConfigurationError]:
    """Yields the error that a call raises; with `path`, as an error of that setting."""
    try:
        make()
    except ConfigurationError as error:
        if not path or error.path == path:
            yield error
        else:
            text = str(error).removeprefix(f"{error.path}: ")
            yield ConfigurationError(f"{path}: {text}", path=path, expected=error.expected)


def _check_database(address: str | None) -> None:
    """Raises an error if programs cannot be kept at an address. Does not connect."""
    try:
        known = read_secret("state", address)
    except ConfigurationError:
        return  # the variable may be set only where programs run, and is reported there
    try:
        with naming_extras():
            from clawmode.postgres.connection import parse
    except MissingExtra as error:
        raise ConfigurationError(str(error)) from None
    parse(known)


# ---- Models and keys ----


def named_models(configuration: Configuration) -> Iterator[tuple[str, str]]:
    """Yields every model that the agents of a configuration name, as pairs of path and name."""
    entries = [("agents.defaults", configuration.agents.defaults)]
    listed: Iterable[AgentOptions] = configuration.agents.list
    entries += [(f"agents.list[{index}]", entry) for index, entry in enumerate(listed)]
    for path, options in entries:
        if options.model.primary:
            yield f"{path}.model.primary", options.model.primary
        for index, name in enumerate(options.model.fallbacks):
            yield f"{path}.model.fallbacks[{index}]", name
        if options.compaction.model:
            yield f"{path}.compaction.model", options.compaction.model


def _models(configuration: Configuration, models: ModelPool) -> Iterator[Issue]:
    providers: dict[str, str] = {}
    for path, name in named_models(configuration):
        provider = name.partition("/")[0].strip()
        errors = list(_caught(lambda name=name: models.settings(name), path))
        if not errors:
            providers.setdefault(provider, path)
        elif provider not in configuration.models.providers:
            # Otherwise the loop below reports the same error for the provider.
            yield from errors
    for provider in configuration.models.providers:
        path = join("models.providers", provider)
        yield from _caught(lambda provider=provider: models.provider(provider))
        providers.setdefault(provider, path)
    for provider, path in providers.items():
        used = _find_provider(models, provider)
        if used is not None and (missing := missing_key(used)):
            yield ConfigWarning(path, f"the provider {show(provider)} {NO_KEY}: {missing}")
    for name, profile in configuration.auth.profiles.items():
        if profile.provider and _find_provider(models, profile.provider) is None:
            path = join(join("auth.profiles", name), "provider")
            yield from _caught(lambda it=profile.provider: models.provider(it), path)


def _find_provider(models: ModelPool, provider: str) -> ProviderSettings | None:
    try:
        return models.provider(provider)
    except ConfigurationError:
        return None


def missing_key(provider: ProviderSettings) -> str:
    """Returns why the key of a provider cannot be read; empty if it can, or if none is needed.

    A command that prints a key is not run: the check only looks for the program.
    """
    key = provider.key
    if key is None or key.value:
        return ""
    if key.env:
        return "" if os.environ.get(key.env, "").strip() else f"{key} is not set"
    if key.file:
        path = os.path.expanduser(key.file)
        if os.path.isfile(path):
            return "" if os.access(path, os.R_OK) else f"{key} cannot be read"
        return f"{key} does not exist"
    found = shutil.which(os.path.expanduser(key.command[0]))
    return "" if found else f"{key} is not installed"


# ---- Agents ----


def _agents(configuration: Configuration, state: Path) -> Iterator[Issue]:
    workspaces: list[tuple[str, AgentOptions]] = []
    workspaces.append(("agents.defaults", configuration.agents.defaults))
    for index, entry in enumerate(configuration.agents.list):
        path = f"agents.list[{index}]"
        workspaces.append((path, entry))
        at = f"{path}.id"
        try:
            normal = check_agent_id(entry.id)
        except InvalidSession as error:
            yield ConfigurationError(f"{at}: {error}", path=at)
            continue
        if normal != entry.id:
            text = f"{at}: {show(entry.id)} has capital letters: write {show(normal)}"
            yield ConfigurationError(text, path=at, expected=show(normal))
    for path, options in workspaces:
        if options.workspace:
            at = f"{path}.workspace"
            yield from _caught(lambda it=options.workspace: check_workspace(state, it), at)
        if options.sandbox.workspace_root:
            at = f"{path}.sandbox.workspaceRoot"
            root = options.sandbox.workspace_root
            yield from _caught(lambda it=root: check_workspace(state, it, sandbox=True), at)


def _known_agent(
    configuration: Configuration, agent_id: str | None, path: str
) -> Iterator[ConfigurationError]:
    if agent_id:
        yield from _caught(lambda: settings.check_agent(configuration, agent_id), path)


# ---- Cron jobs and channels ----


def _jobs(configuration: Configuration, models: ModelPool) -> Iterator[Issue]:
    section = configuration.cron
    if not section.jobs:
        return
    from clawmode.cron.job import read_jobs  # imports the runtime, and most files have no jobs

    yield from read_jobs(section)[1]
    for index, job in enumerate(section.jobs):
        path = f"cron.jobs[{index}]"
        yield from _known_agent(configuration, job.agent, f"{path}.agent")
        if job.model:
            yield from _caught(lambda it=job.model: models.settings(it), f"{path}.model")
        channel = configuration.channels.get(job.channel or "")
        if job.channel and channel is None:
            known = ", ".join(map(show, configuration.channels)) or "none"
            at, expected = f"{path}.channel", f"a channel of `channels` ({known})"
            text = f"{at}: there is no channel {show(job.channel)}, expected {expected}"
            yield ConfigurationError(text, path=at, expected=expected)
        elif channel is not None and job.enabled and not channel.enabled:
            text = f"the channel {show(job.channel)} is disabled, so the reply is not sent"
            yield ConfigWarning(f"{path}.channel", text)


def _channels(configuration: Configuration) -> Iterator[Issue]:
    known = configuration.channels
    for key in (
        *configuration.messages.queue.by_channel,
        *configuration.messages.queue.debounce_ms_by_channel,
    ):
        if known and key not in known and (near := nearest(key, known)):
            path = join("messages.queue.byChannel", key)
            yield ConfigWarning(
                path, f"there is no channel {show(key)}; did you mean {show(near)}?"
            )
    if not known:
        return
    from clawmode.messaging.webhook import check_channel, check_secrets  # imports Starlette

    for name, entry in known.items():
        path = join("channels", name)
        yield from _known_agent(configuration, entry.agent, f"{path}.agent")
        if entry.enabled:
            yield from check_channel(name, entry)
    yield from check_secrets(known)


# ---- Rules for tools ----


def _rules(configuration: Configuration) -> Iterator[ConfigWarning]:
    tools: list[tuple[str, ToolSettings]] = [("tools", configuration.tools)]
    listed = enumerate(configuration.agents.list)
    tools += [(f"agents.list[{index}].tools", entry.tools) for index, entry in listed]
    for path, rules in tools:
        yield from _layer(path, rules)
        for key, layer in rules.by_provider.items():
            yield from _layer(join(f"{path}.byProvider", key), layer)
        for key, layer in rules.tools_by_sender.items():
            yield from _layer(join(f"{path}.toolsBySender", key), layer)
        if rules.sandbox.tools is not None:
            yield from _layer(f"{path}.sandbox.tools", rules.sandbox.tools)


def _layer(path: str, rules: ToolRules) -> Iterator[ConfigWarning]:
    """Yields rules that look like a misspelt name of a tool that every run has.

    The tools of plugins, MCP servers and `--tools` are known only when a run starts. The run then
    warns about rules that match no tool.
    """
    lists = {"allow": rules.allow, "alsoAllow": rules.also_allow, "deny": rules.deny}
    for key, patterns in lists.items():
        for index, pattern in enumerate(patterns or ()):
            at = f"{path}.{key}[{index}]"
            with suppress(ConfigurationError):  # reported when the section was read
                for found in find_unmatched([pattern], OWN_TOOLS, at):
                    if found.nearest:
                        text = f"{show(pattern)} is not a tool of clawmode"
                        yield ConfigWarning(at, f"{text}; did you mean {show(found.nearest)}?")


# ---- The gateway ----


def _gateway(configuration: Configuration, state: Path) -> Iterator[Issue]:
    section = configuration.gateway
    default = Configuration().gateway
    if (section.bind, section.auth, section.tls) == (default.bind, default.auth, default.tls):
        return
    from clawmode.rpc.listen import gateway_faults  # imports TLS, and most files have no gateway

    yield from gateway_faults(section, state)
