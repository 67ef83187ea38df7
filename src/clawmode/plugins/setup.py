"""Finds the plugins of a configuration, with their folders and settings."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from clawmode.catalog.namespaces import NamespaceRegistry, default_registry
from clawmode.exceptions import ConfigurationError, ConfigWarning
from clawmode.plugins.loader import Plugins
from clawmode.records import join
from clawmode.text import nearest, show
from clawmode.tools.hooks import Hooks
from clawmode.types import JsonValue

if TYPE_CHECKING:
    from clawmode.config.agents import Configuration

FOLDER = "plugins"
"""The folder of installed plugins, in the state folder."""


def open_plugins(
    configuration: "Configuration",
    state: Path,
    *,
    hooks: Hooks | None = None,
    namespaces: NamespaceRegistry | None = None,
    load: bool = True,
) -> Plugins:
    """Finds the plugins of a configuration, of the state folder and of installed packages.

    Args:
        configuration: A configuration without errors.
        state: The state folder.
        hooks: Receives the hooks of the plugins.
        namespaces: Receives the namespaces of the plugins.
        load: Load them, too. Otherwise none of their code runs.

    Returns:
        The plugins. `views` lists those that failed to load, with the reason; `unload` removes
        everything that they registered.
    """
    section = configuration.plugins
    paths = [Path(os.path.expanduser(each)) for each in section.load.paths]
    own = state / FOLDER
    if os.path.isdir(own):
        paths.append(own)
    settings = settings_of(configuration)
    plugins = Plugins(paths, settings, hooks=hooks, namespaces=namespaces, enabled=section.enabled)
    if load:
        plugins.load()
    return plugins


@contextmanager
def loaded_plugins(configuration: "Configuration", state: Path) -> Iterator[Plugins]:
    """Loads the plugins for a command without an agent, and unloads them at the end.

    The plugins share the default registry with the modules of `--tools`.
    """
    plugins = open_plugins(configuration, state, namespaces=default_registry)
    try:
        yield plugins
    finally:
        plugins.unload()


def plugin_faults(
    configuration: "Configuration", state: Path
) -> Iterator[ConfigurationError | ConfigWarning]:
    """Yields the problems of the plugins that a configuration names, without running their code.

    A missing folder is an error, because a plugin in it may guard something. A plugin that cannot
    be used is a warning, because the others are loaded.
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
    plugins = open_plugins(configuration, state, load=False)
    entries = "plugins.entries"
    for plugin_id, problem in plugins.faults():
        path = join(join(entries, plugin_id), "config")
        yield ConfigWarning(path, f"the plugin is not loaded: {problem}")
    known = [found.manifest.id for found in plugins.find()]
    for plugin_id, entry in section.entries.items():
        if entry.enabled and plugin_id not in known:
            near = nearest(plugin_id, known)
            hint = f"; did you mean {show(near)}?" if near else ""
            yield ConfigWarning(join(entries, plugin_id), f"there is no such plugin{hint}")


def settings_of(configuration: "Configuration") -> dict[str, JsonValue]:
    """Returns the settings of the plugins by id, in the form that `Plugins` takes."""
    return {
        plugin_id: {"enabled": entry.enabled, "config": entry.config}
        for plugin_id, entry in configuration.plugins.entries.items()
    }
