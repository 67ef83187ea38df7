"""The backend that `state` names: what all processes with the same `state` share.

Today these are programs that wait or run. Conversations, jobs and tokens stay in the state folder.
"""

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

import anyio

from clawmode.app.setup import Setup
from clawmode.code_mode.bus import Bus
from clawmode.code_mode.nodes import Nodes, Report
from clawmode.code_mode.shelves import Shelf, ShelfLimits
from clawmode.code_mode.sqlite_store import SqliteStore
from clawmode.code_mode.stores import SnapshotStore, StoredCell
from clawmode.config.file import read_secret
from clawmode.exceptions import Aborted, ConfigurationError, naming_extras
from clawmode.types import dataclass

if TYPE_CHECKING:
    from clawmode.postgres.cells import PostgresStore

MOST = 1 << 62
"""The limit of a target that takes whatever the source has."""

BATCH = 500
"""The number of programs that a move lists at a time."""


class Cells(SnapshotStore, Protocol):
    """A store of cells, with what those who operate it need."""

    async def report(self) -> Report:
        """Returns the figures of the store."""
        ...

    async def shelves(self) -> list[tuple[Shelf, float]]:
        """Returns all shelves, with the seconds until each expires."""
        ...

    async def discard(self, cell_id: str, owner: str, fence: int) -> bool:
        """Deletes a cell that `owner` has, as if there had never been one: it was moved."""
        ...

    def close(self) -> None:
        """Ends the node and its owners, and closes everything. Blocks. Idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class Backend:
    """A folder, or a database.

    Attributes:
        place: What people call it, without user and password.
        cells: Keeps programs.
        nodes: The processes that share the backend.
        bus: Wakes whoever waits for something in the backend.
    """

    place: str
    cells: Cells
    nodes: Nodes
    bus: Bus


def backend_of(setup: Setup) -> Backend:
    """Returns the backend that the configuration names, without connecting.

    Raises:
        StoreUnavailable: The folder cannot be written.
        ConfigurationError: The address of the database is invalid, or there is no key.
        MissingExtra: The extra `postgres` is not installed.
    """
    if setup.configuration.state is None:
        return folder_of(setup)
    return database_of(setup)


def folder_of(setup: Setup) -> Backend:
    """Returns the backend in the state folder.

    Raises:
        StoreUnavailable: The folder cannot be written.
    """
    cells = SqliteStore(setup.state)
    return Backend(str(setup.state), cells, cells.nodes, cells.bus)


def database_of(setup: Setup) -> Backend:
    """Returns the backend in the database that the configuration names, without connecting.

    Raises:
        ConfigurationError: There is none, its address is invalid, or there is no key.
        MissingExtra: The extra `postgres` is not installed.
    """
    cells = store_in_database(setup)
    place = f"postgresql://{cells.connections.target.name}"
    return Backend(place, cells, cells.nodes, cells.bus)


def store_in_database(setup: Setup) -> "PostgresStore":
    """Returns the cells of the database, which also creates and upgrades its tables.

    Raises:
        ConfigurationError: There is none, its address is invalid, or there is no key.
        MissingExtra: The extra `postgres` is not installed.
    """
    section = setup.configuration.postgres
    if setup.configuration.state is None:
        raise ConfigurationError(
            "the configuration names no database: set state to postgresql://…", path="state"
        )
    address = read_secret("state", setup.configuration.state)
    with naming_extras():
        from clawmode.postgres.cells import PostgresStore
    try:
        return PostgresStore(
            address,
            key_file=None if section.key_file is None else setup.folder / section.key_file,
            name=section.name,
            pool_size=section.pool_size,
            listen=section.listen,
            migrate=section.migrate,
        )
    except ConfigurationError as error:
        path = error.path or "state"
        raise ConfigurationError(f"{path}: {error}", path=path) from None


@asynccontextmanager
async def closing(backend: Backend) -> AsyncIterator[Backend]:
    """Closes a backend at the end of the block."""
    try:
        yield backend
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(backend.cells.close)


@asynccontextmanager
async def open_backend(setup: Setup) -> AsyncIterator[Backend]:
    """Opens the backend that the configuration names: this process is a node during the block.

    Raises:
        StoreUnavailable: The folder cannot be written, or the database cannot be used.
        ConfigurationError: The address of the database is invalid, or keys do not fit.
    """
    async with closing(backend_of(setup)) as backend:
        await backend.nodes.enter()
        yield backend


class Moved(NamedTuple):
    """What `move_programs` has moved, and the programs that it left because a process has them."""

    programs: int
    shelves: int
    busy: list[str]


async def move_programs(source: Cells, target: Cells) -> Moved:
    """Moves programs that wait, and what they have stored, from one store to another.

    A program leaves the source after the target has it: it must not run twice. A move that was
    interrupted can be repeated.

    Raises:
        ConfigurationError: The target lacks a key of the source, so programs would be unreadable.
        StoreUnavailable: One of the stores cannot be used.
    """
    if not {*source.keys.ids} <= {*target.keys.ids}:
        raise ConfigurationError(
            "the target lacks a snapshot key of the source, so nobody could read the programs: add "
            "the key of the source behind the key of the target",
            path="CLAWMODE_SNAPSHOT_KEY",
        )
    giver, taker, moved = await source.join(), await target.join(), 0
    busy: dict[str, None] = {}
    try:
        while True:
            listed = await source.cells(limit=BATCH + len(busy))
            if not (batch := [known for known in listed if known.id not in busy]):
                break
            for known in batch:
                claimed = await source.claim(known.id, known.scope, giver)
                if not isinstance(claimed, StoredCell):
                    busy[known.id] = None
                    continue
                fence, seen = claimed.fence, claimed.mark
                cell = await source.take(known.id, giver, fence, seen=seen, keep=True)
                if cell is None:
                    busy[known.id] = None
                    continue
                with contextlib.suppress(Aborted):  # moved before, and it has gone on there
                    await target.park(replace(cell, fence=0), taker, MOST, again=False)
                await source.discard(known.id, giver, fence)
                moved += 1
        shelves = await source.shelves()
        for shelf, left in shelves:
            rows = await source.read_shelf(shelf, left)
            await target.write_shelf(shelf, rows, left, ShelfLimits(MOST, MOST))
        for shelf, _ in shelves:
            await source.drop_shelves(shelf.session)
    finally:
        with anyio.CancelScope(shield=True):
            await source.leave(giver)
            await target.leave(taker)
    return Moved(moved, len(shelves), [*busy])
