"""Combines the core tools of one workspace."""

from pathlib import Path

from clawmode.core_tools.confined import Workspace
from clawmode.core_tools.exec_policy import ExecGuard
from clawmode.core_tools.files import FileSettings, file_tools
from clawmode.core_tools.processes import ShellSessions
from clawmode.core_tools.shell import ShellSettings, shell_tools
from clawmode.core_tools.web import WebSettings, web_tools
from clawmode.tools.tool import Tool


class CoreTools:
    """Files, shell and web, for one workspace. Commands only run inside `async with`.

    Attributes:
        tools: `read`, `write`, `edit`, `apply_patch`, `exec`, `process`, `web_fetch`.
        guard: Decides which commands run. `guard.install(hooks)` must be called, unless the rules
            allow every command; without it, no command runs.
        sessions: The running commands.
    """

    def __init__(
        self,
        tools: tuple[Tool, ...],
        guard: ExecGuard,
        sessions: ShellSessions,
        *,
        owns_sessions: bool,
    ) -> None:
        self.tools = tools
        self.guard = guard
        self.sessions = sessions
        self._owns_sessions = owns_sessions

    async def __aenter__(self) -> "CoreTools":
        if self._owns_sessions:
            await self.sessions.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._owns_sessions:
            await self.sessions.__aexit__(*error)

    async def aclose(self) -> None:
        """Ends all running commands, unless `sessions` was passed in and may be shared."""
        if self._owns_sessions:
            await self.sessions.aclose()


def make_core_tools(
    workspace: Path,
    *,
    files: FileSettings | None = None,
    shell: ShellSettings | None = None,
    web: WebSettings | None = None,
    sessions: ShellSessions | None = None,
    guard: ExecGuard | None = None,
) -> CoreTools:
    """Makes the core tools for a workspace.

    Args:
        workspace: The folder that contains all files, and that commands start in.
        files: Limits of the file tools.
        shell: How commands run.
        web: Which addresses may be fetched, and limits.
        sessions: An open `ShellSessions` to share between workspaces and runs.
        guard: An `ExecGuard` to share; by default only the rules of `shell` apply.

    Raises:
        ConfigurationError: The workspace is not a folder, or is the root of the file system.
    """
    files, shell, web = files or FileSettings(), shell or ShellSettings(), web or WebSettings()
    place = Workspace(workspace, files.limits)
    if guard is None:
        guard = ExecGuard(shell.rules, search_path=shell.environment().get("PATH", ""))
    running = sessions or ShellSessions(shell.limits)
    tools = (*file_tools(place, files), *shell_tools(place, shell, running, guard), *web_tools(web))
    return CoreTools(tools, guard, running, owns_sessions=sessions is None)
