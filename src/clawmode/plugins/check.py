"""Checks plugins: whether they load, and whether they keep what their manifest promises."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import field
from pathlib import Path

from clawmode.agent.skills import SkillLoader
from clawmode.catalog.namespace_runtime import NamespaceRuntime
from clawmode.catalog.namespaces import NamespaceContext, NamespaceRegistry
from clawmode.context import RunContext
from clawmode.exceptions import ClawmodeError
from clawmode.plugins import manifest as manifests
from clawmode.plugins import modules
from clawmode.plugins.loader import Plugins, PluginView
from clawmode.plugins.manifest import PluginError
from clawmode.tools.tool import Tool
from clawmode.tools.validation import InvalidSchema, validate
from clawmode.types import JsonObject, JsonValue, dataclass


@dataclass(frozen=True, slots=True)
class Report:
    """The result of checking a plugin.

    Attributes:
        faults: Why the plugin does not load, or the problems of what it registered.
        skills: The names of its skills.
    """

    view: PluginView
    faults: list[str] = field(default_factory=list[str])
    skills: list[str] = field(default_factory=list[str])

    def to_json(self) -> JsonObject:
        lists = {"skills": self.skills, "faults": self.faults}
        return self.view.to_json() | {key: list[JsonValue](it) for key, it in lists.items()}


def report(plugins: Plugins, view: PluginView) -> Report:
    """Checks a plugin that `plugins` has loaded, or failed to load."""
    if view.problem is not None or not view.loaded:
        return Report(view, [] if view.problem is None else [view.problem])
    own = [tool for tool in plugins.tools if tool.owner == view.id]
    faults: list[str] = []
    promised = plugins.manifests[view.id]
    for what, names, registered in (
        ("tool", promised.tools, view.tools),
        ("hook", promised.hooks, view.hooks),
        ("namespace", promised.namespaces, view.namespaces),
    ):
        text = f"the manifest lists the {what} {{!r}}, but the plugin does not register it"
        faults += [text.format(name) for name in names or () if name not in registered]
    for tool in own:
        try:
            validate(tool, {})
        except InvalidSchema as error:
            faults.append(f"the schema of the tool {tool.name!r} cannot be used: {error}")
    faults += _bad_namespaces(plugins, view, own)
    found = SkillLoader(tuple(Path(view.folder, name) for name in view.skills)).load()
    faults += found.notes
    if view.skills and not found.skills and not found.notes:
        faults.append(
            f"there is no skill in {', '.join(view.skills)}: a skill is a folder with a SKILL.md"
        )
    return Report(view, faults, [skill.name for skill in found.skills])


def reports(plugins: Plugins, which: str, settings: Mapping[str, JsonValue]) -> list[Report]:
    """Checks all plugins, one plugin by its id, or the plugin in a folder.

    Args:
        plugins: The loaded plugins of the configuration.
        which: An id or a folder; empty for all. A text with a path separator is a folder.
        settings: The settings by id, in the form that `Plugins` takes.

    Raises:
        PluginError: There is no such plugin.
    """
    views = [view for view in plugins.views if which in ("", view.id) and os.sep not in which]
    if views or not which:
        return [report(plugins, view) for view in views]
    folder = Path(os.path.expanduser(which))
    if not os.path.isdir(folder):
        raise PluginError(f"there is no plugin and no folder {which[:80]!r}")
    try:
        known = settings.get(manifests.load(folder).id)
    except PluginError:
        known = None
    return [try_out(folder, known.get("config") if isinstance(known, dict) else None, plugins)]


def try_out(folder: Path, config: JsonValue, others: Plugins | None = None) -> Report:
    """Loads the plugin in a folder, checks it, and unloads it. This runs the plugin's code.

    Args:
        folder: The folder with the manifest.
        config: The settings of the plugin.
        others: Other plugins, whose namespaces must not clash; one with the same id is ignored.
    """
    try:
        plugin_id = manifests.load(folder).id
    except PluginError as error:
        view = PluginView(folder.name, folder=str(folder), problem=str(error))
        return Report(view, [str(error)])
    with modules.set_aside(plugin_id):
        settings: dict[str, JsonValue] = {plugin_id: {"enabled": True, "config": config}}
        namespaces = NamespaceRegistry()
        for each in others.namespaces.visible(others.tools) if others else ():
            if each.plugin_id != plugin_id:
                namespaces.register_for_plugin(each.plugin_id, each)
        plugins = Plugins([folder], settings, namespaces=namespaces, installed=False)
        (view,) = plugins.load()
        found = report(plugins, view)
        plugins.unload()
    return found


def _bad_namespaces(plugins: Plugins, view: PluginView, tools: list[Tool]) -> Iterable[str]:
    own = [each for each in plugins.namespaces.visible(tools) if each.plugin_id == view.id]
    seen = {each.id for each in own}
    for name in view.namespaces:
        if name not in seen:
            yield f"no program sees the namespace {name!r}: it requires tools that do not exist"
    for each in own:
        try:
            NamespaceRuntime([each], tools, NamespaceContext(RunContext())).descriptors()
        except ClawmodeError as error:
            yield f"the namespace {each.id!r} cannot be created: {error}"
