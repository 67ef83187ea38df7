"""What a command is set up with: its options and the configuration file, put together.

What stands on the command line wins over the file, but a policy only ever narrows: what the file
denies stays denied.
"""

import os
import shlex
import shutil
import sys
import termios
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from warnings import catch_warnings

from clawmode.app.console import complain
from clawmode.catalog.catalog import Catalog
from clawmode.catalog.vectors import choose_ranker
from clawmode.code_mode.config import CodeModeConfig, ConfigWarning
from clawmode.config import file as config_file
from clawmode.config import json5
from clawmode.config import mcp as server_config
from clawmode.config import resolve as settings
from clawmode.config.mcp import McpConfig
from clawmode.config.reader import Reader, Told
from clawmode.config.resolve import Configuration
from clawmode.config.trust import UntrustedConfiguration, is_trusted, trust, was_trusted
from clawmode.exceptions import ClawmodeWarning, ConfigurationError
from clawmode.mcp.settings import ServerSettings
from clawmode.text import one_line
from clawmode.tools.loading import load_tools
from clawmode.tools.policy import Policy
from clawmode.tools.tool import Tool
from clawmode.types import JsonValue

if TYPE_CHECKING:
    from clawmode.agent.models import ModelPool

AGENT = "main"
"""Who runs cells from the command line."""

TRUST_HINT = f"Read it, then run `clawmode config trust`, or name it: --config {config_file.NAME}"
MAX_LINE = 200
MAX_REACH = 20
"""How much is shown of what a configuration starts."""

STATE_VARIABLE = "CLAWMODE_STATE"
MAX_POLICY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options that several commands have, as they were given."""

    tools: tuple[str, ...] = ()
    config: str | None = None
    mcp_config: str | None = None
    policy: str | None = None
    state: str | None = None
    approve: str | None = None
    limits: Mapping[str, int] = field(default_factory=dict)

    def resuming(self, run_id: str) -> str:
        """The command that goes on with a cell, for a shell in the same folder."""
        words = [*_called(), "wait", run_id]
        for reference in self.tools:
            words += ["--tools", reference]
        for name in ("config", "mcp_config", "policy", "state"):
            if (value := getattr(self, name)) is not None:
                words += [option_of(name), value]
        if self.approve not in (None, "ask"):
            words += ["--approve", self.approve]
        for name, number in self.limits.items():
            words += [option_of(name), str(number)]
        return shlex.join(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What the options and the configuration together say.

    Attributes:
        tools: All of Python's, denied ones too.
        servers: The MCP servers, not connected.
        narrowed: What of `policy` the options added.
        configuration: All that the file says.
        notes: What was not taken as it was given, for people.
        state: The folder in which cells wait.
        folder: What relative paths in the configuration begin at.
        file: The configuration file; None if there is none.
        found_here: The file was found in the working folder: nobody has named it.
        named: What `--mcp-config` and `--policy` say: files, or rules themselves.
    """

    tools: list[Tool]
    servers: list[ServerSettings]
    policy: Policy
    narrowed: Policy
    configuration: Configuration
    config: CodeModeConfig
    state: Path
    folder: Path
    notes: list[str]
    file: Path | None = None
    found_here: bool = False
    named: tuple[str, ...] = ()

    @property
    def sessions_folder(self) -> Path:
        """Where conversations are kept."""
        return self.state / "sessions"

    def catalog(self) -> Catalog:
        """What programs can find, ranked as for them."""
        return Catalog(self.policy.effective(self.tools), ranker=choose_ranker())


Purpose: TypeAlias = Literal["look", "agent", "gateway"]
"""What a setup is for: `look` needs nothing that the configuration names, the others start it."""


def set_up(options: Options, purpose: Purpose = "look") -> Setup:
    """Reads all that the options name.

    Raises:
        ConfigurationError: Something of it cannot be used. To start an agent or a gateway, all
            that the configuration names has to be there.
    """
    file = config_file.load(options.config)
    _require_trust(file)
    state = state_folder(options.state)
    configured = _read_configuration(file)
    if purpose != "look":
        configured = _examined(file, configured, state, serves=purpose == "gateway")
    if configured.fatal:
        raise _failure(config_file.report(file, configured.fatal).errors)
    notes = [problem.text for problem in configured.report.warnings]
    agent = settings.agent(configured.configuration, AGENT)
    limits: dict[str, Any] = dict(options.limits)
    with catch_warnings(action="ignore", category=ClawmodeWarning):  # the notes have it
        config = replace(agent.code_mode, **limits)
    for name, used in ((name, getattr(config, name)) for name in limits):
        if used != limits[name]:
            notes.append(f"{option_of(name)} {limits[name]} is out of range: {used} is used")
    servers = configured.servers.tolerated()
    if options.mcp_config is not None:
        others = server_config.load(options.mcp_config)
        notes += map(str, others.warnings)
        if others.fatal:
            raise others.fatal[0]
        servers = servers + others.tolerated()
    layers = settings.policy(configured.configuration, AGENT, sandboxed=agent.is_sandboxed()).layers
    narrowed = Policy() if options.policy is None else read_policy(options.policy)
    return Setup(
        tools=load_tools(options.tools),
        servers=servers,
        policy=Policy(layers + narrowed.layers),
        narrowed=narrowed,
        configuration=configured.configuration,
        config=config,
        state=state,
        folder=_folder(file),
        notes=notes,
        file=None if file.path is None else file.path.absolute(),
        found_here=file.unnamed,
        named=tuple(filter(None, (options.mcp_config, options.policy))),
    )


# ---- Trust ----


def _require_trust(file: config_file.ConfigFile) -> None:
    """Has the user agree to a configuration that was found in the working folder, once.

    Raises:
        UntrustedConfiguration: The user has not, and cannot be asked or says no.
    """
    if not file.unnamed or file.path is None or _is_agreed(file):
        return
    changed = was_trusted(file.path, state_folder())
    what = "has changed since you agreed to it" if changed else "has not been used before"
    head = f"{config_file.NAME} in this folder {what}. It decides what runs as you"
    if _asks(f"{head}:", reach(file.data)):
        trust(file.path, file.digest, state_folder())
        return
    raise UntrustedConfiguration(f"{head}, so it is not used unasked. {TRUST_HINT}")


def _is_agreed(file: config_file.ConfigFile) -> bool:
    # Not the folder of `--state`: the folder with the file may bring a state folder along.
    return file.path is None or is_trusted(file.path, file.digest, state_folder())


def _require_agreement(file: config_file.ConfigFile) -> None:
    if not _is_agreed(file):
        raise UntrustedConfiguration(
            f"{file.path} has changed since you agreed to it, so it is not used unasked. Read it, "
            f"then run `clawmode config trust` in its folder"
        )


def agree(path: str | None) -> tuple[Path, list[str]]:
    """Writes down that the user agrees to a configuration file; the file, and what it reaches.

    Raises:
        ConfigurationError: There is none, it cannot be read, or somebody else can change it.
    """
    file = config_file.load(path)
    if file.path is None:
        raise ConfigurationError(f"there is no {config_file.NAME} in this folder")
    trust(file.path, file.digest, state_folder())
    return file.path.absolute(), reach(file.data)


def reach(data: Mapping[str, JsonValue]) -> list[str]:
    """What a configuration starts, loads and connects to, one line each."""
    found = settings.read(dict(data)).section
    servers = server_config.read(data, _Unfilled()).servers
    lines = [
        f"MCP server {it.name}: {shlex.join((it.command, *it.args)) if it.command else it.url}"
        for it in servers
        if it.enabled
    ]
    for name, provider in found.models.providers.items():
        if provider.base_url:
            lines.append(f"models of {name}: {provider.base_url}")
        if provider.auth is not None and provider.auth.command:
            lines.append(f"key of {name}: {shlex.join(provider.auth.command)}")
    for name, profile in found.auth.profiles.items():
        if profile.command:
            lines.append(f"key {name}: {shlex.join(profile.command)}")
    for name, hook in found.hooks.internal.entries.items():
        lines.append(f"hook {name}: {shlex.join(hook.command) if hook.command else hook.file}")
    lines += [f"plugins in {each}" for each in found.plugins.load.paths]
    lines += [f"channel {name}: {it.url}" for name, it in found.channels.items() if it.url]
    if command := found.security.install_policy.command:
        lines.append(f"what may be installed: {shlex.join(command)}")
    # First: only the beginning of a long list is shown.
    return [*filter(None, [settings.unasked(found)]), *lines]


class _Unfilled(dict[str, str]):
    """An environment in which every variable stands for itself: its value is not shown."""

    def get(self, name: str, default: Any = None) -> Any:
        """The variable as it is written."""
        return f"${{{name}}}"


def _asks(head: str, lines: Sequence[str]) -> bool:
    """Whether the person at the terminal agrees; nobody there does not."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    shown = [f"  | {one_line(line, MAX_LINE)}" for line in lines[:MAX_REACH]]
    if len(lines) > MAX_REACH:
        shown.append(f"  | and {len(lines) - MAX_REACH} more")
    complain("\n".join([head, *(shown or ["  | no program, plugin or address"])]))
    termios.tcflush(sys.stdin, termios.TCIFLUSH)  # what was typed before is no answer
    sys.stderr.write("Use it from now on? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


# ---- The configuration ----


@dataclass(frozen=True, slots=True)
class _Configured:
    """A configuration file, read by all who read it; with `fatal` errors nothing starts."""

    configuration: Configuration
    servers: McpConfig
    said: list[Told]
    report: config_file.Report
    fatal: list[ConfigurationError]


def _read_configuration(file: config_file.ConfigFile) -> _Configured:
    found = settings.read(file.data)
    servers = server_config.read(file.data)
    said: list[Told] = [*found.errors, *servers.errors, *found.warnings, *servers.warnings]
    # One misconfigured MCP server is one server that is missing, and not the end of all others.
    fatal = [*found.errors, *servers.fatal]
    return _Configured(found.section, servers, said, config_file.report(file, said), fatal)


def _examined(
    file: config_file.ConfigFile,
    read: _Configured,
    state: Path,
    models: "ModelPool | None" = None,
    *,
    serves: bool = True,
) -> _Configured:
    """The same with what is wrong with everything that the configuration names."""
    from clawmode.app import (
        check as config_check,  # reads plugins and models, which few commands need
    )

    reader = Reader()  # each once, and not more than anybody reads
    reader.tell(read.said)
    known = tuple(it.path for it in read.said if isinstance(it, ConfigurationError))
    more = config_check.examine(
        read.configuration, folder=_folder(file), state=state, models=models, serves=serves
    )
    # What follows from a value that was left out because of its type is not told again.
    found = [it for it in more if not any(_overlap(it.path, path) for path in known)]
    reader.tell(found)
    said = [*reader.errors, *reader.warnings]
    fatal = [*read.fatal, *(it for it in found if isinstance(it, ConfigurationError))]
    return replace(read, said=said, report=config_file.report(file, said), fatal=fatal)


def _overlap(one: str, other: str) -> bool:
    return one.startswith(other) or other.startswith(one)


def _folder(file: config_file.ConfigFile) -> Path:
    return Path.cwd() if file.path is None else file.path.absolute().parent


def check(path: str | None, state: Path | None = None) -> config_file.Report:
    """Everything that start-up would say about a configuration file; does not raise."""
    return read(path, state)[1]


def read(
    path: str | Path | None,
    state: Path | None = None,
    models: "ModelPool | None" = None,
    *,
    found_here: bool = False,
) -> tuple[Configuration, config_file.Report]:
    """A whole configuration file, and everything that start-up would say about it; does not raise.

    With errors the configuration is not to be used.

    Args:
        path: The file; None: wherever it is found.
        state: The state folder.
        models: Those that the configuration is for.
        found_here: Nobody named the file at start-up: it is read again if its user has agreed to
            what it says now.
    """
    try:
        file = config_file.load(path)
        if found_here:
            _require_agreement(file)
    except ConfigurationError as error:
        return Configuration(), config_file.unreadable(path, error)
    found = _read_configuration(file)
    if file.unnamed and not _is_agreed(file):
        found.said.append(ConfigWarning("", f"you have not agreed to this file yet. {TRUST_HINT}"))
    found = _examined(file, found, state or state_folder(), models)
    return found.configuration, found.report


def _failure(errors: Sequence[config_file.Problem]) -> ConfigurationError:
    first, *more = errors
    rest = f"\n({len(more)} more: see clawmode config check)" if more else ""
    return ConfigurationError(
        first.text + rest,
        path=first.path,
        expected=first.expected,
        line=first.line,
        column=first.column,
    )


def option_of(name: str) -> str:
    """The option that sets a field."""
    return "--" + name.replace("_", "-")


def state_folder(explicit: str | None = None) -> Path:
    """Where cells wait: the folder named, else `CLAWMODE_STATE`, else the user's."""
    named = os.environ.get(STATE_VARIABLE) if explicit is None else explicit
    if named:
        return Path(os.path.expanduser(named))
    # A relative one is to be ignored, says the XDG specification.
    configured = Path(os.environ.get("XDG_STATE_HOME", ""))
    base = configured if configured.is_absolute() else Path(os.path.expanduser("~/.local/state"))
    return base / "clawmode"


def _called() -> list[str]:
    """How this command was called."""
    program = sys.argv[0]
    if Path(program).name != "clawmode":
        return [sys.executable, "-m", "clawmode"]
    found = shutil.which("clawmode")
    return ["clawmode"] if found and Path(found).resolve() == Path(program).resolve() else [program]


# ---- Policy ----


def read_policy(text: str) -> Policy:
    """The policy of `--policy`: an object in the option itself, or the path of a file with one.

    Raises:
        ConfigurationError: It cannot be read, or says what cannot be meant.
    """
    inline = text.lstrip().startswith("{")
    try:
        said = text if inline else _read_file(Path(text).expanduser())
        rules = json5.parse(said, "--policy" if inline else text).value
        if not isinstance(rules, dict):
            raise ConfigurationError('expected an object: { allow: ["read_*"] }')
        layers = Policy.from_config(rules).layers
        return Policy(
            tuple(replace(it, name="command") if it.name == "global" else it for it in layers)
        )
    except ConfigurationError as error:
        name = "" if str(error).startswith("--policy") else "--policy: "
        raise ConfigurationError(f"{name}{error}", path="--policy") from None


def _read_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_POLICY_BYTES + 1)
        if len(raw) > MAX_POLICY_BYTES:
            raise ConfigurationError(f"{path} is over {MAX_POLICY_BYTES} bytes")
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} is not UTF-8: byte {error.start}") from None
    except (OSError, ValueError, RuntimeError) as error:  # a NUL in the name; no such home
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigurationError(f"cannot read {path}: {reason}") from None
