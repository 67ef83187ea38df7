"""The folders that agents work in: the workspace of an agent, or a sandbox folder instead."""

import os
import shutil
import stat
from pathlib import Path
from typing import Literal, TypeAlias

from clawmode.exceptions import ConfigurationError
from clawmode.sessions.keys import check_agent_id, check_session_id

SandboxScope: TypeAlias = Literal["session", "agent", "shared"]


def workspace_of(state: Path, agent_id: str = "main", configured: str | None = None) -> Path:
    """Returns the workspace of an agent, which is created if it is missing.

    Args:
        state: The state folder. Its folder `workspace` is the default for the agent `main`,
            `workspace-<agentId>` for another agent.
        agent_id: The agent.
        configured: The configured path, with `~` for the home folder.

    Raises:
        ConfigurationError: The folder cannot be created or used.
        InvalidSession: The agent id is invalid.
    """
    agent_id = check_agent_id(agent_id)
    if configured:
        check_workspace(state, configured)
        return _made(_absolute(configured))
    return _made(state / ("workspace" if agent_id == "main" else f"workspace-{agent_id}"))


def check_workspace(state: Path, configured: str, *, sandbox: bool = False) -> None:
    """Checks a configured workspace without creating it.

    Raises:
        ConfigurationError: The path is relative, is not a folder, or contains the state folder.
    """
    folder = _absolute(configured)
    reason = ""
    try:
        if not stat.S_ISDIR(folder.stat().st_mode):
            reason = "it is not a folder"
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or str(error)
    if reason:
        raise _unusable(folder, reason)
    if not sandbox and holds_state(folder, state):
        raise ConfigurationError(
            f"{str(folder)[:200]!r} cannot be a workspace: it contains the state folder",
            path="workspace",
            expected="a folder without the state folder",
        )


def holds_state(folder: Path, state: Path) -> bool:
    """True if a folder contains the state folder: tools in it could change tokens and rules."""
    return state.resolve().is_relative_to(folder.resolve())


def current_folder(state: Path, folder: Path | None = None) -> Path | None:
    """Returns the current directory, or another folder, if an agent may work there, else None.

    An agent may not work in a folder that contains the state folder or the user's home folder,
    which holds keys.
    """
    try:
        here, home = (folder or Path.cwd()).resolve(), Path.home().resolve()
    except (OSError, RuntimeError):  # the directory was removed; the user has no home folder
        return None
    return None if holds_state(here, state) or home.is_relative_to(here) else here


def sandbox_root(
    state: Path,
    agent_id: str = "main",
    session_id: str = "",
    *,
    scope: SandboxScope = "session",
    configured: str | None = None,
) -> Path:
    """Returns the folder of a sandboxed agent, which is created if it is missing.

    Args:
        state: The state folder. Its folder `sandboxes` contains the folders by default.
        agent_id: The agent.
        session_id: The session.
        scope: Whether each session or each agent has a folder of its own, or all share one.
        configured: The configured parent of the folders.

    Raises:
        ConfigurationError: The folder cannot be created or used.
        InvalidSession: The id of the agent or session is invalid.
    """
    base = _absolute(configured) if configured else state / "sandboxes"
    agent_id = check_agent_id(agent_id)
    name = "shared"
    if scope == "agent":
        name = f"agent-{agent_id}"
    elif scope == "session":
        name = f"session-{check_session_id(session_id)}"
    # A link would lead tools out of the sandbox.
    return _made(base / name, follow=False)


def forget_sandbox(state: Path, session_id: str, configured: str | None = None) -> None:
    """Deletes the sandbox folder of a deleted session, if it had one."""
    base = _absolute(configured) if configured else state / "sandboxes"
    folder = base / f"session-{check_session_id(session_id)}"
    if folder.is_dir() and not folder.is_symlink():
        shutil.rmtree(folder, ignore_errors=True)


def _absolute(configured: str) -> Path:
    path = Path(os.path.expanduser(configured))
    if path.is_absolute():
        return path
    raise ConfigurationError(
        f"the folder {configured[:200]!r} is a relative path",
        path="workspace",
        expected="an absolute path, or one that starts with ~",
    )


def _made(path: Path, *, follow: bool = True) -> Path:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if follow or not path.is_symlink():
            return path.resolve(strict=True)
        reason = "it is a link"
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
    raise _unusable(path, reason)


def _unusable(path: Path, reason: str) -> ConfigurationError:
    return ConfigurationError(
        f"{str(path)[:200]!r} cannot be a workspace: {reason}",
        path="workspace",
        expected="a folder, or a path at which one can be created",
    )
