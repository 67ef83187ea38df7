"""One cell at a terminal: started or resumed, with its calls, questions and result.

The output and the value of the program go to stdout; nested calls, questions and errors go to the
terminal or to stderr.
"""

import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import anyio

from clawmode.app.console import RED, YELLOW, ProgramOutput, pretty, print_note, print_stderr
from clawmode.app.setup import AGENT, Options, Setup
from clawmode.code_mode.code_mode import CodeMode
from clawmode.code_mode.memory_store import MemoryStore
from clawmode.code_mode.results import CodeModeResult
from clawmode.code_mode.sqlite_store import SqliteStore
from clawmode.code_mode.stores import SnapshotStore
from clawmode.context import RunContext
from clawmode.exceptions import StoreUnavailable
from clawmode.plugins.loader import Plugins
from clawmode.plugins.setup import loaded_plugins
from clawmode.terminal.call_tree import CallView
from clawmode.terminal.desk import Desk, make_approvals, questions_served
from clawmode.terminal.interrupts import interruptible, join_tool_threads
from clawmode.tools.approvals import Approvals, Mode

if TYPE_CHECKING:
    from clawmode.mcp.servers import McpServers

Start: TypeAlias = Callable[[CodeMode], Awaitable[CodeModeResult]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalCell:
    """One cell, run and shown at a terminal.

    Attributes:
        options: The user's options, for the command that resumes the cell.
        setup: The tools, servers and limits.
        out: Where output and value go.
        approve: Who decides about calls.
        wait: Resume the cell when it waits, instead of leaving it waiting.
        as_json: Print the result as JSON.
        quiet: Do not show nested calls.
        stdin_is_taken: True if the program was read from stdin, so answers cannot be.
    """

    options: Options
    setup: Setup
    out: ProgramOutput
    approve: Mode = "ask"
    wait: bool = True
    as_json: bool = False
    quiet: bool = False
    stdin_is_taken: bool = False

    def run(self, start: Start, run_id: str = "") -> CodeModeResult:
        """Runs a cell until it ends or is left waiting, and shows the result.

        Args:
            start: Starts or resumes the cell.
            run_id: The id of a cell that is resumed.
        """
        watched = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        shown = not self.quiet
        view = CallView(live=watched and shown, summary=shown and (watched or not self.as_json))
        try:
            result = anyio.run(self._drive, start, run_id, view)
        finally:
            view.close()
        if self.as_json:
            self.out.json(result.to_json())
        if result.status == "waiting":
            print_stderr(f"waiting ({result.reason}); resume with:", YELLOW)
            print_stderr(f"  {self.options.resume_command(result.run_id)}")
        elif result.status == "failed" and not self.as_json:
            print_stderr(f"failed ({result.code}): {result.error}", RED)
        elif result.value is not None and not self.as_json:
            self.out.say(pretty(result.value))
        join_tool_threads()
        return result

    async def _drive(self, start: Start, run_id: str, view: CallView) -> CodeModeResult:
        desk = None
        if self.approve == "ask" and self.wait:
            desk = Desk.at_terminal(view.paused, stdin_is_taken=self.stdin_is_taken)
        approvals = make_approvals(self.approve, desk, later=not self.wait)
        with loaded_plugins(self.setup.configuration, self.setup.state) as plugins:
            async with interruptible(), self._open(approvals, plugins) as code_mode:
                unwatch = code_mode.watch(view.add)
                async with questions_served(desk):
                    result = await self._follow(code_mode, start, run_id, desk, view)
                # Closing cancels open calls. The view is to show them as open, not as cancelled.
                unwatch()
        return result

    @asynccontextmanager
    async def _open(self, approvals: Approvals, plugins: Plugins) -> AsyncIterator[CodeMode]:
        store: SnapshotStore
        servers: McpServers | tuple[()] = ()
        async with AsyncExitStack() as opened:
            if self.setup.servers:
                from clawmode.app.servers import open_servers  # the MCP SDK takes a second

                connecting = open_servers(self.setup, asks=approvals.takes_input)
                servers = await opened.enter_async_context(connecting)
            try:
                store = SqliteStore(self.setup.state)
            except StoreUnavailable as error:  # not fatal: most programs never wait
                print_note(str(error))
                store = MemoryStore()
            context = RunContext(agent_id=AGENT, session_id="cli", session_key="cli", run_id="cli")
            code_mode = CodeMode(
                tools=[*self.setup.tools, *plugins.tools],
                hooks=plugins.hooks,
                namespaces=plugins.namespaces,
                mcp_servers=servers,
                config=self.setup.config,
                policy=self.setup.policy,
                approvals=approvals,
                store=store,
                context=context,
            )
            yield await opened.enter_async_context(code_mode)

    async def _follow(
        self,
        code_mode: CodeMode,
        start: Start,
        run_id: str,
        desk: Desk | None,
        view: CallView,
    ) -> CodeModeResult:
        """Runs the cell until it ends or is left waiting; shows its output."""
        try:
            result = await start(code_mode)
            output = list(result.output)
            self._show_output(result, view)
            while result.status == "waiting" and self.wait:
                run_id = result.run_id
                calls = (call for call in result.pending_tool_calls if isinstance(call, dict))
                states = {call.get("state") for call in calls}
                # True if only the user's decisions can continue the program.
                is_blocked = "approval" in states and states <= {"approval", "queued"}
                if desk is not None and is_blocked and not await desk.wait_until_clear():
                    break
                result = await code_mode.wait(run_id)
                output += result.output
                self._show_output(result, view)
        except BaseException:
            # Ctrl-C ends the cell, too: in the store it would outlive this process.
            if run_id:
                with anyio.CancelScope(shield=True):
                    await code_mode.abort(run_id)
            raise
        return replace(result, output=output)

    def _show_output(self, result: CodeModeResult, view: CallView) -> None:
        if self.as_json or not result.output:
            return
        with view.paused():
            for item in result.output:
                assert isinstance(item, dict)
                text = item.get("text")
                self.out.say(text if isinstance(text, str) else pretty(item.get("value")))
