"""The plugins that a configuration means: where they are, and with which settings."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from clawmode.hooks import Hooks
from clawmode.namespaces import NamespaceRegistry
from clawmode.plugins.host import Plugins
from clawmode.tools import JsonObject
from clawmode.types import JsonValue

if TYPE_CHECKING:
    from clawmode.agent.sections import Configuration

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


def settings_of(configuration: "Configuration") -> dict[str, JsonValue]:
    """The settings of plugins by id, as `Plugins` takes them."""
    entries = configuration.plugins.entries
    return {name: _settings(each.enabled, each.config) for name, each in entries.items()}


def _settings(enabled: bool, config: JsonObject) -> JsonObject:
    return {"enabled": enabled, "config": config}
