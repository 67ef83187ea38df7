"""The manifest of a plugin: `clawmode.plugin.json`, beside its code."""

import json
from pathlib import Path
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from clawmode.exceptions import ClawmodeError, ConfigurationError
from clawmode.records import AnyObject, Items, Record, Text, parse
from clawmode.types import JsonValue

FILE = "clawmode.plugin.json"
MAX_MANIFEST = 256 << 10
MAX_TEXT = 1_000

_ID = "^[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*$"
_ENTRY = r"^(?:[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*)?$"


def _inside(folder: str) -> str:
    if Path(folder).is_absolute() or ".." in Path(folder).parts:
        raise ValueError("expected a folder inside the folder of the plugin")
    return folder


ShortText: TypeAlias = Annotated[str, Field(max_length=MAX_TEXT)]


class PluginError(ClawmodeError):
    """A plugin cannot be used; the message says why."""


class Manifest(Record):
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

    model_config = ConfigDict(extra="forbid")

    id: str = Field(
        pattern=_ID, max_length=64, title="lower-case letters, digits and single - or _"
    )
    name: ShortText = ""
    version: ShortText = "0"
    description: ShortText = ""
    entry: str = Field("", pattern=_ENTRY, max_length=MAX_TEXT, title="module:function")
    skills: Items[Annotated[Text, AfterValidator(_inside)]] = ()
    config_schema: AnyObject | None = Field(None, repr=False)
    tools: Items[Text] | None = None
    hooks: Items[Text] | None = None
    namespaces: Items[Text] | None = None

    @model_validator(mode="after")
    def _has_content(self) -> "Manifest":
        if not self.entry and not self.skills:
            raise ValueError(
                "the manifest has neither `entry` nor `skills`: there is nothing to load"
            )
        return self


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
    try:
        return parse(Manifest, value)
    except ConfigurationError as error:
        raise PluginError(f"{where}: {error}") from None
