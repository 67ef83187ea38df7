"""The file `clawmode.json5`: finding and parsing it, locating settings, `${VARIABLE}` in values.

`config.resolve` and `config.mcp` read the sections of the file.
"""

import bisect
import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path

import platformdirs

from clawmode.config import json5
from clawmode.config.trust import check_owner
from clawmode.exceptions import ConfigurationError, ConfigWarning
from clawmode.redaction import hide_keys
from clawmode.text import show_plain
from clawmode.types import JsonValue, dataclass

NAME = "clawmode.json5"
VARIABLE = "CLAWMODE_CONFIG"
HERE = Path()
MAX_SIZE = 1 << 20

_LINE_BREAK = re.compile(r"\r\n|\r|\n")
_VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_]\w*)\}", re.ASCII)
_TOML_NAME = r"""[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*'"""
_TOML_LINE = re.compile(
    rf"[ \t]*(?:\[(?P<table>[^\[\]]+)\]|(?P<key>(?:{_TOML_NAME})(?:\s*\.\s*(?:{_TOML_NAME}))*)\s*=)"
)
_PART = re.compile(r"""([A-Za-z_$][A-Za-z0-9_$]*)|\[(\d+)\]|\[("(?:[^"\\]|\\.)*")\]""")

# Matches names of secrets, and long words with digits, which may be secrets themselves.
_SECRETIVE = re.compile(
    r"(?i:key|token|secret|pass|credential|auth|cookie|bearer|pwd|header|\benv\b)"
    r"|(?=[\w+/=.-]*\d)[\w+/=.-]{20}"
)


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A parsed configuration file. Without a file, `data` is empty.

    Attributes:
        digest: SHA-256 of the file's bytes, in hexadecimal digits.
        unnamed: True if the file was found in the working folder and the user did not name it.
    """

    data: dict[str, JsonValue]
    path: Path | None = None
    document: json5.Document | None = field(default=None, repr=False)
    digest: str = ""
    unnamed: bool = False


@dataclass(frozen=True, slots=True)
class Problem:
    """An error or a warning, with its place in the file.

    Attributes:
        path: The setting; empty if the problem is about the whole file.
        line: Counted from 1; line and column are 0 if unknown.
        text: The whole message, with its place.
        column: In characters, from 1.
        what: The message without place and expected value.
        expected: The expected value; empty if `what` contains it.
    """

    path: str
    line: int
    text: str
    column: int = 0
    what: str = ""
    expected: str = ""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Report:
    """The problems of a configuration file. Errors keep commands from running."""

    path: Path | None
    errors: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)


# ---- Finding and reading ----


def find(explicit: str | Path | None = None, folder: Path = HERE) -> Path | None:
    """Returns the file to read, if any.

    That is `explicit`, or the file that `CLAWMODE_CONFIG` names, or the first existing file of
    `clawmode.json5` in the working folder, which is `folder`, and `clawmode/clawmode.json5` in the
    user's configuration folder.
    """
    named = os.environ.get(VARIABLE) if explicit is None else str(explicit)
    if named or explicit is not None:
        return Path(os.path.expanduser(named or ""))
    places = [folder / NAME]
    with contextlib.suppress(RuntimeError):  # the user has no home folder
        places.append(platformdirs.user_config_path("clawmode") / NAME)
    return next((path for path in places if _exists(path)), None)


def _exists(path: Path) -> bool:
    """True unless the file is known to be absent.

    A file that cannot be examined counts as present, so that reading it fails. If it were skipped,
    its restrictions would silently not apply.
    """
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def load(path: str | Path | None = None, folder: Path = HERE) -> ConfigFile:
    """Reads the file that `find` returns.

    Raises:
        ConfigurationError: The file cannot be read, another user can change it, or it is not a
            JSON5 object.
    """
    found = find(path, folder)
    if found is None:
        return ConfigFile({})
    unnamed = path is None and not os.environ.get(VARIABLE) and found == folder / NAME
    if unnamed and found.is_fifo():
        # A downloaded folder may contain a named pipe, and reading a pipe may block for ever.
        raise ConfigurationError(
            f"cannot read the configuration {found}: it is a named pipe; replace it by a file"
        )
    text, digest = _read(found)
    document = _parse_toml(text, found) if found.suffix == ".toml" else _parse(text, str(found))
    if not isinstance(document.value, dict):
        text = f"{found}:1:1: found {show_plain(document.value)}, expected an object: {{ ... }}"
        raise ConfigurationError(text, expected="an object", line=1, column=1)
    return ConfigFile(document.value, found, document, digest, unnamed)


def _parse(text: str, name: str) -> json5.Document:
    try:
        return json5.parse(text, name)
    except ConfigurationError as error:
        around = _LINE_BREAK.split(text)[max(error.line - 2, 0) : error.line]
        if not any(_SECRETIVE.search(line) or hide_keys(line) != line for line in around):
            raise
        message = str(error).partition("\n")[0]
        raise ConfigurationError(
            f"{message} (the line is not shown because it may contain a secret)",
            line=error.line,
            column=error.column,
        ) from None


def _parse_toml(text: str, path: Path) -> json5.Document:
    """Parses a file of another MCP client. Members of inline tables have no place of their own."""
    import tomllib  # takes long, and few commands read TOML

    try:
        value = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        # The message may quote a character of the file, and has the place at its end.
        found = re.search(r"at line (\d+), column (\d+)", str(error))
        line, column = map(int, found.groups()) if found else (text.count("\n") + 1, 1)
        message = f"{path}:{line}:{column}: the file is not valid TOML"
        raise ConfigurationError(message, line=line, column=column) from None

    def members() -> Iterator[tuple[json5.Parts, int]]:
        table: json5.Parts = ()
        start = 0
        for line in text.splitlines(keepends=True):
            if match := _TOML_LINE.match(line):
                names = re.findall(_TOML_NAME, match["table"] or match["key"])
                parts = tuple(name.strip("\"'") for name in names)
                table = parts if match["table"] else table
                place = start + len(line) - len(line.lstrip())
                yield (table if match["table"] else table + parts), place
            start += len(line)

    return json5.Document(text, value, dict(members()))


def _read(path: Path) -> tuple[str, str]:
    """Returns text and digest of a file."""
    try:
        with path.open("rb") as file:
            check_owner(path, os.fstat(file.fileno()))
            raw = file.read(MAX_SIZE + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigurationError(f"cannot read the configuration {path}: {reason}") from None
    if len(raw) > MAX_SIZE:
        raise ConfigurationError(f"{path}: the file is larger than {MAX_SIZE} bytes")
    try:
        return raw.decode("utf-8-sig"), hashlib.sha256(raw).hexdigest()
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        message = f"{path}:{line}: the file is not UTF-8: byte {error.start} is "
        raise ConfigurationError(f"{message}0x{raw[error.start]:02x}", line=line) from None


# ---- Reporting ----


def report(file: ConfigFile, issues: Sequence[ConfigurationError | ConfigWarning] = ()) -> Report:
    """Adds line and column to errors and warnings, sorts them, and removes repetitions."""
    if file.document is None or not issues:
        return Report(file.path)
    locator = Locator(file.document)
    unique = {str(issue): issue for issue in issues}
    located = sorted(
        ((_problem(file, issue, locator), issue) for issue in unique.values()),
        key=lambda pair: (pair[0].line, pair[0].column),
    )
    return Report(
        file.path,
        [problem for problem, issue in located if isinstance(issue, ConfigurationError)],
        [problem for problem, issue in located if isinstance(issue, ConfigWarning)],
    )


def unreadable(path: str | Path | None, error: ConfigurationError) -> Report:
    """Returns the report about a file that `load` rejected with an error."""
    found = find(path)
    what = str(error).partition("\n")[0].removeprefix(f"{found}:{error.line}:{error.column}: ")
    problem = Problem("", error.line, str(error), error.column, what, error.expected)
    return Report(found, [problem])


def _problem(
    file: ConfigFile, issue: ConfigurationError | ConfigWarning, locator: "Locator"
) -> Problem:
    line, column = locator.find(issue.path)
    expected = issue.expected if isinstance(issue, ConfigurationError) else ""
    what = str(issue).removeprefix(f"{issue.path}: ").removesuffix(f", expected {expected}")
    # An operator can paste a key into any place, also as the name of a model or as a key of JSON.
    path, text, what, expected = map(hide_keys, (issue.path, str(issue), what, expected))
    return Problem(path, line, f"{file.path}:{line}:{column}: {text}", column, what, expected)


class Locator:
    """Finds line and column of settings in a file."""

    def __init__(self, document: json5.Document) -> None:
        self._offsets = document.offsets
        self._starts = [0, *(match.end() for match in _LINE_BREAK.finditer(document.text))]

    def find(self, path: str) -> tuple[int, int]:
        """Returns line and column of a setting, or of the object that it is missing in."""
        parts: json5.Parts = tuple(
            int(index) if index else json.loads(quoted) if quoted else word
            for word, index, quoted in _PART.findall(path)
        )
        while parts and parts not in self._offsets:
            parts = parts[:-1]
        offset = self._offsets.get(parts, 0)
        line = bisect.bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1


# ---- Variables ----


def variable_name(text: str) -> str | None:
    """Returns the name of the variable if the whole text is `${NAME}`, else None."""
    match = _VARIABLE.fullmatch(text.strip())
    return match[1] if match else None


def variable_names(text: str) -> list[str]:
    """Returns the names of all variables that a text contains."""
    return _VARIABLE.findall(text)


def read_secret(path: str, text: str | None, environment: Mapping[str, str] | None = None) -> str:
    """Returns a secret of the configuration, or the value of the variable that it names.

    Raises:
        ConfigurationError: The secret is empty, or its variable is not set.
    """
    name = variable_name(text or "")
    variables = os.environ if environment is None else environment
    secret = (text or "") if name is None else variables.get(name, "")
    if not secret.strip():
        found = "no secret" if name is None else f"the environment variable {name} is not set"
        raise ConfigurationError(f"{path}: {found}", path=path, expected="a secret")
    return secret.strip()
