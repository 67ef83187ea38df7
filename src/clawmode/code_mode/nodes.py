"""Nodes: the processes that share a backend, and what operators see of it.

A process is a node from its first use of the backend until it closes the backend or dies. The runs
within it are *owners* of cells, which the store knows. In a folder, a node is a locked file,
`<folder>/nodes/<id>`, with its name: the kernel releases the lock when the process dies.
"""

import contextlib
import json
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import field
from pathlib import Path
from socket import gethostname
from typing import Any, NamedTuple, Protocol

from clawmode import __version__
from clawmode.code_mode.leases import Leases
from clawmode.types import JsonValue, dataclass


class NodeInfo(NamedTuple):
    """A living node, as operators see it.

    Attributes:
        name: What people call it.
        build: Its version of clawmode.
        silent: Seconds since it was last heard of.
        draining: True if it takes no new work, because it is about to end.
        keys: The ids of its snapshot keys, the sealing one first; none if all have the same.
        images: The images whose programs it has asked for; none if every node tries all.
    """

    id: str
    name: str
    build: str
    silent: float = 0.0
    draining: bool = False
    keys: tuple[bytes, ...] = ()
    images: tuple[bytes, ...] = ()


class Report(NamedTuple):
    """A store, as operators see it.

    Attributes:
        version: The version of its tables.
        parked: The number of parked cells, as `count_parked` returns it.
        counted: The same, counted one by one; None if there are too many.
        running: The number of cells that run; None if there are too many to count.
    """

    version: int
    parked: int
    counted: int | None
    running: int | None


@dataclass(slots=True)
class CellView:
    """What this process knows of a cell, for operators.

    Attributes:
        parent_id: The model's id of the `exec` call.
        pid: The worker that holds the cell; 0 if none does.
        queued: The number of calls that wait for other calls of the cell.
        inputs: The shortened inputs of the calls that are being made, by the ids of the calls. They
            are not redacted.
    """

    id: str
    parent_id: str
    pid: int = 0
    queued: int = 0
    inputs: dict[str, JsonValue] = field(default_factory=dict[str, JsonValue])


class Nodes(Protocol):
    """The nodes of a backend. Every method may raise `StoreUnavailable`.

    Attributes:
        reachable: True if this process could use the backend in the last seconds.
    """

    @property
    def reachable(self) -> bool: ...

    async def enter(self) -> str:
        """Makes this process a node, unless it is one, and returns its id.

        Raises:
            ConfigurationError: Its keys do not fit those of living nodes.
        """
        ...

    async def drain(self) -> None:
        """Lets everybody know that this process takes no new work."""
        ...

    async def living(self) -> list[NodeInfo]:
        """Lists the living nodes, the oldest first. The caller need not be one of them."""
        ...


def default_name() -> str:
    """Returns the name under which people see this process."""
    return f"{gethostname()[:100]}:{os.getpid()}"


class FolderNodes:
    """The processes that use a folder: see `Nodes`.

    Args:
        folder: The state folder.
        run: Runs a function in a thread, and turns its failure into `StoreUnavailable`.
    """

    reachable = True

    def __init__(self, folder: Path, run: Callable[[Callable[[], Any]], Awaitable[Any]]) -> None:
        self._leases = Leases(folder / "nodes")
        self._run = run
        self._draining = False
        self._id, self._entered = "", 0.0

    async def enter(self) -> str:
        return str(await self._run(self._enter))

    async def drain(self) -> None:
        self._draining = True
        await self._run(self._enter)

    async def living(self) -> list[NodeInfo]:
        found: dict[str, bytes] = await self._run(self._leases.living)
        entered: list[tuple[float, NodeInfo]] = []
        for name, text in found.items():
            with contextlib.suppress(ValueError, TypeError):  # it is just being written
                said = json.loads(text)
                at = float(said.pop("entered"))
                entered.append((at, NodeInfo(id=name, **said)))
        return [node for _, node in sorted(entered)]

    def _enter(self) -> str:
        if not self._id:
            self._id, self._entered = self._leases.acquire(), time.time()
        said = {"name": default_name(), "build": __version__, "draining": self._draining}
        self._leases.note(self._id, json.dumps({**said, "entered": self._entered}).encode())
        return self._id

    def close(self) -> None:
        """Ends the node. Idempotent; the next `enter` makes another."""
        self._leases.release_all()
        self._id = ""

    def forget(self) -> None:
        """Gives up the node, which belongs to the parent of this process."""
        self._leases.forget()
        self._id = ""
