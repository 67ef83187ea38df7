"""Moving cells into a store and back: serialized, sealed, read again, checked.

Everything in a store was sealed here, and is trusted only if it can be unsealed.
`docs/reference/snapshot.md` describes the contents.
"""

import hashlib
import json
import struct
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from clawmode import __version__
from clawmode.code_mode.cell import Cell, OpenCall, Reply
from clawmode.code_mode.ledger import Entry, Ledger
from clawmode.code_mode.record import read_calls, read_cell, write_calls, write_cell
from clawmode.code_mode.share import Share
from clawmode.code_mode.snapshots import bind, other_build, seal, seal_bytes, unseal, unseal_bytes
from clawmode.code_mode.stores import (
    FULL,
    End,
    Refusal,
    SnapshotStore,
    StoredCall,
    StoredCell,
    StoredReply,
)
from clawmode.context import RunContext
from clawmode.exceptions import Aborted, SnapshotRefused, SnapshotTooLarge, StoreUnavailable
from clawmode.sandbox import artifacts
from clawmode.sandbox.protocol import (
    METHODS,
    FrozenCell,
    Request,
    Settlement,
)
from clawmode.types import OPEN_STATES, JsonObject, JsonValue

if TYPE_CHECKING:
    from clawmode.code_mode.config import CodeModeConfig

_REPLY = struct.Struct("<Ic")
_NUMBER = struct.Struct("<Q")

FORMAT = 2
"""The version of the record. A cell with another one is left to the build that parked it."""

REPLAYED = "an older copy of the program was put back into the store: it has run since"


class Parking(Share):
    """Parks the cells of one run in a store.

    Args:
        store: Where cells are kept.
        context: The run that they belong to.
        config: Limits.
    """

    def __init__(self, store: SnapshotStore, context: RunContext, config: "CodeModeConfig") -> None:
        super().__init__(store, context)
        self._config = config
        self.effects = config.durability == "effects" and store.durable

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
        """Checks that the store has room for one more cell, if the store can be asked.

        Raises:
            SnapshotTooLarge: `maxSuspendedRuns` cells are parked.
        """
        with suppress(StoreUnavailable):
            if not await self.store.room(self._config.max_suspended_runs):
                raise SnapshotTooLarge(FULL)

    async def park(
        self, cell: Cell, frozen: FrozenCell | None, away: StoreUnavailable | None = None
    ) -> None:
        """Writes a cell to the store.

        Args:
            cell: The cell.
            frozen: Its memory; None if it has not started, or has ended unheard.
            away: Given if the store is known to be unavailable; then it is not tried again.

        Raises:
            SnapshotTooLarge: The cell is too large, or too many cells are parked.
            Aborted: The cell has been aborted.
            StoreUnavailable: The cell may or may not have been stored; `be_sure` stores it.
        """
        # Sealed once: a repetition is known by its mark, and calls may be answered before.
        stored, limit = self._sealed(cell, frozen), self._config.max_suspended_runs
        # Set before the cell is stored: a task that is cancelled meanwhile cannot know if it was.
        again, cell.stored = cell.stored, True
        before = cell.unsure

        async def write() -> None:
            nonlocal before
            owner = await self.owner()
            if before is not None:
                await before()
                before = None
            calls = tuple(replace(call, owner=owner) for call in stored.calls)
            mine = replace(stored, calls=calls, fence=cell.fence)
            await self.store.park(mine, owner, limit, again=again, have=cell.have)
            _note_stored(cell, stored)
            cell.inbox.clear()
            cell.have.clear()

        cell.unsure = write
        try:
            if away is not None:
                raise away
            await self.be_sure(cell)
        except (Aborted, SnapshotTooLarge):
            cell.unsure = None  # it was not stored, and must not be
            raise

    async def checkpoint(self, cell: Cell, frozen: FrozenCell, intents: Collection[int]) -> None:
        """Writes a cell to the store that goes on to run here.

        Args:
            cell: The cell.
            frozen: Its memory.
            intents: The queued calls that are made as soon as this returns.

        Raises:
            SnapshotTooLarge: The cell is too large.
            Aborted: The cell has been aborted, or another process has taken it over.
            StoreUnavailable: The cell may or may not have been stored.
        """
        owner = await self.owner()
        await self.be_sure(cell)
        stored = self._sealed(cell, frozen, intents, goes_on=True)
        again, cell.stored = cell.stored, True
        have = frozenset(cell.have)

        async def write() -> None:
            cell.fence = await self.store.checkpoint(stored, owner, again=again, have=have)

        cell.unsure = write
        try:
            await self.be_sure(cell)
        except StoreUnavailable as error:
            if error.unsent:
                cell.unsure, cell.stored = None, again
            raise
        except Aborted:
            cell.unsure = None  # it was not stored, and must not be
            raise
        _note_stored(cell, stored)
        # The store has the inbox, too; the next write drops what the guest has got by then.
        cell.have = {settled.id for settled in cell.inbox}

    def _sealed(
        self,
        cell: Cell,
        frozen: FrozenCell | None,
        intents: Collection[int] = (),
        *,
        goes_on: bool = False,
    ) -> StoredCell:
        snapshot, image = b"", b""
        cell.park += cell.stored
        size = sum(len(request.args) for request in cell.lookups)
        if size > (most := self._config.max_snapshot_bytes):
            text = f"The pending look-ups of the program are {size} bytes; {most} are allowed."
            raise SnapshotTooLarge(text)
        if frozen is not None:
            self.check_size(frozen)
            image = frozen.image
            bound = self._bound(cell.id, f"snapshot {cell.park}")
            snapshot = seal(frozen, wasm_hash(), bound, self.store.keys)
        # Stores keep the answer to the question of the gate among the replies.
        replies = cell.inbox if cell.admission is None else [cell.admission, *cell.inbox]
        unknown = {entry.id for entry in cell.ledger.entries if entry.state == "unknown"}
        mine = [call for call in cell.calls.values() if not call.owner]
        build: JsonObject = {
            "format": FORMAT,
            "build": __version__,
            "engine": wasm_hash().hex(),
            "image": image.hex(),
        }
        written = write_cell(cell, unheard=goes_on or cell.unheard)
        due_in = cell.due_at - time.monotonic() if cell.due else None
        return StoredCell(
            id=cell.id,
            scope=self._scope,
            ttl=float(self._config.snapshot_ttl_seconds),
            record=self._seal({**build, **written}, cell.id, "record"),
            snapshot=snapshot,
            calls=tuple(self._stored(cell.id, call, intents) for call in mine),
            replies=tuple(
                StoredReply(item.id, self.sealed_reply(cell.id, Reply(item, item.id in unknown)))
                for item in replies
            ),
            mark=self._mark(cell.id, cell.park),
            fence=cell.fence,
            image=image_of(image),
            due_in=due_in,
            ledger=self._seal(write_calls(cell), cell.id, "ledger"),
        )

    def _stored(self, run_id: str, call: OpenCall, intents: Collection[int]) -> StoredCall:
        request, made = call.request, call.id in intents or call.repeated
        state = "running" if made else call.entry.state
        assert state in OPEN_STATES, f"call {call.id}: expected an open call, it is {state}"
        body: JsonObject = {
            "method": request.method,
            "args": request.args.decode("utf-8", "replace"),
        }
        return StoredCall(call.id, self.name, state, self._seal(body, run_id, f"call {call.id}"))

    def sealed_reply(self, run_id: str, reply: Reply) -> bytes:
        """Returns a reply as the inbox in the store keeps it."""
        settled = reply.settled
        flag = b"?" if reply.unknown else b"+" if settled.ok else b"-"
        data = _REPLY.pack(settled.id, flag) + settled.value
        return seal_bytes(data, self._bound(run_id, "reply"), self.store.keys)

    # ---- Resuming ----

    async def claim(self, run_id: str, image: bytes = b"") -> Cell | Refusal:
        """Claims a cell for a `wait` of this run, and reads it.

        Args:
            run_id: The cell.
            image: The hash of the memory that cells start from here; empty if it is not known.

        Raises:
            SnapshotRefused: The stored cell is not the one that was parked. If another key or
                build may still read it, it is kept; otherwise it is deleted.
        """
        fleet = self.store.fleet and image
        images = (image_of(b""), image_of(image)) if fleet else None
        found = await self.store.claim(run_id, self._scope, await self.owner(), images)
        if isinstance(found, str):
            return found
        try:
            return self._read(found)
        except SnapshotRefused as error:
            if error.kept:
                await self.store.release(run_id, await self.owner(), found.fence)
            else:
                await self.store.end(run_id, self._scope, "finished", found.fence)
            raise

    def _read(self, stored: StoredCell) -> Cell:
        try:
            record = self._unseal(stored.record, stored.id, "record")
            if record.get("format") != FORMAT or record.get("engine") != wasm_hash().hex():
                raise other_build(record.get("build"))
            listed = self._unseal(stored.ledger, stored.id, "ledger") if stored.ledger else record
            if listed["park"] != record["park"]:
                raise SnapshotRefused(REPLAYED)
            cell = read_cell(stored.id, record)
            cell.ledger, cell.fence = read_calls(listed), stored.fence
            if "clock" in record:
                cell.set_clock(record["clock"] + stored.age * 1000)
            if stored.due_in is not None:
                cell.due_at = time.monotonic() + stored.due_in
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
        stored = await self.store.take(
            cell.id, owner, cell.fence, seen=cell.mark, mark=mark, keep=self.effects
        )
        if stored is None:
            raise Aborted
        bound = self._bound(cell.id, f"snapshot {cell.park}")
        cell.park += 1
        try:
            self.deliver(cell, stored.replies)
            if cell.start is not None or cell.outcome is not None:
                return None
            return unseal(stored.snapshot, wasm_hash(), bound, self.store.keys)
        except SnapshotRefused:
            await self.end(cell, "finished")
            raise

    async def fetch(self, cell: Cell) -> bool:
        """Gives new replies in the store to a cell that is driven here. False if it has ended."""
        found = await self.store.drain(
            cell.id, await self.owner(), cell.fence, tuple(cell.have), keep=self.effects
        )
        if found is None:
            return False
        if not self.effects:
            cell.have.clear()
        self.deliver(cell, found)
        return True

    def deliver(self, cell: Cell, replies: tuple[StoredReply, ...]) -> None:
        """Gives replies from the store to a cell that is driven here."""
        for call, sealed in replies:
            data = unseal_bytes(sealed, self._bound(cell.id, "reply"), self.store.keys)
            number, flag = _REPLY.unpack_from(data)
            settled = Settlement(number, flag == b"+", data[_REPLY.size :])
            cell.receive(settled, unknown=flag == b"?")
            cell.have.add(call)

    async def release(self, cell: Cell) -> None:
        """Ends a claim: the cell stays parked, and its time to live restarts."""
        await self.store.release(cell.id, await self.owner(), cell.fence)

    async def end_surely(self, cell: Cell, end: End) -> bool:
        ledger = self._seal(write_calls(cell), cell.id, "ledger")
        return await self.store.end(cell.id, self._scope, end, cell.fence, ledger)

    async def ledger(self, run_id: str) -> Ledger | None:
        """Returns the calls of a cell that has ended; None if they are not known.

        Raises:
            StoreUnavailable: The store cannot be read.
        """
        ended = await self.store.ended(run_id, self._scope)
        try:
            if ended is None or not ended.ledger:
                return None
            return read_calls(self._unseal(ended.ledger, run_id, "ledger"))
        except (SnapshotRefused, AttributeError, KeyError, TypeError, ValueError):
            return None

    # ---- Sealing ----

    def _mark(self, run_id: str, number: int) -> bytes:
        return seal_bytes(_NUMBER.pack(number), self._bound(run_id, "park"), self.store.keys)

    def _bound(self, run_id: str, what: str) -> bytes:
        return bind(self._scope, run_id, what)

    def _seal(self, value: JsonValue, run_id: str, what: str) -> bytes:
        return seal_bytes(json.dumps(value).encode(), self._bound(run_id, what), self.store.keys)

    def _unseal(self, sealed: bytes, run_id: str, what: str) -> Any:
        return json.loads(unseal_bytes(sealed, self._bound(run_id, what), self.store.keys))


def _note_stored(cell: Cell, stored: StoredCell) -> None:
    """Notes which states of its calls the store has."""
    for call in stored.calls:
        if call.id in cell.calls:
            cell.calls[call.id].stored = call.state


def wasm_hash() -> bytes:
    """Returns the hash of the engine, which snapshots depend on."""
    return bytes.fromhex(artifacts.locked_hash("quickjs"))


def image_of(memory: bytes) -> bytes:
    """Returns which build can resume a cell, by the hash of the memory that it started from."""
    return hashlib.sha256(b"%d" % FORMAT + wasm_hash() + memory).digest()
