"""`Options` of the command line, and the `Setup` that they resolve to together with the file.

`app/loading.py` reads a `Setup`; everything that is started from the configuration takes one.
"""

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Literal, TypeAlias

import platformdirs

from clawmode.catalog.catalog import Catalog
from clawmode.catalog.vectors import choose_ranker
from clawmode.code_mode.config import CodeModeConfig
from clawmode.config.resolve import Configuration
from clawmode.exceptions import ConfigurationError
from clawmode.mcp.settings import ServerSettings
from clawmode.tools.approvals import Mode
from clawmode.tools.policy import Policy
from clawmode.tools.tool import Tool
from clawmode.types import dataclass

AGENT = "main"
"""The agent that runs the cells of `clawmode run`."""

STATE_VARIABLE = "CLAWMODE_STATE"

Purpose: TypeAlias = Literal["look", "agent", "gateway"]
"""Why a configuration is read. To `look`, nothing that the configuration names has to exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options that several commands share, as the user gave them."""

    tools: tuple[str, ...] = ()
    config: str | None = None
    mcp_config: str | None = None
    policy: str | None = None
    state: str | None = None
    approve: Mode | None = None
    limits: Mapping[str, int] = field(default_factory=dict)

    def resume_command(self, *command: str) -> str:
        """Returns the shell command that resumes a turn with these options, in the same folder."""
        words = [*_program(), *command]
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
    """The resolved settings of a command: its options and the configuration file together.

    Attributes:
        tools: All Python tools, including tools that `policy` denies.
        servers: The MCP servers, not connected yet.
        policy: All layers, of the file and of the options.
        narrowed: The part of `policy` that the options added.
        configuration: The content of the file.
        config: The limits of code mode for the agent `main`.
        state: The state folder.
        folder: The base folder of relative paths in the configuration.
        here: The working folder, in which a configuration file is looked for.
        notes: Warnings for the user, such as values that were out of range.
        file: The configuration file; None if there is none.
        found_here: True if the file was found in the working folder and not named by the user.
        named: The values of `--mcp-config` and `--policy`: paths of files, or inline rules.
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
    here: Path = field(default_factory=Path.cwd)
    file: Path | None = None
    found_here: bool = False
    named: tuple[str, ...] = ()

    @property
    def sessions_folder(self) -> Path:
        return self.state / "sessions"

    def catalog(self) -> Catalog:
        """Returns the catalog that programs search, with the same ranking."""
        return Catalog(self.policy.effective(self.tools), ranker=choose_ranker())


def option_of(name: str) -> str:
    """Returns the command-line option that sets a field, such as `--mcp-config`."""
    return "--" + name.replace("_", "-")


def state_folder(explicit: str | None = None) -> Path:
    """Returns the state folder: `explicit`, else `CLAWMODE_STATE`, else the XDG state folder.

    Raises:
        ConfigurationError: No folder is named, and the user has no home folder.
    """
    named = os.environ.get(STATE_VARIABLE) if explicit is None else explicit
    if named:
        return Path(os.path.expanduser(named))
    try:
        return platformdirs.user_state_path("clawmode")
    except RuntimeError:
        raise ConfigurationError(
            f"there is no home folder for the state; set {STATE_VARIABLE} or HOME to a folder"
        ) from None


def _program() -> list[str]:
    """Returns the words that start this program in the user's shell."""
    program = sys.argv[0]
    if Path(program).name != "clawmode":
        return [sys.executable, "-m", "clawmode"]
    found = shutil.which("clawmode")
    return ["clawmode"] if found and Path(found).resolve() == Path(program).resolve() else [program]
