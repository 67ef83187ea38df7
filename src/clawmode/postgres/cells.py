"""A store of parked cells in PostgreSQL, shared by processes on several machines."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Literal

from clawmode.code_mode.stores import (
    ANY,
    FULL,
    AbortProgress,
    CellInfo,
    End,
    Ended,
    Only,
    Progress,
    Refusal,
    StoredCall,
    StoredCell,
    StoredReply,
    state_of,
)
from clawmode.context import Scope
from clawmode.exceptions import Aborted, SnapshotTooLarge, StoreUnavailable
from clawmode.postgres.fleet import FleetStore
from clawmode.postgres.nodes import EXPIRED_AT_ONCE
from clawmode.postgres.texts import escaped, texts, unescaped
from clawmode.types import CallState

CLAIMED = ("ttl", "fence", "image", "due_in", "age", "mark", "ledger", "record")
TAKEN = ("ttl", "image", "due_in", "age", "ledger", "record", "snapshot")
"""The fields of a cell in the order in which `cm_claim` and `cm_take` return them."""

MAX_ID = 255
"""Bytes of the id of a cell. No cell has a longer one."""


class PostgresStore(FleetStore):
    """Keeps parked and running cells in PostgreSQL: any process with the database resumes them.

    Needs PostgreSQL 15 or newer, and the extra `clawmode[postgres]`. Every process is a *node*: the
    first `CodeMode` that needs the store enters the fleet. A cell is deleted `snapshotTtlSeconds`
    after its last `wait`, by default 15 minutes.

    Args:
        dsn: The database, such as `postgresql://user:password@host/database`. TLS is required
            unless the server is on this machine.
        keys: The keys that seal the cells. Default: those of the environment variable
            `CLAWMODE_SNAPSHOT_KEY`, or of `key_file`. All nodes need the same keys.
        key_file: A file with the keys, which only our user can read.
        name: What people call this node; by default the name of the machine and the process id.
        pool_size: The maximum of connections for statements; two more are opened for the node.
        listen: False if PgBouncer is in between, which cannot pass notifications: then everybody
            who waits looks again every 250 ms.
        migrate: Whether to create or upgrade the tables. Without, `clawmode state migrate` has to.

    Raises:
        ConfigurationError: The URL is invalid or turns TLS off, or there is no key.
    """

    # ---- Parking ----

    async def room(self, limit: int) -> bool:
        ((room,),) = await self._call("cm_room", limit)
        if not room and await self._expire():
            ((room,),) = await self._call("cm_room", limit)
        return bool(room)

    async def _expire(self) -> bool:
        """Ends cells that have expired. Returns True if there were any."""
        ((count,),) = await self._call("cm_expire", EXPIRED_AT_ONCE)
        return bool(count)

    async def park(
        self,
        cell: StoredCell,
        owner: str,
        limit: int,
        *,
        again: bool,
        have: Collection[int] = (),
    ) -> None:
        await self._write(cell, owner, again, have, limit)
        self._members.share(owner).held.discard(cell.id)

    async def checkpoint(
        self, cell: StoredCell, owner: str, *, again: bool, have: Collection[int] = ()
    ) -> int:
        return await self._write(cell, owner, again, have, None)

    async def _write(
        self,
        cell: StoredCell,
        owner: str,
        again: bool,
        have: Collection[int],
        limit: int | None,
    ) -> int:
        """Stores a cell: parked, or without a limit still running. Returns its fence."""
        if (cell_id := _key(cell.id)) is None:
            raise StoreUnavailable(f"The id of a program has more than {MAX_ID} bytes.")
        args = (
            *(cell_id, texts(cell.scope), cell.image, cell.ttl, cell.due_in),
            *(cell.mark, cell.ledger, cell.record, cell.snapshot),
            *(owner, cell.fence, again, limit is None, limit or 0),
            _numbers(call.id for call in cell.calls),
            [str(call.state) for call in cell.calls],
            [call.body for call in cell.calls],
            _numbers(reply.call for reply in cell.replies),
            [reply.body for reply in cell.replies],
            _numbers(have),
        )
        if limit is None:  # noted before: the answer may be lost
            self._members.share(owner).held.add(cell.id)
        status, fence = await self._call_living("cm_park", 9, *args)
        if status == "full" and await self._expire():
            status, fence = await self._call_living("cm_park", 9, *args)
        if status == "full":
            raise SnapshotTooLarge(FULL)
        if status != "ok":
            raise Aborted
        self._members.dropped.discard(cell.id)
        self._members.share(owner).make(cell.id, [call.id for call in cell.calls])
        return int(fence)

    # ---- Resuming ----

    async def claim(
        self, cell_id: str, scope: Scope, owner: str, images: Collection[bytes] | None = None
    ) -> StoredCell | Refusal:
        if (key := _key(cell_id)) is None:
            return "unknown"
        self._members.images.update(images or ())
        known = None if images is None else list(images)
        self._members.share(owner).held.add(cell_id)  # before: the answer may be lost
        row = await self._call_living("cm_claim", 2, key, texts(scope), owner, known)
        status, values, calls = row[0], row[1:9], row[9:]
        if status != "ok":
            refusal: Refusal = status
            self._members.share(owner).held.discard(cell_id)
            return refusal
        self._members.dropped.discard(cell_id)
        self._members.share(owner).held.add(cell_id)  # once more, if the node has died meanwhile
        found: dict[str, Any] = dict(zip(CLAIMED, values, strict=True))
        calls = self._calls(calls)
        return StoredCell(id=cell_id, scope=scope, snapshot=b"", calls=calls, **found)

    async def release(self, cell_id: str, owner: str, fence: int) -> None:
        node, part = await self._me(owner)
        await self._call("cm_release", _key(cell_id), node, part, fence)
        self._members.share(owner).held.discard(cell_id)

    async def progress(self, cell_id: str) -> Progress | None:
        ((live, replies, *calls),) = await self._call("cm_progress", _key(cell_id))
        return Progress(self._calls(calls), replies) if live else None

    async def take(
        self,
        cell_id: str,
        owner: str,
        fence: int,
        *,
        seen: bytes = b"",
        mark: bytes = b"",
        keep: bool = False,
    ) -> StoredCell | None:
        node, part = await self._me(owner)
        args = (_key(cell_id), node, part, fence, seen, mark, keep)
        ((taken, *row),) = await self._call("cm_take", *args)
        if not taken:
            return None
        scope, values, calls, (answered, answers) = row[0], row[1:8], row[8:13], row[13:]
        found: dict[str, Any] = dict(zip(TAKEN, values, strict=True))
        return StoredCell(
            id=cell_id,
            scope=Scope(*map(unescaped, scope)),
            calls=self._calls(calls),
            replies=_replies(answered, answers),
            mark=seen,
            fence=fence,
            **found,
        )

    async def drain(
        self,
        cell_id: str,
        owner: str,
        fence: int,
        have: Collection[int] = (),
        *,
        keep: bool = False,
    ) -> tuple[StoredReply, ...] | None:
        node, part = await self._me(owner)
        args = (_key(cell_id), node, part, fence, _numbers(have), keep)
        ((live, calls, answers),) = await self._call("cm_drain", *args)
        return _replies(calls, answers) if live else None

    async def discard(self, cell_id: str, owner: str, fence: int) -> bool:
        """Deletes a cell that `owner` has, as if there had never been one: it was moved."""
        ((done,),) = await self._call("cm_discard", _key(cell_id), *await self._me(owner), fence)
        self._members.forget_cell(cell_id)
        return bool(done)

    def _calls(self, columns: Sequence[Any]) -> tuple[StoredCall, ...]:
        rows = zip(*columns, strict=True)
        return tuple(
            StoredCall(number, self._members.name_of(node, part), state, body)
            for number, node, part, state, body in rows
        )

    # ---- Calls ----

    async def mark(self, cell_id: str, call_id: int, owner: str, state: CallState) -> bool:
        node, part = await self._me(owner)
        ((done,),) = await self._call("cm_mark", _key(cell_id), call_id, node, part, state)
        return bool(done)

    async def adopt(self, cell_id: str, call: StoredCall, owner: str, fence: int) -> bool:
        old, me = await self._me(call.owner), await self._me(owner)
        args = (_key(cell_id), call.id, *old, call.state, *me, fence)
        ((done,),) = await self._call("cm_adopt", *args)
        if done:
            share = self._members.share(owner)
            share.make(cell_id, {*share.calls.get(cell_id, ()), call.id})
        return bool(done)

    async def settle(
        self, cell_id: str, call_id: int, owner: str, reply: bytes, limit: int
    ) -> Literal["kept", "full", "gone"]:
        node, part = await self._me(owner)
        args = (_key(cell_id), call_id, node, part, reply, limit)
        ((status, wakes),) = await self._call("cm_settle", *args)
        if status != "full":
            self._members.share(owner).settle(cell_id, call_id)
        if status == "kept":
            self._members.wake(cell_id, wakes)
        found: Literal["kept", "full", "gone"] = status
        return found

    # ---- Ending ----

    async def end(
        self, cell_id: str, scope: Scope, end: End, fence: int, ledger: bytes = b""
    ) -> bool:
        args = (_key(cell_id), texts(scope), end, fence, ledger)
        ((done, wakes),) = await self._call("cm_end", *args)
        if done:
            self._members.forget_cell(cell_id)
            self._members.wake(cell_id, wakes)
        return bool(done)

    async def ended(self, cell_id: str, scope: Scope) -> Ended | None:
        ((end, ledger),) = await self._call("cm_ended", _key(cell_id), texts(scope))
        return Ended(end, ledger) if end else None

    async def abort(
        self, cell_id: str, scope: Scope, owner: str = "", fence: int | None = None
    ) -> AbortProgress | None:
        if fence is not None and cell_id in self._members.dropped:
            return "ended"  # given up when the node died: the cell itself goes on elsewhere
        args = (_key(cell_id), texts(scope), *await self._me(owner), fence)
        ((status, wakes),) = await self._call("cm_abort", *args, repeats=True)
        self._noted(cell_id, owner, status, wakes)
        return status

    async def end_all(
        self, scope: Scope, *, session: bool = False, owner: str = ""
    ) -> dict[str, AbortProgress]:
        rows = await self._call("cm_end_all", texts(scope), session, *await self._me(owner))
        for cell_id, status, wakes in rows:
            self._noted(unescaped(cell_id), owner, status, wakes)
        return {unescaped(cell_id): status for cell_id, status, _ in rows}

    def _noted(self, cell_id: str, owner: str, status: str | None, wakes: list[int]) -> None:
        if status == "ended":
            self._members.forget_cell(cell_id)
        else:
            self._members.share(owner).drop(cell_id)
        self._members.wake(cell_id, wakes)

    async def gone(self, cell_ids: Iterable[str]) -> set[str]:
        asked = {_key(cell_id): cell_id for cell_id in cell_ids}
        rows = await self._call("cm_gone", [key for key in asked if key is not None])
        unknown = {cell_id for key, cell_id in asked.items() if key is None}
        dropped = self._members.dropped.intersection(asked.values())
        return {asked[key] for (key,) in rows} | unknown | dropped

    async def count_parked(self) -> int:
        ((count,),) = await self._call("cm_count_parked")
        return int(count)

    async def cells(
        self, scope: Scope | None = None, limit: int | None = None, only: Only = ANY
    ) -> list[CellInfo]:
        if len(only.cell_id) > MAX_ID:
            return []
        named = [escaped(name) if name else None for name in only]
        rows = await self._call("cm_find", None if scope is None else texts(scope), *named, limit)
        return [
            CellInfo(
                id=unescaped(cell_id),
                scope=Scope(*map(unescaped, names)),
                state=state_of(state == 2, kept, held),
                age=ttl - left,
                left=left,
            )
            for cell_id, names, state, kept, held, ttl, left in rows
        ]


def _key(cell_id: str) -> str | None:
    """Returns the id of a cell as the database has it; None if no cell can have it."""
    if len(cell_id) > MAX_ID:
        return None
    key = escaped(cell_id)
    return key if len(key.encode()) <= MAX_ID else None


def _numbers(values: Iterable[int]) -> str:
    """Returns numbers as a literal of an array, whose type the function decides."""
    return "{" + ",".join(map(str, values)) + "}"


def _replies(calls: Sequence[int], bodies: Sequence[bytes]) -> tuple[StoredReply, ...]:
    return tuple(map(StoredReply, calls, bodies))
