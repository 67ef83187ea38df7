"""What a command is set up with: its options and the configuration file, put together.

What stands on the command line wins over the file, but a policy only ever narrows: what the file
denies stays denied.
"""

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from clawmode import config_file, json5
from clawmode.catalog import Catalog
from clawmode.config import CodeModeConfig
from clawmode.exceptions import ConfigurationError
from clawmode.mcp import config as server_config
from clawmode.mcp.settings import ServerSettings
from clawmode.policy import KEYS, Config, Policy
from clawmode.tool_loading import load_tools
from clawmode.tools import Tool
from clawmode.types import JsonValue
from clawmode.vectors import choose_ranker

AGENT = "main"
"""Who runs cells from the command line."""

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
    approve: str = "ask"
    limits: Mapping[str, int] = field(default_factory=dict)

    def resuming(self, run_id: str) -> str:
        """The command that goes on with a cell, for a shell in the same folder."""
        words = [*_called(), "wait", run_id]
        for reference in self.tools:
            words += ["--tools", reference]
        for name in ("config", "mcp_config", "policy", "state"):
            if (value := getattr(self, name)) is not None:
                words += [option_of(name), value]
        if self.approve != "ask":
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
        notes: What was not taken as it was given, for people.
        state: The folder in which cells wait.
    """

    tools: list[Tool]
    servers: list[ServerSettings]
    policy: Policy
    config: CodeModeConfig
    state: Path
    notes: list[str]

    def catalog(self) -> Catalog:
        """What programs can find, ranked as for them."""
        return Catalog(self.policy.effective(self.tools), ranker=choose_ranker())


def set_up(options: Options) -> Setup:
    """Reads all that the options name.

    Raises:
        ConfigurationError: Something of it cannot be meant.
    """
    file = config_file.load(options.config)
    config, warnings = config_file.code_mode(file.data, AGENT)
    notes = [f"{file.path}: {warning}" for warning in warnings]
    limits: dict[str, Any] = dict(options.limits)
    config = replace(config, **limits)
    for name, used in ((name, getattr(config.clamped(), name)) for name in limits):
        if used != limits[name]:
            notes.append(f"{option_of(name)} {limits[name]} is out of range: {used} is used")
    servers, told = _servers(file.data, options.mcp_config)
    notes += told
    layers = configured_policy(file.data, AGENT).layers
    if options.policy is not None:
        layers += read_policy(options.policy).layers
    return Setup(
        tools=load_tools(options.tools),
        servers=servers,
        policy=Policy(layers),
        config=config,
        state=state_folder(options.state),
        notes=notes,
    )


def _servers(
    data: Mapping[str, JsonValue], other: str | None
) -> tuple[list[ServerSettings], list[str]]:
    """The servers of our configuration, and of another client's."""
    found = [server_config.read(data)]
    if other is not None:
        found.append(server_config.load(other))
    notes = [str(warning) for each in found for warning in each.warnings]
    return [server for each in found for server in each.unwrap()], notes


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


def configured_policy(data: Mapping[str, JsonValue], agent_id: str) -> Policy:
    """The policy that a configuration file sets, of the whole and of an agent.

    Args:
        data: The file, its sections known to be what they should be.
        agent_id: Whose run it is.

    Raises:
        ConfigurationError: It says what cannot be meant.
    """
    own = _rules(_agents(data).get(agent_id))
    return Policy.from_config(_rules(data.get("tools")) or None, agent=own or None)


def check(path: str | None) -> config_file.Report:
    """Looks at a configuration file, policies included, and says all that is to say."""
    report = config_file.check(path)
    if report.errors:
        return report
    data = config_file.load(path).data
    for agent_id in (AGENT, *_agents(data)):
        try:
            configured_policy(data, agent_id)
        except ConfigurationError as error:
            said = str(error)
            problem = config_file.Problem(error.path, 0, said, 0, said, error.expected)
            return replace(report, errors=[problem])
    return report


def _agents(data: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """The `tools` of each agent."""
    agents = _object(data.get("agents")).get("list")
    listed = [_object(agent) for agent in agents] if isinstance(agents, list) else []
    return {str(agent.get("id")): agent.get("tools", {}) for agent in listed}


def _rules(tools: JsonValue) -> Config:
    return {key: value for key, value in _object(tools).items() if key in KEYS}


def _object(value: JsonValue) -> dict[str, JsonValue]:
    return value if isinstance(value, dict) else {}


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
