"""Moving cells into a store and back: serialized, sealed, read again, checked.

Everything in a store was sealed here, and is trusted only if it can be unsealed.
`docs/reference/snapshot.md` describes the contents.
"""

import contextlib
import json
import struct
from collections import Counter
from typing import TYPE_CHECKING, Any

import anyio

from clawmode import __version__
from clawmode.code_mode.cell import Cell, Entry, OpenCall, Reply
from clawmode.code_mode.snapshots import bind, other_build, seal, seal_bytes, unseal, unseal_bytes
from clawmode.code_mode.stores import (
    FULL,
    End,
    Refusal,
    SnapshotStore,
    StoredCall,
    StoredCell,
    abort_cell,
    confirm,
)
from clawmode.context import RunContext
from clawmode.exceptions import (
    Aborted,
    SnapshotRefused,
    SnapshotTooLarge,
    StoreUnavailable,
)
from clawmode.sandbox import artifacts
from clawmode.sandbox.protocol import (
    METHODS,
    Completion,
    Failure,
    FrozenCell,
    Limits,
    Request,
    Settlement,
    Start,
)
from clawmode.types import CALL_STATES, ERROR_CODES, OPEN_STATES, JsonObject, JsonValue

if TYPE_CHECKING:
    from clawmode.code_mode.config import CodeModeConfig

_REPLY = struct.Struct("<Ic")
_NUMBER = struct.Struct("<Q")

FORMAT = 2
"""The version of the record. A cell with another one is left to the build that parked it."""

REPLAYED = "an older copy of the program was put back into the store: it has run since"


class Parking:
    """Parks the cells of one run in a store.

    Args:
        store: Where cells are kept.
        context: The run that they belong to.
        config: Limits.
    """

    def __init__(self, store: SnapshotStore, context: RunContext, config: "CodeModeConfig") -> None:
        self.store = store
        self._scope = context.scope
        self._config = config
        self._owner = ""
        self._joining = anyio.Lock(fast_acquire=True)
        self._closed = False

    async def owner(self) -> str:
        """Returns the name of this run as an owner of cells and calls.

        Raises:
            Aborted: The run is closed.
        """
        async with self._joining:
            if self._closed:
                raise Aborted("The run is closed.")
            if not self._owner:
                self._owner = await self.store.join()
            return self._owner

    async def close(self) -> None:
        """Leaves the store for good: other processes may adopt the calls of this run."""
        self._closed = True
        owner, self._owner = self._owner, ""
        if owner:
            with contextlib.suppress(StoreUnavailable):  # logged by the store; nothing else to do
                await self.store.leave(owner)

    # ---- Parking ----

    def check_size(self, frozen: FrozenCell) -> None:
        """Checks the size of a snapshot.

        Raises:
            SnapshotTooLarge: The snapshot is larger than `maxSnapshotBytes`.
        """
        size, most = len(frozen.pages), self._config.max_snapshot_bytes
        if size > most:
            text = f"The program is {size} bytes when frozen; {most} are allowed."
            raise SnapshotTooLarge(text)

    async def check_room(self) -> None:
        """Checks that the store has room for one more cell.

        Raises:
            SnapshotTooLarge: `maxSuspendedRuns` cells are parked.
        """
        if not await self.store.room(self._config.max_suspended_runs):
            raise SnapshotTooLarge(FULL)

    async def park(self, cell: Cell, frozen: FrozenCell | None) -> None:
        """Writes a cell to the store.

        Args:
            cell: The cell.
            frozen: Its memory; None if it has not started, or has ended unheard.

        Raises:
            SnapshotTooLarge: The cell is too large, or too many cells are parked.
            Aborted: The cell has been aborted.
        """
        owner, snapshot = await self.owner(), b""
        size = sum(len(request.args) for request in cell.lookups)
        if size > (most := self._config.max_snapshot_bytes):
            text = f"The pending look-ups of the program are {size} bytes; {most} are allowed."
            raise SnapshotTooLarge(text)
        if frozen is not None:
            self.check_size(frozen)
            bound = self._bound(cell.id, f"snapshot {cell.park}")
            snapshot = seal(frozen, wasm_hash(), bound, self.store.keys)
        # Stores keep the answer to the question of the gate among the replies.
        replies = cell.inbox if cell.admission is None else [cell.admission, *cell.inbox]
        unknown = {entry.id for entry in cell.ledger.entries if entry.state == "unknown"}
        mine = [call for call in cell.calls.values() if not call.owner]
        stored = StoredCell(
            id=cell.id,
            scope=self._scope,
            ttl=float(self._config.snapshot_ttl_seconds),
            record=self._seal(_record(cell, frozen), cell.id, "record"),
            snapshot=snapshot,
            calls=tuple(self._stored(cell.id, call, owner) for call in mine),
            replies=tuple(
                self.sealed_reply(cell.id, Reply(item, item.id in unknown)) for item in replies
            ),
            mark=self._mark(cell.id, cell.park),
        )
        limit = self._config.max_suspended_runs
        # Set before the cell is stored: a task that is cancelled meanwhile cannot know if it was.
        again, cell.stored = cell.stored, True
        await self.store.park(stored, owner, limit, again=again)
        cell.inbox.clear()

    def _stored(self, run_id: str, call: OpenCall, owner: str) -> StoredCall:
        request, state = call.request, call.entry.state
        assert state in OPEN_STATES, f"call {call.id}: expected an open call, it is {state}"
        body: JsonObject = {
            "method": request.method,
            "args": request.args.decode("utf-8", "replace"),
        }
        return StoredCall(call.id, owner, state, self._seal(body, run_id, f"call {call.id}"))

    def sealed_reply(self, run_id: str, reply: Reply) -> bytes:
        """Returns a reply as the inbox in the store keeps it."""
        settled = reply.settled
        flag = b"?" if reply.unknown else b"+" if settled.ok else b"-"
        data = _REPLY.pack(settled.id, flag) + settled.value
        return seal_bytes(data, self._bound(run_id, "reply"), self.store.keys)

    # ---- Resuming ----

    async def claim(self, run_id: str) -> Cell | Refusal:
        """Claims a cell for a `wait` of this run, and reads it.

        Raises:
            SnapshotRefused: The stored cell is not the one that was parked. If another key or
                build may still read it, it is kept; otherwise it is deleted.
        """
        found = await self.store.claim(run_id, self._scope, await self.owner())
        if isinstance(found, str):
            return found
        try:
            return self._read(found)
        except SnapshotRefused as error:
            if error.kept:
                await self.release(run_id)
            else:
                await self.end(run_id, "finished")
            raise

    def _read(self, stored: StoredCell) -> Cell:
        try:
            record = self._unseal(stored.record, stored.id, "record")
            if record.get("format") != FORMAT or record.get("engine") != wasm_hash().hex():
                raise other_build(record.get("build"))
            cell = _read_cell(stored.id, record)
            bound = self._bound(stored.id, "park")
            mark = unseal_bytes(stored.mark, bound, self.store.keys) if stored.mark else b""
            if not mark or _NUMBER.unpack(mark)[0] != cell.park:
                raise SnapshotRefused(REPLAYED)
            cell.mark = stored.mark
            cell.calls = {call.id: self._call(cell, call) for call in stored.calls}
        except (AttributeError, KeyError, TypeError, ValueError):
            raise SnapshotRefused("the snapshot's record cannot be read") from None
        return cell

    def _call(self, cell: Cell, stored: StoredCall) -> OpenCall:
        body: Any = self._unseal(stored.body, cell.id, f"call {stored.id}")
        # State and owner are not sealed, because they change while the cell is parked.
        known = stored.state in OPEN_STATES and isinstance(stored.owner, str)
        if body["method"] not in METHODS or not known or not stored.owner:
            raise ValueError(stored.id)
        request = Request(stored.id, body["method"], body["args"].encode())
        entry = cell.ledger.find(stored.id) or Entry(stored.id, "", None)
        entry.state = stored.state
        return OpenCall(request, entry, None, {}, owner=stored.owner)

    async def take(self, cell: Cell) -> FrozenCell | None:
        """Takes a claimed cell and its inbox out of the store.

        Returns:
            The memory of the cell; None if it has not started, or has ended.

        Raises:
            SnapshotRefused: The snapshot cannot be unsealed; the cell is deleted.
            Aborted: The cell has been aborted.
        """
        owner, mark = await self.owner(), self._mark(cell.id, cell.park + 1)
        stored = await self.store.take(cell.id, owner, seen=cell.mark, mark=mark)
        if stored is None:
            raise Aborted
        bound = self._bound(cell.id, f"snapshot {cell.park}")
        cell.park += 1
        try:
            for sealed in stored.replies:
                self.deliver(cell, sealed)
            if cell.start is not None or cell.outcome is not None:
                return None
            return unseal(stored.snapshot, wasm_hash(), bound, self.store.keys)
        except SnapshotRefused:
            await self.end(cell.id, "finished")
            raise

    def deliver(self, cell: Cell, sealed: bytes) -> None:
        """Gives a reply from the store to a cell that is driven here."""
        data = unseal_bytes(sealed, self._bound(cell.id, "reply"), self.store.keys)
        number, flag = _REPLY.unpack_from(data)
        settled = Settlement(number, flag == b"+", data[_REPLY.size :])
        cell.receive(settled, unknown=flag == b"?")

    async def release(self, run_id: str) -> None:
        """Ends a claim: the cell stays parked, and its time to live restarts."""
        await self.store.release(run_id, await self.owner())

    async def end(self, run_id: str, end: End) -> bool:
        """Deletes a cell. Returns False if there is none."""
        return await self.store.end(run_id, self._scope, end)

    async def abort(self, run_id: str) -> bool:
        """Aborts a cell, in whichever process it runs. Returns False if there is none.

        Raises:
            AbortUnconfirmed: The other process has not confirmed the end in time.
        """
        return await abort_cell(self.store, run_id, self._scope, self._owner)

    async def give_up(self, run_id: str) -> None:
        """Ends the share of this process in an aborted cell."""
        await self.store.abort(run_id, self._scope, self._owner)

    async def end_all(self, *, session: bool) -> set[str]:
        """Aborts the cells of the run, or of the session, in whichever process they run.

        Raises:
            AbortUnconfirmed: Another process has not confirmed the end of a cell in time.
        """
        return await confirm(
            lambda: self.store.end_all(self._scope, session=session, owner=self._owner)
        )

    # ---- Sealing ----

    def _mark(self, run_id: str, number: int) -> bytes:
        return seal_bytes(_NUMBER.pack(number), self._bound(run_id, "park"), self.store.keys)

    def _bound(self, run_id: str, what: str) -> bytes:
        return bind(self._scope, run_id, what)

    def _seal(self, value: JsonValue, run_id: str, what: str) -> bytes:
        return seal_bytes(json.dumps(value).encode(), self._bound(run_id, what), self.store.keys)

    def _unseal(self, sealed: bytes, run_id: str, what: str) -> Any:
        return json.loads(unseal_bytes(sealed, self._bound(run_id, what), self.store.keys))


def wasm_hash() -> bytes:
    """Returns the hash of the engine, which snapshots depend on."""
    return bytes.fromhex(artifacts.locked_hash("quickjs"))


# ---- The record ----


def _record(cell: Cell, frozen: FrozenCell | None) -> JsonValue:
    start: JsonValue = None
    if cell.start is not None:
        start = {"source": cell.start.source, "language": cell.start.language}
    outcome: JsonValue = None
    if isinstance(cell.outcome, Failure):
        outcome = {"code": cell.outcome.code, "error": cell.outcome.error}
    elif cell.outcome is not None:
        outcome = {"value": cell.outcome.value.decode("utf-8", "replace")}
    return {
        "format": FORMAT,
        "build": __version__,
        "engine": wasm_hash().hex(),
        "image": frozen.image.hex() if frozen is not None else "",
        "park": cell.park,
        "parent": cell.parent_id,
        "outputLeft": cell.output_left,
        "yields": list[JsonValue](cell.yields),
        "lookups": [
            [request.id, request.method, request.args.decode("utf-8", "replace")]
            for request in cell.lookups
        ],
        "timers": cell.timers,
        "due": cell.due,
        "start": start,
        # Output that no caller received, because the `wait` that drove the cell was cancelled.
        "output": list[JsonValue](cell.output) if cell.unheard else [],
        "outcome": outcome,
        "ledger": [
            [entry.id, entry.tool_id, entry.effect, entry.state] for entry in cell.ledger.entries
        ],
        "omitted": dict[str, JsonValue](cell.ledger.omitted),
    }


def _read_outcome(kept: Any) -> Completion | Failure | None:
    if kept is None:
        return None
    if "value" in kept:
        return Completion(kept["value"].encode(), parsed=json.loads(kept["value"]))
    if kept["code"] not in ERROR_CODES:
        raise ValueError(kept["code"])
    return Failure(kept["code"], kept["error"])


def _read_cell(run_id: str, record: Any) -> Cell:
    cell = Cell(record["parent"], record["outputLeft"], id=run_id, stage="claimed", stored=True)
    cell.park, cell.build = record["park"], record["build"]
    cell.image = bytes.fromhex(record["image"])
    cell.yields = record["yields"]
    for number, method, args in record.get("lookups", ()):
        cell.lookups.append(Request(number, method, args.encode()))
    # `due` is an absolute time: a monotonic clock would mean nothing on another machine.
    cell.set_timers(record["timers"], record["due"])
    cell.output, cell.outcome = record["output"], _read_outcome(record["outcome"])
    if record["start"] is not None:
        cell.start = Start(record["start"]["source"], record["start"]["language"], Limits())
    for number, tool_id, effect, state in record["ledger"]:
        if state not in CALL_STATES:
            raise ValueError(state)
        cell.ledger.entries.append(Entry(number, tool_id, effect, state))
    cell.ledger.omitted = Counter(record["omitted"])
    return cell
