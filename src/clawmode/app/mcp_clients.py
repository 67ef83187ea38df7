"""The MCP clients of this machine: where they list their servers, and moving these behind clawmode.

`find` looks for the files of known clients and says what would change; `move` changes one file,
and `restore` changes it back. Before a file is changed, a copy of it, the moved servers and a note
in `setup.json` are on the disk, so that nothing is lost if the process dies in between.
"""

import hashlib
import json
import os
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, field
from pathlib import Path
from typing import Any

import platformdirs

from clawmode.config import edits, mcp
from clawmode.config.mcp_formats import denied_by
from clawmode.exceptions import ConfigurationError
from clawmode.files import staged, write_atomic
from clawmode.types import dataclass

OWN_NAME = "clawmode"
RECORD = "setup.json"
MAX_FILE = 8 << 20

ADDRESSES = ("command", "url", "httpUrl", "serverUrl")
"""The keys of an entry that clawmode can connect to."""

CLIENT_VARIABLES = ("${input:", "${workspaceFolder", "{file:")
"""What only the client itself can fill in."""


@dataclass(frozen=True, slots=True)
class Client:
    """An MCP client.

    Attributes:
        name: The name for `--client`.
        title: The name that people know.
        places: Returns the files that may list its servers; the first that exists is used.
        path: The keys that lead to the servers.
        entry: Returns an entry in the client's own format, for a command and its arguments.
        asks: Whether the client is known to show questions of servers (MCP elicitation).
    """

    name: str
    title: str
    places: Callable[[], list[Path]]
    path: edits.Path = ("mcpServers",)
    entry: Callable[[str, list[str]], dict[str, Any]] = lambda command, args: {
        "command": command,
        "args": args,
    }
    asks: bool = False


def _home(*parts: str) -> Callable[[], list[Path]]:
    return lambda: [Path.home().joinpath(*parts)]


def _settings(*parts: str) -> Callable[[], list[Path]]:
    """Returns the places in the folder where desktop programs keep their settings."""
    return lambda: [platformdirs.user_config_path(roaming=True).joinpath(*parts)]


def _dot_config(*parts: str) -> Callable[[], list[Path]]:
    """Returns the places in `~/.config`, which some programs use on every system."""

    def places() -> list[Path]:
        base = os.environ.get("XDG_CONFIG_HOME")
        return [(Path(base) if base else Path.home() / ".config").joinpath(*parts)]

    return places


CLIENTS = (
    Client("claude-code", "Claude Code", _home(".claude.json"), asks=True),
    Client("claude-desktop", "Claude Desktop", _settings("Claude", "claude_desktop_config.json")),
    Client("cursor", "Cursor", _home(".cursor", "mcp.json"), asks=True),
    Client(
        "vscode",
        "VS Code",
        _settings("Code", "User", "mcp.json"),
        ("servers",),
        lambda command, args: {"type": "stdio", "command": command, "args": args},
        asks=True,
    ),
    Client(
        "codex",
        "Codex",
        lambda: [Path(os.environ.get("CODEX_HOME") or Path.home() / ".codex") / "config.toml"],
        ("mcp_servers",),
    ),
    Client("gemini", "Gemini CLI", _home(".gemini", "settings.json")),
    Client(
        "zed",
        "Zed",
        _dot_config("zed", "settings.json"),
        ("context_servers",),
        lambda command, args: {"source": "custom", "command": command, "args": args},
    ),
    Client("windsurf", "Windsurf", _home(".codeium", "windsurf", "mcp_config.json")),
    Client(
        "opencode",
        "opencode",
        lambda: [
            place
            for name in ("opencode.jsonc", "opencode.json")
            for place in _dot_config("opencode", name)()
        ],
        ("mcp",),
        lambda command, args: {"type": "local", "command": [command, *args], "enabled": True},
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What `move` would do to the file of one client.

    Attributes:
        moved: The servers that would move, with their commands or addresses.
        kept: The servers that stay in the file, with the reason.
        problem: Why the file cannot be used; empty if it can.
    """

    client: Client
    file: Path
    path: edits.Path
    moved: dict[str, str] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A file that was changed, as `setup.json` keeps it.

    Attributes:
        file: The file of the client.
        path: The keys that lead to the servers.
        servers: The file that has the moved servers.
        copy: The copy of the client's file before the change.
        digest: The hash of the file's content after the change; empty after another change.
    """

    client: str
    file: str
    path: list[str]
    servers: str
    copy: str
    digest: str


# ---- Looking ----


def find(names: list[str] | None = None) -> Iterator[Plan]:
    """Yields a plan for each client whose file exists and lists servers.

    Raises:
        ConfigurationError: There is no client with one of the names.
    """
    known = [client.name for client in CLIENTS]
    for name in names or ():
        if name not in known:
            raise ConfigurationError(
                f"there is no client {name!r}; the known clients are {', '.join(known)}",
                expected=", ".join(known),
            )
    seen: set[tuple[Path, edits.Path]] = set()
    for client in CLIENTS:
        file = next((place for place in client.places() if place.is_file()), None)
        if file is None or (names and client.name not in names):
            continue
        if (file.resolve(), client.path) in seen:
            continue  # by a symbolic link, two clients have the same file
        seen.add((file.resolve(), client.path))
        try:
            data = edits.parse(_read(file), _syntax(file), str(file))
            path = client.path
            if client.name == "opencode" and edits.servers_of(data, ("mcp", "servers")):
                path = ("mcp", "servers")  # since version 2
            yield _plan(client, file, path, data)
        except ConfigurationError as error:
            yield Plan(client=client, file=file, path=client.path, problem=str(error))


def _plan(client: Client, file: Path, path: edits.Path, data: Any) -> Plan:
    servers = {k: it for k, it in edits.servers_of(data, path).items() if k != OWN_NAME}
    plan = Plan(client=client, file=file, path=path)
    if not servers:
        return plan
    if denied_by(data, path[-1], OWN_NAME):
        text = f"`mcp.allowed` or `mcp.excluded` of {file} leaves out clawmode; change that first"
        raise ConfigurationError(text)
    reasons = mcp.reasons_to_stay(data, path, file, _folder())
    for name, entry in servers.items():
        if not isinstance(entry, dict) or not any(key in entry for key in ADDRESSES):
            plan.kept[name] = "has no command and no URL"
        elif used := next((it for it in CLIENT_VARIABLES if it in json.dumps(entry)), None):
            plan.kept[name] = f"uses {used}…, which only the client can fill in"
        elif name in reasons:
            plan.kept[name] = reasons[name]
        else:
            plan.moved[name] = _address(entry)
    return plan


def _address(entry: dict[str, Any]) -> str:
    """Returns what an entry starts or connects to, without values that may be secret."""
    command = entry.get("command")
    if isinstance(command, dict):  # an older form of Zed
        command = command.get("path")
    if isinstance(command, list):
        command = command[0] if command else ""
    if command:
        return str(command)
    url = str(next(entry[key] for key in ADDRESSES if key in entry))
    return url.partition("?")[0].rpartition("@")[2]


def _syntax(file: Path) -> edits.Syntax:
    return "toml" if file.suffix == ".toml" else "json"


def _read(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_FILE + 1)
        if len(content) > MAX_FILE:
            raise ConfigurationError(f"{file} has more than {MAX_FILE >> 20} MB")
        return content.decode()
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{file} is not UTF-8: byte {error.start}") from None
    except OSError as error:
        raise ConfigurationError(f"cannot read {file}: {error.strerror}") from None


# ---- Changing ----


def _folder() -> Path:
    return platformdirs.user_config_path("clawmode") / "setup"


class ClientSetup:
    """Changes the files of clients, and remembers how to change them back.

    Attributes:
        folder: Where copies and moved servers are kept.
    """

    def __init__(self) -> None:
        self.folder = _folder()

    def changes(self) -> list[Change]:
        """Returns the changes that were not undone, the oldest first.

        Raises:
            ConfigurationError: The record cannot be read.
        """
        record = self.folder / RECORD
        if not record.exists():
            return []
        try:
            return [Change(**it) for it in json.loads(_read(record))["changes"]]
        except (ValueError, KeyError, TypeError):
            raise ConfigurationError(
                f"{record} is damaged; restore the files by hand from the copies beside it"
            ) from None

    def move(self, plan: Plan) -> Change:
        """Moves the servers of a plan behind clawmode.

        Raises:
            ConfigurationError: The file cannot be changed safely; nothing was changed.
        """
        text = _read(plan.file)
        syntax = _syntax(plan.file)
        changes = {change.file: change for change in self.changes()}
        former = changes.get(str(plan.file))
        entries = edits.servers_in(text, syntax, plan.path, str(plan.file))
        if not entries.keys() >= plan.moved.keys():
            raise ConfigurationError(f"{plan.file} was changed in the meantime; try again")
        stamp = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(3).hex()}"
        servers = self.folder / f"{plan.client.name}-{stamp}{plan.file.suffix}"
        copy = self.folder / f"{plan.client.name}-{stamp}.before{plan.file.suffix}"
        own: dict[str, Any] = {}
        if OWN_NAME not in entries:
            command, *args = own_command()
            arguments = [*args, "mcp", "--mcp-config", str(servers)]
            own[OWN_NAME] = plan.client.entry(command, arguments)
        elif former is None or json.dumps(former.servers) not in json.dumps(entries[OWN_NAME]):
            raise ConfigurationError(
                f"{plan.file} has a server 'clawmode' that `clawmode setup` did not add; move the "
                "other servers into the file that its --mcp-config names"
            )
        else:  # the entry stays, with all that the user has added to it
            servers = Path(former.servers)
        rest, taken = edits.split(text, syntax, plan.path, [*plan.moved], own)
        before = None if former is None else _read(Path(former.servers))
        if before is not None:  # these servers were added since the last time
            taken = edits.join(taken, syntax, plan.path, before)
        change = Change(
            client=plan.client.name,
            file=str(plan.file),
            path=[*plan.path],
            servers=str(servers),
            copy=str(copy) if former is None else former.copy,
            # The first copy lacks servers that were added since: these are put back one by one.
            digest=hashlib.sha256(rest.encode()).hexdigest() if former is None else "",
        )
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(copy, text)
        write_atomic(servers, taken)
        self._remember([*(changes | {change.file: change}).values()])
        try:
            _replace(plan.file, text, rest)
        except ConfigurationError:  # nothing was changed, so there is nothing to undo
            self._remember([*changes.values()])
            copy.unlink()
            if own or before is None:
                servers.unlink()
            else:
                write_atomic(servers, before)
            raise
        return change

    def restore(self, change: Change) -> str:
        """Moves the servers of a client back. Returns what was done, for people.

        A file that nobody has changed since gets its old content, byte for byte. In a file that was
        changed, only the servers are put back.

        Raises:
            ConfigurationError: The file cannot be changed safely; nothing was changed. The message
                names the files that have the servers and the old content.
        """
        try:
            done = self._put_back(change)
        except ConfigurationError as error:
            raise ConfigurationError(
                f"{error}. Put the servers back by hand: they are in {change.servers}, and the "
                f"old file is {change.copy}"
            ) from None
        self._remember([it for it in self.changes() if it != change])
        return done

    def _put_back(self, change: Change) -> str:
        file = Path(change.file)
        text = _read(file)
        if (
            hashlib.sha256(text.encode()).hexdigest() == change.digest
            and Path(change.copy).exists()
        ):
            _replace(file, text, _read(Path(change.copy)))
            return "the file is as it was before"
        path = tuple(change.path)
        edits.servers_in(text, _syntax(file), path, change.file)  # or an error with the file's name
        moved = _read(Path(change.servers))
        _replace(file, text, edits.join(text, _syntax(file), path, moved, [OWN_NAME]))
        return "the file was changed since, so only its servers were put back"

    def _remember(self, changes: list[Change]) -> None:
        content = {"version": 1, "changes": [asdict(change) for change in changes]}
        write_atomic(self.folder / RECORD, json.dumps(content, indent=2) + "\n")


def own_command() -> list[str]:
    """Returns the command that starts this clawmode, whatever the PATH of the client is."""
    beside = Path(sys.executable).with_name("clawmode")
    found = str(beside) if beside.exists() else shutil.which("clawmode")
    return [found] if found else [sys.executable, "-m", "clawmode"]


def _replace(file: Path, old: str, new: str) -> None:
    """Replaces the content of a file that still has the content `old`, and keeps its mode.

    A symbolic link stays: people keep such files in another folder.
    """
    target = file.resolve()
    try:
        mode = stat.S_IMODE(target.stat().st_mode)
        if not mode & stat.S_IWUSR:
            raise ConfigurationError(f"{file} is read-only")
        with staged(target, new) as temporary:
            os.chmod(temporary, mode)
            if _read(target) != old:
                raise ConfigurationError(f"{file} was changed at this moment; try again")
            os.replace(temporary, target)
    except OSError as error:
        raise ConfigurationError(f"cannot write {file}: {error.strerror}") from None
