"""The manifest of a plugin: `clawmode.plugin.json`, beside its code."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from clawmode.exceptions import ClawmodeError
from clawmode.types import JsonObject, JsonValue

FILE = "clawmode.plugin.json"
MAX_MANIFEST = 256 << 10
MAX_TEXT = 1_000
MAX_UNKNOWN = 5

_ID = re.compile(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*")
_ENTRY = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
KEYS = (
    *("id", "name", "version", "description", "entry", "skills", "configSchema"),
    *("tools", "hooks", "namespaces"),
)


class PluginError(ClawmodeError):
    """A plugin cannot be used; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A parsed and validated manifest.

    Attributes:
        id: Unique; the owner of the plugin's tools and namespaces.
        entry: `module:function`, called with a `PluginApi`; empty if the plugin has only skills.
        skills: Folders with skills, relative to the folder of the plugin.
        config_schema: JSON Schema of the plugin's settings.
        tools: If not None, the plugin may register only tools with these names.
        hooks: If not None, the plugin may register only hooks of these events.
        namespaces: If not None, the plugin may register only namespaces with these ids.
    """

    id: str
    name: str = ""
    version: str = "0"
    description: str = ""
    entry: str = ""
    skills: tuple[str, ...] = ()
    config_schema: JsonObject | None = field(default=None, repr=False)
    tools: tuple[str, ...] | None = None
    hooks: tuple[str, ...] | None = None
    namespaces: tuple[str, ...] | None = None


def load(folder: Path) -> Manifest:
    """Reads the manifest in a folder.

    Raises:
        PluginError: The file is missing, or is not a valid manifest.
    """
    path = folder / FILE
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_MANIFEST + 1)
        if len(raw) > MAX_MANIFEST:
            raise PluginError(f"{path}: the file is larger than {MAX_MANIFEST} bytes")
        value = json.loads(raw)
    except OSError as error:
        raise PluginError(f"{path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise PluginError(f"{path}: the file is not valid JSON: {error}") from None
    return read(value, str(path))


def read(value: JsonValue, where: str = FILE) -> Manifest:
    """Validates a manifest.

    Raises:
        PluginError: The manifest is not valid; the message lists all problems.
    """
    reader = _Reader(value, where)
    identity = reader.text("id")
    if identity and (not _ID.fullmatch(identity) or len(identity) > 64):
        reader.wrong("id", "lower-case letters, digits and single - or _")
    entry = reader.text("entry", "")
    if entry and not _ENTRY.fullmatch(entry):
        reader.wrong("entry", "module:function")
    skills = reader.texts("skills") or ()
    if any(Path(each).is_absolute() or ".." in Path(each).parts for each in skills):
        reader.wrong("skills", "folders inside the folder of the plugin")
    made = Manifest(
        id=identity,
        name=reader.text("name", identity),
        version=reader.text("version", "0"),
        description=reader.text("description", ""),
        entry=entry,
        skills=skills,
        config_schema=reader.mapping("configSchema"),
        tools=reader.texts("tools"),
        hooks=reader.texts("hooks"),
        namespaces=reader.texts("namespaces"),
    )
    if not (entry or skills or reader.problems):
        reader.problems.append(
            "the manifest has neither `entry` nor `skills`: there is nothing to load"
        )
    if reader.problems:
        raise PluginError(f"{where}: {'; '.join(reader.problems)}")
    return made


class _Reader:
    """Reads the manifest key by key, and collects the problems instead of stopping at the first."""

    def __init__(self, value: JsonValue, where: str) -> None:
        if not isinstance(value, dict):
            raise PluginError(f"{where}: expected a JSON object")
        self._value: Mapping[str, JsonValue] = value
        unknown = [key for key in value if key not in KEYS][:MAX_UNKNOWN]
        self.problems = [
            f"{key[:80]!r} is not a known key; the known keys are {', '.join(KEYS)}"
            for key in unknown
        ]

    def wrong(self, key: str, expected: str) -> None:
        self.problems.append(f"{key}: expected {expected}")

    def text(self, key: str, default: str | None = None) -> str:
        found = self._value.get(key, default)
        if not isinstance(found, str) or len(found) > MAX_TEXT or (default is None and not found):
            self.wrong(key, "a text")
            return default or ""
        return found

    def texts(self, key: str) -> tuple[str, ...] | None:
        found = self._value.get(key)
        if found is None:
            return None
        listed = found if isinstance(found, list) else [None]
        texts = [it for it in listed if isinstance(it, str) and it]
        if len(texts) != len(listed):
            self.wrong(key, "a list of texts")
        return tuple(texts)

    def mapping(self, key: str) -> JsonObject | None:
        found = self._value.get(key)
        if found is None or isinstance(found, dict):
            return found
        self.wrong(key, "an object")
        return None
