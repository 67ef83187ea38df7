"""The file `clawmode.json5`: where it is, what it says, and where in it something stands.

What its sections mean is the business of others: `agent/settings` and `mcp/config`.
"""

import bisect
import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from clawmode.code_mode.config import ConfigWarning, show
from clawmode.config import json5
from clawmode.config.trust import check_owner
from clawmode.exceptions import ConfigurationError
from clawmode.types import JsonValue

NAME = "clawmode.json5"
VARIABLE = "CLAWMODE_CONFIG"
MAX_SIZE = 1 << 20

_LINE_BREAK = re.compile(r"\r\n|\r|\n")
_PART = re.compile(r"""([A-Za-z_$][A-Za-z0-9_$]*)|\[(\d+)\]|\[("(?:[^"\\]|\\.)*")\]""")

# The name of a secret, or what looks like one.
_SECRETIVE = re.compile(
    r"(?i:key|token|secret|pass|credential|auth|cookie|bearer|pwd|header|\benv\b)"
    r"|(?=[\w+/=.-]*\d)[\w+/=.-]{20}"
)


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """What a configuration file says; no file says `{}`.

    Attributes:
        digest: SHA-256 of the file's bytes, in hexadecimal digits.
        unnamed: It was found in the working folder: nobody has named it.
    """

    data: dict[str, JsonValue]
    path: Path | None = None
    document: json5.Document | None = field(default=None, repr=False)
    digest: str = ""
    unnamed: bool = False


@dataclass(frozen=True, slots=True)
class Problem:
    """A line for people about one setting; without a path it is about the file.

    Attributes:
        path: The setting.
        line: From 1; 0 if unknown, and so is the column.
        text: All of it in words.
        column: In characters, from 1.
        what: What is wrong, without the place.
        expected: What would have been right, if that is not part of it.
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
    """What a check has found: with errors nothing runs, warnings are worth a look."""

    path: Path | None
    errors: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)


# ---- Finding and reading ----


def find(explicit: str | Path | None = None) -> Path | None:
    """The file to read: the one named, else `CLAWMODE_CONFIG`, else the first that exists."""
    named = os.environ.get(VARIABLE) if explicit is None else str(explicit)
    if named or explicit is not None:
        return Path(os.path.expanduser(named or ""))
    return next((path for path in (Path(NAME), _user_folder() / NAME) if _is_there(path)), None)


def _is_there(path: Path) -> bool:
    """Whether to read it. One that cannot be looked at is: to pass it over would fail open."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def _user_folder() -> Path:
    # A relative one is to be ignored, says the XDG specification.
    configured = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    base = configured if configured.is_absolute() else Path(os.path.expanduser("~/.config"))
    return base / "clawmode"


def load(path: str | Path | None = None) -> ConfigFile:
    """Reads the file, wherever `find` finds it.

    Raises:
        ConfigurationError: It is named and cannot be read, somebody else can change it, or it is
            not a JSON5 object.
    """
    found = find(path)
    if found is None:
        return ConfigFile({})
    unnamed = path is None and not os.environ.get(VARIABLE) and found == Path(NAME)
    if unnamed and found.is_fifo():
        # A folder from somebody else may have one, and reading it would never end.
        raise ConfigurationError(f"the configuration {found} is not read: it is a pipe, not a file")
    text, digest = _read(found)
    document = _parse(text, str(found))
    if not isinstance(document.value, dict):
        raise ConfigurationError(
            f"{found}: found {show(document.value)}, expected an object: {{ ... }}",
            expected="an object",
        )
    return ConfigFile(document.value, found, document, digest, unnamed)


def _parse(text: str, name: str) -> json5.Document:
    try:
        return json5.parse(text, name)
    except ConfigurationError as error:
        around = _LINE_BREAK.split(text)[max(error.line - 2, 0) : error.line]
        if not any(_SECRETIVE.search(line) for line in around):
            raise
        said = f"{str(error).partition(chr(10))[0]} (the line may hold a secret, and is not shown)"
        raise ConfigurationError(said, line=error.line, column=error.column) from None


def _read(path: Path) -> tuple[str, str]:
    """The text of a file, and its digest."""
    try:
        with path.open("rb") as file:
            check_owner(path, os.fstat(file.fileno()))
            raw = file.read(MAX_SIZE + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigurationError(f"cannot read the configuration {path}: {reason}") from None
    if len(raw) > MAX_SIZE:
        raise ConfigurationError(f"{path}: the file is over {MAX_SIZE} bytes")
    try:
        return raw.decode("utf-8-sig"), hashlib.sha256(raw).hexdigest()
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        message = f"{path}:{line}: the file is not UTF-8: byte {error.start} is "
        raise ConfigurationError(f"{message}0x{raw[error.start]:02x}", line=line) from None


# ---- Telling ----


def report(file: ConfigFile, said: Sequence[ConfigurationError | ConfigWarning] = ()) -> Report:
    """What is to say about a file, for people: in its order, each once, with line and column."""
    if file.document is None or not said:
        return Report(file.path)
    places = Places(file.document)
    found = {str(it): it for it in said}
    told = sorted(
        ((_problem(file, it, places), it) for it in found.values()),
        key=lambda both: (both[0].line, both[0].column),
    )
    return Report(
        file.path,
        [problem for problem, it in told if isinstance(it, ConfigurationError)],
        [problem for problem, it in told if isinstance(it, ConfigWarning)],
    )


def unreadable(path: str | Path | None, error: ConfigurationError) -> Report:
    """The same about a file that `load` refused."""
    found = find(path)
    what = str(error).partition("\n")[0].removeprefix(f"{found}:{error.line}:{error.column}: ")
    problem = Problem("", error.line, str(error), error.column, what, error.expected)
    return Report(found, [problem])


def _problem(file: ConfigFile, it: ConfigurationError | ConfigWarning, places: "Places") -> Problem:
    line, column = places.find(it.path)
    expected = it.expected if isinstance(it, ConfigurationError) else ""
    what = str(it).removeprefix(f"{it.path}: ").removesuffix(f", expected {expected}")
    told = f"{file.path}:{line}:{column}: {it}"
    return Problem(it.path, line, told, column, what, expected)


class Places:
    """Where settings stand in a file."""

    def __init__(self, document: json5.Document) -> None:
        self._offsets = document.offsets
        self._starts = [0, *(each.end() for each in _LINE_BREAK.finditer(document.text))]

    def find(self, path: str) -> tuple[int, int]:
        """Line and column of a setting, or, if it is missing, of what it is missing in."""
        parts = _parts(path)
        while parts and parts not in self._offsets:
            parts = parts[:-1]
        offset = self._offsets.get(parts, 0)
        line = bisect.bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1


def _parts(path: str) -> json5.Parts:
    """What `join` and indexes have made into one path, apart."""
    return tuple(
        int(index) if index else json.loads(quoted) if quoted else word
        for word, index, quoted in _PART.findall(path)
    )
