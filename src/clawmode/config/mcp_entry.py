"""Reads one MCP server's entry of the configuration into `ServerSettings`.

Entries contain secrets: no error quotes a value. Does not import the MCP library.
"""

import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from clawmode.exceptions import ConfigurationError
from clawmode.mcp.settings import (
    DEFAULT_CONNECT_TIMEOUT_MS,
    DEFAULT_TIMEOUT_MS,
    SECRETIVE,
    Auth,
    Bearer,
    OAuth,
    ServerSettings,
    Transport,
)
from clawmode.records import (
    join,
)
from clawmode.text import kind_of, nearest
from clawmode.types import JsonValue

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

TIMEOUTS_MS = (100, 3_600_000)

MAX_NAME = 64
MAX_COMPARED = 1_000
"""The maximum number of unknown keys that are compared with known keys, which is slow."""

MIN_SECRET = 6
"""Shorter values are not redacted: they are hardly secrets, and occur in ordinary words."""

URL_KEYS = ("url", "serverUrl", "httpUrl")
"""Our key, and the keys that some other clients use instead."""

_VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_]\w*)(?::-([^}]*))?\}", re.ASCII)
_UNKNOWN_EXPRESSION = re.compile(r"\$\{([^}]{0,40})")
_WORD = re.compile(r"[A-Za-z_-]{1,24}")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


@dataclass(frozen=True, slots=True)
class Part:
    """A value of the configuration with its path. Errors name its type, never the value."""

    path: str
    value: JsonValue

    def members(self) -> "dict[str, Part]":
        assert isinstance(self.value, dict)
        return {key: Part(join(self.path, key), item) for key, item in self.value.items()}

    def mismatch(self, expected: str, found: str = "") -> ConfigurationError:
        text = f"{self.path}: found {found or kind_of(self.value)}, expected {expected}"
        return ConfigurationError(text, path=self.path, expected=expected)

    def error(self, message: str) -> ConfigurationError:
        return ConfigurationError(f"{self.path}: {message}", path=self.path)


class Entry:
    """The entry of one server.

    Args:
        name: The name of the server.
        entry: The value in the configuration.
        environment: The variables that the entry may use.
        errors: Receives the errors of single fields. An entry with errors must not be used.

    Raises:
        ConfigurationError: The entry is not an object, or its transport is not clear.
    """

    def __init__(
        self,
        name: str,
        entry: Part,
        environment: Mapping[str, str],
        errors: list[ConfigurationError],
    ) -> None:
        if not isinstance(entry.value, dict):
            raise entry.mismatch("an object with a command or a url")
        self._name = name
        self._entry = entry
        self._members = {
            key: part for key, part in entry.members().items() if part.value is not None
        }
        self._environment = environment
        self._errors = errors
        self._secrets: set[str] = set()

    def read(self) -> ServerSettings:
        transport = self._transport()
        if not self._is_enabled():
            # The variables of a disabled server need not be set.
            return ServerSettings(name=self._name, transport=transport, enabled=False)
        remote = transport != "stdio"
        # All fields are read, so that all mistakes are reported at once.
        fields: dict[str, Callable[[], Any]] = {
            "timeout": lambda: self._seconds("timeoutMs", DEFAULT_TIMEOUT_MS),
            "connect_timeout": lambda: self._seconds(
                "connectTimeoutMs", DEFAULT_CONNECT_TIMEOUT_MS
            ),
            "trust_annotations": lambda: self._flag("trustAnnotations", default=False),
            "auth": lambda: self._auth(remote),
        }
        if remote:
            fields |= {"url": self._url, "headers": lambda: self._map("headers", _header_fault)}
        else:
            fields |= {"command": lambda: os.path.expanduser(self._text("command"))}
            fields |= {"args": self._args, "env": lambda: self._map("env", _env_fault)}
            if "cwd" in self._members:
                fields["cwd"] = lambda: os.path.expanduser(self._text("cwd"))
        values: dict[str, Any] = {}
        for name, read in fields.items():
            try:
                values[name] = read()
            except ConfigurationError as error:
                self._errors.append(error)
        # Longest first, because a secret may contain another one.
        secrets = tuple(sorted(self._secrets, key=lambda secret: (-len(secret), secret)))
        return ServerSettings(name=self._name, transport=transport, secrets=secrets, **values)

    # ---- Transport ----

    def _transport(self) -> Transport:
        named = [self._members[key] for key in ("transport", "type") if key in self._members]
        chosen = {self._named_transport(part) for part in named}
        if len(chosen) > 1:
            raise named[1].error("`type` contradicts `transport`; remove one of them")
        url, command = self._url_part(), self._members.get("command")
        if chosen:
            (transport,) = chosen
        elif url is not None and command is not None:
            raise self._entry.error("both command and url are set; choose one with `transport`")
        elif command is not None:
            return "stdio"
        elif url is not None:
            # By convention of older clients, a path that ends with /sse means SSE.
            address = url.value if isinstance(url.value, str) else ""
            is_sse = address.partition("?")[0].rstrip("/").endswith("/sse")
            return "sse" if is_sse else "streamable-http"
        else:
            wanted = ("command", *URL_KEYS)
            slips = ((key, nearest(key, wanted)) for key in list(self._members)[:MAX_COMPARED])
            found = (f"{key[:MAX_NAME]!r} (did you mean {near!r}?)" for key, near in slips if near)
            raise self._entry.mismatch("a command or a url", next(found, "neither"))
        if (command if transport == "stdio" else url) is None:
            needed = "command" if transport == "stdio" else "url"
            raise self._entry.mismatch(f"a {needed} for the transport {transport}", f"no {needed}")
        return transport

    @staticmethod
    def _named_transport(part: Part) -> Transport:
        known = TRANSPORTS.get(part.value.lower()) if isinstance(part.value, str) else None
        if known is None:
            word = isinstance(part.value, str) and _WORD.fullmatch(part.value)
            found = repr(part.value) if word else ""  # a longer text may be a secret
            raise part.mismatch('"stdio" or "streamable-http" or "sse"', found)
        return known

    def _is_enabled(self) -> bool:
        enabled = self._flag("enabled", default=True)
        disabled = self._flag("disabled", default=not enabled)
        if enabled == disabled and "enabled" in self._members:
            raise self._members["disabled"].error(
                "`disabled` contradicts `enabled`; remove one of them"
            )
        return not disabled

    # ---- Fields ----

    def _flag(self, key: str, *, default: bool) -> bool:
        part = self._members.get(key)
        if part is None:
            return default
        if not isinstance(part.value, bool):
            raise part.mismatch("true or false")
        return part.value

    def _seconds(self, key: str, default: int) -> float:
        part = self._members.get(key)
        if part is None:
            return default / 1000
        low, high = TIMEOUTS_MS
        value = part.value
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise part.mismatch(f"milliseconds, {low} to {high}")
        return min(max(value, low), high) / 1000

    def _text(self, key: str) -> str:
        part = self._members.get(key) or Part(join(self._entry.path, key), None)
        text = self._string(part)
        if not text:
            raise part.mismatch("a string that is not empty")
        return text

    def _args(self) -> tuple[str, ...]:
        part = self._members.get("args") or Part("", [])
        if not isinstance(part.value, list):
            raise part.mismatch("a list of strings")
        parts = [Part(f"{part.path}[{n}]", item) for n, item in enumerate(part.value)]
        args = tuple(map(self._string, parts))
        self._hide(*secret_arguments(args))
        return args

    def _map(self, key: str, fault: Callable[[str, str], str]) -> dict[str, str]:
        part = self._members.get(key) or Part("", {})
        if not isinstance(part.value, dict):
            raise part.mismatch("an object that maps names to strings")
        made: dict[str, str] = {}
        for name, member in part.members().items():
            made[name] = self._string(member)
            if why := fault(name, made[name]):
                raise member.error(why)
            if key == "headers" or SECRETIVE.search(name):
                self._hide(made[name])
                self._hide(made[name].partition(" ")[2])  # the token after "Bearer"
        return made

    def _url_part(self) -> Part | None:
        return next((self._members[key] for key in URL_KEYS if key in self._members), None)

    def _url(self) -> str:
        part = self._url_part()
        assert part is not None
        url = self._string(part)
        parsed = _split(url)
        if parsed is None:
            raise part.mismatch("an address that begins with http:// or https://")
        self._hide(unquote(parsed.password or ""), parsed.password or "")
        for _, value in parse_qsl(parsed.query):
            self._hide(value)
        return url

    # ---- Auth ----

    def _auth(self, remote: bool) -> Auth | None:
        part = self._members.get("auth")
        if part is None:
            return None
        if not remote:
            raise part.error("auth needs a url; pass secrets to a command in `env`")
        if part.value == "oauth":
            return OAuth()
        if not isinstance(part.value, dict):
            raise part.mismatch('"oauth", {type: "bearer", token: ...} or {type: "oauth", ...}')
        members = part.members()
        kind = members.get("type") or Part(join(part.path, "type"), None)
        if kind.value == "bearer":
            return self._bearer(part, members)
        if kind.value == "oauth":
            return self._oauth(members)
        raise kind.mismatch('"bearer" or "oauth"')

    def _bearer(self, part: Part, members: dict[str, Part]) -> Bearer:
        token = members.get("token") or Part(join(part.path, "token"), None)
        text = self._string(token).strip()
        if not text or not text.isprintable():
            raise token.mismatch("a token, such as ${TOKEN}")
        self._hide(text)
        return Bearer(token=text)

    def _oauth(self, members: dict[str, Part]) -> OAuth:
        texts = {
            key: self._string(members[key])
            for key in ("clientId", "clientSecret", "grant", "issuer")
            if key in members
        }
        self._hide(texts.get("clientSecret", ""))
        grant = texts.get("grant", "authorization_code")
        if grant not in ("authorization_code", "client_credentials"):
            raise members["grant"].mismatch('"authorization_code" or "client_credentials"')
        needed = ("clientId", "clientSecret", "issuer")
        if grant == "client_credentials" and not all(map(texts.get, needed)):
            raise members["grant"].error(f"client_credentials needs {', '.join(needed)}")
        if "issuer" in texts and _split(texts["issuer"]) is None:
            raise members["issuer"].mismatch("an address that begins with http:// or https://")
        port = members.get("redirectPort") or Part("", 0)
        if type(port.value) is not int or not 0 <= port.value < 65_536:
            raise port.mismatch("a port number")
        return OAuth(
            client_id=texts.get("clientId"),
            client_secret=texts.get("clientSecret"),
            scopes=self._scopes(members.get("scopes") or Part("", [])),
            grant=grant,
            issuer=texts.get("issuer"),
            redirect_port=port.value,
        )

    def _scopes(self, part: Part) -> tuple[str, ...]:
        words = part.value.split() if isinstance(part.value, str) else part.value
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise part.mismatch("a list of strings")
        return tuple(map(str, words))

    # ---- Variables and secrets ----

    def _string(self, part: Part) -> str:
        """Returns a string with its variables replaced. Their values are secrets."""
        if not isinstance(part.value, str):
            raise part.mismatch("a string")

        def fill(match: re.Match[str]) -> str:
            name, default = match.groups()
            value = self._environment.get(name)
            if value or (value is not None and default is None):
                self._hide(value)
                return value
            if default is None:
                raise part.error(
                    f"the environment variable {name} of server {self._name!r} is not set; "
                    f"set it, or use ${{{name}:-default}}"
                )
            return default

        for unknown in _UNKNOWN_EXPRESSION.finditer(_VARIABLE.sub("", part.value)):
            word = re.match(r"\w*", unknown[1])
            assert word is not None
            raise part.error(
                f"${{{word[0]}...}} of server {self._name!r} is not supported; "
                "use ${VARIABLE} or ${VARIABLE:-default}"
            )
        text = _VARIABLE.sub(fill, part.value)
        if "\0" in text:
            raise part.error("the string contains a NUL character")
        return text

    def _hide(self, *values: str) -> None:
        stripped = (value.strip() for value in values)
        self._secrets.update(value for value in stripped if len(value) >= MIN_SECRET)


def secret_arguments(args: Sequence[str]) -> Iterator[str]:
    """Yields the arguments of a command that are values of a flag such as `--token`."""
    for flag, following in itertools.zip_longest(args, args[1:], fillvalue=""):
        name, equals, value = flag.partition("=")
        if SECRETIVE.search(name) and (name.startswith("-") or equals):
            yield value if equals else following


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
