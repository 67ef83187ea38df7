"""The core tools of one workspace, put together."""

from pathlib import Path

from clawmode.core_tools.confined import Workspace
from clawmode.core_tools.exec_policy import ExecGuard
from clawmode.core_tools.files import FileSettings, file_tools
from clawmode.core_tools.processes import ShellSessions
from clawmode.core_tools.shell import ShellSettings, shell_tools
from clawmode.core_tools.web import WebSettings, web_tools
from clawmode.tools.tool import Tool


class CoreTools:
    """Files, shell and web, for one workspace. Commands run only inside of `async with`.

    Attributes:
        tools: `read`, `write`, `edit`, `apply_patch`, `exec`, `process`, `web_fetch`.
        guard: Decides about commands; `guard.install(hooks)` makes it heard. Without that, and
            with rules that leave something to decide, no command runs.
        sessions: The commands that run.
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
        """Ends all commands that were started through it, unless they are shared with others."""
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
        workspace: The folder that files stay in and commands start in.
        files: Limits of the file tools.
        shell: How commands run.
        web: What may be fetched.
        sessions: Where commands run, to share between workspaces and runs; open already.
        guard: Who decides about commands, to share; by default the rules of `shell` alone.

    Raises:
        ConfigurationError: The workspace cannot be one.
    """
    files, shell, web = files or FileSettings(), shell or ShellSettings(), web or WebSettings()
    place = Workspace(workspace, files.limits)
    if guard is None:
        guard = ExecGuard(shell.rules, search_path=shell.environment().get("PATH", ""))
    running = sessions or ShellSessions(shell.limits)
    tools = (
        *file_tools(place, files),
        *shell_tools(place, shell, running, guard),
        *web_tools(web),
    )
    return CoreTools(tools, guard, running, owns_sessions=sessions is None)
