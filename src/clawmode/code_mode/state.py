"""What programs leave for later programs of their run or session, sealed in the store.

A program gets the values that were stored when its `exec` or `wait` began. What a step of the
program stores is written before any call of that step is made, and before its result is returned;
the last write of a key wins. The guest holds only values that it loads: the worker has the others.
"""

import hashlib
import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING

import anyio

from clawmode.code_mode.shelves import Shelf, ShelfLimits
from clawmode.code_mode.snapshots import bind, seal_bytes, unseal_bytes
from clawmode.exceptions import SnapshotRefused, SnapshotTooLarge
from clawmode.sandbox.protocol import MAX_STATE_BYTES, MAX_STATE_KEYS, State, Stored

if TYPE_CHECKING:
    from clawmode.code_mode.config import CodeModeConfig
    from clawmode.code_mode.stores import SnapshotStore
    from clawmode.context import RunContext, Scope

RUN_SECONDS = 24 * 3600.0
"""How long rows of a run are kept after their last use, if nobody ends the run."""

SESSION_SECONDS = 30 * 24 * 3600.0
"""How long rows of a session are kept after their last use, if nobody ends the session."""

ROW_BYTES = 1024
"""What a sealed row takes at most besides its value: the key, the nonce and the tag."""

SHORTEST = 8 + 12 + 16
"""Bytes of a seal: the id of the key, the nonce and the tag."""

UNREADABLE = (
    "What programs have stored cannot be read here: {why}. Programs that do not name load or store "
    "still run."
)
ALTERED = (
    "What programs have stored cannot be read: it was altered, or sealed for another run. It has "
    "been deleted, so the next program starts with nothing stored."
)
TOO_FULL = (
    "Several programs at once have stored more than may be kept together. What this program stored "
    "since its last call is lost: drop keys with store(key, undefined), and store it again."
)

_LENGTH = struct.Struct("<I")


def session_of(scope: "Scope") -> str:
    """Returns the name of a scope's session on shelves."""
    return hashlib.sha256(bind(scope._replace(run_id=""), "session")).hexdigest()


def run_of(scope: "Scope") -> str:
    """Returns the name of a scope's run on shelves; it is never empty."""
    return hashlib.sha256(bind(scope, "run")).hexdigest()


class SealedShelf:
    """Sealed rows of a run, or of its session if it has one and `session` is True.

    Args:
        store: Where the rows are kept.
        context: The run.
        kind: What the rows are.
        most: How much the shelf may hold.
        session: Whether the rows outlive the run.
    """

    def __init__(
        self,
        store: "SnapshotStore",
        context: "RunContext",
        kind: str,
        most: ShelfLimits,
        *,
        session: bool,
    ) -> None:
        scope = context.scope
        lasting = session and bool(scope.session_id or scope.session_key)
        self.store = store
        self._shelf = Shelf(session_of(scope), "" if lasting else run_of(scope), kind)
        self._ttl = SESSION_SECONDS if lasting else RUN_SECONDS
        self._most = most
        self._opened: dict[tuple[str, bytes], tuple[str, bytes]] = {}

    async def read(self) -> dict[str, bytes]:
        """Returns all rows by key.

        Raises:
            SnapshotRefused: A row was altered. The rows are deleted, unless only the key of the
                seal is missing.
            StoreUnavailable: The store cannot be read.
        """
        rows = await self.store.read_shelf(self._shelf, self._ttl)
        try:
            # Unsealing takes longer than everything else, and few rows change in between.
            self._opened = {
                (name, body): self._opened.get((name, body)) or self._unseal(name, body)
                for name, body in rows.items()
            }
            return dict(self._opened.values())
        except SnapshotRefused as error:
            if error.kept:
                raise type(error)(UNREADABLE.format(why=error)) from None
            await self.store.drop_shelves(self._shelf.session, self._shelf.run)
            raise SnapshotRefused(ALTERED) from None

    async def write(self, rows: Mapping[str, bytes | None]) -> bool:
        """Writes rows, or deletes those that are None. Returns False if they do not fit.

        Raises:
            StoreUnavailable: The store cannot be written.
        """
        sealed = {self._name(key): self._seal(key, value) for key, value in rows.items()}
        return await self.store.write_shelf(self._shelf, sealed, self._ttl, self._most)

    def _name(self, key: str) -> str:
        """The name of a row tells nothing of its key to somebody who does not guess the key."""
        return hashlib.sha256(self._bound(key)).hexdigest()

    def _bound(self, name: str) -> bytes:
        parts = [part.encode("utf-8", "surrogatepass") for part in (*self._shelf, name)]
        return b"shelf" + b"".join(_LENGTH.pack(len(part)) + part for part in parts)

    def _seal(self, key: str, value: bytes | None) -> bytes | None:
        if value is None:
            return None
        head = key.encode("utf-8", "surrogatepass")
        data = _LENGTH.pack(len(head)) + head + value
        return seal_bytes(data, self._bound(self._name(key)), self.store.keys)

    def _unseal(self, name: str, body: bytes) -> tuple[str, bytes]:
        if len(body) < SHORTEST:  # too short for a seal, with whichever key
            raise SnapshotRefused("the row is truncated")
        data = unseal_bytes(body, self._bound(name), self.store.keys)
        (length,) = _LENGTH.unpack_from(data)
        end = _LENGTH.size + length
        return data[_LENGTH.size : end].decode("utf-8", "surrogatepass"), data[end:]


class ProgramState:
    """The values that the programs of one `CodeMode` store and load.

    Attributes:
        view: The values as this process knows them.
    """

    def __init__(
        self, store: "SnapshotStore", context: "RunContext", config: "CodeModeConfig"
    ) -> None:
        most = ShelfLimits(MAX_STATE_KEYS, MAX_STATE_BYTES + MAX_STATE_KEYS * ROW_BYTES)
        session = config.state == "session"
        self._shelf = SealedShelf(store, context, "values", most, session=session)
        self._lock = anyio.Lock(fast_acquire=True)
        self.view: State = ()

    async def refresh(self) -> None:
        """Reads the values that other processes may have stored.

        Raises:
            SnapshotRefused: The values were altered.
            StoreUnavailable: The store cannot be read.
        """
        async with self._lock:
            found = tuple(sorted((await self._shelf.read()).items()))
            if found != self.view:
                self.view = found

    async def commit(self, stored: Stored) -> State:
        """Writes what a step of a program has stored. Returns the values before that.

        Raises:
            SnapshotTooLarge: The values of all programs together are too many.
            StoreUnavailable: The store cannot be written.
        """
        async with self._lock:
            rows, before = dict(stored), self.view
            if not await self._shelf.write(rows):
                raise SnapshotTooLarge(TOO_FULL)
            changed = {**dict(before), **rows}
            kept = ((key, body) for key, body in changed.items() if body is not None)
            self.view = tuple(sorted(kept))
            return before
