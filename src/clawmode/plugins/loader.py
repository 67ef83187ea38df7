"""Finds plugins, checks them and loads them; a plugin that fails leaves nothing registered.

The code of a plugin runs in this process, with all its rights. A plugin owns what it registers: the
ids of its tools are `plugin:<id>:<name>`, and programs see a namespace only together with its
tools.
"""

import importlib
import importlib.util
import inspect
import logging
import os
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, field, replace
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from clawmode.catalog.namespaces import NamespaceRegistration, NamespaceRegistry
from clawmode.exceptions import ClawmodeError, message_of
from clawmode.plugins import manifest as manifests
from clawmode.plugins import modules
from clawmode.plugins.manifest import Manifest, PluginError
from clawmode.tools.hooks import Hooks
from clawmode.tools.tool import Tool
from clawmode.tools.validation import InvalidSchema, validate
from clawmode.types import JsonObject, JsonValue, copy_json, dataclass

logger = logging.getLogger("clawmode.plugins")

GROUP = "clawmode.plugins"
"""Entry points of this group are plugins: each names a package whose folder has a manifest."""


@dataclass(frozen=True, slots=True)
class PluginSource:
    """A plugin that was found, loaded or not.

    Attributes:
        folder: The folder with the manifest.
        package: The Python package of the plugin; empty for a plain folder.
    """

    manifest: Manifest
    folder: Path
    package: str = ""


@dataclass(slots=True)
class PluginView:
    """The state of a plugin, for listings.

    Attributes:
        problem: Why the plugin is not loaded although it is enabled.
    """

    id: str
    version: str = ""
    description: str = ""
    folder: str = ""
    enabled: bool = True
    loaded: bool = False
    problem: str | None = None
    tools: list[str] = field(default_factory=list[str])
    hooks: list[str] = field(default_factory=list[str])
    namespaces: list[str] = field(default_factory=list[str])
    skills: list[str] = field(default_factory=list[str])

    def to_json(self) -> JsonObject:
        return asdict(self)


class PluginApi:
    """The argument of a plugin's entry function, which registers tools, hooks and namespaces.

    Attributes:
        config: The settings of the plugin, validated by its schema.
        folder: The folder of the plugin.
    """

    def __init__(
        self, found: PluginSource, host: "Plugins", config: JsonObject, view: PluginView
    ) -> None:
        self.config = config
        self.folder = found.folder
        self._manifest = found.manifest
        self._host = host
        self._view = view
        self._undo: list[Callable[[], None]] = []
        self._open = True

    def tool(self, tool: Tool) -> None:
        """Registers a tool with the id `plugin:<id>:<name>`.

        Raises:
            PluginError: The manifest does not list the tool, or the name is taken.
        """
        self._check("tools", tool.name, self._manifest.tools)
        owned = replace(tool, source="plugin", owner=self._manifest.id)
        if owned.name in self._view.tools:
            raise PluginError(f"the plugin registers two tools named {owned.name!r}")
        self._host.tools.append(owned)
        self._undo.append(lambda: self._host.tools.remove(owned))
        self._view.tools.append(owned.name)

    def hook(self, event: str, hook: Callable[[Any], Any], *, priority: int = 0) -> None:
        """Registers a hook.

        Raises:
            PluginError: The manifest does not list the event, or there is no such event.
        """
        self._check("hooks", event, self._manifest.hooks)
        name = f"{self._manifest.id}:{getattr(hook, '__name__', 'hook')}"
        try:
            self._undo.append(self._host.hooks.on(event, hook, priority=priority, name=name))
        except ValueError as error:
            raise PluginError(str(error)) from None
        self._view.hooks.append(event)

    def namespace(self, registration: NamespaceRegistration) -> None:
        """Registers a namespace for programs.

        Raises:
            PluginError: The manifest does not list the namespace.
            NamespaceError: The registration is not valid.
        """
        self._check("namespaces", registration.id, self._manifest.namespaces)
        self._host.namespaces.register_for_plugin(self._manifest.id, registration)
        self._undo.append(lambda: self._host.namespaces.unregister(registration.id))
        self._view.namespaces.append(registration.id)

    def _check(self, what: str, name: str, declared: tuple[str, ...] | None) -> None:
        if not self._open:
            raise PluginError("a plugin can register only while its entry function runs")
        if declared is not None and name not in declared:
            raise PluginError(f"the manifest does not list {name!r} under `{what}`")

    def _roll_back(self) -> None:
        while self._undo:
            self._undo.pop()()


class Plugins:
    """The plugins of a process, and everything that they registered.

    Args:
        paths: Folders that are plugins, or that contain plugins.
        settings: By id: `{"enabled": bool, "config": {...}}`.
        hooks: Receives the hooks of the plugins.
        namespaces: Receives the namespaces of the plugins.
        installed: True to look also for plugins of installed Python packages.
        enabled: False to load no plugin at all.

    Attributes:
        manifests: The manifests that `load` found, by plugin id.
    """

    def __init__(
        self,
        paths: Iterable[Path] = (),
        settings: Mapping[str, JsonValue] | None = None,
        *,
        hooks: Hooks | None = None,
        namespaces: NamespaceRegistry | None = None,
        installed: bool = True,
        enabled: bool = True,
    ) -> None:
        self.hooks = hooks or Hooks()
        self.namespaces = namespaces or NamespaceRegistry()
        self.tools: list[Tool] = []
        self.skill_folders: list[Path] = []
        self.views: list[PluginView] = []
        self.manifests: dict[str, Manifest] = {}
        self._paths = tuple(paths)
        self._settings = dict(settings or {})
        self._installed = installed
        self._enabled = enabled
        self._apis: dict[str, PluginApi] = {}

    def load(self) -> list[PluginView]:
        """Loads all enabled plugins. A plugin that fails is not raised: its view says why."""
        self.views = []
        for found in self.find():
            self.manifests[found.manifest.id] = found.manifest
            self.views.append(self._load(found))
        for plugin_id in self._settings:
            if plugin_id not in {view.id for view in self.views}:
                text = "the plugin is configured, but was not found"
                self.views.append(PluginView(plugin_id, problem=text))
        return self.views

    def unload(self) -> None:
        """Removes everything that the plugins registered."""
        for api in reversed(list(self._apis.values())):
            api._roll_back()
        self._apis.clear()
        self.skill_folders.clear()

    # ---- Finding ----

    def find(self) -> list[PluginSource]:
        """Returns all plugins. If two have the same id, the first one found wins."""
        found: dict[str, PluginSource] = {}
        for each in (*self._in_paths(), *self._in_packages()):
            if each.manifest.id in found:
                first = found[each.manifest.id].folder
                logger.warning(
                    "%s is ignored: the plugin at %s has the same id", each.folder, first
                )
            else:
                found[each.manifest.id] = each
        return list(found.values())

    def _in_paths(self) -> Iterable[PluginSource]:
        for path in self._paths:
            try:
                if (path / manifests.FILE).exists():
                    folders = [path]
                else:
                    inside = sorted(path.iterdir())
                    folders = [each for each in inside if (each / manifests.FILE).is_file()]
            except (OSError, ValueError) as error:  # ValueError: a NUL in the name
                self._miss(path, f"{path}: {getattr(error, 'strerror', None) or error}")
                continue
            for folder in folders:
                try:
                    yield PluginSource(manifests.load(folder), folder)
                except PluginError as error:
                    self._miss(folder, str(error))

    def _miss(self, folder: Path, problem: str) -> None:
        self.views.append(PluginView(folder.name, folder=str(folder), problem=problem))

    def _in_packages(self) -> Iterable[PluginSource]:
        for point in entry_points(group=GROUP) if self._installed else ():
            try:
                spec = _find_package(point.value)
                origin = None if spec is None else spec.origin
                if origin is None:
                    raise PluginError(f"the package {point.value!r} is not installed")
                folder = Path(origin).parent
                yield PluginSource(manifests.load(folder), folder, point.value)
            except (PluginError, ImportError, ValueError) as error:
                self.views.append(PluginView(point.name, problem=message_of(error)))

    def faults(self) -> Iterable[tuple[str, str]]:
        """Yields the id and the problem of each plugin with wrong settings; runs no plugin code."""
        for found in self.find():
            settings = self._settings.get(found.manifest.id)
            known: Mapping[str, JsonValue] = settings if isinstance(settings, dict) else {}
            if self._enabled and known.get("enabled", True) is not False:
                try:
                    _config(found.manifest, known.get("config"))
                except PluginError as error:
                    yield found.manifest.id, str(error)

    # ---- Loading one ----

    def _load(self, found: PluginSource) -> PluginView:
        manifest = found.manifest
        view = PluginView(manifest.id, manifest.version, manifest.description, str(found.folder))
        settings = self._settings.get(manifest.id)
        known: Mapping[str, JsonValue] = settings if isinstance(settings, dict) else {}
        view.enabled = self._enabled and known.get("enabled", True) is not False
        if not view.enabled:
            return view
        api: PluginApi | None = None
        folders: list[Path] = []
        try:
            config = _config(manifest, known.get("config"))
            api = PluginApi(found, self, config, view)
            if manifest.entry:
                _entry(found)(api)
            for name in manifest.skills:
                folder = (found.folder / name).resolve()
                if not folder.is_dir() or not folder.is_relative_to(found.folder.resolve()):
                    raise PluginError(
                        f"the plugin has no folder {name!r}, which its manifest lists under "
                        "`skills`"
                    )
                folders.append(folder)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            if api is not None:
                api._roll_back()
            if not found.package:
                modules.forget(view.id)
            ours = isinstance(error, ClawmodeError)
            view.problem = message_of(error) if ours else _unexpected(error, found.folder)
            for brought in (view.tools, view.hooks, view.namespaces):
                brought.clear()
            logger.error("plugin %s: %s", view.id, view.problem)
            return view
        finally:
            if api is not None:
                api._open = False
        self._apis[manifest.id] = api
        self.skill_folders += folders
        view.skills = list(manifest.skills)
        view.loaded = True
        return view


def _find_package(name: str) -> ModuleSpec | None:
    """Finds a package without importing its parent packages."""
    first, *rest = name.split(".")
    spec = importlib.util.find_spec(first)
    for each in rest:
        if spec is None:
            return None
        first = f"{first}.{each}"
        spec = PathFinder.find_spec(first, spec.submodule_search_locations)
    return spec


def _unexpected(error: BaseException, folder: Path) -> str:
    """Describes an exception, with the last line of the plugin in its traceback."""
    place, inside = "", os.path.abspath(folder) + os.sep
    for frame, line in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        if file.startswith(inside):
            place = f" ({file.removeprefix(inside)}, line {line})"
    return f"{type(error).__name__}: {message_of(error)}{place}"


def _config(manifest: Manifest, given: JsonValue) -> JsonObject:
    if given is not None and not isinstance(given, dict):
        raise PluginError(f"plugins.entries.{manifest.id}.config: expected an object")
    config = copy_json(given or {})
    if manifest.config_schema is None:
        return config
    probe = Tool(manifest.id, "", manifest.config_schema, lambda given, context: None)
    try:
        problems = validate(probe, config)
    except InvalidSchema as error:
        raise PluginError(f"the configSchema of the manifest cannot be used: {error}") from None
    if problems:
        raise PluginError(f"plugins.entries.{manifest.id}.config: {'; '.join(problems)}")
    return config


def _entry(found: PluginSource) -> Callable[[PluginApi], object]:
    module, _, name = found.manifest.entry.partition(":")
    if found.package:
        imported = importlib.import_module(module)
    else:
        imported = modules.import_from(found.folder, found.manifest.id, module)
    function = getattr(imported, name, None)
    if not callable(function) or inspect.iscoroutinefunction(function):
        raise PluginError(f"the entry {found.manifest.entry!r} is not a plain (not async) function")
    return function
