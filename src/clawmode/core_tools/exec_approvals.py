"""The file `exec-approvals.json`: which commands this host lets agents run.

    {"version": 1,
     "defaults": {"security": "allowlist", "ask": "on-miss", "askFallback": "deny"},
     "agents": {"main": {"allowlist": [{"id": "…", "pattern": "/usr/bin/git", "lastUsedAt": 0}]}}}

The file can only make the configuration stricter. If it cannot be read, every command is denied,
because ignoring it would fail open. The same applies to unknown keys and invalid agent ids: a
misspelled rule would otherwise have no effect. Other programs write `socket` and `autoAllowSkills`
into the file; both are kept, and have no effect here.
"""

import hashlib
import json
import os
import re
import time
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, get_args

from pydantic import AfterValidator, ConfigDict, Field

from clawmode.exceptions import ConfigurationError
from clawmode.files import file_lock, write_atomic
from clawmode.records import AnyJson, Items, Maybe, Record, parse
from clawmode.text import shorten
from clawmode.types import JsonObject, JsonValue, dataclass

Security: TypeAlias = Literal["deny", "allowlist", "full"]
Ask: TypeAlias = Literal["off", "on-miss", "always"]

SECURITIES: tuple[Security, ...] = get_args(Security)
ASKS: tuple[Ask, ...] = get_args(Ask)
"""Both are in the order in which `ExecRules.stricter` compares them."""

HOST_FILE = "exec-approvals.json"
"""The name of the file in the state folder."""

VERSION = 1
MAX_BYTES = 1 << 20
MAX_ENTRIES = 1_000
MAX_COMMAND = 500

_AGENT_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}", re.ASCII)


def _check_agent_id(agent_id: str) -> str:
    if not _AGENT_ID.fullmatch(agent_id):
        raise ValueError("not an agent id: use lower-case letters, digits, `_` and `-`")
    return agent_id


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecRules:
    """Which commands may run, and when a person is asked.

    Attributes:
        security: Allows no commands, the commands of the allowlist, or all.
        ask: Asks never, if the allowlist has no entry, or always.
        ask_fallback: Applies if nobody can be asked. It never allows more than `security`.
    """

    security: Security = "full"
    ask: Ask = "off"
    ask_fallback: Security = "full"

    def stricter(self, other: "ExecRules") -> "ExecRules":
        """Combines two rules, using the stricter value of each field."""
        return ExecRules(
            security=min(self.security, other.security, key=SECURITIES.index),
            ask=max(self.ask, other.ask, key=ASKS.index),
            ask_fallback=min(self.ask_fallback, other.ask_fallback, key=SECURITIES.index),
        )

    @property
    def allows_all(self) -> bool:
        """True if every command runs without a question."""
        return self.security == "full" and self.ask == "off"


DENIED = ExecRules(security="deny", ask="always", ask_fallback="deny")


class AllowlistEntry(Record):
    """An entry of an allowlist: a pattern of program paths."""

    id: str = ""
    pattern: str

    def matches(self, program: str) -> bool:
        """True if the pattern matches the full path of a program."""
        return glob(self.pattern).fullmatch(program) is not None


class FileRules(Record):
    """The rules of the file for all agents."""

    model_config = ConfigDict(extra="forbid")

    security: Maybe[Security] = None
    ask: Maybe[Ask] = None
    ask_fallback: Maybe[Security] = None
    socket: AnyJson = None
    auto_allow_skills: AnyJson = None


class FileAgent(FileRules):
    """The rules of the file for one agent."""

    allowlist: Annotated[Items[AllowlistEntry], Field(max_length=MAX_ENTRIES)] = ()


class FileContent(Record):
    """The whole file. A misspelled key or agent id is an error: its rule would have no effect."""

    model_config = ConfigDict(extra="forbid")

    version: Literal[1]
    defaults: FileRules = FileRules()
    agents: dict[Annotated[str, AfterValidator(_check_agent_id)], FileAgent] = Field(
        default_factory=dict[str, FileAgent]
    )
    socket: AnyJson = None
    auto_allow_skills: AnyJson = None


@dataclass(frozen=True, slots=True)
class HostRules:
    """The rules of the file for one agent.

    Attributes:
        problem: Why the file cannot be used; then no command may run. Else empty.
    """

    rules: ExecRules
    allowlist: tuple[AllowlistEntry, ...] = ()
    problem: str = ""


class HostFile:
    """Reads and changes the file. Without the file, the host has no rules."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def for_agent(self, agent_id: str) -> HostRules:
        """Returns the rules for an agent. Blocks while the file is read."""
        try:
            file = _check(self.read())
            agent, default = file.agents.get(agent_id, FileAgent()), file.defaults
            rules = ExecRules(
                security=agent.security or default.security or "full",
                ask=agent.ask or default.ask or "off",
                ask_fallback=agent.ask_fallback or default.ask_fallback or "full",
            )
            return HostRules(rules, agent.allowlist)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            return HostRules(DENIED, (), f"{self.path.name} cannot be used: {reason}")

    def remember(self, agent_id: str, programs: list[str], command: str) -> None:
        """Adds the full paths of programs to the allowlist of an agent.

        Raises:
            OSError, ValueError: The file cannot be read or written.
        """

        def add(entries: list[JsonValue]) -> None:
            known = {entry.get("pattern") for entry in entries if isinstance(entry, dict)}
            for program in dict.fromkeys(programs):
                # As a pattern, such a path would also match other programs.
                if program in known or "*" in program or "?" in program:
                    continue
                if len(entries) >= MAX_ENTRIES:
                    raise ValueError(f"the allowlist is full: it has {MAX_ENTRIES} entries")
                identity = str(uuid.uuid4()).upper()
                entries.append({"id": identity, "pattern": program} | _usage(command, program))

        self._change(agent_id, add)

    def touch(self, agent_id: str, used: dict[str, str], command: str) -> None:
        """Records the last use of entries. `used` maps their ids to programs.

        Raises:
            OSError, ValueError: The file cannot be read or written.
        """

        def mark(entries: list[JsonValue]) -> None:
            for entry in entries:
                identity = entry.get("id") if isinstance(entry, dict) else None
                if isinstance(entry, dict) and isinstance(identity, str) and identity in used:
                    entry.update(_usage(command, used[identity]))

        self._change(agent_id, mark)

    def replace(self, data: JsonObject, base: str = "") -> None:
        """Replaces the whole content of the file.

        Args:
            data: The new content.
            base: The digest of the content that was edited; empty to skip the comparison.

        Raises:
            FileChanged: The file was changed since it was read.
            OSError, ValueError: The content is invalid, or the file cannot be written.
        """
        if len(json.dumps(data, indent=2)) > MAX_BYTES:
            raise ValueError(f"the file is larger than {MAX_BYTES} bytes")
        _check(data)
        with self._locked():
            if base and base != digest(self.read()):
                raise FileChanged("the file was changed in the meantime; read it again")
            self._store(data)

    # ---- The file ----

    def read(self) -> dict[str, Any]:
        """Returns the content of the file. Blocks while the file is read.

        Raises:
            OSError, ValueError: The file cannot be read.
        """
        try:
            with self.path.open("rb") as file:
                raw = file.read(MAX_BYTES + 1)
        except FileNotFoundError:
            return {"version": VERSION}
        if len(raw) > MAX_BYTES:
            raise ValueError(f"the file is larger than {MAX_BYTES} bytes")
        try:
            data: Any = json.loads(raw)
        except (ValueError, RecursionError):
            raise ValueError("the file is not valid JSON") from None
        return data

    def _change(self, agent_id: str, change: Callable[[list[JsonValue]], None]) -> None:
        with self._locked():
            data = self.read()
            _check(data)
            agent = data.setdefault("agents", {}).setdefault(agent_id, {})
            entries = agent.setdefault("allowlist", [])
            before = json.dumps(data)
            change(entries)
            if json.dumps(data) != before:
                self._store(data)

    def _locked(self) -> AbstractContextManager[int]:
        return file_lock(self.path.with_name(f"{self.path.name}.lock"))

    def _store(self, data: JsonObject) -> None:
        write_atomic(self.path, json.dumps(data, indent=2, ensure_ascii=False))


class FileChanged(ValueError):
    """The file was changed since it was read."""


def digest(data: JsonObject) -> str:
    """Returns a digest that identifies the content of the file."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def _check(data: object) -> FileContent:
    """Returns the checked content; raises ValueError if it is not valid."""
    try:
        return parse(FileContent, data)
    except ConfigurationError as error:
        raise ValueError(str(error)) from None


def _usage(command: str, program: str) -> JsonObject:
    return {
        "lastUsedAt": int(time.time() * 1000),
        "lastUsedCommand": shorten(command, MAX_COMMAND),
        "lastResolvedPath": program,
    }


def glob(pattern: str) -> re.Pattern[str]:
    """Compiles a pattern of paths: `**` is any text, `*` any text without `/`, `?` one character.

    Case is ignored. A pattern without a `/` matches nothing, because it would allow a program of
    that name in any folder.
    """
    if pattern.startswith("~/"):
        pattern = os.path.expanduser(pattern)
    if "/" not in pattern:
        return re.compile(r"(?!)")
    parts = re.split(r"(\*+|\?)", pattern)
    wild = {"*": "[^/]*", "?": "[^/]"}
    made = (
        (wild.get(part, ".*") if index % 2 else re.escape(part)) for index, part in enumerate(parts)
    )
    return re.compile("".join(made), re.IGNORECASE | re.DOTALL)
