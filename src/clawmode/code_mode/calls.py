"""The nested calls of cells: queued, made concurrently, and answered wherever the cell is by then.

A cell may be parked, or resumed in another process, while its calls run here. Before a call of a
parked cell starts, the store records that, so that a process that adopts the call after a crash
knows what may have happened.
"""

import inspect
import logging
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskGroup

from clawmode.catalog.catalog import EXEC
from clawmode.code_mode.bridge import BadRequest, Bridge, fail, refuse, settle
from clawmode.code_mode.cell import GATE, CallGroup, Cell, Entry, OpenCall, Reply
from clawmode.code_mode.gate import Gate, gate_input
from clawmode.code_mode.stores import StoredCall
from clawmode.code_mode.telemetry import Telemetry
from clawmode.context import RunContext
from clawmode.exceptions import StoreUnavailable
from clawmode.sandbox.protocol import Request, Settlement
from clawmode.tools.approvals import Question
from clawmode.tools.executor import Call, Executor, ToolFailure
from clawmode.tools.tool import Tool
from clawmode.types import CallState

if TYPE_CHECKING:
    from clawmode.code_mode.config import CodeModeConfig
    from clawmode.code_mode.parking import Parking

logger = logging.getLogger("clawmode.calls")

SAVE_AGAIN = 1.0
"""Seconds between attempts to store a reply."""

SEAL_BYTES = 64
"""The maximum that sealing adds to the size of a reply."""

MAX_ERRORS = 48 << 10
"""Bytes of an inbox that are reserved for errors, because every call of a batch may need one."""

ENDED = "The program that made this call has ended."
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
        bridge: Resolves requests to tools; replaced when the tools of the run change.
        groups: The cells whose calls are made here, by the id of the cell.
        tasks: Where calls run; None before the run is open.
        connect: Waits until an MCP server is connected, or has failed to connect.
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
                    tool, _ = self.bridge.call_of(request)
                except BadRequest:
                    continue
                cell.ledger.add(request.id, tool, "not_started")

    def start(self, group: CallGroup) -> None:
        """Starts queued calls, up to the maximum that may run concurrently."""
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
        if not call.is_gate:
            self.telemetry.call(call.entry.tool_id)
        return call

    # ---- Making ----

    async def _serve(self, group: CallGroup, first: OpenCall) -> None:
        """Makes a call and then queued ones, because starting a task costs more than most calls."""
        call: OpenCall | None = first
        while call is not None:
            await self._make(group, call)
            group.running -= 1
            if group.ended:
                group.changes.notify()
            call = self._next(group)

    async def _make(self, group: CallGroup, call: OpenCall) -> None:
        if group.ended:
            return  # the cell ended before this call started
        reply: Settlement | None = None
        with anyio.CancelScope() as call.scope:
            reply = await self._call(group, call)
        if reply is None or group.ended:
            return
        cell = group.driven
        if cell is not None and not group.lock.locked():
            # The usual case: this process drives the cell, and no task is about to move it.
            group.calls.pop(call.id, None)
            cell.receive(reply)
            group.changes.notify()
        else:
            with anyio.CancelScope(shield=True):
                await self.deliver(group, call, Reply(reply))

    async def _call(self, group: CallGroup, call: OpenCall) -> Settlement:
        if call.server and (answer := await self._connected(call)) is not None:
            return answer
        assert call.tool is not None
        try:
            if group.driven is None:
                await self._change(group, call, "running")
            if call.is_gate:
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
        """Waits for the server of a call, and looks up the tool. Returns a reply if it has one.

        The server has its own time limit for connecting; the cell may be parked meanwhile.
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
        async def on_state(state: CallState) -> None:
            await self._change(group, call, state)

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
            # The process that asked has died: the hooks run again, and then the person is asked.
            admitted = await self.gate.admit(call.input, group.parent_id)
            # The hooks have already rewritten this program, so the question shows what will run.
            question = admitted.question and replace(admitted.question, input=call.input)
        if question is not None:
            await self._change(group, call, "approval")
            await self.executor.ask(replace(question, call_id=_call_id(group, call)))
        return Settlement(call.id, True, b"null")

    async def _change(self, group: CallGroup, call: OpenCall, state: CallState) -> None:
        """Changes the state of a call; for a parked cell, the store records it first.

        Raises:
            ToolFailure: The call must not run: its cell has ended, or the store is unavailable.
        """
        async with group.lock:
            if group.ended:
                raise ToolFailure("aborted", ENDED)
            call.entry.state = state
            if group.driven is None:
                owner = await self.parking.owner()
                try:
                    known = await self.parking.store.mark(group.run_id, call.id, owner, state)
                except StoreUnavailable:
                    raise ToolFailure("store_unavailable", NO_STORE) from None
                if not known:
                    raise ToolFailure("aborted", ENDED)
        group.changes.notify()

    # ---- Answering ----

    async def deliver(self, group: CallGroup, call: OpenCall, reply: Reply) -> None:
        """Gives a reply to the cell, or to the store if the cell is not driven here."""
        async with group.lock:
            group.calls.pop(call.id, None)
            if (cell := group.driven) is not None:
                cell.receive(reply.settled, unknown=reply.unknown)
            elif not group.ended:
                state: CallState = "completed" if reply.settled.ok else "failed"
                call.entry.state = "unknown" if reply.unknown else state
                await self._save(group, call, reply)
        group.changes.notify()
        self.forget(group)

    def fit_inbox(self, cell: Cell) -> None:
        """Replaces replies that are too large for the inbox of a parked cell by errors."""
        left = self._inbox_room()
        for position, settled in enumerate(cell.inbox):
            if (size := len(settled.value) + SEAL_BYTES) <= left:
                left -= size
            else:
                entry = cell.ledger.find(settled.id)
                cell.inbox[position] = _too_large(settled.id, entry.tool_id if entry else None)

    def _inbox_room(self) -> int:
        """Returns the bytes of an inbox for replies; the rest is reserved for errors."""
        limit = self.config.max_snapshot_bytes
        return limit - min(limit // 8, MAX_ERRORS)

    async def _settle(self, run_id: str, call_id: int, tool_id: str | None, reply: Reply) -> None:
        store = self.parking.store
        sealed = self.parking.sealed_reply(run_id, reply)
        if await store.settle(run_id, call_id, sealed, self._inbox_room()) == "full":
            sealed = self.parking.sealed_reply(run_id, Reply(_too_large(call_id, tool_id)))
            # Without a size limit, because a program without any reply would wait for ever.
            await store.settle(run_id, call_id, sealed, sys.maxsize)

    async def _save(self, group: CallGroup, call: OpenCall, reply: Reply) -> None:
        try:
            await self._settle(group.run_id, call.id, call.entry.tool_id, reply)
        except StoreUnavailable:
            # Kept in memory, so that the reply is lost only if this process dies.
            group.unsaved[call.id] = (reply.settled, reply.unknown)
            if len(group.unsaved) == 1 and self.tasks is not None:
                self.tasks.start_soon(self._save_later, group)

    async def _save_later(self, group: CallGroup) -> None:
        """Retries to store replies: a `wait` in another process cannot fetch them from here."""
        while group.unsaved and not group.ended:
            await anyio.sleep(SAVE_AGAIN)
            async with group.lock:
                # Once the cell is driven here, `hand_over` has emptied `unsaved`.
                for number, (settled, unknown) in list(group.unsaved.items()):
                    try:
                        await self._settle(group.run_id, number, None, Reply(settled, unknown))
                    except StoreUnavailable:
                        break
                    del group.unsaved[number]
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

    # ---- Calls of other processes ----

    async def adopt(self, cell: Cell) -> bool:
        """Takes over the calls of dead owners of a cell that this process has claimed or drives.

        Returns:
            True if living owners still make calls of the cell.
        """
        own = await self.parking.owner()
        group, group.foreign = self.group(cell), 0
        for call in [call for call in cell.calls.values() if call.owner]:
            if call.id in group.unsaved:
                continue
            live = group.calls.get(call.id)
            if live is not None:
                # Our own call, which still runs: the cell was read from the store again.
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
        stored = StoredCall(call.id, call.owner, state, b"")
        if not await self.parking.store.adopt(cell.id, stored, own):
            return
        call.owner = ""
        try:
            if call.is_gate and cell.start is not None:
                call.tool, call.input = EXEC, gate_input(cell.start)
            else:
                call.tool, call.input = self.bridge.call_of(call.request)
        except BadRequest as error:
            answer = refuse(call.request, error.code, str(error), error.tool_id)
            if state != "running":
                await self.deliver(self.group(cell), call, Reply(answer))
                return
        repeatable = call.tool is not None and (call.tool.idempotent or call.is_gate)
        if state == "running" and not repeatable:
            answer = refuse(call.request, "outcome_unknown", UNKNOWN, call.entry.tool_id)
            await self.deliver(self.group(cell), call, Reply(answer, unknown=True))
            return
        call.entry.state = "queued"
        self.enqueue(cell, call)

    # ---- Ending ----

    def end(self, run_id: str) -> None:
        """Ends the calls of a cell: running calls are cancelled, and late replies dropped."""
        group = self.groups.pop(run_id, None)
        if group is None:
            return
        group.ended = True
        for call in group.calls.values():
            if call.entry.state in ("queued", "approval") or call.tool is None:
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


def _too_large(call_id: int, tool_id: str | None) -> Settlement:
    return refuse(Request(call_id, "call", b"[]"), "reply_too_large", FULL, tool_id)


def _call_id(group: CallGroup, call: OpenCall) -> str:
    return f"{group.run_id}:{call.id}"
