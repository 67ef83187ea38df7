"""The plugins that a configuration means: where they are, and with which settings."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from clawmode.catalog.namespaces import NamespaceRegistry, default_registry
from clawmode.code_mode.config import ConfigWarning, join, nearest, show
from clawmode.exceptions import ConfigurationError
from clawmode.plugins.loader import Plugins
from clawmode.tools.hooks import Hooks
from clawmode.types import JsonObject, JsonValue

if TYPE_CHECKING:
    from clawmode.config.agents import Configuration

FOLDER = "plugins"
"""Where installed ones are, in the state folder."""


def open_plugins(
    configuration: "Configuration",
    state: Path,
    *,
    hooks: Hooks | None = None,
    namespaces: NamespaceRegistry | None = None,
) -> Plugins:
    """Loads the plugins of a configuration, those of the state folder and of packages included.

    Args:
        configuration: What was read without errors.
        state: The state folder.
        hooks: Where their hooks go.
        namespaces: Where their namespaces go.

    Returns:
        The plugins, loaded: `views` says which are not, and why. `unload` takes them back.
    """
    plugins = describe_plugins(configuration, state, hooks=hooks, namespaces=namespaces)
    plugins.load()
    return plugins


@contextmanager
def loaded_plugins(configuration: "Configuration", state: Path) -> Iterator[Plugins]:
    """The same for a command that runs programs without an agent; unloads them at the end.

    Their namespaces stand beside those that tools of `--tools` have registered.
    """
    plugins = open_plugins(configuration, state, namespaces=default_registry)
    try:
        yield plugins
    finally:
        plugins.unload()


def describe_plugins(
    configuration: "Configuration",
    state: Path,
    *,
    hooks: Hooks | None = None,
    namespaces: NamespaceRegistry | None = None,
) -> Plugins:
    """The same, not loaded: no code of theirs runs."""
    section = configuration.plugins
    paths = [Path(os.path.expanduser(each)) for each in section.load.paths]
    own = state / FOLDER
    if os.path.isdir(own):
        paths.append(own)
    return Plugins(
        paths,
        settings_of(configuration),
        hooks=hooks,
        namespaces=namespaces,
        enabled=section.enabled,
    )


def plugin_faults(
    configuration: "Configuration", state: Path
) -> Iterator[ConfigurationError | ConfigWarning]:
    """What is wrong with the plugins that a configuration names; no code of theirs runs.

    A folder that is not there is an error: what was to be loaded from it may guard something. A
    plugin that is there and cannot be used is a warning, because the others are loaded.
    """
    section = configuration.plugins
    if not section.enabled:
        return
    for index, each in enumerate(section.load.paths):
        path = f"plugins.load.paths[{index}]"
        if not os.path.isdir(os.path.expanduser(each)):
            text = f"{path}: there is no folder {show(each)}"
            yield ConfigurationError(text, path=path, expected="a folder with plugins")
    if not section.load.paths and not section.entries:
        return
    plugins = describe_plugins(configuration, state)
    entries = "plugins.entries"
    for plugin_id, problem in plugins.faults():
        path = join(join(entries, plugin_id), "config")
        yield ConfigWarning(path, f"it is not loaded: {problem}")
    known = [found.manifest.id for found in plugins.find()]
    for plugin_id, entry in section.entries.items():
        if entry.enabled and plugin_id not in known:
            near = nearest(plugin_id, known)
            hint = f"; did you mean {near}?" if near else ""
            yield ConfigWarning(join(entries, plugin_id), f"there is no such plugin{hint}")


def settings_of(configuration: "Configuration") -> dict[str, JsonValue]:
    """The settings of plugins by id, as `Plugins` takes them."""
    entries = configuration.plugins.entries
    return {name: _settings(each.enabled, each.config) for name, each in entries.items()}


def _settings(enabled: bool, config: JsonObject) -> JsonObject:
    return {"enabled": enabled, "config": config}
