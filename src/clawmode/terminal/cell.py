"""One cell in the foreground: started or resumed, watched, its questions put, its result shown.

What it emits and returns goes to stdout; nested calls, questions and complaints to the terminal or
stderr.
"""

import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
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
from clawmode.terminal.desk import Mode, Terminal, attended, decided, make_approvals
from clawmode.terminal.interrupts import interruptible, outlast_tools
from clawmode.tools.approvals import Approvals

if TYPE_CHECKING:
    from clawmode.mcp.servers import McpServers

Start: TypeAlias = Callable[[CodeMode], Awaitable[CodeModeResult]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreground:
    """How people take part in a cell.

    Attributes:
        options: As they were given, to be given again.
        setup: What it can call, and its limits.
        out: Where its output and value go.
        approve: Who decides about calls.
        wait: Go on with it when it waits.
        as_json: A program reads the result.
        quiet: Do not show nested calls.
        stdin_is_taken: The program was read from there, so a person's answers are not.
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
            start: Starts or resumes it.
            run_id: Of one that is resumed.
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
        self._show_end(result)
        outlast_tools()
        return result

    # ---- Driving ----

    async def _drive(self, start: Start, run_id: str, view: CallView) -> CodeModeResult:
        approvals = self._approvals(view)
        with loaded_plugins(self.setup.configuration, self.setup.state) as plugins:
            async with (
                interruptible(),
                self._open_servers(approvals) as servers,
                self._open_code_mode(approvals, servers, plugins) as code_mode,
            ):
                unwatch = code_mode.watch(view.add)
                async with attended(approvals):
                    result = await self._follow(code_mode, start, run_id, approvals, view)
                # What is cancelled when all is closed is to be seen as it was: open.
                unwatch()
        return result

    def _open_servers(
        self, approvals: Approvals
    ) -> "AbstractAsyncContextManager[McpServers | tuple[()]]":
        if not self.setup.servers:
            return nullcontext(())
        from clawmode.app.servers import open_servers  # takes a second, and not all need it

        return open_servers(self.setup, asks=approvals.takes_input)

    def _open_code_mode(
        self, approvals: Approvals, servers: "McpServers | tuple[()]", plugins: Plugins
    ) -> CodeMode:
        return CodeMode(
            tools=[*self.setup.tools, *plugins.tools],
            hooks=plugins.hooks,
            namespaces=plugins.namespaces,
            mcp_servers=servers,
            config=self.setup.config,
            policy=self.setup.policy,
            approvals=approvals,
            store=self._open_store(),
            context=RunContext(agent_id=AGENT, session_id="cli", session_key="cli", run_id="cli"),
        )

    def _open_store(self) -> SnapshotStore:
        try:
            return SqliteStore(self.setup.state)
        except StoreUnavailable as error:  # most programs do not wait
            print_note(str(error))
            return MemoryStore()

    async def _follow(
        self,
        code_mode: CodeMode,
        start: Start,
        run_id: str,
        approvals: Approvals,
        view: CallView,
    ) -> CodeModeResult:
        try:
            result = await start(code_mode)
            output = list(result.output)
            self._show_output(result, view)
            while result.status == "waiting" and self.wait:
                run_id = result.run_id
                if _waits_for_people(result) and not await decided(approvals):
                    break
                result = await code_mode.wait(run_id)
                output += result.output
                self._show_output(result, view)
        except BaseException:
            # Stopped: a cell that waits in the store would outlive us.
            if run_id:
                with anyio.CancelScope(shield=True):
                    await code_mode.abort(run_id)
            raise
        return replace(result, output=output)

    def _approvals(self, view: CallView) -> Approvals:
        asks = self.approve == "ask" and self.wait
        return make_approvals(
            self.approve,
            later=not self.wait,
            terminal=Terminal.find(stdin_is_taken=self.stdin_is_taken) if asks else None,
            paused=view.paused,
            tell=print_note,
        )

    # ---- Showing ----

    def _show_output(self, result: CodeModeResult, view: CallView) -> None:
        if self.as_json or not result.output:
            return
        with view.paused():
            for item in result.output:
                assert isinstance(item, dict)
                text = item.get("text")
                self.out.say(text if isinstance(text, str) else pretty(item.get("value")))

    def _show_end(self, result: CodeModeResult) -> None:
        if result.status == "waiting":
            print_stderr(f"waiting ({result.reason}); go on with:", YELLOW)
            print_stderr(f"  {self.options.resume_command(result.run_id)}")
        elif self.as_json:
            return
        elif result.status == "failed":
            print_stderr(f"failed ({result.code}): {result.error}", RED)
        elif result.value is not None:
            self.out.say(pretty(result.value))


def _waits_for_people(result: CodeModeResult) -> bool:
    states = {call.get("state") for call in result.pending_tool_calls if isinstance(call, dict)}
    return "approval" in states and states <= {"approval", "queued"}
