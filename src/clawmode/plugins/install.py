"""Installs, updates and removes plugins and skills, in these steps.

    stage           makes a private copy below the state folder; rejects hostile files
    policy          asks `security.installPolicy`
    before_install  asks the hooks of the loaded plugins
    try out         loads the plugin, which runs its code for the first time, and unloads it
    put             moves the copy into place in one step: readers see the old version or the new

An update takes the same steps. A refusal at any step leaves everything unchanged.
"""

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from anyio import to_thread

from clawmode.agent.hooks import AgentHooks, Install
from clawmode.agent.skills import FILE as SKILL_FILE
from clawmode.agent.skills import SkillLoader
from clawmode.files import file_lock
from clawmode.plugins import archives, check, install_policy, replacing
from clawmode.plugins import manifest as manifests
from clawmode.plugins.loader import Plugins
from clawmode.plugins.manifest import PluginError
from clawmode.plugins.setup import FOLDER, settings_of
from clawmode.plugins.staging import InstallRefused, Kind, Limits, Material, Stage
from clawmode.types import JsonObject, JsonValue, dataclass

if TYPE_CHECKING:
    from clawmode.config.agents import Configuration

SKILLS = "skills"
STAGING = "staging"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallResult:
    """The result of an installation.

    Attributes:
        replaced: The version that was installed before, or None.
        notes: Problems of a plugin that loads; or a remark that its code was not tried out.
    """

    kind: Kind
    name: str
    version: str
    folder: Path
    replaced: str | None = None
    notes: tuple[str, ...] = ()

    def to_json(self) -> JsonObject:
        return asdict(self) | {"folder": str(self.folder), "notes": list[JsonValue](self.notes)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Installer:
    """Installs plugins and skills into a state folder.

    Attributes:
        plugins: The loaded plugins of this process; their `before_install` hooks are asked.
    """

    configuration: "Configuration"
    state: Path
    plugins: Plugins
    limits: Limits = field(default_factory=Limits)

    async def install(self, source: str) -> InstallResult:
        """Installs or updates a plugin or a skill from a folder or an archive.

        Raises:
            InstallRefused: Nothing was installed, and nothing has changed.
            ConfigurationError: `security.installPolicy` is not valid.
        """
        with os_errors_refused(), workshop(self.state) as place:
            staged = await to_thread.run_sync(stage, source, place, self.limits)
            material = replace(staged, replaces=_installed_version(self._target(staged)))
            await self._permit(material)
            notes = await to_thread.run_sync(self._try_out, material, abandon_on_cancel=True)
            target = self._target(material)  # again: hooks and the plugin's code ran meanwhile
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replacing.put(material.folder, target, place / "replaced")
        return InstallResult(
            kind=material.kind,
            name=material.name,
            version=material.version,
            folder=target,
            replaced=material.replaces,
            notes=tuple(notes),
        )

    def _target(self, material: Material) -> Path:
        """Returns the folder to install to; a plugin that a user copied there keeps its folder."""
        if material.kind == "skill":
            return self.state / SKILLS / material.name
        for view in self.plugins.views:
            elsewhere = Path(view.folder).parent != self.state / FOLDER
            if view.id == material.name and view.folder and elsewhere:
                text = f"the plugin {view.id!r} at {view.folder} would take precedence"
                raise InstallRefused("not_ours", f"{text}: remove that one first")
        places = installed_in(self.state)
        target = places.get(material.name, self.state / FOLDER / material.name)
        other = next((name for name, path in places.items() if path == target), material.name)
        if other != material.name:
            raise InstallRefused("not_ours", f"{target} is the plugin {other!r}: remove it first")
        return target

    async def _permit(self, material: Material) -> None:
        refusal = await install_policy.decide(self.configuration.security.install_policy, material)
        if refusal is not None:
            raise InstallRefused("policy", f"the policy of the operator refuses it: {refusal}")
        event = Install(
            kind=material.kind,
            name=material.name,
            version=material.version,
            folder=str(material.folder),
            source=material.source,
        )
        refusal = await AgentHooks(self.plugins.hooks).inspect_install(event)
        if refusal is not None:
            raise InstallRefused("hook", f"a before_install hook refuses it: {refusal}")

    def _try_out(self, material: Material) -> list[str]:
        """Returns the problems of a plugin that loads. Its code runs here for the first time."""
        if material.kind == "skill":
            return []
        known = settings_of(self.configuration).get(material.name)
        settings = known if isinstance(known, dict) else {}
        if not self.configuration.plugins.enabled or settings.get("enabled") is False:
            return ["the plugin is disabled in the configuration, so its code was not tried out"]
        found = check.try_out(material.folder, settings.get("config"), self.plugins)
        faults = [text.replace(f"{material.folder}{os.sep}", "") for text in found.faults]
        if found.view.problem is not None:
            raise InstallRefused("does_not_load", f"the plugin does not load: {'; '.join(faults)}")
        for cache in sorted(material.folder.rglob("__pycache__")):
            shutil.rmtree(cache, ignore_errors=True)
        return faults


def _installed_version(folder: Path) -> str | None:
    """Returns the version of the plugin in a folder, "" if it has none, None without a folder."""
    try:
        return manifests.load(folder).version
    except PluginError:
        return "" if os.path.lexists(folder) else None


# ---- Staging ----


def stage(given: str, place: Path, limits: Limits) -> Material:
    """Copies a folder or an archive to the staging folder, and reads its manifest.

    Raises:
        InstallRefused: The source is hostile, too large, or neither a plugin nor a skill.
    """
    if "://" in given and not os.path.exists(given):
        text = f"{given[:200]!r} is a URL: download the archive, and install the file"
        raise InstallRefused("unsupported", text)
    try:
        source = Path(os.path.realpath(os.path.expanduser(given)))
    except ValueError:  # a NUL in the name
        raise InstallRefused("not_found", f"there is no file or folder {given[:80]!r}") from None
    base = place / "staged"
    base.mkdir(mode=0o700)
    name = re.sub(r"[^A-Za-z0-9._-]", "-", archives.stem_of(source)).lstrip("._-")[:64]
    filled = Stage(base / (name or "unnamed"), limits)
    filled.folder.mkdir(mode=0o700)
    archives.fill(filled, source)
    folder = _root(filled.folder)
    prefix = "" if folder == filled.folder else f"{folder.name}/"
    files = tuple(replace(it, path=it.path.removeprefix(prefix)) for it in filled.files)
    made = _plugin(folder) if (folder / manifests.FILE).is_file() else _skill(folder)
    return replace(made, source=str(source), files=files)


def _root(folder: Path) -> Path:
    """Returns the folder with the manifest: the top folder, or the only folder in it."""
    inside = list(folder.iterdir())
    for each in (folder, *(inside if len(inside) == 1 else ())):
        if (each / manifests.FILE).is_file() or (each / SKILL_FILE).is_file():
            return each
    text = f"there is neither a {manifests.FILE} nor a {SKILL_FILE}"
    raise InstallRefused("no_manifest", f"{text} at the top, or in the only folder there")


def _plugin(folder: Path) -> Material:
    try:
        found = manifests.load(folder)
    except PluginError as error:
        text = str(error).replace(f"{folder}{os.sep}", "")
        raise InstallRefused("invalid_manifest", text) from None
    return Material(
        kind="plugin",
        name=found.id,
        version=found.version,
        description=found.description,
        folder=folder,
        source="",
    )


def _skill(folder: Path) -> Material:
    found = SkillLoader((folder.parent,)).load()
    if not found.skills:
        text = "; ".join(found.notes).replace(f"{folder}{os.sep}", "")
        raise InstallRefused("invalid_manifest", text)
    (skill,) = found.skills
    return Material(
        kind="skill",
        name=skill.name,
        version="",
        description=skill.description,
        folder=folder,
        source="",
    )


@contextmanager
def workshop(state: Path) -> Iterator[Path]:
    """Yields a private folder below the state folder, under the lock of installations.

    Raises:
        InstallRefused: Another process is installing or removing something.
    """
    place = state / STAGING
    with ExitStack() as held:
        try:
            held.enter_context(file_lock(place / ".lock", wait=False))
        except BlockingIOError:
            raise InstallRefused(
                "busy", "another process is installing or removing something: try again later"
            ) from None
        for left in place.glob("install-*"):  # left behind by a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        made = Path(tempfile.mkdtemp(prefix="install-", dir=place))
        try:
            yield made
        finally:
            shutil.rmtree(made, ignore_errors=True)


@contextmanager
def os_errors_refused() -> Iterator[None]:
    """Turns an `OSError` into a refusal."""
    try:
        yield
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        reason = error.strerror or str(error) or errno.errorcode.get(error.errno or 0, "")
        raise InstallRefused("failed", f"{where}{reason}") from None


# ---- Removing ----


@dataclass(frozen=True, slots=True)
class Removal:
    """A plugin or skill that was removed, and its former folder."""

    kind: Kind
    name: str
    folder: Path

    def to_json(self) -> JsonObject:
        return asdict(self) | {"folder": str(self.folder)}


def installed_in(state: Path) -> dict[str, Path]:
    """Returns the installed plugins by id; one without a valid manifest by its folder name."""
    plugins = Plugins([state / FOLDER], installed=False)
    found = {each.manifest.id: each.folder for each in plugins.find()}
    broken = {view.id: Path(view.folder) for view in plugins.views}
    return {name: path for name, path in (broken | found).items() if path != state / FOLDER}


def remove(state: Path, name: str, plugins: Plugins) -> Removal:
    """Removes an installed plugin or skill, without running its code.

    Args:
        state: The state folder.
        name: A plugin's id or a skill's name, or `plugin:<id>`, `skill:<name>`.
        plugins: The plugins of the configuration, not loaded.

    Raises:
        InstallRefused: It is not installed, or it comes from elsewhere.
    """
    with os_errors_refused(), workshop(state) as place:
        kind, _, rest = name.rpartition(":")
        folder, skills = installed_in(state).get(rest), state / SKILLS
        if folder is not None and kind in ("", "plugin"):
            found = Removal("plugin", rest, folder)
        elif kind in ("", "skill") and skills.is_dir() and rest in os.listdir(skills):
            found = Removal("skill", rest, skills / rest)
        else:
            raise _not_here(plugins, rest if kind in ("", "plugin") else "", name)
        os.rename(found.folder, place / "removed")
        return found


def _not_here(plugins: Plugins, plugin_id: str, name: str) -> InstallRefused:
    off = f"or disable it with plugins.entries.{plugin_id}.enabled"
    for found in plugins.find():
        if found.manifest.id != plugin_id:
            continue
        if found.package:
            text = f"{plugin_id!r} is part of the Python package {found.package!r}: uninstall it"
        else:
            text = f"{plugin_id!r} is at {found.folder}: remove that folder from plugins.load.paths"
        return InstallRefused("not_ours", f"{text}, {off}")
    return InstallRefused("not_found", f"no plugin and no skill {name[:80]!r} is installed")
