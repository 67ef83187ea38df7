"""The MCP servers of a configuration: finds their sections, and collects settings and errors.

clawmode's own section is `mcp.servers`. Other clients write the same entries in `mcpServers`, or in
a separate file in `servers`; their files can be used unchanged. `config.mcp_entry` reads single
entries. Entries contain secrets: no message quotes a value. Does not import the MCP library.
"""

import difflib
import itertools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from clawmode.config import file as config_file
from clawmode.config.mcp_entry import (
    MAX_COMPARED,
    MAX_NAME,
    TIMEOUTS_MS,
    URL_KEYS,
    Entry,
    Part,
)
from clawmode.exceptions import ConfigurationError, ConfigWarning
from clawmode.mcp.settings import (
    ServerSettings,
)
from clawmode.records import (
    MAX_PROBLEMS,
    Issues,
)
from clawmode.sections import (
    UNKNOWN_KEY,
)
from clawmode.text import nearest, printable
from clawmode.tools.rules import safe_server_name
from clawmode.types import JsonValue

KEYS = (
    *("command", "args", "env", "cwd", "url", "headers", "transport", "type", "auth"),
    *("timeoutMs", "connectTimeoutMs", "enabled", "disabled", "trustAnnotations"),
)
AUTH_KEYS = (
    *("type", "token", "clientId", "clientSecret", "scopes", "grant", "issuer", "redirectPort"),
)

FOREIGN = frozenset({"oauth", "timeout"})
"""Keys of other clients that resemble our keys, and are not misspelled."""


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


def load(path: str | Path, environment: Mapping[str, str] | None = None) -> McpConfig:
    """Reads a configuration file of clawmode or of another client, in JSON or JSON5.

    Errors and warnings name the file and the line.

    Raises:
        ConfigurationError: The file cannot be read, is not a JSON5 object, or has no servers.
    """
    try:
        file = config_file.load(path)
    except ConfigurationError as error:
        # The second line of the message quotes the file, and may contain a token.
        text = str(error).partition("\n")[0]
        raise ConfigurationError(text, line=error.line, column=error.column) from None
    reader = _Reader(os.environ if environment is None else environment)
    reader.read_sections(file.data, ("mcpServers", "servers"))
    if not reader.sections:
        text = f"{file.path}: no servers in this file, expected mcpServers{_hint(file.data)}"
        raise ConfigurationError(text, expected="mcpServers")
    if not reader.found.servers and not reader.found.errors:
        reader.found.warnings.append(ConfigWarning("mcpServers", "no servers in this file"))
    if file.document is None:
        return reader.found
    locator = config_file.Locator(file.document)

    def place(path: str) -> str:
        return "{}:{}:{}: ".format(file.path, *locator.find(path))

    found = reader.found
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
    reader.read_sections(data, ("mcpServers",))
    return reader.found


def read_servers(
    value: JsonValue,
    environment: Mapping[str, str] | None = None,
    *,
    path: str = "mcp_servers",
) -> McpConfig:
    """Reads an object that maps names to servers."""
    reader = _Reader(os.environ if environment is None else environment)
    reader.read_servers(Part(path, value), ours=True)
    return reader.found


class _Reader:
    """Reads entries into `found`. An entry with an error is left out of the servers."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._issues = Issues()
        self.found = McpConfig(warnings=self._issues.warnings)
        self.sections = 0
        self._compared = 0
        self._environment = environment
        self._by_policy_name: dict[str, Part] = {}

    def read_sections(self, data: Mapping[str, JsonValue], theirs: tuple[str, ...]) -> None:
        """Reads the section `mcp`, and the sections of other clients."""
        whole = Part("", dict(data)).members()
        mcp = whole.get("mcp", Part("mcp", {}))
        if isinstance(mcp.value, dict):
            members = mcp.members()
            self._warn_unknown(members, ("servers",), ours=False)
            if "servers" in members:
                self.read_servers(members["servers"], ours=True)
        else:
            self.found.errors.append(mcp.mismatch("an object with `servers`"))
        for key in theirs:
            if key in whole:
                self.read_servers(whole[key], ours=False)

    def read_servers(self, section: Part, *, ours: bool) -> None:
        """Reads the entries of one section."""
        self.sections += 1
        if not isinstance(section.value, dict):
            self.found.errors.append(section.mismatch("an object that maps names to servers"))
            return
        for name, entry in section.members().items():
            errors: list[ConfigurationError] = []
            settings = None
            try:
                self._check_name(name, entry)
                settings = Entry(name, entry, self._environment, errors).read()
            except ConfigurationError as error:
                errors.append(error)
            if errors or settings is None:
                self.found.errors += errors
                # An invalid name, or the name of another server, is replaced by the path.
                valid = self._by_policy_name.get(_policy_name(name)) is entry
                shown = name if valid else printable(entry.path, "?")[:MAX_NAME]
                self.found.broken[shown] = errors
                continue
            members = entry.members()
            self._warn_unknown(members, KEYS, ours=ours)
            auth = members.get("auth")
            if auth is not None and isinstance(auth.value, dict):
                self._warn_unknown(auth.members(), AUTH_KEYS, ours=True)
            self._issues.add(_warnings(members, settings))
            self.found.servers.append(settings)

    def _warn_unknown(
        self, members: Mapping[str, Part], known: tuple[str, ...], *, ours: bool
    ) -> None:
        """Warns of all unknown keys in our own section, and of misspelled keys in foreign ones."""
        for key, part in members.items():
            if key in known or key in URL_KEYS or (not ours and key in FOREIGN):
                continue
            self._compared += 1
            if self._compared > MAX_COMPARED or len(self.found.warnings) > MAX_PROBLEMS:
                return  # the search for similar names is slow
            if near := nearest(key, known, cutoff=0.0 if ours else 0.8):
                self._issues.add([ConfigWarning(part.path, f"{UNKNOWN_KEY} {near}")])

    def _check_name(self, name: str, entry: Part) -> None:
        # A colon separates the parts of a tool's id, so tools of two servers could share an id.
        if not name or len(name) > MAX_NAME or ":" in name or not name.isprintable():
            rule = f"a name of 1 to {MAX_NAME} printable characters without a colon"
            raise entry.mismatch(rule, f"the name {name[:MAX_NAME]!r}")
        if (other := self._by_policy_name.setdefault(_policy_name(name), entry)) is not entry:
            raise entry.error(
                f"tool policy cannot tell this name from {other.path}; rename one of them"
            )


def _policy_name(name: str) -> str:
    return safe_server_name(name).casefold()


# ---- Warnings ----


def _warnings(members: Mapping[str, Part], settings: ServerSettings) -> Iterator[ConfigWarning]:
    for key in ("timeoutMs", "connectTimeoutMs"):
        value = members[key].value if key in members else None
        low, high = TIMEOUTS_MS
        if isinstance(value, int | float) and not low <= value <= high:
            used = low if value < low else high
            yield ConfigWarning(members[key].path, f"must be {low} to {high}: {used} is used")
    url = urlsplit(settings.url)
    if (
        url.scheme == "http"
        and (settings.headers or settings.auth)
        and url.hostname not in (*("localhost", "127.0.0.1", "::1"),)
    ):
        path = next(members[key].path for key in URL_KEYS if key in members)
        yield ConfigWarning(path, "headers are sent unencrypted; use https://")
