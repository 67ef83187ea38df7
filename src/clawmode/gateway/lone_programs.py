"""Programs that clients run without a model, against the catalog of an agent.

A program that waits keeps its code mode open in a task of the gateway, until it has ended or nobody
has waited for it for a while.
"""

import time
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING

import anyio

from clawmode.agent.events import call_data
from clawmode.agent.requests import AgentRequest
from clawmode.agent.run import AgentRun
from clawmode.agent.turn import code_mode_of
from clawmode.code_mode.code_mode import CodeMode
from clawmode.code_mode.results import CodeModeResult
from clawmode.exceptions import ClawmodeError
from clawmode.gateway.run_nodes import node_id_of
from clawmode.rpc.protocol import RpcError
from clawmode.tools.executor import CallEvent
from clawmode.types import JsonObject, dataclass

if TYPE_CHECKING:
    from clawmode.gateway.gateway import Gateway

MAX_PROGRAMS = 20
"""The most programs of clients that have not ended."""

LOOK_SECONDS = 5.0
"""How often it is checked whether a program has to be given up."""

EXEC_CALL = "exec"
"""The id of the call that nested calls have as their parent."""

TRIGGER = "codemode.run"


@dataclass(eq=False, slots=True)
class _LoneRun:
    """One program of a client, with all that it needs.

    Attributes:
        opened: Set when `run` and `programs` are there, or `error`.
        over: Set when the program needs no code mode any more.
        until: When the program is given up, by `time.time`.
        cell_id: The id of the program, once it has waited.
        waits: The number of pending waits for the program.
    """

    opened: anyio.Event = field(default_factory=anyio.Event)
    over: anyio.Event = field(default_factory=anyio.Event)
    run: AgentRun | None = None
    programs: CodeMode | None = None
    error: ClawmodeError | None = None
    until: float = float("inf")
    cell_id: str = ""
    waits: int = 0

    @property
    def node_id(self) -> str:
        """The id of the program in the tree of runs."""
        return "" if self.run is None else node_id_of(self.run.id, EXEC_CALL)


class LonePrograms:
    """The programs of clients that have not ended.

    Args:
        gateway: The gateway that they run in.
    """

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway
        self._runs: list[_LoneRun] = []

    def programs(self) -> dict[str, CodeMode]:
        """Returns the open code modes by the ids of their runs."""
        return {
            lone.run.id: lone.programs
            for lone in self._runs
            if lone.run is not None and lone.programs is not None
        }

    async def run(
        self, request: AgentRequest, code: str, language: str, yield_ms: float | None
    ) -> JsonObject:
        """Runs a program until it ends or has to wait; returns the answer of `codemode.run`.

        Raises:
            ClawmodeError: The agent cannot be opened, or too many programs wait already.
        """
        if len(self._runs) >= MAX_PROGRAMS:
            text = f"{MAX_PROGRAMS} programs of clients already wait; wait for one, or abort it"
            raise RpcError("RATE_LIMITED", text, retry_after_ms=5_000)
        lone = _LoneRun()
        self._runs.append(lone)
        try:
            self._gateway.begin(self._hold, lone, request)
        except RpcError:
            self._runs.remove(lone)
            raise
        await lone.opened.wait()
        if lone.error is not None:
            raise lone.error
        run, programs = lone.run, lone.programs
        assert run is not None
        assert programs is not None
        tree, context = self._gateway.feed.tree, run.context
        agent_id = context.agent_id
        tree.start_program(run.id, context.session_key, lone.node_id, code, agent_id)
        chosen = language or programs.config.languages[0]
        try:
            result = await programs.exec(code, chosen, call_id=EXEC_CALL, yield_ms=yield_ms)
        except BaseException:
            lone.over.set()
            raise
        return {"result": self._settle(lone, result), "nodeRunId": run.id}

    async def wait(self, cell_id: str, yield_ms: float | None) -> JsonObject:
        """Continues a program that waits; returns the answer of `codemode.wait`.

        Raises:
            RpcError: No program of a client has this id.
        """
        lone = next((it for it in self._runs if cell_id and it.cell_id == cell_id), None)
        if lone is None or lone.programs is None or lone.over.is_set():
            text = f"no program {cell_id[:80]!r} of `codemode.run` waits; it may have expired"
            raise RpcError("NOT_FOUND", text, field="runId")
        tree = self._gateway.feed.tree
        if (node := tree.nodes.get(lone.node_id)) is not None:
            tree.go_on(node)
        lone.waits += 1
        try:
            result = await lone.programs.wait(cell_id, yield_ms=yield_ms)
        finally:
            lone.waits -= 1
        return {"result": self._settle(lone, result)}

    def _settle(self, lone: _LoneRun, result: CodeModeResult) -> JsonObject:
        """Returns the JSON of a result, and closes a program that has ended."""
        assert lone.programs is not None
        tree, ttl = self._gateway.feed.tree, lone.programs.config.snapshot_ttl_seconds
        shown = result.to_json()
        if lone.waits and result.code == "invalid_input":
            return shown  # another `wait` is pending, and settles the program
        if (node := tree.nodes.get(lone.node_id)) is not None:
            tree.end_step(node, shown, ttl, failed=result.status == "failed")
        if result.status == "waiting":
            lone.cell_id, lone.until = result.run_id, time.time() + ttl
        else:
            lone.over.set()
        return shown

    async def _hold(self, lone: _LoneRun, request: AgentRequest) -> None:
        """Keeps the code mode of a program open until the program is over, or given up."""
        runtime, tree = self._gateway.host.runtime, self._gateway.feed.tree
        try:
            async with runtime.preview_run(request) as lone.run:
                lone.run.activate()
                async with code_mode_of(lone.run) as programs:
                    programs.watch(partial(self._watch, lone.run))
                    lone.programs = programs
                    lone.opened.set()
                    while lone.waits or time.time() < lone.until:
                        with anyio.move_on_after(LOOK_SECONDS):
                            await lone.over.wait()
                            break
                    with anyio.CancelScope(shield=True):
                        await programs.end_run()
        except ClawmodeError as error:
            lone.error = error
        finally:
            lone.opened.set()
            self._runs.remove(lone)
            if lone.run is not None:
                tree.end_run(lone.run.id)

    def _watch(self, run: AgentRun, event: CallEvent) -> None:
        """Shows a nested call in the tree, and to clients that follow the session."""
        # Updates may come from a thread of the tool, where nothing can be sent.
        if event.phase == "update":
            return
        key, data = run.session.key, call_data(event)
        self._gateway.feed.tree.take_call(run.id, key, data)
        about: JsonObject = {"sessionKey": key, "trigger": TRIGGER, **data}
        self._gateway.broadcast("session.tool", about, key)
