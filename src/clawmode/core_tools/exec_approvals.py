"""`exec-approvals.json`: what this host lets agents run, whatever their configuration says.

    {"version": 1,
     "defaults": {"security": "allowlist", "ask": "on-miss", "askFallback": "deny"},
     "agents": {"main": {"allowlist": [{"id": "…", "pattern": "/usr/bin/git", "lastUsedAt": 0}]}}}

It can only make things stricter. One that cannot be read denies everything: to pass it over would
fail open. So does one with a key that is not known here or an agent id that no agent can have: a
misspelt rule would otherwise be no rule. `IGNORED` keys of other products are kept.
"""

import difflib
import hashlib
import json
import os
import re
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, get_args

from clawmode.files import file_lock, write_atomic
from clawmode.types import JsonObject, JsonValue

Security: TypeAlias = Literal["deny", "allowlist", "full"]
Ask: TypeAlias = Literal["off", "on-miss", "always"]

SECURITIES: tuple[Security, ...] = get_args(Security)
ASKS: tuple[Ask, ...] = get_args(Ask)
"""Both in the order in which `ExecRules.stricter` compares them."""

HOST_FILE = "exec-approvals.json"
"""The name of the file in the state folder."""

VERSION = 1
MAX_BYTES = 1 << 20
MAX_ENTRIES = 1_000
MAX_COMMAND = 500

_AGENT_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}", re.ASCII)

RULE_KEYS = ("security", "ask", "askFallback")
IGNORED = ("socket", "autoAllowSkills")
"""Keys that other programs write into the file. They allow nothing here."""

T = TypeVar("T", bound=str)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecRules:
    """Which commands may run, and when a person is asked.

    Attributes:
        security: None, those of the allowlist, or all.
        ask: Never, when the allowlist has no entry, or always.
        ask_fallback: What holds instead where nobody can be asked. Never more than `security`.
    """

    security: Security = "full"
    ask: Ask = "off"
    ask_fallback: Security = "full"

    def stricter(self, other: "ExecRules") -> "ExecRules":
        """Of two, the stricter in each respect."""
        return ExecRules(
            security=min(self.security, other.security, key=SECURITIES.index),
            ask=max(self.ask, other.ask, key=ASKS.index),
            ask_fallback=min(self.ask_fallback, other.ask_fallback, key=SECURITIES.index),
        )

    @property
    def lets_all_pass(self) -> bool:
        """Whether there is nothing to decide."""
        return self.security == "full" and self.ask == "off"


DENIED = ExecRules(security="deny", ask="always", ask_fallback="deny")


@dataclass(frozen=True, slots=True)
class Allowed:
    """An entry of an allowlist."""

    id: str
    pattern: str

    def matches(self, program: str) -> bool:
        """Whether a program, by its full path, is meant."""
        return glob(self.pattern).fullmatch(program) is not None


@dataclass(frozen=True, slots=True)
class HostRules:
    """What the file says about one agent.

    Attributes:
        problem: Why it cannot be used, if so; then nothing may run.
    """

    rules: ExecRules
    allowlist: tuple[Allowed, ...] = ()
    problem: str = ""


class HostFile:
    """The file. Without it there is no rule of the host's."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def for_agent(self, agent_id: str) -> HostRules:
        """What holds for an agent; blocks for as long as reading a small file takes."""
        try:
            data = self._load()
            _check_keys(data)
            agent = _object(_object(data, "agents"), agent_id)
            return HostRules(_rules(data, agent_id), tuple(_entries(agent)))
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            return HostRules(DENIED, (), f"{self.path.name} cannot be used: {reason}")

    def remember(self, agent_id: str, programs: list[str], command: str) -> None:
        """Puts programs, by their full paths, on an agent's allowlist.

        Raises:
            OSError, ValueError: The file cannot be read or written.
        """

        def add(entries: list[JsonValue]) -> None:
            known = {it.get("pattern") for it in entries if isinstance(it, dict)}
            for program in dict.fromkeys(programs):
                # Such a path would be a pattern for others too.
                if program in known or "*" in program or "?" in program:
                    continue
                if len(entries) >= MAX_ENTRIES:
                    raise ValueError(f"the allowlist has {MAX_ENTRIES} entries already")
                identity = str(uuid.uuid4()).upper()
                entries.append({"id": identity, "pattern": program} | _usage(command, program))

        self._change(agent_id, add)

    def touch(self, agent_id: str, used: dict[str, str], command: str) -> None:
        """Writes down when entries were last used, by id, and for which program.

        Raises:
            OSError, ValueError: The file cannot be read or written.
        """

        def mark(entries: list[JsonValue]) -> None:
            for it in entries:
                identity = it.get("id") if isinstance(it, dict) else None
                if isinstance(it, dict) and isinstance(identity, str) and identity in used:
                    it.update(_usage(command, used[identity]))

        self._change(agent_id, mark)

    def read(self) -> JsonObject:
        """All of it; blocks for as long as reading a small file takes.

        Raises:
            OSError, ValueError: The file cannot be read.
        """
        return self._load()

    def replace(self, data: JsonObject, base: str = "") -> None:
        """Puts other rules in the place of all of them.

        Args:
            data: The rules.
            base: The digest of what they were made from; empty: of whatever.

        Raises:
            Changed: The file is another one by now.
            OSError, ValueError: It cannot be meant, or not be written.
        """
        _check(data)
        with self._locked():
            if base and base != digest(self._load()):
                raise Changed("the file has changed meanwhile: read it again")
            self._store(data)

    # ---- The file ----

    def _load(self) -> JsonObject:
        try:
            with self.path.open("rb") as file:
                raw = file.read(MAX_BYTES + 1)
        except FileNotFoundError:
            return {"version": VERSION}
        if len(raw) > MAX_BYTES:
            raise ValueError(f"it has over {MAX_BYTES} bytes")
        try:
            data: Any = json.loads(raw)
        except (ValueError, RecursionError):
            raise ValueError("it is not JSON") from None
        if not isinstance(data, dict) or data.get("version") != VERSION:
            raise ValueError(f"it is not of version {VERSION}")
        return data

    def _change(self, agent_id: str, change: Callable[[list[JsonValue]], None]) -> None:
        with self._locked():
            data = self._load()
            agents = data.setdefault("agents", {})
            agent = agents.setdefault(agent_id, {}) if isinstance(agents, dict) else None
            entries = agent.setdefault("allowlist", []) if isinstance(agent, dict) else None
            if not isinstance(entries, list):
                raise ValueError("it has another shape")
            before = json.dumps(data)
            change(entries)
            if json.dumps(data) != before:
                self._store(data)

    def _locked(self) -> AbstractContextManager[int]:
        return file_lock(self.path.with_name(f"{self.path.name}.lock"))

    def _store(self, data: JsonObject) -> None:
        write_atomic(self.path, json.dumps(data, indent=2, ensure_ascii=False))


class Changed(ValueError):
    """Somebody else was faster."""


def digest(data: JsonObject) -> str:
    """Names what the file says."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def _check(data: JsonObject) -> None:
    if len(json.dumps(data, indent=2)) > MAX_BYTES:
        raise ValueError(f"it has over {MAX_BYTES} bytes")
    if data.get("version") != VERSION:
        raise ValueError(f"it is not of version {VERSION}")
    _check_keys(data)
    agents = _object(data, "agents")
    for agent_id in ("", *agents):
        _rules(data, agent_id)
        list(_entries(_object(agents, agent_id)))


def _check_keys(data: JsonObject) -> None:
    """Rejects every key and agent id that would have no effect."""
    _refuse_unknown(data, ("version", "defaults", "agents"), "the file")
    _refuse_unknown(_object(data, "defaults"), RULE_KEYS, "defaults")
    agents = _object(data, "agents")
    for agent_id in agents:
        if not _AGENT_ID.fullmatch(agent_id):
            text = "is not the id of an agent: small letters, digits, `_` and `-`"
            raise ValueError(f"agents: {agent_id[:80]!r} {text}")
        _refuse_unknown(_object(agents, agent_id), (*RULE_KEYS, "allowlist"), f"agents.{agent_id}")


def _refuse_unknown(found: JsonObject, known: tuple[str, ...], where: str) -> None:
    for key in found:
        if key not in known and key not in IGNORED:
            (near,) = difflib.get_close_matches(key.lower()[:80], known, n=1, cutoff=0.0)
            raise ValueError(f"{where} has the unknown key {key[:80]!r}; did you mean {near!r}?")


def _usage(command: str, program: str) -> JsonObject:
    return {
        "lastUsedAt": int(time.time() * 1000),
        "lastUsedCommand": command[:MAX_COMMAND],
        "lastResolvedPath": program,
    }


def _rules(data: JsonObject, agent_id: str) -> ExecRules:
    defaults, agent = _object(data, "defaults"), _object(_object(data, "agents"), agent_id)
    return ExecRules(
        security=_choice(agent, defaults, "security", SECURITIES, "full"),
        ask=_choice(agent, defaults, "ask", ASKS, "off"),
        ask_fallback=_choice(agent, defaults, "askFallback", SECURITIES, "full"),
    )


def _object(data: JsonObject, key: str) -> JsonObject:
    value = data.get(key, {})
    if isinstance(value, dict):
        return value
    raise ValueError(f"{key[:80]!r} is not an object")


def _choice(
    agent: JsonObject, defaults: JsonObject, key: str, known: tuple[T, ...], otherwise: T
) -> T:
    value = agent.get(key, defaults.get(key, otherwise))
    found = next((each for each in known if each == value), None)
    if found is None:
        raise ValueError(f"{key} is not one of {', '.join(known)}")
    return found


def _entries(agent: JsonObject) -> Iterator[Allowed]:
    listed = agent.get("allowlist", [])
    if not isinstance(listed, list) or len(listed) > MAX_ENTRIES:
        raise ValueError(f"an allowlist is not a list of up to {MAX_ENTRIES} entries")
    for it in listed:
        pattern = it.get("pattern") if isinstance(it, dict) else None
        identity = it.get("id", "") if isinstance(it, dict) else None
        if not isinstance(pattern, str) or not isinstance(identity, str):
            raise ValueError("an entry of an allowlist has no pattern")
        yield Allowed(identity, pattern)


def glob(pattern: str) -> re.Pattern[str]:
    """A pattern of paths, in any case: `**` is any text, `*` any but `/`, `?` one character.

    One without a `/` would match wherever a program stands, and matches nothing.
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
