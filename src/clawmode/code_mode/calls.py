"""The nested calls of cells: queued, made concurrently, and answered wherever the cell is by then.

A cell may be parked, or resumed in another process, while its calls run here. Before a call of a
parked cell starts, the store records that, so that a process that adopts the call after a crash
knows what may have happened.
"""

import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import field, replace
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from clawmode.catalog.controls import EXEC
from clawmode.code_mode.answers import Answers
from clawmode.code_mode.bridge import BadRequest, Bridge, fail, leave_unknown, refuse, settle
from clawmode.code_mode.cell import GATE, CallGroup, Cell, OpenCall, Reply, gate_input
from clawmode.code_mode.gate import Gate
from clawmode.code_mode.ledger import Entry
from clawmode.code_mode.telemetry import Telemetry
from clawmode.context import RunContext
from clawmode.exceptions import StoreUnavailable
from clawmode.sandbox.protocol import Request, Settlement
from clawmode.tools.approvals import Question
from clawmode.tools.executor import Call, Executor, ToolFailure
from clawmode.tools.tool import Tool
from clawmode.types import CallState, dataclass

if TYPE_CHECKING:
    from clawmode.code_mode.config import CodeModeConfig
    from clawmode.code_mode.parking import Parking
    from clawmode.code_mode.shapes import SeenShapes

logger = logging.getLogger("clawmode.calls")

ENDED = "The program that made this call has ended."
NO_STORE = "The call was not made: the store of waiting programs cannot be written."

NOT_CALLED = {"denied", "blocked", "not_approved", "invalid_tool_input", "store_unavailable"}
"""The codes of calls that were refused before their tools were called."""


async def _connect_nothing(server: str) -> None:
    pass


@dataclass(slots=True)
class Calls:
    """Makes the calls of one run's cells.

    Attributes:
        bridge: Resolves requests to tools; replaced when the tools of the run change.
        groups: The cells whose calls are made here, by the id of the cell.
        tasks: Where calls run; None before the run is open.
        connect: Waits until an MCP server is connected, or has failed to connect.
        shapes: Remembers the shapes of results.
    """

    executor: Executor
    gate: Gate
    bridge: Bridge
    parking: "Parking"
    config: "CodeModeConfig"
    context: RunContext
    telemetry: Telemetry
    groups: dict[str, CallGroup] = field(default_factory=dict[str, CallGroup])
    tasks: TaskGroup | None = None
    connect: Callable[[str], Awaitable[None]] = _connect_nothing
    shapes: "SeenShapes | None" = None
    answers: Answers = field(init=False)

    def __post_init__(self) -> None:
        self.answers = Answers(self)

    def group(self, cell: Cell) -> CallGroup:
        """Returns the group of a cell's calls in this process."""
        if cell.id not in self.groups:
            self.groups[cell.id] = CallGroup(cell.id, cell.parent_id)
        return self.groups[cell.id]

    # ---- Opening ----

    def open(self, cell: Cell, request: Request) -> None:
        """Queues a call of the guest, or replies at once with an error if it names no tool."""
        server = self.bridge.absent_server(request)
        if server is not None:
            entry = cell.ledger.note(Entry(request.id, f"mcp:{server}", None))
            self.enqueue(cell, OpenCall(request, entry, None, {}, server=server))
            return
        try:
            tool, given = self.bridge.call_of(request)
        except BadRequest as error:
            cell.inbox.append(refuse(request, error.code, str(error), error.tool_id))
            return
        call = OpenCall(request, cell.ledger.add(request.id, tool), tool, given)
        call.entry.keep_input(given, len(request.args))
        self.enqueue(cell, call)

    def open_gate(self, cell: Cell, question: Question) -> None:
        """Queues the question whether a cell may start."""
        assert cell.start is not None
        request = Request(GATE, "call", b"[]")
        entry = cell.ledger.add(GATE, EXEC)
        given = gate_input(cell.start)
        self.enqueue(cell, OpenCall(request, entry, EXEC, given, question=question))

    def enqueue(self, cell: Cell, call: OpenCall) -> None:
        """Adds a call to the cell, and to the queue of its group."""
        group = self.group(cell)
        cell.calls[call.id] = group.calls[call.id] = call
        group.queue.append(call)

    def refuse_batch(self, cell: Cell, requests: tuple[Request, ...]) -> None:
        """Records the calls of a batch as not started."""
        for request in requests:
            if request.method in ("call", "namespace"):
                try:
                    tool, given = self.bridge.call_of(request)
                except BadRequest:
                    continue
                entry = cell.ledger.add(request.id, tool, "not_started")
                entry.keep_input(given, len(request.args))

    def refuse_unstored(self, cell: Cell, group: CallGroup, call: OpenCall) -> None:
        """Refuses a queued call with effects whose cell cannot be stored before."""
        group.queue.remove(call)
        group.calls.pop(call.id, None)
        tool_id = call.entry.tool_id
        cell.receive(refuse(call.request, "store_unavailable", NO_STORE, tool_id))
        call.entry.state = "not_started"

    def start(self, group: CallGroup) -> None:
        """Starts queued calls, up to the maximum that may run concurrently."""
        while (call := self._next(group)) is not None:
            assert self.tasks is not None, "a CodeMode with tools is used inside of `async with`"
            group.starting += 1
            self.tasks.start_soon(self._serve, group, call)

    def _next(self, group: CallGroup) -> OpenCall | None:
        if group.held or not group.queue:
            return None
        if self.places(group) > 0:
            call = group.queue.popleft()
        elif (found := self._next_question(group)) is not None:
            call = found
            group.queue.remove(call)
            group.ahead.add(call.id)
        else:
            return None
        call.entry.state = "running"
        group.running += 1
        if not call.is_gate:
            self.telemetry.call(call.entry.tool_id)
        return call

    def places(self, group: CallGroup) -> int:
        """Returns how many queued calls may start now."""
        running = group.running - len(group.ahead) + group.foreign
        return self.config.max_pending_tool_calls - running

    def _next_question(self, group: CallGroup) -> OpenCall | None:
        """Returns a queued call that a person may be asked about ahead of its turn.

        A program that makes 100 calls in a loop should ask one question, not one for each place.
        So a place whose call waits for a person is lent to the question of another call. A call
        that was asked ahead of its turn waits for a place before it runs.
        """
        if not group.asked or not self._has_place(group):
            return None
        asks, run = self.executor.approvals.asks_people, self.context
        calls = (call for call in group.queue if call.tool is not None and not call.is_gate)
        return next((call for call in calls if call.tool and asks(call.tool, run)), None)

    def _has_place(self, group: CallGroup) -> bool:
        """True if fewer calls run than may, without those that wait for people."""
        running = group.running - len(group.asked) + group.foreign
        return running < self.config.max_pending_tool_calls

    # ---- Making ----

    async def _serve(self, group: CallGroup, first: OpenCall) -> None:
        """Makes a call and then queued ones, because starting a task costs more than most calls.

        If nothing is queued, the cell is resumed here: it may make the next call at once.
        """
        group.starting -= 1
        call: OpenCall | None = first
        with anyio.CancelScope() as scope:
            while call is not None:
                call.scope = scope
                try:
                    if not group.ended:  # else the cell ended before this call started
                        await self._make(group, call)
                finally:
                    group.running -= 1
                    group.asked.discard(call.id)
                    group.ahead.discard(call.id)
                    if group.ended or group.asked:
                        group.changes.notify()
                if group.starting:  # calls that came before the next one have not begun yet
                    await anyio.lowlevel.checkpoint()
                if group.queue or group.turn is None:
                    call = self._next(group)
                else:
                    await group.turn.go_on(scope)
                    call = self._next(group)
                    self.start(group)

    async def _make(self, group: CallGroup, call: OpenCall) -> None:
        reply = await self._call(group, call)
        if group.ended or call.owner:  # another process has taken the question over
            return
        cell = group.driven
        if cell is not None and not group.lock.locked():
            # The usual case: this process drives the cell, and no task is about to move it.
            group.calls.pop(call.id, None)
            cell.receive(reply, unknown=call.entry.state == "unknown")
            if call.stored == "running" and call.may_change and self.parking.effects:
                self.answers.keep_copy(cell, call, reply)
            if group.queue or group.turn is None:
                group.changes.notify()
        else:
            with anyio.CancelScope(shield=True):
                await self.deliver(group, call, Reply(reply, call.entry.state == "unknown"))

    async def _call(self, group: CallGroup, call: OpenCall) -> Settlement:
        if call.server and (answer := await self._connected(call)) is not None:
            return answer
        assert call.tool is not None
        try:
            if group.driven is None or (self._needs_intent(call) and call.stored != "running"):
                await self._change(group, call, "running")
            if call.is_gate:
                return await self._ask_gate(group, call)
            result = await self.executor.call(self._made(group, call, call.tool))
            if self.shapes is not None:
                self.shapes.see(call.tool, result)
            if call.tool.source == "mcp":
                self.bridge.mcp.remember(call.tool, result.details)
            return settle(call.request, result, call.tool.id)
        except ToolFailure as error:
            if call.repeated and error.code in NOT_CALLED:  # but the first attempt may have worked
                call.entry.state = "unknown"
                return leave_unknown(call.request, call.tool.id, error.code)
            return fail(call.request, error, call.tool.id)
        except Exception as error:
            logger.exception("the call of %s failed in the host", call.tool.id)
            text = f"The host failed: {type(error).__name__}"
            return refuse(call.request, "internal_error", text, call.tool.id)

    async def _connected(self, call: OpenCall) -> Settlement | None:
        """Waits for the server of a call, and looks up the tool. Returns a reply if it has one."""
        await self.connect(call.server)  # which has a time limit; the cell may be parked meanwhile
        if call.request.method in ("api", "search"):
            return self.bridge.look_up(call.request)
        try:
            call.tool, call.input = self.bridge.call_of(call.request)
        except BadRequest as error:
            return refuse(call.request, error.code, str(error), error.tool_id)
        call.entry.tool_id, call.entry.effect = call.tool.id, call.tool.effect
        call.entry.keep_input(call.input, len(call.request.args))
        return None

    def _made(self, group: CallGroup, call: OpenCall, tool: Tool) -> Call:
        async def on_state(state: CallState) -> None:
            if state == "approval":
                group.asked.add(call.id)
            while call.id in group.asked and state == "running":
                # Others may have been asked ahead of their turn: not all of them may run at once.
                if self._has_place(group):
                    group.asked.discard(call.id)
                else:
                    call.entry.state = "queued"
                    await group.changes.wait()
            await self._change(group, call, state)
            if state == "approval":
                self.start(group)

        def on_asking(asking: bool) -> None:
            call.asking += 1 if asking else -1
            group.changes.notify()

        return Call(
            id=group.call_id(call),
            tool=tool,
            input=call.input,
            run=self.context,
            parent_id=group.parent_id,
            on_state=on_state,
            on_asking=on_asking,
            program=group.run_id,
            patience=self.config.patience,
        )

    async def _ask_gate(self, group: CallGroup, call: OpenCall) -> Settlement:
        question = call.question
        if question is None:
            # The process that asked has died: the hooks run again, and then the person is asked.
            admitted = await self.gate.admit(call.input, group.parent_id)
            # The hooks have already rewritten this program, so the question shows what will run.
            question = admitted.question and replace(admitted.question, input=call.input)
        if question is not None:
            await self._change(group, call, "approval")
            await self.executor.ask(replace(question, call_id=group.call_id(call)))
        return Settlement(call.id, True, b"null")

    def _needs_intent(self, call: OpenCall) -> bool:
        """True if the store must know that the call is made before it is made."""
        return self.parking.effects and call.may_change

    async def _change(self, group: CallGroup, call: OpenCall, state: CallState) -> None:
        """Changes the state of a call; for a parked cell, the store records it first.

        Raises:
            ToolFailure: The call must not run: its cell has ended, or the store is unavailable.
        """
        async with group.lock:
            if group.ended:
                raise ToolFailure("aborted", ENDED)
            call.entry.state = state
            if group.driven is None or (self._needs_intent(call) and call.stored != state):
                owner = await self.parking.owner()
                try:
                    await self.parking.store_held(group.run_id)
                    kept: CallState = "running" if call.repeated else state
                    known = await self.parking.store.mark(group.run_id, call.id, owner, kept)
                except StoreUnavailable:
                    raise ToolFailure("store_unavailable", NO_STORE) from None
                if not known:
                    raise ToolFailure("aborted", ENDED)
                call.stored = kept
        group.changes.notify()

    # ---- Answering ----

    async def deliver(self, group: CallGroup, call: OpenCall, reply: Reply) -> None:
        """Gives a reply to the cell, or to the store if the cell is not driven here."""
        async with group.lock:
            if call.owner:
                return
            group.calls.pop(call.id, None)
            if (cell := group.driven) is not None:
                cell.receive(reply.settled, unknown=reply.unknown)
            elif not group.ended:
                state: CallState = "completed" if reply.settled.ok else "failed"
                call.entry.state = "unknown" if reply.unknown else state
                await self.answers.save(group, call, reply)
        group.changes.notify()
        self.forget(group)

    def forget(self, group: CallGroup) -> None:
        """Drops a group that has no calls, no unsaved replies and no task."""
        if group.cell is None and not (group.ended or group.calls or group.unsaved):
            self.groups.pop(group.run_id, None)

    def hand_over(self, group: CallGroup, cell: Cell) -> None:
        """Gives replies that could not be stored to their cell, which is driven here now."""
        for settled, unknown in group.unsaved.values():
            cell.receive(settled, unknown=unknown)
        group.unsaved.clear()

    # ---- Ending ----

    def end(self, run_id: str) -> None:
        """Ends the calls of a cell: running calls are cancelled, and late replies dropped."""
        group = self.groups.pop(run_id, None)
        if group is None:
            return
        group.ended = True
        for call in group.calls.values():
            if call.repeated:
                call.entry.state = "unknown"
            elif call.entry.state in ("queued", "approval") or call.tool is None:
                call.entry.state = "not_started"
            else:
                # A thread cannot be stopped, so a synchronous tool may still take effect.
                is_async = inspect.iscoroutinefunction(call.tool.execute)
                call.entry.state = "cancelled" if is_async else "unknown"
            if call.scope is not None:
                call.scope.cancel()
        group.queue.clear()
        group.calls.clear()
        group.changes.notify()
