"""The MCP servers of a configuration: finds their sections, and collects settings and errors.

clawmode's own section is `mcp.servers`. The files of other clients can be used unchanged:
`config.mcp_formats` translates their entries. `config.mcp_entry` reads single entries. Entries
contain secrets: no message quotes a value. Does not import the MCP library.
"""

import difflib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from clawmode.config import file as config_file
from clawmode.config.mcp_entry import KEYS, MAX_COMPARED, MAX_NAME, Entry
from clawmode.config.mcp_formats import (
    URL_KEYS,
    Translation,
    denied_by,
    inputs_of,
    predefined,
    sections_of,
    translate,
)
from clawmode.config.mcp_values import AskInput, Surroundings
from clawmode.exceptions import ConfigurationError, ConfigWarning
from clawmode.mcp.settings import ServerSettings
from clawmode.records import MAX_PROBLEMS, Issues, join, wrong
from clawmode.sections import UNKNOWN_KEY
from clawmode.text import kind_of, nearest, printable
from clawmode.tools.rules import safe_server_name
from clawmode.types import JsonObject, JsonValue, dataclass


@dataclass(slots=True)
class McpConfig:
    """The configured servers, with errors and warnings.

    Attributes:
        servers: The servers with a valid entry.
        errors: Errors of sections and entries.
        broken: The errors of entries, by the name of the server.
        warnings: Settings that have no effect, or not the expected one.
    """

    servers: list[ServerSettings] = field(default_factory=list)
    errors: list[ConfigurationError] = field(default_factory=list)
    broken: dict[str, list[ConfigurationError]] = field(default_factory=dict)
    warnings: list[ConfigWarning] = field(default_factory=list)

    def unwrap(self) -> list[ServerSettings]:
        """Returns the servers, or raises the first error."""
        if self.errors:
            raise self.errors[0]
        return self.servers

    @property
    def fatal(self) -> list[ConfigurationError]:
        """The errors that are not about a single entry."""
        of_entries = [error for errors in self.broken.values() for error in errors]
        return [error for error in self.errors if error not in of_entries]

    def with_broken_entries(self) -> list[ServerSettings]:
        """Returns the servers, with a faulty server in place of each broken entry.

        A faulty server is listed with its error and never connected.
        """
        faulty = [
            ServerSettings(name=name, transport="stdio", fault=f"cannot be used: {errors[0]}")
            for name, errors in self.broken.items()
            if all(name != server.name for server in self.servers)
        ]
        return [*self.servers, *faulty]


# ---- Reading ----


def load(
    path: str | Path,
    environment: Mapping[str, str] | None = None,
    ask: AskInput = lambda asked: None,
) -> McpConfig:
    """Reads a configuration file of clawmode or of another client, in JSON, JSON5 or TOML.

    Errors and warnings name the file and the line.

    Args:
        path: The file.
        environment: The environment variables.
        ask: Asks the user for values that the file leaves open.

    Raises:
        ConfigurationError: The file cannot be read or parsed, or has no servers.
    """
    try:
        file = config_file.load(path)
    except ConfigurationError as error:
        # The second line of the message quotes the file, and may contain a token.
        text = str(error).partition("\n")[0]
        raise ConfigurationError(text, line=error.line, column=error.column) from None
    assert file.path is not None
    found = _read_file(file.data, file.path, environment, ask)
    if file.document is None:
        return found
    locator = config_file.Locator(file.document)

    def place(path: str) -> str:
        return "{}:{}:{}: ".format(file.path, *locator.find(path))

    errors: dict[int, ConfigurationError] = {}
    for error in found.errors:
        line, column = locator.find(error.path)
        errors[id(error)] = ConfigurationError(
            f"{place(error.path)}{error}",
            path=error.path,
            expected=error.expected,
            line=line,
            column=column,
        )
    return McpConfig(
        found.servers,
        list(errors.values()),
        {name: [errors[id(it)] for it in listed] for name, listed in found.broken.items()},
        [replace(it, path=f"{place(it.path)}{it.path}") for it in found.warnings],
    )


def _read_file(
    data: Mapping[str, JsonValue],
    path: Path,
    environment: Mapping[str, str] | None = None,
    ask: AskInput = lambda asked: None,
) -> McpConfig:
    """Like `load`, for the parsed content of a file; errors and warnings have no line."""
    reader = _Reader(os.environ if environment is None else environment)
    around = reader.around
    around.predefined = predefined(path)
    around.folder = Path(around.predefined["workspaceFolder"])
    around.inputs, around.ask = inputs_of(data), ask
    mcp = data.get("mcp")
    if "mcp" in data and (not isinstance(mcp, dict) or "servers" in mcp):
        reader.read_own(data)
    reader.read_foreign(data, sections_of(data))
    if not reader.sections:
        text = f"{path}: no servers in this file, expected mcpServers{_hint(data)}"
        raise ConfigurationError(text, expected="mcpServers")
    if not reader.found.servers and not reader.found.errors:
        reader.found.warnings.append(ConfigWarning("mcpServers", "no servers in this file"))
    return reader.found


def reasons_to_stay(
    data: JsonObject, path: tuple[str, ...], file: Path, folder: Path
) -> dict[str, str]:
    """Returns why servers of another client cannot move to a file in `folder`, by their names.

    There, the rest of the file is missing, and relative paths lead elsewhere.
    """
    servers: Any = data
    for key in path:
        servers = servers[key]
    alone: JsonObject = servers
    for key in reversed(path):
        alone = {key: alone}
    here = _read_file(data, file)
    before = {server.name: server for server in here.servers}
    after = {server.name: server for server in _read_file(alone, folder / file.name).servers}
    reasons: dict[str, str] = {}
    for name in servers:
        place = join(".".join(path), name)
        if name not in before:
            errors = (
                it for it in here.errors if f"{it.path}.".startswith((f"{place}.", f"{place}["))
            )
            error = next(errors, "`mcp.allowed` or `mcp.excluded` leaves it out")
            reasons[name] = f"clawmode cannot use it: {error}"
        elif before[name] != after.get(name):
            reasons[name] = "depends on other parts of the file, or on its folder"
    return reasons


def _hint(data: Mapping[str, JsonValue]) -> str:
    """Says where the servers of a file seem to be, if they are not in `mcpServers`."""
    if any(_is_entry(value) for value in data.values()):
        return '; put the entries into {"mcpServers": {...}}'
    for key, value in itertools.islice(data.items(), MAX_COMPARED):
        if isinstance(value, dict) and any(map(_is_entry, value.values())):
            return f"; the servers seem to be in {key[:MAX_NAME]!r}"
    near = difflib.get_close_matches("mcpServers", list(data)[:MAX_COMPARED], n=1)
    return f"; found {near[0]!r}" if near else ""


def _is_entry(value: JsonValue) -> bool:
    return isinstance(value, dict) and any(key in value for key in ("command", *URL_KEYS))


def read(data: Mapping[str, JsonValue], environment: Mapping[str, str] | None = None) -> McpConfig:
    """Reads the sections `mcp.servers` and `mcpServers` of a whole configuration."""
    reader = _Reader(os.environ if environment is None else environment)
    reader.read_own(data)
    if "mcpServers" in data:
        reader.read_foreign(data, [("mcpServers", "mcpServers", data["mcpServers"])])
    return reader.found


def read_servers(value: JsonValue, environment: Mapping[str, str] | None = None) -> McpConfig:
    """Reads an object that maps names to servers: the argument `mcp_servers`."""
    reader = _Reader(os.environ if environment is None else environment)
    reader.read_section("mcp_servers", value, _as_it_is)
    return reader.found


def _as_it_is(entry: JsonObject, name: str, path: str) -> Translation:
    return Translation(entry)


class _Reader:
    """Reads entries into `found`. An entry with an error is left out of the servers."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._issues = Issues()
        self.found = McpConfig(warnings=self._issues.warnings)
        self.sections = 0
        self.around = Surroundings(environment)
        self._compared = 0
        self._by_policy_name: dict[str, str] = {}

    def read_own(self, data: Mapping[str, JsonValue]) -> None:
        """Reads our own section, `mcp`."""
        mcp = data.get("mcp", {})
        if not isinstance(mcp, dict):
            self.found.errors.append(wrong("mcp", "an object with `servers`", kind_of(mcp)))
            return
        for key in mcp:
            if key != "servers" and (near := nearest(key, ("servers",), cutoff=0.8)):
                self._issues.add([ConfigWarning(join("mcp", key), f"{UNKNOWN_KEY} {near}")])
        if "servers" in mcp:
            self.read_section("mcp.servers", mcp["servers"], _as_it_is)

    def read_foreign(
        self,
        data: Mapping[str, JsonValue],
        sections: Iterable[tuple[str, str, JsonValue]],
    ) -> None:
        """Reads sections that another client has written."""
        for path, key, value in sections:
            members = value.items() if isinstance(value, dict) else ()
            denied = [name for name, _ in members if denied_by(data, key, name)]
            for name in denied:
                text = "is left out, because `mcp.allowed` or `mcp.excluded` says so"
                self._issues.add([ConfigWarning(join(path, name), text)])

            def adapt(entry: JsonObject, name: str, place: str, key: str = key) -> Translation:
                return translate(name, place, entry, data, key, self.around.environment)

            kept = {name: entry for name, entry in members if name not in denied}
            self.read_section(path, kept if isinstance(value, dict) else value, adapt, ours=False)

    def read_section(
        self,
        path: str,
        section: JsonValue,
        adapt: "Callable[[JsonObject, str, str], Translation]",
        *,
        ours: bool = True,
    ) -> None:
        """Reads the entries of one section."""
        self.sections += 1
        if not isinstance(section, dict):
            expected = "an object that maps names to servers"
            self.found.errors.append(wrong(path, expected, kind_of(section)))
            return
        for name, value in section.items():
            place = join(path, name)
            errors: list[ConfigurationError] = []
            settings, made, entry = None, None, None
            try:
                self._check_name(name, place)
                if not isinstance(value, dict):
                    raise wrong(place, "an object with a command or a url", kind_of(value))
                made = adapt(value, name, place)
                known = self._without_unknown(made.entry, ours=ours)
                entry = Entry(name, place, known, self.around)
                settings = entry.read()
                errors += entry.errors
            except ConfigurationError as error:
                errors += [*(entry.errors if entry is not None else ()), error]
            if errors or settings is None or made is None or entry is None:
                errors = [_moved(error, place, made) for error in errors]
                self.found.errors += errors
                # An invalid name, or the name of another server, is replaced by the path.
                valid = self._by_policy_name.get(_policy_name(name)) == place
                shown = name if valid else printable(place, "?")[:MAX_NAME]
                self.found.broken[shown] = errors
                continue
            self._issues.add(
                replace(warning, path=made.original(place, warning.path))
                for warning in (*made.warnings, *entry.warnings, *_warnings(place, settings))
            )
            self.found.servers.append(settings)

    def _without_unknown(self, entry: JsonObject, *, ours: bool) -> JsonObject:
        """Leaves out keys that nobody has to be warned of.

        In sections of other clients, these are all but misspelt keys. The search for similar names
        is slow, so that there is a limit.
        """
        made: JsonObject = {}
        for key, value in entry.items():
            if key not in KEYS:
                self._compared += 1
                if self._compared > MAX_COMPARED or len(self.found.warnings) > MAX_PROBLEMS:
                    continue
                if not ours and not nearest(key, KEYS, cutoff=0.8):
                    continue
            made[key] = value
        return made

    def _check_name(self, name: str, path: str) -> None:
        # A colon separates the parts of a tool's id, so tools of two servers could share an id.
        if not name or len(name) > MAX_NAME or ":" in name or not name.isprintable():
            rule = f"a name of 1 to {MAX_NAME} printable characters without a colon"
            raise wrong(path, rule, f"the name {name[:MAX_NAME]!r}")
        if (other := self._by_policy_name.setdefault(_policy_name(name), path)) != path:
            text = f"tool policy cannot tell this name from {other}; rename one of them"
            raise ConfigurationError(f"{path}: {text}", path=path)


def _policy_name(name: str) -> str:
    return safe_server_name(name).casefold()


def _moved(error: ConfigurationError, place: str, made: Translation | None) -> ConfigurationError:
    """Returns the error with the path in the original file."""
    path = error.path if made is None else made.original(place, error.path)
    if path == error.path:
        return error
    text = str(error).replace(error.path, path, 1)
    return ConfigurationError(text, path=path, expected=error.expected)


def _warnings(path: str, settings: ServerSettings) -> Iterator[ConfigWarning]:
    url = urlsplit(settings.url)
    if (
        url.scheme == "http"
        and (settings.headers or settings.auth)
        and url.hostname not in (*("localhost", "127.0.0.1", "::1"),)
    ):
        yield ConfigWarning(join(path, "url"), "headers are sent unencrypted; use https://")
