"""The nested calls of cells: queued, made side by side, and answered, wherever the cell is by then.

A cell may be parked, or go on in another process, while its calls run here. Before a call of a
parked cell runs, the store knows; so a process that takes over knows what may have happened.
"""

import inspect
import logging
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

import anyio
from anyio.abc import TaskGroup

from clawmode.catalog.catalog import EXEC
from clawmode.code_mode.bridge import BadRequest, Bridge, fail, refuse, settle
from clawmode.code_mode.cell import GATE, CallGroup, CallState, Cell, Entry, OpenCall
from clawmode.code_mode.config import CodeModeConfig
from clawmode.code_mode.gate import Gate, gate_input
from clawmode.code_mode.parking import Parking, Reply
from clawmode.code_mode.stores import StoredCall
from clawmode.code_mode.telemetry import Telemetry
from clawmode.context import RunContext
from clawmode.exceptions import StoreUnavailable
from clawmode.sandbox.protocol import Request, Settlement
from clawmode.tools.approvals import Question
from clawmode.tools.executor import Call, Executor, ToolFailure
from clawmode.tools.executor import CallState as Stage
from clawmode.tools.tool import Tool
from clawmode.types import JsonObject

logger = logging.getLogger("clawmode.calls")

SAVE_AGAIN = 1.0
"""Seconds after which an answer is stored again that could not be."""

SEAL_BYTES = 64
"""What sealing adds to an answer, at most."""

MAX_ERRORS = 48 << 10
"""Bytes of an inbox that are kept for errors: every call of a full batch may need one."""

NO_STORE = "The call was not made: the store of waiting programs cannot be written."
FULL = "The answers that wait for the program are too large: ask for less, page by page."
UNKNOWN = (
    "The process that made this call died before it was answered: whether it took effect is "
    "unknown. Look before you repeat it."
)


async def _connect_nothing(server: str) -> None:
    pass


@dataclass(slots=True)
class Calls:
    """Makes the calls of one run's cells.

    Attributes:
        connect: Waits until an MCP server is connected or has failed to.
    """

    executor: Executor
    gate: Gate
    bridge: Bridge
    parking: Parking
    config: CodeModeConfig
    context: RunContext
    telemetry: Telemetry
    groups: dict[str, CallGroup] = field(default_factory=dict[str, CallGroup])
    tasks: TaskGroup | None = None
    connect: Callable[[str], Awaitable[None]] = _connect_nothing

    def group(self, cell: Cell) -> CallGroup:
        """The calls of a cell that are made here."""
        if cell.id not in self.groups:
            self.groups[cell.id] = CallGroup(cell.id, cell.parent_id)
        return self.groups[cell.id]

    # ---- Opening ----

    def open(self, cell: Cell, request: Request) -> None:
        """Queues a call that a guest asked for; one that cannot be meant is answered at once."""
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
        self.enqueue(cell, call)

    def open_gate(self, cell: Cell, question: Question) -> None:
        """Queues the question whether a cell may start."""
        assert cell.start is not None
        request = Request(GATE, "call", b"[]")
        entry = cell.ledger.add(GATE, EXEC)
        given = gate_input(cell.start)
        self.enqueue(cell, OpenCall(request, entry, EXEC, given, question=question))

    def enqueue(self, cell: Cell, call: OpenCall) -> None:
        """Queues a call."""
        group = self.group(cell)
        cell.calls[call.id] = group.calls[call.id] = call
        group.queue.append(call)

    def refuse_batch(self, cell: Cell, requests: tuple[Request, ...]) -> None:
        """Notes calls that were asked for and will not be made."""
        for request in requests:
            if request.method in ("call", "namespace"):
                try:
                    tool, _ = self.bridge.call_of(request)
                except BadRequest:
                    continue
                cell.ledger.add(request.id, tool, "not_started")

    def start(self, group: CallGroup) -> None:
        """Starts what is queued, as far as calls may run side by side."""
        while (call := self._next(group)) is not None:
            assert self.tasks is not None, "a CodeMode with tools is used inside of `async with`"
            self.tasks.start_soon(self._serve, group, call)

    def _next(self, group: CallGroup) -> OpenCall | None:
        running = group.running + group.foreign
        if not group.queue or running >= self.config.max_pending_tool_calls:
            return None
        call = group.queue.popleft()
        call.entry.state = "running"
        group.running += 1
        if call.id != GATE:
            self.telemetry.call(call.entry.tool_id)
        return call

    # ---- Making ----

    async def _serve(self, group: CallGroup, first: OpenCall) -> None:
        """Makes a call, and then those that wait for their turn: a task is dearer than most."""
        call: OpenCall | None = first
        while call is not None:
            await self._make(group, call)
            group.running -= 1
            call = self._next(group)

    async def _make(self, group: CallGroup, call: OpenCall) -> None:
        if group.ended:
            return  # before it had begun
        reply: Settlement | None = None
        with anyio.CancelScope() as call.scope:
            reply = await self._call(group, call)
        if reply is None or group.ended:
            return
        if group.cell is not None and not group.lock.locked():
            # The usual case: the cell is driven here, and nobody is about to move it.
            group.calls.pop(call.id, None)
            group.cell.receive(reply)
            group.changes.notify()
        else:
            with anyio.CancelScope(shield=True):
                await self.deliver(group, call, Reply(reply))

    async def _call(self, group: CallGroup, call: OpenCall) -> Settlement:
        if call.server and (answer := await self._connected(call)) is not None:
            return answer
        assert call.tool is not None
        try:
            if group.cell is None:
                await self._change(group, call, "running")
            if call.id == GATE:
                return await self._ask_gate(group, call)
            result = await self.executor.call(self._made(group, call, call.tool))
            return settle(call.request, result, call.tool.id)
        except ToolFailure as error:
            return fail(call.request, error, call.tool.id)
        except Exception as error:
            logger.exception("the call of %s failed in the host", call.tool.id)
            text = f"The host failed: {type(error).__name__}"
            return refuse(call.request, "internal_error", text, call.tool.id)

    async def _connected(self, call: OpenCall) -> Settlement | None:
        """Waits for the server of a call, and looks up its tool. Returns the answer if it is known.

        The server has its own limit on the time to connect; the cell may be parked meanwhile.
        """
        await self.connect(call.server)
        if call.request.method == "api":
            return self.bridge.look_up(call.request)
        try:
            call.tool, call.input = self.bridge.call_of(call.request)
        except BadRequest as error:
            return refuse(call.request, error.code, str(error), error.tool_id)
        call.entry.tool_id, call.entry.effect = call.tool.id, call.tool.effect
        return None

    def _made(self, group: CallGroup, call: OpenCall, tool: Tool) -> Call:
        async def on_state(stage: Stage) -> None:
            await self._change(group, call, stage)

        def on_asking(asking: bool) -> None:
            call.asking += 1 if asking else -1
            group.changes.notify()

        return Call(
            id=_call_id(group, call),
            tool=tool,
            input=call.input,
            run=self.context,
            parent_id=group.parent_id,
            on_state=on_state,
            on_asking=on_asking,
            patience=self.config.snapshot_ttl_seconds,
        )

    async def _ask_gate(self, group: CallGroup, call: OpenCall) -> Settlement:
        question = call.question
        if question is None:
            # The process that asked is gone: the hooks are asked again, and then the person.
            admitted = await self.gate.admit(call.input, group.parent_id)
            # They had their say about the text before: what is asked about is what would run.
            question = admitted.question and replace(admitted.question, input=call.input)
        if question is not None:
            await self._change(group, call, "approval")
            await self.executor.ask(replace(question, call_id=_call_id(group, call)))
        return Settlement(call.id, True, b"null")

    async def _change(self, group: CallGroup, call: OpenCall, stage: Stage) -> None:
        """A call waits for a person, or runs: the store is told before it does.

        Raises:
            ToolFailure: It must not run: its cell is gone, or the store cannot note it.
        """
        async with group.lock:
            call.entry.state = stage
            if group.cell is None:
                owner = await self.parking.owner()
                try:
                    known = await self.parking.store.mark(group.run_id, call.id, owner, stage)
                except StoreUnavailable:
                    raise ToolFailure("store_unavailable", NO_STORE) from None
                if not known:
                    raise ToolFailure("aborted", "The program that made this call is gone.")
        group.changes.notify()

    # ---- Answering ----

    async def deliver(self, group: CallGroup, call: OpenCall, reply: Reply) -> None:
        """Hands an answer to the cell: here, or in the store."""
        async with group.lock:
            group.calls.pop(call.id, None)
            if group.cell is not None:
                group.cell.receive(reply.settled, unknown=reply.unknown)
            elif not group.ended:
                state: CallState = "completed" if reply.settled.ok else "failed"
                call.entry.state = "unknown" if reply.unknown else state
                await self._save(group, call, reply)
        group.changes.notify()
        self.forget(group)

    def fit_inbox(self, cell: Cell) -> None:
        """Replaces the answers of a cell that is about to be parked that its inbox cannot hold."""
        left = self._inbox_room()
        for position, settled in enumerate(cell.inbox):
            if (size := len(settled.value) + SEAL_BYTES) <= left:
                left -= size
            else:
                entry = cell.ledger.find(settled.id)
                cell.inbox[position] = _too_large(settled.id, entry.tool_id if entry else None)

    def _inbox_room(self) -> int:
        """Bytes of answers that wait for a parked cell; the rest is for errors about others."""
        limit = self.config.max_snapshot_bytes
        return limit - min(limit // 8, MAX_ERRORS)

    async def _settle(self, run_id: str, call_id: int, tool_id: str | None, reply: Reply) -> None:
        store = self.parking.store
        sealed = self.parking.sealed_reply(run_id, reply)
        if await store.settle(run_id, call_id, sealed, self._inbox_room()) == "full":
            sealed = self.parking.sealed_reply(run_id, Reply(_too_large(call_id, tool_id)))
            # Whatever the room: without any answer, the program would wait for good.
            await store.settle(run_id, call_id, sealed, sys.maxsize)

    async def _save(self, group: CallGroup, call: OpenCall, reply: Reply) -> None:
        try:
            await self._settle(group.run_id, call.id, call.entry.tool_id, reply)
        except StoreUnavailable:
            # Not lost as long as we live.
            group.unsaved[call.id] = (reply.settled, reply.unknown)
            if len(group.unsaved) == 1 and self.tasks is not None:
                self.tasks.start_soon(self._save_later, group)

    async def _save_later(self, group: CallGroup) -> None:
        """Tries again: whoever waits in another process cannot come for the answers here."""
        while group.unsaved and not group.ended:
            await anyio.sleep(SAVE_AGAIN)
            async with group.lock:
                if group.cell is None:
                    await self._save_again(group)
            group.changes.notify()
            self.forget(group)

    async def _save_again(self, group: CallGroup) -> None:
        for number, (settled, unknown) in list(group.unsaved.items()):
            try:
                await self._settle(group.run_id, number, None, Reply(settled, unknown))
            except StoreUnavailable:
                return
            del group.unsaved[number]

    def forget(self, group: CallGroup) -> None:
        """Drops a group that has nothing to do any more."""
        if not (group.claimed or group.calls or group.unsaved):
            self.groups.pop(group.run_id, None)

    # ---- Calls that others made ----

    async def adopt(self, cell: Cell) -> bool:
        """Takes over what owners that died have left; whether calls of living others remain.

        The cell is claimed, or driven, by us.
        """
        own = await self.parking.owner()
        group, group.foreign = self.group(cell), 0
        for call in [call for call in cell.calls.values() if call.owner]:
            if call.id in group.unsaved:
                continue
            live = group.calls.get(call.id)
            if live is not None:
                # Ours, and it still runs: the cell was read anew.
                call.entry.state, live.entry = live.entry.state, call.entry
                cell.calls[call.id] = live
            elif call.owner != own and await self.parking.store.alive(call.owner):
                group.foreign += 1
            else:
                await self._take_over(cell, call, own)
        self.start(group)
        return group.foreign > 0

    async def _take_over(self, cell: Cell, call: OpenCall, own: str) -> None:
        state = call.entry.state
        assert state in ("queued", "running", "approval")
        stored = StoredCall(call.id, call.owner, state, b"")
        if not await self.parking.store.adopt(cell.id, stored, own):
            return
        call.owner = ""
        try:
            call.tool, call.input = self._meant(cell, call)
        except BadRequest as error:
            answer = refuse(call.request, error.code, str(error), error.tool_id)
            if state != "running":
                await self.deliver(self.group(cell), call, Reply(answer))
                return
        repeatable = call.tool is not None and (call.tool.idempotent or call.id == GATE)
        if state == "running" and not repeatable:
            answer = refuse(call.request, "outcome_unknown", UNKNOWN, call.entry.tool_id)
            await self.deliver(self.group(cell), call, Reply(answer, unknown=True))
            return
        call.entry.state = "queued"
        self.enqueue(cell, call)

    def _meant(self, cell: Cell, call: OpenCall) -> tuple[Tool, JsonObject]:
        if call.id == GATE and cell.start is not None:
            return EXEC, gate_input(cell.start)
        return self.bridge.call_of(call.request)

    # ---- Ending ----

    def end(self, run_id: str) -> None:
        """The cell has ended: what still runs is cancelled, and what comes is dropped."""
        group = self.groups.pop(run_id, None)
        if group is None:
            return
        group.ended = True
        for call in group.calls.values():
            call.entry.state = _state_at_end(call)
            if call.scope is not None:
                call.scope.cancel()
        group.queue.clear()
        group.calls.clear()
        group.changes.notify()


def _too_large(call_id: int, tool_id: str | None) -> Settlement:
    return refuse(Request(call_id, "call", b"[]"), "reply_too_large", FULL, tool_id)


def _call_id(group: CallGroup, call: OpenCall) -> str:
    return f"{group.run_id}:{call.id}"


def _state_at_end(call: OpenCall) -> CallState:
    """What is to be said of a call that is open when its cell ends."""
    if call.entry.state in ("queued", "approval") or call.tool is None:
        return "not_started"
    # Nothing stops a thread: what it does, it does.
    return "cancelled" if inspect.iscoroutinefunction(call.tool.execute) else "unknown"
