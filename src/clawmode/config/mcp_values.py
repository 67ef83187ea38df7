"""The texts of an MCP server's entry: variables, inputs, files of variables, and secrets."""

import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TypeAlias

from clawmode.exceptions import ConfigurationError
from clawmode.mcp.settings import SECRETIVE
from clawmode.types import dataclass

MAX_ENV_FILE = 1 << 20
SHOWN = 64

MIN_SECRET = 6
"""Shorter values are not redacted: they are hardly secrets, and occur in ordinary words."""

_VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_]\w*)(?::-([^}]*))?\}", re.ASCII)
_INPUT = re.compile(r"\$\{input:([^}]{1,100})\}")
_UNKNOWN_EXPRESSION = re.compile(r"\$\{([^}]{0,40})")
_ASSIGNMENT = re.compile(r"\s*(?:export\s+)?([A-Za-z_][\w.-]*)\s*=\s*(.*?)\s*", re.ASCII)


@dataclass(frozen=True, slots=True)
class InputField:
    """A value that a file leaves to the user.

    Attributes:
        hidden: True for a password.
        options: The values to choose from; empty if any value is allowed.
    """

    id: str
    description: str = ""
    hidden: bool = False
    default: str = ""
    options: tuple[str, ...] = ()

    @property
    def variable(self) -> str:
        """The environment variable that answers the question where nobody can be asked."""
        return "CLAWMODE_INPUT_" + re.sub(r"\W", "_", self.id).upper()


AskInput: TypeAlias = Callable[[InputField], str | None]
"""Asks the user for a value; returns None if nobody can be asked."""


@dataclass(slots=True)
class Surroundings:
    """What the texts of an entry may refer to.

    Attributes:
        environment: The environment variables.
        predefined: Variables that an editor defines, such as `workspaceFolder`.
        inputs: Values that are asked for, by their ids.
        ask: Asks the user for such a value.
        folder: Where relative paths of `envFile` start.
        given: The answers so far.
    """

    environment: Mapping[str, str]
    predefined: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, InputField] = field(default_factory=dict)
    ask: AskInput = lambda asked: None
    folder: Path = Path()
    given: dict[str, str] = field(default_factory=dict)


class Texts:
    """Fills in the variables of one entry, and collects its secrets."""

    def __init__(self, server: str, around: Surroundings) -> None:
        self._name = server
        self._around = around
        self._secrets: set[str] = set()

    @property
    def secrets(self) -> tuple[str, ...]:
        """The secrets, longest first, because a secret may contain another one."""
        return tuple(sorted(self._secrets, key=lambda secret: (-len(secret), secret)))

    def hide(self, *values: str) -> None:
        """Adds secrets, which are redacted in every message."""
        stripped = (value.strip() for value in values)
        self._secrets.update(value for value in stripped if len(value) >= MIN_SECRET)

    def fill(self, path: str, value: str) -> str:
        """Returns a string with its variables replaced. Their values are secrets."""

        def replace(match: re.Match[str]) -> str:
            name, default = match.groups()
            value = self._around.environment.get(name, self._around.predefined.get(name))
            if value or (value is not None and default is None):
                if name not in self._around.predefined:
                    self.hide(value)
                return value
            if default is None:
                text = (
                    f"the environment variable {name} of server {self._name!r} is not set; "
                    f"set it, or use ${{{name}:-default}}"
                )
                raise ConfigurationError(f"{path}: {text}", path=path)
            return default

        plain = _INPUT.sub("", _VARIABLE.sub("", value)).replace("${/}", "")
        for unknown in _UNKNOWN_EXPRESSION.finditer(plain):
            word = re.match(r"\w*", unknown[1])
            assert word is not None
            text = (
                f"${{{word[0]}...}} of server {self._name!r} is not supported; "
                "use ${VARIABLE} or ${VARIABLE:-default}"
            )
            raise ConfigurationError(f"{path}: {text}", path=path)
        value = _INPUT.sub(lambda it: self._input(path, it[1]), _VARIABLE.sub(replace, value))
        text = value.replace("${/}", os.sep)
        if "\0" in text:
            raise ConfigurationError(f"{path}: the string contains a NUL character", path=path)
        return text

    def _input(self, path: str, key: str) -> str:
        """Returns a value that the user gives: once for all servers that need the value."""
        around = self._around
        asked = around.inputs.get(key)
        if asked is None:
            text = (
                f"${{input...}} of server {self._name!r} is not supported: "
                f"the file has no input {key[:SHOWN]!r}"
            )
            raise ConfigurationError(f"{path}: {text}", path=path)
        if key not in around.given:
            value = around.environment.get(asked.variable) or around.ask(asked)
            if not value:
                text = (
                    f"the input {key[:SHOWN]!r} of server {self._name!r} is asked for at a "
                    f"terminal only; set the environment variable {asked.variable}"
                )
                raise ConfigurationError(f"{path}: {text}", path=path)
            around.given[key] = value
        self.hide(around.given[key])
        return around.given[key]

    def read_env_file(self, file: Path) -> dict[str, str]:
        """Reads the variables of a file with lines such as `NAME=value`.

        Raises:
            OSError: The file cannot be read.
            ValueError: The file is not UTF-8.
        """
        with file.open("rb") as opened:
            text = opened.read(MAX_ENV_FILE).decode()
        made: dict[str, str] = {}
        for line in text.splitlines():
            if (found := _ASSIGNMENT.fullmatch(line)) is None:
                continue  # a comment, or an empty line
            name, value = found.groups()
            if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"`":
                value = value[1:-1]
            else:
                value = re.sub(r"\s+#.*", "", value)
            made[name] = value
            if SECRETIVE.search(name):
                self.hide(value)
        return made


def secret_arguments(args: Sequence[str]) -> Iterator[str]:
    """Yields the arguments of a command that are values of a flag such as `--token`."""
    for flag, following in itertools.zip_longest(args, args[1:], fillvalue=""):
        name, equals, value = flag.partition("=")
        if SECRETIVE.search(name) and (name.startswith("-") or equals):
            yield value if equals else following
