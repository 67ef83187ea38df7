"""The folders that agents work in: their workspace, or the root of a sandbox instead of it."""

import os
import shutil
import stat
from pathlib import Path
from typing import Literal, TypeAlias

from clawmode.exceptions import ConfigurationError
from clawmode.sessions.keys import check_agent_id, check_session_id

SandboxScope: TypeAlias = Literal["session", "agent", "shared"]


def workspace_of(state: Path, agent_id: str = "main", configured: str | None = None) -> Path:
    """The folder that an agent works in; made if it is not there.

    Args:
        state: The state folder; `workspace` in it is the default of `main`, `workspace-<agentId>`
            that of another agent.
        agent_id: Whose it is.
        configured: What the configuration says, with `~` for the user's folder.

    Raises:
        ConfigurationError: It cannot be made.
        InvalidSession: `agent_id` can be none.
    """
    agent_id = check_agent_id(agent_id)
    if configured:
        check_workspace(state, configured)
        return _made(_absolute(configured))
    return _made(state / ("workspace" if agent_id == "main" else f"workspace-{agent_id}"))


def check_workspace(state: Path, configured: str, *, sandbox: bool = False) -> None:
    """Checks a configured folder without making it.

    Raises:
        ConfigurationError: It is relative, no folder, or holds the state folder.
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
            f"{str(folder)[:200]!r} cannot be used to work in: the state folder is in it",
            path="workspace",
            expected="a folder without the state folder",
        )


def holds_state(folder: Path, state: Path) -> bool:
    """Whether tools that work in a folder could change who may do what, and what is remembered."""
    return state.resolve().is_relative_to(folder.resolve())


def current_folder(state: Path) -> Path | None:
    """The folder that a person at a terminal is in, if an agent may work there; None if not.

    Not where its tools could change the state, nor in a home folder as a whole, where keys are.
    """
    try:
        here, home = Path.cwd().resolve(), Path.home().resolve()
    except (OSError, RuntimeError):  # it was removed; there is no home
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
    """The folder that a sandboxed agent works in instead of its workspace; made if needed.

    Args:
        state: The state folder; `sandboxes` in it is where these are by default.
        agent_id: Whose it is.
        session_id: In which session.
        scope: What has a folder of its own: each session, each agent, or nothing.
        configured: Where they are instead.

    Raises:
        ConfigurationError: It cannot be made.
        InvalidSession: Agent or session can be none.
    """
    base = _absolute(configured) if configured else state / "sandboxes"
    agent_id = check_agent_id(agent_id)
    name = "shared"
    if scope == "agent":
        name = f"agent-{agent_id}"
    elif scope == "session":
        name = f"session-{check_session_id(session_id)}"
    # A link would lead those who work in it out of the sandbox.
    return _made(base / name, follow=False)


def forget_sandbox(state: Path, session_id: str, configured: str | None = None) -> None:
    """Deletes the sandbox of a session that is deleted, if it had one."""
    base = _absolute(configured) if configured else state / "sandboxes"
    folder = base / f"session-{check_session_id(session_id)}"
    if folder.is_dir() and not folder.is_symlink():
        shutil.rmtree(folder, ignore_errors=True)


def _absolute(configured: str) -> Path:
    path = Path(os.path.expanduser(configured))
    if path.is_absolute():
        return path
    raise ConfigurationError(
        f"the folder {configured[:200]!r} is relative",
        path="workspace",
        expected="an absolute path, or one that begins with ~",
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
        f"{str(path)[:200]!r} cannot be used to work in: {reason}",
        path="workspace",
        expected="a folder, or a path at which one can be made",
    )
