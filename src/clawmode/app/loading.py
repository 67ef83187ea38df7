"""Reads the configuration file and the options of a command into a `Setup`, and asks for trust.

An option takes precedence over the file. A policy of the command line only narrows: a tool that the
file denies stays denied. A configuration that was found in the working folder is used only after
the user has agreed to it, because it decides which programs run.
"""

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from warnings import catch_warnings

from clawmode.app.console import ask_input, forget_keys, print_stderr
from clawmode.app.setup import AGENT, Options, Purpose, Setup, option_of, state_folder
from clawmode.config import file as config_file
from clawmode.config import json5
from clawmode.config import mcp as server_config
from clawmode.config import resolve as settings
from clawmode.config.mcp import McpConfig
from clawmode.config.resolve import Configuration
from clawmode.config.trust import UntrustedConfiguration, is_trusted, trust, was_trusted
from clawmode.exceptions import ClawmodeWarning, ConfigurationError, ConfigWarning
from clawmode.records import Issue, Issues
from clawmode.text import one_line
from clawmode.tools.loading import load_tools
from clawmode.tools.policy import Policy
from clawmode.types import JsonObject, JsonValue, dataclass

if TYPE_CHECKING:
    from clawmode.agent.models import ModelPool

TRUST_HINT = f"Read it, then run `clawmode config trust`, or name it: --config {config_file.NAME}"
MAX_LINE = 200
MAX_REACH = 20
"""The most lines about a configuration that the question for trust shows."""

MAX_POLICY_BYTES = 1 << 20


def set_up(
    options: Options,
    purpose: Purpose = "look",
    *,
    folder: Path = config_file.HERE,
    servers_of_client: JsonObject | None = None,
) -> Setup:
    """Reads the configuration, the tools and the policy that the options name.

    Args:
        options: The options of the command.
        purpose: Why the configuration is read.
        folder: The working folder, if it is not that of the process.
        servers_of_client: MCP servers by name that a client brings along, in the usual format. They
            are used as they are, and take the place of configured servers with the same name.

    Raises:
        ConfigurationError: One of these is invalid. For an agent or a gateway, everything that the
            configuration names, such as models and folders, has to exist as well.
    """
    file = config_file.load(options.config, folder)
    _require_trust(file)
    state = state_folder(options.state)
    configured = _read_configuration(file)
    if purpose != "look":
        configured = _examined(file, configured, state, serves=purpose == "gateway")
    if configured.fatal:
        first, *more = config_file.report(file, configured.fatal).errors
        rest = f"\n({len(more)} more: see clawmode config check)" if more else ""
        raise ConfigurationError(
            first.text + rest,
            path=first.path,
            expected=first.expected,
            line=first.line,
            column=first.column,
        )
    notes = [problem.text for problem in configured.report.warnings]
    agent = settings.agent(configured.configuration, AGENT)
    limits: dict[str, Any] = dict(options.limits)
    with catch_warnings(action="ignore", category=ClawmodeWarning):  # `notes` has the same text
        config = agent.tools.code_mode.replace(**limits)
    for name, used in ((name, getattr(config, name)) for name in limits):
        if used != limits[name]:
            notes.append(f"{option_of(name)} {limits[name]} is out of range: {used} is used")
    servers = configured.servers.with_broken_entries()
    if options.mcp_config is not None:
        others = server_config.load(options.mcp_config, ask=ask_input)
        notes += map(str, others.warnings)
        if others.fatal:
            raise others.fatal[0]
        servers = servers + others.with_broken_entries()
    if servers_of_client:
        brought = server_config.read({"mcpServers": servers_of_client}, _PlaceholderEnvironment())
        notes += map(str, brought.warnings)
        kept = [server for server in servers if server.name not in servers_of_client]
        servers = [*kept, *brought.with_broken_entries()]
    layers = settings.policy(
        configured.configuration, AGENT, sandboxed=agent.sandbox.mode == "all"
    ).layers
    narrowed = Policy() if options.policy is None else read_policy(options.policy)
    return Setup(
        tools=load_tools(options.tools),
        servers=servers,
        policy=Policy(layers + narrowed.layers),
        narrowed=narrowed,
        configuration=configured.configuration,
        config=config,
        state=state,
        folder=(folder.absolute() if file.path is None else _folder(file)),
        here=folder.absolute(),
        notes=notes,
        file=None if file.path is None else file.path.absolute(),
        found_here=file.unnamed,
        named=tuple(filter(None, (options.mcp_config, options.policy))),
    )


# ---- Trust ----


def _require_trust(file: config_file.ConfigFile) -> None:
    """Asks the user once to agree to a configuration that was found in the working folder.

    Raises:
        UntrustedConfiguration: The user does not agree, or there is no terminal to ask at.
    """
    if not file.unnamed or file.path is None or _is_agreed(file):
        return
    changed = was_trusted(file.path, state_folder())
    status = "has changed since you agreed to it" if changed else "has not been used before"
    head = f"{config_file.NAME} in this folder {status}. It decides which programs run as you"
    if _confirm(f"{head}:", describe_reach(file.data)):
        trust(file.path, file.digest, state_folder())
        return
    raise UntrustedConfiguration(f"{head}, so it needs your agreement. {TRUST_HINT}")


def _is_agreed(file: config_file.ConfigFile) -> bool:
    # Never the folder of `--state`: a downloaded project could contain a state folder that says
    # that the user agreed.
    return file.path is None or is_trusted(file.path, file.digest, state_folder())


def agree(path: str | None) -> tuple[Path, list[str]]:
    """Records that the user agrees to a configuration file.

    Returns:
        The file, and the lines of `describe_reach`.

    Raises:
        ConfigurationError: There is no file, it cannot be read, or another user can change it.
    """
    file = config_file.load(path)
    if file.path is None:
        raise ConfigurationError(f"there is no {config_file.NAME} in this folder")
    trust(file.path, file.digest, state_folder())
    return file.path.absolute(), describe_reach(file.data)


def describe_reach(data: Mapping[str, JsonValue]) -> list[str]:
    """Returns one line for each thing that a configuration starts, loads or connects to."""
    found = settings.read(dict(data)).section
    servers = server_config.read(data, _PlaceholderEnvironment()).servers
    lines = [
        f"MCP server {server.name}: "
        f"{shlex.join((server.command, *server.args)) if server.command else server.url}"
        for server in servers
        if server.enabled
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
    lines += [f"plugins in {path}" for path in found.plugins.load.paths]
    lines += [f"channel {name}: {entry.url}" for name, entry in found.channels.items() if entry.url]
    if command := found.security.install_policy.command:
        lines.append(f"policy for installing: {shlex.join(command)}")
    # The approvals that are switched off come first: only the start of a long list is shown.
    return [*filter(None, [settings.approval_warning(found)]), *lines]


class _PlaceholderEnvironment(dict[str, str]):
    """An environment that leaves `${NAME}` as it is: a value could be a secret."""

    def get(self, name: str, default: Any = None) -> Any:
        return f"${{{name}}}"


def _confirm(head: str, lines: Sequence[str]) -> bool:
    """Asks at the terminal whether to use a configuration; False without a terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    shown = [f"  | {one_line(line, MAX_LINE)}" for line in lines[:MAX_REACH]]
    if len(lines) > MAX_REACH:
        shown.append(f"  | and {len(lines) - MAX_REACH} more")
    print_stderr("\n".join([head, *(shown or ["  | no program, plugin or address"])]))
    forget_keys(sys.stdin.fileno())
    sys.stderr.write("Use it from now on? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


# ---- The configuration ----


@dataclass(frozen=True, slots=True)
class _LoadedFile:
    """The content of a configuration file, with its problems.

    Attributes:
        problems: All errors and warnings.
        report: The same with line and column.
        fatal: The errors that keep every command from starting.
    """

    configuration: Configuration
    servers: McpConfig
    problems: list[Issue]
    report: config_file.Report
    fatal: list[ConfigurationError]


def _read_configuration(file: config_file.ConfigFile) -> _LoadedFile:
    found = settings.read(file.data)
    servers = server_config.read(file.data)
    problems: list[Issue] = [*found.errors, *servers.errors, *found.warnings, *servers.warnings]
    # A misconfigured MCP server is left out; the other servers, and the command, still work.
    fatal = [*found.errors, *servers.fatal]
    return _LoadedFile(found.section, servers, problems, config_file.report(file, problems), fatal)


def _examined(
    file: config_file.ConfigFile,
    loaded: _LoadedFile,
    state: Path,
    models: "ModelPool | None" = None,
    *,
    serves: bool = True,
) -> _LoadedFile:
    """Adds the problems of everything that the configuration names."""
    from clawmode.app.check import examine  # imports plugins and models, which few commands need

    issues = Issues()  # removes repetitions, and bounds their number
    issues.add(loaded.problems)
    wrong = [it.path for it in loaded.problems if isinstance(it, ConfigurationError)]
    # A value of the wrong type was left out. Problems that follow from its absence are not
    # reported: the user would look for them in vain.
    more = [
        problem
        for problem in examine(
            loaded.configuration, folder=_folder(file), state=state, models=models, serves=serves
        )
        if not any(problem.path.startswith(p) or p.startswith(problem.path) for p in wrong)
    ]
    issues.add(more)
    problems = [*issues.errors, *issues.warnings]
    fatal = [*loaded.fatal, *(it for it in more if isinstance(it, ConfigurationError))]
    report = config_file.report(file, problems)
    return replace(loaded, problems=problems, report=report, fatal=fatal)


def _folder(file: config_file.ConfigFile) -> Path:
    return Path.cwd() if file.path is None else file.path.absolute().parent


def check(path: str | None, state: Path | None = None) -> config_file.Report:
    """Returns every problem that start-up would report about a configuration file; never raises."""
    return read(path, state)[1]


def read(
    path: str | Path | None,
    state: Path | None = None,
    models: "ModelPool | None" = None,
    *,
    found_here: bool = False,
) -> tuple[Configuration, config_file.Report]:
    """Reads a configuration file with every problem that start-up would report; never raises.

    A configuration with errors must not be used.

    Args:
        path: The file; None for the file that is found.
        state: The state folder.
        models: Models that need no provider in the configuration.
        found_here: True if the user did not name the file at start-up. Then the user has to have
            agreed to its present content.
    """
    try:
        file = config_file.load(path)
        if found_here and not _is_agreed(file):
            raise UntrustedConfiguration(
                f"{file.path} has changed since you agreed to it, so it needs your agreement "
                f"again. Read it, then run `clawmode config trust` in its folder"
            )
    except ConfigurationError as error:
        return Configuration(), config_file.unreadable(path, error)
    loaded = _read_configuration(file)
    if file.unnamed and not _is_agreed(file):
        text = f"you have not agreed to this file yet. {TRUST_HINT}"
        loaded.problems.append(ConfigWarning("", text))
    loaded = _examined(file, loaded, state or state_folder(), models)
    return loaded.configuration, loaded.report


# ---- Policy ----


def read_policy(text: str) -> Policy:
    """Parses the value of `--policy`: an inline object, or the path of a file that contains one.

    Raises:
        ConfigurationError: The file cannot be read, or its rules are invalid.
    """
    inline = text.lstrip().startswith("{")
    try:
        source = text if inline else _read_file(Path(text).expanduser())
        rules = json5.parse(source, "--policy" if inline else text).value
        if not isinstance(rules, dict):
            raise ConfigurationError('expected an object: { allow: ["read_*"] }')
        layers = Policy.from_config(rules).layers
        # Messages about the layer are to name the command line, not the global configuration.
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
            raise ConfigurationError(f"{path} is larger than {MAX_POLICY_BYTES} bytes")
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} is not UTF-8: byte {error.start}") from None
    except (OSError, ValueError, RuntimeError) as error:  # a NUL in the name; no home folder
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigurationError(f"cannot read {path}: {reason}") from None
