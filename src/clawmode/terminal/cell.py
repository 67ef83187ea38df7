"""One cell at a terminal: started or resumed, with its calls, questions and result.

The output and the value of the program go to stdout; nested calls, questions and errors go to the
terminal or to stderr.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import anyio

from clawmode.app.backends import open_backend
from clawmode.app.console import RED, ProgramOutput, pretty, print_note, print_stderr
from clawmode.app.setup import AGENT, Setup
from clawmode.code_mode.code_mode import CodeMode
from clawmode.code_mode.memory_store import MemoryStore
from clawmode.code_mode.results import CodeModeResult
from clawmode.code_mode.stores import SnapshotStore
from clawmode.context import RunContext
from clawmode.exceptions import StoreUnavailable
from clawmode.plugins.loader import Plugins
from clawmode.plugins.setup import loaded_plugins
from clawmode.terminal.call_tree import CallView
from clawmode.terminal.desk import COMMAND_ENDS, Desk
from clawmode.tools.approvals import Approvals, Mode
from clawmode.types import JsonValue

if TYPE_CHECKING:
    from clawmode.mcp.servers import McpServers


class CellRequest(NamedTuple):
    """A cell to start or, without `code`, to resume; without `wait`, it may be left waiting."""

    code: str | None = None
    language: str = ""
    run_id: str = ""
    wait: bool = True


class CellView(CallView):
    """Shows the calls, the output and the result of a cell.

    Args:
        out: Where output and value go; None if the result is printed as JSON instead.
        live: Show calls while they run.
        summary: Show calls at the end.
    """

    def __init__(self, out: ProgramOutput | None, *, live: bool, summary: bool) -> None:
        super().__init__(live=live, summary=summary)
        self._out = out

    def show_output(self, result: CodeModeResult) -> None:
        """Shows the output that the program has written since the last result."""
        if self._out is None or not result.output:
            return
        with self.paused():
            for item in result.output:
                assert isinstance(item, dict)
                text = item.get("text")
                self._out.say(text if isinstance(text, str) else pretty(item.get("value")))

    def close(self, result: CodeModeResult | None = None) -> None:
        """Ends the tree; shows the value or the error of a program that has ended."""
        super().close()
        if result is None or self._out is None:
            return
        if result.status == "failed":
            print_stderr(f"failed ({result.code}): {result.error}", RED)
        elif result.value is not None:
            self._out.say(pretty(result.value))


class CellTurn:
    """A cell as a turn at the terminal.

    Args:
        setup: The tools, servers and limits.
    """

    until = COMMAND_ENDS
    _request: CellRequest
    _view: CellView
    _plugins: Plugins
    _code_mode: CodeMode
    _desk: Desk | None

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._opened = ExitStack()

    def prepare(self, request: CellRequest, view: CellView) -> Mode:
        self._request, self._view = request, view
        loading = loaded_plugins(self._setup.configuration, self._setup.state)
        self._plugins = self._opened.enter_context(loading)
        return "ask"

    @asynccontextmanager
    async def open(self, approvals: Approvals) -> AsyncIterator[None]:
        store: SnapshotStore
        servers: McpServers | tuple[()] = ()
        self._desk = approvals.asker if isinstance(approvals.asker, Desk) else None
        async with AsyncExitStack() as opened:
            opened.push(self._opened)
            if self._setup.servers:
                from clawmode.app.servers import open_servers  # the MCP SDK takes a second

                connecting = open_servers(self._setup, asks=approvals.takes_input)
                servers = await opened.enter_async_context(connecting)
            try:
                store = (await opened.enter_async_context(open_backend(self._setup))).cells
            except StoreUnavailable as error:  # not fatal: most programs never wait
                print_note(str(error))
                store = MemoryStore()
            context = RunContext(agent_id=AGENT, session_id="cli", session_key="cli", run_id="cli")
            code_mode = CodeMode(
                tools=[*self._setup.tools, *self._plugins.tools],
                hooks=self._plugins.hooks,
                namespaces=self._plugins.namespaces,
                mcp_servers=servers,
                config=self._setup.config,
                policy=self._setup.policy,
                approvals=approvals,
                store=store,
                context=context,
            )
            self._code_mode = await opened.enter_async_context(code_mode)
            unwatch = code_mode.watch(self._view.add)
            yield
            # Closing cancels open calls. The view is to show them as open, not as cancelled.
            unwatch()

    async def start(self, request: CellRequest) -> None:
        """Does nothing: `result` runs the cell, because the program may ask questions."""

    async def result(self) -> CodeModeResult | None:
        code_mode, (code, language, run_id, wait) = self._code_mode, self._request
        output: list[JsonValue] = []
        with anyio.CancelScope() as self._running:
            try:
                while True:
                    if code is None:
                        result = await code_mode.wait(run_id)
                    else:
                        result = await code_mode.exec(code, language)
                    code, run_id = None, result.run_id
                    output += result.output
                    self._view.show_output(result)
                    if result.status != "waiting" or not wait:
                        return replace(result, output=output)
                    calls = (call for call in result.pending_tool_calls if isinstance(call, dict))
                    states = {call.get("state") for call in calls}
                    # True if only the user's decisions can continue the program.
                    is_blocked = "approval" in states and states <= {"approval", "queued"}
                    if self._desk and is_blocked and not await self._desk.wait_until_clear():
                        return replace(result, output=output)
            except BaseException:
                # Ctrl-C ends the cell, too: in the store it would outlive this process.
                if run_id:
                    with anyio.CancelScope(shield=True):
                        await code_mode.abort(run_id)
                raise
        return None

    async def stop(self) -> int:
        self._running.cancel()
        return 1

    async def leave(self, say: Callable[[str], None]) -> bool:
        """The program continues until it needs the decision, and is then left waiting."""
        return False
