"""Reads one MCP server's entry of the configuration into `ServerSettings`.

Entries contain secrets: no error quotes a value. Does not import the MCP library.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from pydantic import BeforeValidator

from clawmode.config.mcp_formats import URL_KEYS
from clawmode.config.mcp_values import Surroundings, Texts, secret_arguments
from clawmode.exceptions import ConfigurationError, ConfigWarning
from clawmode.mcp.settings import (
    DEFAULT_CONNECT_TIMEOUT_MS,
    DEFAULT_TIMEOUT_MS,
    SECRETIVE,
    Auth,
    Bearer,
    Credentials,
    OAuth,
    ServerSettings,
    Transport,
)
from clawmode.records import Issue, Items, Maybe, Text, join, wrong
from clawmode.sections import Section, option, read
from clawmode.text import kind_of, nearest, show_plain
from clawmode.types import JsonObject, JsonValue

TRANSPORTS: dict[str, Transport] = {
    "stdio": "stdio",
    "streamable-http": "streamable-http",
    "sse": "sse",
    # Names that other clients use.
    "local": "stdio",
    "http": "streamable-http",
    "streamablehttp": "streamable-http",
    "streamable_http": "streamable-http",
    "remote": "streamable-http",
}

LOW_MS, HIGH_MS = 100, 3_600_000

MAX_NAME = 64
MAX_COMPARED = 1_000
"""The maximum number of unknown keys that are compared with known keys, which is slow."""

AUTH_FORMS = '"oauth", {type: "bearer", token: ...} or {type: "oauth", ...}'
ADDRESS = "an address that begins with http:// or https://"

_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


# ---- The fields ----


def _positive(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        expected = f"milliseconds, {LOW_MS} to {HIGH_MS}"
        raise ValueError(f"found {kind_of(value)}, expected {expected}")
    return value


def _port(value: Any) -> Any:
    if type(value) is not int or not 0 <= value < 65_536:
        raise ValueError(f"found {kind_of(value)}, expected a port number")
    return value


def _auth_form(value: Any) -> Any:
    if value != "oauth" and not isinstance(value, dict):
        raise ValueError(f"found {kind_of(value)}, expected {AUTH_FORMS}")
    return value


Milliseconds: TypeAlias = Annotated[int, BeforeValidator(_positive)]
Names: TypeAlias = dict[str, str]


class AuthEntry(Section):
    """How to authenticate with a server."""

    SHORT = (str, "type")

    type: Maybe[Literal["bearer", "oauth"]] = option("The kind of authentication.")
    token: Maybe[str] = option("The token of `bearer`.", secret=True)
    client_id: Maybe[str] = option("The id of the client.", secret=True)
    client_secret: Maybe[str] = option("The secret of the client.", secret=True)
    private_key: Maybe[str] = option("A PEM key with which the client signs.", secret=True)
    client_metadata_url: Maybe[str] = option("A document about the client.", secret=True)
    scopes: Annotated[
        Items[str], BeforeValidator(lambda it: it.split() if isinstance(it, str) else it)
    ] = option("The scopes to request.", (), expected="a list of strings", secret=True)
    grant: Literal["authorization_code", "client_credentials"] = option(
        "The grant.", "authorization_code"
    )
    issuer: Maybe[str] = option("Who may get the secret.", secret=True)
    redirect_port: Annotated[int, BeforeValidator(_port)] = option("The local port.", 0)

    def check(self, path: str) -> Iterator[Issue]:
        if self.type is None:
            yield wrong(join(path, "type"), '"bearer" or "oauth"', "nothing")
        if self.type == "bearer" and self.token is None:
            yield wrong(join(path, "token"), "a string", "nothing")
        proof = "client_secret" if self.private_key is None else "private_key"
        needed = ("client_id", proof, "issuer")
        if self.grant == "client_credentials" and not all(getattr(self, it) for it in needed):
            place, keys = join(path, "grant"), [type(self).model_fields[it].alias for it in needed]
            text = f"{place}: client_credentials needs {', '.join(map(str, keys))}"
            yield ConfigurationError(text, path=place)
        if self.client_id is not None and self.client_metadata_url is not None:
            place = join(path, "clientMetadataUrl")
            text = f"{place}: `clientId` is set too; remove one of them"
            yield ConfigurationError(text, path=place)


class ServerEntry(Section):
    """The entry of one server."""

    timeout_ms: Milliseconds = option(
        "Time limit of a call.", DEFAULT_TIMEOUT_MS, low=LOW_MS, high=HIGH_MS
    )
    connect_timeout_ms: Milliseconds = option(
        "Time limit of the start.", DEFAULT_CONNECT_TIMEOUT_MS, low=LOW_MS, high=HIGH_MS
    )
    trust_annotations: bool = option("Believe what the server says about its tools.", False)
    auth: Annotated[Maybe[AuthEntry], BeforeValidator(_auth_form)] = option("Authentication.")
    credentials: Credentials = option("Whose login is used over HTTP.", "shared")
    url: Maybe[str] = option("The address of the server.", secret=True)
    headers: Names = option(
        "Headers of every request.",
        dict,
        secret=True,
        expected="an object that maps names to strings",
    )
    command: Maybe[Text] = option("The command that starts the server.", secret=True)
    args: Items[str] = option(
        "Arguments of the command.", (), secret=True, expected="a list of strings"
    )
    env: Names = option(
        "Variables of the server.",
        dict,
        secret=True,
        expected="an object that maps names to strings",
    )
    env_file: Maybe[Text] = option("A file with more variables.", secret=True)
    cwd: Maybe[Text] = option("The working folder of the server.", secret=True)
    transport: Any = option("stdio, streamable-http or sse.", secret=True)
    type: Any = option("The same as `transport`.", secret=True)
    enabled: bool = option("False to leave the server out.", True)
    disabled: bool = option("True to leave the server out.", False)
    enabled_tools: Maybe[Items[str]] = option(
        "The only tools that may be used.", expected="a list of names"
    )
    disabled_tools: Items[str] = option(
        "Tools that may not be used.", (), expected="a list of names"
    )


KEYS = tuple(str(about.alias) for about in ServerEntry.model_fields.values())


# ---- An entry ----


class Entry:
    """The entry of one server.

    Args:
        name: The name of the server.
        path: The path of the entry.
        value: The entry, in our format.
        around: What the texts of the entry may refer to.

    Attributes:
        errors: The errors of single fields. An entry with errors must not be used.
        warnings: Unknown keys, and numbers out of range.
    """

    def __init__(self, name: str, path: str, value: JsonObject, around: Surroundings) -> None:
        self._name = name
        self._path = path
        self._members = {key: item for key, item in value.items() if item is not None}
        self._around = around
        self._texts = Texts(name, around)
        self.errors: list[ConfigurationError] = []
        self.warnings: list[ConfigWarning] = []

    def read(self) -> ServerSettings:
        """Returns the settings.

        Raises:
            ConfigurationError: It is not clear how to reach the server.
        """
        members = self._members
        transport = self._transport(members.get("url"))
        for key in ("enabled", "disabled"):
            if not isinstance(members.get(key, True), bool):
                raise wrong(join(self._path, key), "true or false", kind_of(members[key]))
        enabled = members.get("enabled", True)
        if members.get("disabled", not enabled) == enabled and "enabled" in members:
            raise self._error("disabled", "`disabled` contradicts `enabled`; remove one of them")
        if not enabled or members.get("disabled"):
            # The variables of a disabled server need not be set.
            return ServerSettings(name=self._name, transport=transport, enabled=False)
        found = read(ServerEntry, {**members}, self._path)
        self.errors += found.errors
        self.warnings += found.warnings
        return self._settings(found.section, transport)

    def _settings(self, entry: ServerEntry, transport: Transport) -> ServerSettings:
        values: dict[str, Any] = {
            "timeout": entry.timeout_ms / 1000,
            "connect_timeout": entry.connect_timeout_ms / 1000,
            "trust_annotations": entry.trust_annotations,
            "credentials": entry.credentials,
            "enabled_tools": entry.enabled_tools,
            "disabled_tools": entry.disabled_tools,
        }
        remote = transport != "stdio"
        form = (entry.auth.type, entry.auth.grant) if entry.auth else ()
        if entry.credentials == "user" and form != ("oauth", "authorization_code"):
            text = '"user" needs a login that users make: `auth: "oauth"`'
            self.errors.append(self._error("credentials", text))
        # All fields are read, so that all mistakes are reported at once.
        fields: dict[str, Callable[[], Any]] = {}
        if entry.auth is not None:
            auth = entry.auth
            fields["auth"] = lambda: self._auth(auth, remote)
        if remote:
            fields["url"] = lambda: self._url(entry.url)
            fields["headers"] = lambda: self._map("headers", entry.headers, _header_fault)
        else:
            fields["command"] = lambda: self._file("command", entry.command)
            fields["args"] = lambda: self._args(entry.args)
            fields["env"] = lambda: self._env(entry)
            if entry.cwd is not None:
                fields["cwd"] = lambda: self._file("cwd", entry.cwd)
        bad = [error.path for error in self.errors]
        for name, make in fields.items():
            place = join(self._path, name)
            if any(path == place or path.startswith((f"{place}.", f"{place}[")) for path in bad):
                continue  # reported already
            try:
                values[name] = make()
            except ConfigurationError as error:
                self.errors.append(error)
        secrets = self._texts.secrets
        return ServerSettings(name=self._name, transport=transport, secrets=secrets, **values)

    # ---- Transport ----

    def _transport(self, url: JsonValue) -> Transport:
        named = [key for key in ("transport", "type") if key in self._members]
        chosen = {self._named_transport(key) for key in named}
        if len(chosen) > 1:
            raise self._error("type", "`type` contradicts `transport`; remove one of them")
        command = self._members.get("command")
        if chosen:
            (transport,) = chosen
        elif url is not None and command is not None:
            text = f"{self._path}: both command and url are set; choose one with `transport`"
            raise ConfigurationError(text, path=self._path)
        elif command is not None:
            return "stdio"
        elif url is not None:
            # By convention of older clients, a path that ends with /sse means SSE.
            address = url if isinstance(url, str) else ""
            is_sse = address.partition("?")[0].rstrip("/").endswith("/sse")
            return "sse" if is_sse else "streamable-http"
        else:
            wanted = ("command", *URL_KEYS)
            slips = ((key, nearest(key, wanted)) for key in list(self._members)[:MAX_COMPARED])
            found = (f"{key[:MAX_NAME]!r} (did you mean {near!r}?)" for key, near in slips if near)
            if slip := next(found, ""):
                raise wrong(self._path, "a command or a url", slip)
            text = "the entry has neither a `command` nor a `url`; it needs one of them"
            raise ConfigurationError(f"{self._path}: {text}", path=self._path)
        if (command if transport == "stdio" else url) is None:
            needed = "command" if transport == "stdio" else "url"
            expected = f"a {needed} for the transport {transport}"
            raise wrong(self._path, expected, f"no {needed}")
        return transport

    def _named_transport(self, key: str) -> Transport:
        value = self._members[key]
        known = TRANSPORTS.get(value.lower()) if isinstance(value, str) else None
        if known is None:
            found = show_plain(value, TRANSPORTS)
            raise wrong(join(self._path, key), '"stdio" or "streamable-http" or "sse"', found)
        return known

    # ---- Fields ----

    def _file(self, key: str, value: str | None) -> str:
        path = join(self._path, key)
        text = os.path.expanduser(self._texts.fill(path, value or ""))
        if not text:
            raise wrong(path, "a string that is not empty", kind_of(text))
        return text

    def _args(self, given: Sequence[str]) -> tuple[str, ...]:
        path = join(self._path, "args")
        args = tuple(self._texts.fill(f"{path}[{n}]", item) for n, item in enumerate(given))
        self._texts.hide(*secret_arguments(args))
        return args

    def _map(
        self, key: str, given: Mapping[str, str], fault: Callable[[str, str], str]
    ) -> dict[str, str]:
        made: dict[str, str] = {}
        for name, value in given.items():
            place = join(join(self._path, key), name)
            made[name] = self._texts.fill(place, value)
            if why := fault(name, made[name]):
                raise ConfigurationError(f"{place}: {why}", path=place)
            if key == "headers" or SECRETIVE.search(name):
                self._texts.hide(made[name])
                self._texts.hide(made[name].partition(" ")[2])  # the token after "Bearer"
        return made

    def _env(self, entry: ServerEntry) -> dict[str, str]:
        made = self._map("env", entry.env, _env_fault)
        if entry.env_file is None:
            return made
        file = self._around.folder / self._file("envFile", entry.env_file)
        try:
            added = self._texts.read_env_file(file)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "it is not UTF-8"
            raise self._error("envFile", f"the file cannot be read: {why}") from None
        return added | made

    def _url(self, value: str | None) -> str:
        path = join(self._path, "url")
        url = self._texts.fill(path, value or "")
        parsed = _split(url)
        if parsed is None:
            raise wrong(path, ADDRESS, kind_of(url))
        self._texts.hide(unquote(parsed.password or ""), parsed.password or "")
        for _, value in parse_qsl(parsed.query):
            self._texts.hide(value)
        return url

    def _auth(self, auth: AuthEntry, remote: bool) -> Auth:
        path = join(self._path, "auth")
        if not remote:
            raise self._error("auth", "auth needs a url; pass secrets to a command in `env`")
        texts: dict[str, Any] = {}
        for name, about in AuthEntry.model_fields.items():
            value = getattr(auth, name)
            if isinstance(value, str) and name not in ("type", "grant"):
                texts[name] = self._texts.fill(join(path, str(about.alias)), value)
                if name in ("token", "client_secret", "private_key"):
                    self._texts.hide(texts[name])
        if auth.type == "bearer":
            token = texts["token"].strip()
            if not token or not token.isprintable():
                raise wrong(join(path, "token"), "a token, such as ${TOKEN}", "no token")
            return Bearer(token=token)
        if "issuer" in texts and _split(texts["issuer"]) is None:
            raise wrong(join(path, "issuer"), ADDRESS, kind_of(texts["issuer"]))
        document = urlsplit(texts.get("client_metadata_url", "https://x/x"))
        if document.scheme != "https" or not document.path.strip("/"):
            expected = "an address with https:// and a path"
            raise wrong(join(path, "clientMetadataUrl"), expected, "a string")
        texts.pop("token", None)
        return OAuth(
            **texts, scopes=auth.scopes, grant=auth.grant, redirect_port=auth.redirect_port
        )

    def _error(self, key: str, text: str) -> ConfigurationError:
        path = join(self._path, key)
        return ConfigurationError(f"{path}: {text}", path=path)


def _split(url: str) -> SplitResult | None:
    try:
        parsed = urlsplit(url)
        good = parsed.scheme in ("http", "https") and parsed.hostname and parsed.port != 0
    except ValueError:
        return None
    return parsed if good and url.isprintable() and " " not in url else None


def _env_fault(name: str, value: str) -> str:
    return "invalid name of an environment variable" if not name or "=" in name else ""


def _header_fault(name: str, value: str) -> str:
    if not _HEADER.fullmatch(name):
        return "invalid name of a header"
    # A token that was read from a file often ends with a line break, which would end the header.
    return "the value contains a line break" if "\r" in value or "\n" in value else ""
