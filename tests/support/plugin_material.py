"""Plugins and skills to install, honest and hostile, and what installs them."""

import io
import json
import re
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from clawmode.config.resolve import read
from clawmode.plugins.install import Installer
from clawmode.plugins.setup import open_plugins
from clawmode.plugins.staging import Limits
from clawmode.types import JsonValue

MANIFEST = "clawmode.plugin.json"
QUIET = "def register(api): pass\n"


def manifest(name: str = "garden", **more: Any) -> str:
    return json.dumps({"id": name, "version": "1.0", "entry": "main:register", **more})


def plugin(folder: Path, code: str = QUIET, *, name: str = "garden", **more: Any) -> Path:
    """Writes a plugin."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST).write_text(manifest(name, **more))
    (folder / "main.py").write_text(code)
    return folder


def documented_plugin(folder: Path) -> Path:
    """Writes the plugin that `docs/guide/plugins.md` shows."""
    page = Path(__file__).parents[2].joinpath("docs", "guide", "plugins.md").read_text("utf-8")
    folder.mkdir(parents=True)
    for name, language in ((MANIFEST, "json"), ("main.py", "python")):
        found = re.search(rf"```{language}\n(.*?)```", page, re.DOTALL)
        assert found is not None
        (folder / name).write_text(found[1], "utf-8")
    return folder


def skill(folder: Path, name: str = "pruning", description: str = "When roses grow wild.") -> Path:
    """Writes a skill."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "SKILL.md").write_text(f"---\nname: {name}\ndescription: {description}\n---\nCut.\n")
    return folder


def installer(state: Path, limits: Limits | None = None, **config: JsonValue) -> Installer:
    """What installs into a state folder, by a configuration."""
    found = read(config)
    assert found.errors == []
    return Installer(
        configuration=found.section,
        state=state,
        plugins=open_plugins(found.section, state),
        limits=limits or Limits(),
    )


def left_in(state: Path) -> list[str]:
    """All that is in a state folder but for the lock and folders that hold nothing."""
    return sorted(
        str(path.relative_to(state))
        for path in state.rglob("*")
        if path.is_symlink() or not path.is_dir()
        if path.name != ".lock"
    )


# ---- Archives ----

Content = dict[str, str | bytes]


def zipped(
    path: Path, content: Content, change: Callable[[zipfile.ZipInfo], None] | None = None
) -> Path:
    """A zip. `change` sees each entry but for the manifest and `main.py`."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in ({MANIFEST: manifest(), "main.py": QUIET} | content).items():
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            if change is not None and name in content:
                change(info)
            archive.writestr(info, data)
    return path


def of_mode(mode: int) -> Callable[[zipfile.ZipInfo], None]:
    def change(info: zipfile.ZipInfo) -> None:
        info.create_system = 3
        info.external_attr = mode << 16

    return change


LINK = of_mode(stat.S_IFLNK | 0o777)
DEVICE = of_mode(stat.S_IFCHR | 0o666)


def tarred(path: Path, entries: Iterable[tarfile.TarInfo | tuple[str, bytes]] = ()) -> Path:
    """A tar.gz, with a manifest and `main.py` before what is given."""
    honest = ((MANIFEST, manifest().encode()), ("main.py", QUIET.encode()))
    with tarfile.open(path, "w:gz", format=tarfile.GNU_FORMAT) as archive:
        for entry in (*honest, *entries):
            if isinstance(entry, tarfile.TarInfo):
                archive.addfile(entry)
            else:
                name, data = entry
                info = tarfile.TarInfo(name)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return path


def tar_entry(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = target
    return info
