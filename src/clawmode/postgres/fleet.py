"""What a store in PostgreSQL has besides cells: connections, the node, owners, and reports."""

from pathlib import Path
from typing import Any

import anyio

from clawmode.code_mode.nodes import NodeInfo, Report, default_name
from clawmode.code_mode.snapshots import KeyRing
from clawmode.exceptions import StoreUnavailable
from clawmode.postgres.connection import Connections
from clawmode.postgres.membership import Membership, parse_owner
from clawmode.postgres.shelves import PostgresShelves, Row

COUNTED = 100_000
"""Up to so many programs, a report also counts them one by one."""


class FleetNodes:
    """The processes that share the database: see `Nodes`."""

    def __init__(self, members: Membership, connections: Connections) -> None:
        self._members = members
        self._connections = connections

    @property
    def reachable(self) -> bool:
        return self._members.reachable

    async def enter(self) -> str:
        return str(await anyio.to_thread.run_sync(self._members.enter))

    async def drain(self) -> None:
        await anyio.to_thread.run_sync(self._members.drain)

    async def living(self) -> list[NodeInfo]:
        await anyio.to_thread.run_sync(self._members.check)
        rows = await self._connections.call("cm_living")
        return [
            NodeInfo(str(node), name, build, silent, draining, tuple(keys), tuple(images))
            for node, name, build, silent, draining, keys, images in rows
        ]


class FleetStore(PostgresShelves):
    """Base class of `PostgresStore`, which describes the arguments."""

    durable = True
    fleet = True

    def __init__(
        self,
        dsn: str,
        *,
        keys: KeyRing | None = None,
        key_file: Path | str | None = None,
        name: str | None = None,
        pool_size: int = 8,
        listen: bool = True,
        migrate: bool = True,
    ) -> None:
        self.keys = keys or KeyRing.shared(Path(key_file) if key_file is not None else None)
        self.connections = Connections(dsn, size=pool_size, direct=listen)
        self._members = Membership(
            self.connections,
            lambda: self.keys,
            name=name or default_name(),
            listen=listen,
            migrates=migrate,
        )
        self.nodes = FleetNodes(self._members, self.connections)
        self.bus = self._members.bus

    def __repr__(self) -> str:
        return f"PostgresStore({self.connections.target.name})"

    @property
    def deaths(self) -> int:
        """How often other nodes have declared this process dead."""
        return self._members.deaths

    def close(self) -> None:
        """Leaves the fleet and closes all connections. Idempotent; the next use enters it again.

        Do not close a store that a `CodeMode` still uses: other nodes would take its calls over.
        """
        self._members.close()
        self.connections.close()

    def migrate(self, *, force: bool = False) -> int:
        """Creates or upgrades the tables, and returns the version of the schema. Blocks.

        Raises:
            StoreUnavailable: It cannot, or living nodes could not go on and `force` is False.
        """
        return self._members.migrate(force=force)

    async def report(self) -> Report:
        """Returns what operators want to know about the database."""
        ((version, parked, counted, running),) = await self._call("cm_figures", COUNTED)
        return Report(version, parked, counted, running)

    # ---- Owners ----

    async def join(self) -> str:
        return await anyio.to_thread.run_sync(self._members.join)

    async def leave(self, owner: str) -> None:
        await anyio.to_thread.run_sync(self._members.leave, owner)

    async def alive(self, owner: str) -> bool:
        known = self._members.knows(owner)
        if known is None:
            ((known,),) = await self._call("cm_alive", parse_owner(owner)[0])
        return bool(known)

    async def _me(self, owner: str) -> tuple[int, int]:
        """Returns the node and the number of an owner."""
        if self._members.entered:
            return self._members.find(owner)
        return await anyio.to_thread.run_sync(self._members.find, owner)

    async def _call(self, function: str, *args: Any, repeats: bool = False) -> list[Row]:
        if not self._members.checked:
            await anyio.to_thread.run_sync(self._members.check)
        return await self.connections.call(function, *args, repeats=repeats)

    async def _call_living(self, function: str, place: int, *args: Any) -> Row:
        """Calls a function with an owner among the arguments, as one of a node that is not dead."""
        for _ in range(3):
            node, part = await self._me(args[place])
            (row,) = await self._call(function, *args[:place], node, part, *args[place + 1 :])
            if row[0] != "dead":
                return row
            await anyio.to_thread.run_sync(self._members.declared_dead, node)
        raise StoreUnavailable("Other nodes declare this process dead again and again.")
