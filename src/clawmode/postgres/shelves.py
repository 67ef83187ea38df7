"""Shelves of programs in PostgreSQL."""

from collections.abc import Mapping
from typing import Any, TypeAlias

from clawmode.code_mode.shelves import Shelf, ShelfLimits
from clawmode.postgres.texts import escaped, texts, unescaped

Row: TypeAlias = tuple[Any, ...]


class PostgresShelves:
    """Base class of the store: the part that keeps shelves, which have no owner."""

    async def _call(self, function: str, *args: Any, repeats: bool = False) -> list[Row]:
        """Calls a function of the database, and returns its rows."""
        raise NotImplementedError

    async def shelves(self) -> list[tuple[Shelf, float]]:
        """Returns all shelves, with the seconds until each expires."""
        rows = await self._call("cm_shelves")
        return [(Shelf(*map(unescaped, names)), left) for names, left in rows]

    async def read_shelf(self, shelf: Shelf, ttl: float) -> dict[str, bytes]:
        rows = await self._call("cm_read_shelf", texts(shelf), ttl)
        return {unescaped(name): body for name, body in rows}

    async def write_shelf(
        self, shelf: Shelf, rows: Mapping[str, bytes | None], ttl: float, most: ShelfLimits
    ) -> bool:
        args = (texts(shelf), texts([*rows]), [*rows.values()], ttl, most.rows, most.size)
        ((done,),) = await self._call("cm_write_shelf", *args)
        return bool(done)

    async def drop_shelves(self, session: str, run: str | None = None) -> None:
        await self._call("cm_drop_shelves", escaped(session), None if run is None else escaped(run))
