"""Which MCP servers there are and how to reach them, read from the shapes that people have.

Ours is `mcp.servers`; other clients write the same entries below `mcpServers`, or in a file of
their own below `servers`, and theirs are read as they stand. An entry has secrets in it: nothing
that is said about one quotes a value. Does not import the MCP library.
"""

import difflib
import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from clawmode.code_mode.config import ConfigWarning, UnknownKeys, join
from clawmode.config import file as config_file
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
from clawmode.text import printable
from clawmode.tools.rules import safe_server_name
from clawmode.types import JsonValue

TRANSPORTS: dict[str, Transport] = {
    "stdio": "stdio",
    "streamable-http": "streamable-http",
    "sse": "sse",
    # What others call them.
    "local": "stdio",
    "http": "streamable-http",
    "streamablehttp": "streamable-http",
    "streamable_http": "streamable-http",
    "remote": "streamable-http",
}

TIMEOUTS_MS = (100, 3_600_000)

MAX_NAME = 64
MAX_COMPARED = 1_000
"""Keys of other clients that are looked at for slips of the pen: that takes its time."""

MIN_SECRET = 6
"""A shorter value would be struck out of every second word, and was no secret."""

URL_KEYS = ("url", "serverUrl", "httpUrl")
"""The first is ours, the others are what some clients write instead."""

KEYS = (
    *("command", "args", "env", "cwd", "url", "headers", "transport", "type", "auth"),
    *("timeoutMs", "connectTimeoutMs", "enabled", "disabled", "trustAnnotations"),
)
AUTH_KEYS = (
    *("type", "token", "clientId", "clientSecret", "scopes", "grant", "issuer", "redirectPort"),
)

FOREIGN = frozenset({"oauth", "timeout"})
"""What looks like a slip of the pen for a key of ours, and is a key of other clients."""

_VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_]\w*)(?::-([^}]*))?\}", re.ASCII)
_UNKNOWN_EXPRESSION = re.compile(r"\$\{([^}]{0,40})")
_WORD = re.compile(r"[A-Za-z_-]{1,24}")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


@dataclass(slots=True)
class McpConfig:
    """The servers that were configured, and all that is to say about them.

    Attributes:
        servers: Those that can be used.
        errors: What is wrong with sections and entries.
        broken: The entries among them, as servers that are never connected and say why.
        warnings: What has no effect, or not the one that was meant.
    """

    servers: list[ServerSettings] = field(default_factory=list)
    errors: list[ConfigurationError] = field(default_factory=list)
    broken: dict[str, ConfigurationError] = field(default_factory=dict)
    warnings: list[ConfigWarning] = field(default_factory=list)

    def unwrap(self) -> list[ServerSettings]:
        """The servers; raises the first error."""
        if self.errors:
            raise self.errors[0]
        return self.servers

    @property
    def fatal(self) -> list[ConfigurationError]:
        """The errors that are not about one entry."""
        return [error for error in self.errors if error not in self.broken.values()]

    def with_broken_entries(self) -> list[ServerSettings]:
        """The servers, and in place of each broken entry one that says what is wrong with it."""
        faulty = [
            ServerSettings(name=name, transport="stdio", fault=f"cannot be used: {error}")
            for name, error in self.broken.items()
            if all(name != server.name for server in self.servers)
        ]
        return [*self.servers, *faulty]


# ---- Reading ----


def load(path: str | Path, environment: Mapping[str, str] | None = None) -> McpConfig:
    """Reads a file, ours or another client's: JSON, or JSON5.

    Errors and warnings name the file and the line.

    Raises:
        ConfigurationError: It cannot be read, or is not a JSON5 object.
    """
    try:
        file = config_file.load(path)
    except ConfigurationError as error:
        # The rest of the text is the line itself, and a token may stand in it.
        text = str(error).partition("\n")[0]
        raise ConfigurationError(text, line=error.line, column=error.column) from None
    reader = _Reader(os.environ if environment is None else environment)
    reader.read_sections(file.data, ("mcpServers", "servers"))
    if not reader.sections:
        text = f"{file.path}: no servers in this file: expected mcpServers{_other_shape(file.data)}"
        raise ConfigurationError(text, expected="mcpServers")
    if not reader.found.servers and not reader.found.errors:
        reader.found.warnings.append(ConfigWarning("mcpServers", "no servers in this file"))
    if file.document is None:
        return reader.found
    located = _Located(str(file.path), config_file.Locator(file.document))
    found = reader.found
    errors = {id(error): located.error(error) for error in found.errors}
    return McpConfig(
        found.servers,
        list(errors.values()),
        {name: errors[id(error)] for name, error in found.broken.items()},
        [located.warning(warning) for warning in found.warnings],
    )


def _other_shape(data: Mapping[str, JsonValue]) -> str:
    """What to do with a file that has its servers somewhere else."""
    if any(_is_entry(value) for value in data.values()):
        return '; put its entries into {"mcpServers": {...}}'
    for key, value in itertools.islice(data.items(), MAX_COMPARED):
        if isinstance(value, dict) and any(map(_is_entry, value.values())):
            return f"; the servers seem to be in {key[:MAX_NAME]!r}"
    near = difflib.get_close_matches("mcpServers", list(data)[:MAX_COMPARED], n=1)
    return f"; found {near[0]!r}" if near else ""


def _is_entry(value: JsonValue) -> bool:
    return isinstance(value, dict) and any(key in value for key in ("command", *URL_KEYS))


def read(data: Mapping[str, JsonValue], environment: Mapping[str, str] | None = None) -> McpConfig:
    """Reads a whole configuration: the servers of `mcp.servers` and of `mcpServers`."""
    reader = _Reader(os.environ if environment is None else environment)
    reader.read_sections(data, ("mcpServers",))
    return reader.found


def read_servers(
    value: JsonValue,
    environment: Mapping[str, str] | None = None,
    *,
    path: str = "mcp_servers",
) -> McpConfig:
    """Reads a map from names to servers."""
    reader = _Reader(os.environ if environment is None else environment)
    reader.read_servers(_Part(path, value), ours=True)
    return reader.found


@dataclass(frozen=True, slots=True)
class _Part:
    """A value of the configuration and its path. What it is may be told, not its value."""

    path: str
    value: JsonValue

    def members(self) -> "dict[str, _Part]":
        assert isinstance(self.value, dict)
        return {key: _Part(join(self.path, key), item) for key, item in self.value.items()}

    def wrong(self, expected: str, found: str = "") -> ConfigurationError:
        text = f"{self.path}: found {found or _kind(self.value)}, expected {expected}"
        return ConfigurationError(text, path=self.path, expected=expected)

    def refuse(self, message: str) -> ConfigurationError:
        return ConfigurationError(f"{self.path}: {message}", path=self.path)


def _kind(value: JsonValue) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    kinds: dict[type, str] = {str: "a string", list: "a list", dict: "an object"}
    return "an empty string" if value == "" else kinds.get(type(value), "a number")


class _Reader:
    """Reads entries; faults go to `found`, and the entry that has one is left out."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.found = McpConfig()
        self.sections = 0
        self._unknown = UnknownKeys(self.found.warnings)
        self._compared = 0
        self._environment = environment
        self._taken: dict[str, _Part] = {}

    def read_sections(self, data: Mapping[str, JsonValue], theirs: tuple[str, ...]) -> None:
        """Reads our own section, and those of other clients."""
        whole = _Part("", dict(data)).members()
        if "mcp" in whole:
            self._read_ours(whole["mcp"])
        for key in theirs:
            if key in whole:
                self.read_servers(whole[key], ours=False)

    def _read_ours(self, mcp: _Part) -> None:
        if not isinstance(mcp.value, dict):
            self.found.errors.append(mcp.wrong("an object with `servers`"))
            return
        members = mcp.members()
        self._tell_unknown(members, ("servers",), ours=False)
        if "servers" in members:
            self.read_servers(members["servers"], ours=True)

    def read_servers(self, section: _Part, *, ours: bool) -> None:
        """Reads the entries of one section."""
        self.sections += 1
        if not isinstance(section.value, dict):
            self.found.errors.append(section.wrong("an object: from names to servers"))
            return
        for name, entry in section.members().items():
            try:
                self._check_name(name, entry)
                settings = _Entry(name, entry, self._environment).read()
            except ConfigurationError as error:
                self.found.errors.append(error)
                self.found.broken[self._shown(name, entry)] = error
                continue
            members = entry.members()
            self._tell_unknown(members, KEYS, ours=ours)
            auth = members.get("auth")
            if auth is not None and isinstance(auth.value, dict):
                self._tell_unknown(auth.members(), AUTH_KEYS, ours=True)
            self.found.warnings += _warnings(members, settings)
            self.found.servers.append(settings)

    def _tell_unknown(
        self, members: Mapping[str, _Part], known: tuple[str, ...], *, ours: bool
    ) -> None:
        """In our own section every unknown key; in another's, what looks like a slip of the pen."""
        for key, part in members.items():
            if key in known or key in URL_KEYS or (not ours and key in FOREIGN):
                continue
            if ours or self._is_slip(key, known):
                self._unknown.tell(part.path, key, dict.fromkeys(known))

    def _is_slip(self, key: str, known: tuple[str, ...]) -> bool:
        self._compared += 1
        if self._compared > MAX_COMPARED:
            return False
        by_lower = [it.lower() for it in known]
        return bool(difflib.get_close_matches(key.lower()[:100], by_lower, cutoff=0.8))

    def _shown(self, name: str, entry: _Part) -> str:
        """What a broken entry is called: by its path, if its name is bad or another server's."""
        if self._taken.get(_policy_name(name)) is entry:
            return name
        return printable(entry.path, "?")[:MAX_NAME]

    def _check_name(self, name: str, entry: _Part) -> None:
        # A colon separates the parts of a tool's id: with one, two servers could share an id.
        if not name or len(name) > MAX_NAME or ":" in name or not name.isprintable():
            rule = f"a name of 1 to {MAX_NAME} printable characters without a colon"
            raise entry.wrong(rule, f"the name {name[:MAX_NAME]!r}")
        if (other := self._taken.setdefault(_policy_name(name), entry)) is not entry:
            raise entry.refuse(f"a policy could not tell it from {other.path}: rename one of them")


class _Entry:
    """One server's entry.

    Raises:
        ConfigurationError: From everything here: something cannot be meant.
    """

    def __init__(self, name: str, entry: _Part, environment: Mapping[str, str]) -> None:
        if not isinstance(entry.value, dict):
            raise entry.wrong("an object with a command or a url")
        self._name = name
        self._entry = entry
        self._members = {key: it for key, it in entry.members().items() if it.value is not None}
        self._environment = environment
        self._secrets: set[str] = set()

    def read(self) -> ServerSettings:
        transport = self._transport()
        if not self._is_enabled():
            # Its variables need not be set.
            return ServerSettings(name=self._name, transport=transport, enabled=False)
        remote = transport != "stdio"
        command = "" if remote else os.path.expanduser(self._text("command"))
        args = () if remote else self._args()
        url = self._url() if remote else ""
        return ServerSettings(
            name=self._name,
            transport=transport,
            command=command,
            args=args,
            env={} if remote else self._map("env", _env_fault),
            cwd=None if remote else self._cwd(),
            url=url,
            headers=self._map("headers", _header_fault) if remote else {},
            auth=self._auth(remote),
            timeout=self._seconds("timeoutMs", DEFAULT_TIMEOUT_MS),
            connect_timeout=self._seconds("connectTimeoutMs", DEFAULT_CONNECT_TIMEOUT_MS),
            trust_annotations=self._flag("trustAnnotations", default=False),
            # The longest first: one may be a part of another.
            secrets=tuple(sorted(self._secrets, key=lambda it: (-len(it), it))),
        )

    # ---- Which kind ----

    def _transport(self) -> Transport:
        said = [self._members[key] for key in ("transport", "type") if key in self._members]
        chosen = {self._spelt(part) for part in said}
        if len(chosen) > 1:
            raise said[1].refuse("it says another kind of transport than `transport` does")
        url, command = self._url_part(), self._members.get("command")
        if chosen:
            (transport,) = chosen
        elif url is not None and command is not None:
            raise self._entry.refuse("it has a command and a url; say which with `transport`")
        elif command is not None:
            return "stdio"
        elif url is not None:
            return "sse" if _looks_like_sse(url) else "streamable-http"
        else:
            raise self._entry.wrong("a command or a url", self._slip())
        if (command if transport == "stdio" else url) is None:
            needed = "command" if transport == "stdio" else "url"
            raise self._entry.wrong(f"a {needed} for the transport {transport}", f"no {needed}")
        return transport

    def _slip(self) -> str:
        """What stands in the place of a command or a url."""
        for key in list(self._members)[:MAX_COMPARED]:
            wanted = ("command", *URL_KEYS)
            if near := difflib.get_close_matches(key.lower()[:MAX_NAME], wanted, n=1, cutoff=0.7):
                return f"{key[:MAX_NAME]!r} (did you mean {near[0]!r}?)"
        return "neither"

    @staticmethod
    def _spelt(part: _Part) -> Transport:
        known = TRANSPORTS.get(part.value.lower()) if isinstance(part.value, str) else None
        if known is None:
            word = isinstance(part.value, str) and _WORD.fullmatch(part.value)
            found = repr(part.value) if word else ""  # anything else might be a secret
            raise part.wrong('"stdio" or "streamable-http" or "sse"', found)
        return known

    def _is_enabled(self) -> bool:
        enabled = self._flag("enabled", default=True)
        disabled = self._flag("disabled", default=not enabled)
        if enabled == disabled and "enabled" in self._members:
            raise self._members["disabled"].refuse("`enabled` says the opposite")
        return not disabled

    # ---- Fields ----

    def _flag(self, key: str, *, default: bool) -> bool:
        part = self._members.get(key)
        if part is None:
            return default
        if not isinstance(part.value, bool):
            raise part.wrong("true or false")
        return part.value

    def _seconds(self, key: str, default: int) -> float:
        part = self._members.get(key)
        if part is None:
            return default / 1000
        low, high = TIMEOUTS_MS
        value = part.value
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise part.wrong(f"milliseconds, {low} to {high}")
        return min(max(value, low), high) / 1000

    def _text(self, key: str) -> str:
        part = self._members.get(key) or _Part(join(self._entry.path, key), None)
        text = self._string(part)
        if not text:
            raise part.wrong("a string that is not empty")
        return text

    def _args(self) -> tuple[str, ...]:
        part = self._members.get("args") or _Part("", [])
        if not isinstance(part.value, list):
            raise part.wrong("a list of strings")
        parts = [_Part(f"{part.path}[{n}]", item) for n, item in enumerate(part.value)]
        args = tuple(self._string(each) for each in parts)
        self._hide(*secret_arguments(args))
        return args

    def _map(self, key: str, fault: Callable[[str, str], str]) -> dict[str, str]:
        part = self._members.get(key) or _Part("", {})
        if not isinstance(part.value, dict):
            raise part.wrong("an object: from names to strings")
        made: dict[str, str] = {}
        for name, member in part.members().items():
            made[name] = self._string(member)
            if why := fault(name, made[name]):
                raise member.refuse(why)
            if key == "headers" or SECRETIVE.search(name):
                self._hide(made[name])
                self._hide(made[name].partition(" ")[2])  # what follows `Bearer`
        return made

    def _cwd(self) -> str | None:
        return os.path.expanduser(self._text("cwd")) if "cwd" in self._members else None

    def _url_part(self) -> _Part | None:
        return next((self._members[key] for key in URL_KEYS if key in self._members), None)

    def _url(self) -> str:
        part = self._url_part()
        assert part is not None
        url = self._string(part)
        parsed = _split(url)
        if parsed is None:
            raise part.wrong("an address that begins with http:// or https://")
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
            raise part.refuse("a server that is started here has no use for it; see `env`")
        if part.value == "oauth":
            return OAuth()
        if not isinstance(part.value, dict):
            raise part.wrong('"oauth", {type: "bearer", token: ...} or {type: "oauth", ...}')
        members = part.members()
        kind = members.get("type") or _Part(join(part.path, "type"), None)
        if kind.value == "bearer":
            return self._bearer(part, members)
        if kind.value == "oauth":
            return self._oauth(members)
        raise kind.wrong('"bearer" or "oauth"')

    def _bearer(self, part: _Part, members: dict[str, _Part]) -> Bearer:
        token = members.get("token") or _Part(join(part.path, "token"), None)
        text = self._string(token).strip()
        if not text or not text.isprintable():
            raise token.wrong("a token, such as ${TOKEN}")
        self._hide(text)
        return Bearer(token=text)

    def _oauth(self, members: dict[str, _Part]) -> OAuth:
        texts = {
            key: self._string(members[key])
            for key in ("clientId", "clientSecret", "grant", "issuer")
            if key in members
        }
        self._hide(texts.get("clientSecret", ""))
        grant = texts.get("grant", "authorization_code")
        if grant not in ("authorization_code", "client_credentials"):
            raise members["grant"].wrong('"authorization_code" or "client_credentials"')
        needed = ("clientId", "clientSecret", "issuer")
        if grant == "client_credentials" and not all(map(texts.get, needed)):
            raise members["grant"].refuse(f"client_credentials needs {', '.join(needed)}")
        if "issuer" in texts and _split(texts["issuer"]) is None:
            raise members["issuer"].wrong("an address that begins with http:// or https://")
        port = members.get("redirectPort") or _Part("", 0)
        if type(port.value) is not int or not 0 <= port.value < 65_536:
            raise port.wrong("a port number")
        return OAuth(
            client_id=texts.get("clientId"),
            client_secret=texts.get("clientSecret"),
            scopes=self._scopes(members.get("scopes") or _Part("", [])),
            grant=grant,
            issuer=texts.get("issuer"),
            redirect_port=port.value,
        )

    def _scopes(self, part: _Part) -> tuple[str, ...]:
        words = part.value.split() if isinstance(part.value, str) else part.value
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise part.wrong("a list of strings")
        return tuple(map(str, words))

    # ---- Variables and secrets ----

    def _string(self, part: _Part) -> str:
        """The text with its variables filled in, whose values are secrets from then on."""
        if not isinstance(part.value, str):
            raise part.wrong("a string")

        def fill(found: re.Match[str]) -> str:
            name, default = found.groups()
            value = self._environment.get(name)
            if value or (value is not None and default is None):
                self._hide(value)
                return value
            if default is None:
                raise part.refuse(
                    f"the environment variable {name} of server {self._name!r} is not set; "
                    f"set it, or write ${{{name}:-default}}"
                )
            return default

        for unknown in _UNKNOWN_EXPRESSION.finditer(_VARIABLE.sub("", part.value)):
            word = re.match(r"\w*", unknown[1])
            assert word is not None
            raise part.refuse(
                f"${{{word[0]}...}} of server {self._name!r} is not known here; "
                "write ${VARIABLE} or ${VARIABLE:-default}"
            )
        text = _VARIABLE.sub(fill, part.value)
        if "\0" in text:
            raise part.refuse("there is a NUL character in it")
        return text

    def _hide(self, *values: str) -> None:
        self._secrets.update(it for it in (v.strip() for v in values) if len(it) >= MIN_SECRET)


def secret_arguments(args: Sequence[str]) -> Iterator[str]:
    """The arguments of a command that look like secrets: what a flag such as `--token` takes."""
    for flag, following in itertools.zip_longest(args, args[1:], fillvalue=""):
        name, equals, value = flag.partition("=")
        if SECRETIVE.search(name) and (name.startswith("-") or equals):
            yield value if equals else following


def _policy_name(name: str) -> str:
    return safe_server_name(name).casefold()


def _split(url: str) -> SplitResult | None:
    try:
        parsed = urlsplit(url)
        good = parsed.scheme in ("http", "https") and parsed.hostname and parsed.port != 0
    except ValueError:
        return None
    return parsed if good and url.isprintable() and " " not in url else None


def _looks_like_sse(part: _Part) -> bool:
    """By custom: before `type` was written, the old transport was known by its path."""
    url = part.value if isinstance(part.value, str) else ""
    return url.partition("?")[0].rstrip("/").endswith("/sse")


def _env_fault(name: str, value: str) -> str:
    return "this cannot be the name of a variable" if not name or "=" in name else ""


def _header_fault(name: str, value: str) -> str:
    if not _HEADER.fullmatch(name):
        return "this cannot be the name of a header"
    # A token that was read from a file often ends with one, and it would end the header.
    return "there is a line break in its value" if "\r" in value or "\n" in value else ""


# ---- What is worth a look ----


def _warnings(members: Mapping[str, _Part], settings: ServerSettings) -> Iterator[ConfigWarning]:
    for key in ("timeoutMs", "connectTimeoutMs"):
        value = members[key].value if key in members else None
        low, high = TIMEOUTS_MS
        if isinstance(value, int | float) and not low <= value <= high:
            used = low if value < low else high
            yield ConfigWarning(members[key].path, f"is not within {low} to {high}: {used} is used")
    url = urlsplit(settings.url)
    if url.scheme == "http" and (settings.headers or settings.auth) and not _is_local(url):
        place = next(members[key].path for key in URL_KEYS if key in members)
        yield ConfigWarning(place, "headers are sent without encryption; write https://")


def _is_local(url: SplitResult) -> bool:
    return url.hostname in ("localhost", "127.0.0.1", "::1")


# ---- Where it stands ----


@dataclass(frozen=True, slots=True)
class _Located:
    """Tells of settings with their file and line."""

    name: str
    places: config_file.Locator

    def warning(self, warning: ConfigWarning) -> ConfigWarning:
        line, _ = self.places.find(warning.path)
        return replace(warning, path=f"{self.name}:{line}: {warning.path}")

    def error(self, error: ConfigurationError) -> ConfigurationError:
        line, column = self.places.find(error.path)
        return ConfigurationError(
            f"{self.name}:{line}: {error}",
            path=error.path,
            expected=error.expected,
            line=line,
            column=column,
        )
