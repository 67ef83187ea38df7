"""This process in the fleet: its node, the owners within the node, and what each of them has.

An owner is a run. It has no row and no heartbeat of its own: its name is the node and a number. If
others declare the node dead, everything that the owners had is given up, and they go on as owners
of a new node.
"""

import atexit
import contextlib
import logging
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import field

from clawmode.code_mode.snapshots import KeyRing
from clawmode.exceptions import ConfigurationError, StoreUnavailable
from clawmode.postgres import migrations
from clawmode.postgres.bus import FleetBus
from clawmode.postgres.connection import (
    Connections,
    PostgresError,
    check_settings,
    reason,
    unavailable,
)
from clawmode.postgres.nodes import Node
from clawmode.postgres.reasons import STORE
from clawmode.types import dataclass

logger = logging.getLogger("clawmode.postgres")

REACHED_SECONDS = 3.0
"""After how long without an answer the database counts as unreachable."""

STRANGERS = (
    f"{STORE} cannot be used: this process and another node do not have each other's snapshot key. "
    "The log names the node."
)

_OWNER = re.compile(r"(-?[0-9]{1,18})\.([0-9]{1,9})")


@dataclass(slots=True)
class Share:
    """What one owner has: the cells that it holds, and the open calls that it makes of cells."""

    held: set[str] = field(default_factory=set[str])
    calls: dict[str, set[int]] = field(default_factory=dict[str, set[int]])

    def cells(self) -> set[str]:
        """Returns the cells that the owner has a part in."""
        return self.held | self.calls.keys()

    def make(self, cell_id: str, calls: Iterable[int]) -> None:
        """Notes which calls of a cell the owner makes."""
        self.calls[cell_id] = set(calls)
        if not self.calls[cell_id]:
            del self.calls[cell_id]

    def settle(self, cell_id: str, call_id: int) -> None:
        """Notes that a call has a reply."""
        if cell_id in self.calls:
            self.make(cell_id, self.calls[cell_id] - {call_id})

    def drop(self, cell_id: str) -> None:
        """Notes that the owner has no part in a cell any more."""
        self.held.discard(cell_id)
        self.calls.pop(cell_id, None)


class Membership:
    """The node of this process, entered at the first use, and again after a death.

    Args:
        connections: The connections of the process.
        keys: Returns the keys, whose ids the node publishes.
        name: What people call the node.
        listen: Whether the node can be woken.
        migrates: Whether to create or upgrade the schema.

    Attributes:
        bus: Wakes this process and others.
        dropped: The cells that were given up because a node of this process was declared dead.
        images: The images that this process has asked for when it claimed cells.
        checked: True if the schema of the database fits this build.
        deaths: How often a node of this process was declared dead.
    """

    def __init__(
        self,
        connections: Connections,
        keys: Callable[[], KeyRing],
        *,
        name: str,
        listen: bool,
        migrates: bool,
    ) -> None:
        self._connections = connections
        self._keys = keys
        self._name = name
        self._listen = listen
        self._migrates = migrates
        self.bus = FleetBus(connections, lambda: self.listening)
        self._parts = 0
        connections.after_fork.append(self._forget)
        self._forget()
        _open.add(self)

    def _forget(self) -> None:
        self.bus.forget()
        self._lock = threading.RLock()
        self._leaves = threading.Lock()
        self._node: Node | None = None
        self.checked = False
        self._shares: dict[str, tuple[int, Share]] = {}
        self._names: dict[int, str] = {}
        self._leaving: list[tuple[int, int, list[str]]] = []
        self.dropped: set[str] = set()
        self.images: set[bytes] = set()
        self.deaths = 0
        self._draining = False

    @property
    def listening(self) -> bool:
        """True while others can wake this process."""
        return self._node is not None and self._node.listening

    @property
    def entered(self) -> bool:
        """True if this process is a living node, as far as it knows."""
        return self._node is not None and not self._node.dead

    @property
    def reachable(self) -> bool:
        """True if the database has answered the node in the last seconds."""
        return self._node is not None and time.monotonic() - self._node.answered < REACHED_SECONDS

    # ---- The node ----

    def check(self) -> None:
        """Checks the schema once, and creates it if that is wanted. Blocks.

        Raises:
            StoreUnavailable: The server cannot be reached, or the schema does not fit.
        """
        if not self.checked:
            self._look(lambda level: self._migrates and level.version < migrations.version())

    def migrate(self, *, force: bool) -> int:
        """Creates or upgrades the schema, and returns its version. Blocks.

        Raises:
            StoreUnavailable: It cannot, or living nodes could not go on and `force` is False.
        """
        return self._look(lambda level: True, force=force).version

    def _look(
        self, migrates: Callable[[migrations.Level], bool], *, force: bool = False
    ) -> migrations.Level:
        with self._lock:
            try:
                with self._connections.lent() as connection:
                    if self._listen:
                        check_settings(connection)
                    found = migrations.level(connection)
                    if migrates(found):
                        found = migrations.migrate(connection, force=force)
            except PostgresError as error:
                logger.error(
                    "cannot open the database at %s: %s",
                    self._connections.target.name,
                    error.sqlstate or type(error).__name__,
                )
                raise unavailable(reason(error)) from None
            found.check()
            self.checked = True
            return found

    def enter(self) -> int:
        """Returns the id of the living node of this process, which it enters if needed. Blocks.

        Raises:
            StoreUnavailable: The server cannot be reached, or the schema does not fit.
            ConfigurationError: A living node lacks our key, or we lack its key. If this process was
                a node before, that is `StoreUnavailable`: its programs still compute and read.
        """
        with self._lock:
            if self._node is None or self._node.dead:
                if self._node is not None:
                    self._died(self._node)
                self.check()
                try:
                    self._node = self._new_node()
                except ConfigurationError as error:
                    if not self.deaths:
                        raise
                    logger.error("cannot become a node again: %s", error)
                    raise unavailable(STRANGERS, unsent=True) from None
                if self._draining:
                    self._connections.run("cm_drain_node", self._node.id)
            return self._node.id

    def _new_node(self) -> Node:
        return Node(
            self._connections,
            self._name,
            self._keys().ids,
            listens=self._listen,
            images=lambda: sorted(self.images),
            deliver=self.bus.deliver,
            died=self._died,
            chores=self._retry_leaves,
        )

    def drain(self) -> None:
        """Lets others know that this process takes no new work. Blocks."""
        self._draining = True
        self._connections.run("cm_drain_node", self.enter())

    def close(self) -> None:
        """Leaves the fleet. Idempotent; the next use enters it as a new node."""
        with self._lock:
            node, self._node = self._node, None
            self._shares.clear()
            self._names.clear()
        if node is not None:
            node.close()
        self.bus.close()
        self.bus.forget()

    def declared_dead(self, node: int) -> None:
        """Notes that a statement has found the node of this process dead."""
        with self._lock:
            if self._node is not None and self._node.id == node:
                self._node.dead = True
                self._died(self._node)

    def _died(self, node: Node) -> None:
        with self._lock:
            if node is not self._node:
                return  # its end was handled when the process entered as another node
            self._node = None
            lost = {cell for _, share in self._shares.values() for cell in share.cells()}
            self.dropped |= lost
            self.deaths += 1
            for _, share in self._shares.values():
                share.held.clear()
                share.calls.clear()
            # Rows of the dead node must not look like those of the new one.
            self._names.clear()
        logger.error(
            "node %d (%s) was declared dead by other nodes, because it did not answer for longer "
            "than its lease: %d programs that it had are given up here, and other nodes may resume "
            "them. This process goes on as a new node.",
            node.id,
            self._name,
            len(lost),
        )
        self.bus.wake_all()

    # ---- Owners ----

    def join(self) -> str:
        """Returns the name of a new owner. Blocks."""
        node = self.enter()
        with self._lock:
            self._parts += 1
            name = f"{node}.{self._parts}"
            self._shares[name] = (self._parts, Share())
            self._names[self._parts] = name
            return name

    def leave(self, owner: str) -> None:
        """Ends an owner, and gives its calls and cells back. Blocks."""
        with self._lock:
            part, share = self._shares.pop(owner, (0, Share()))
            self._names.pop(part, None)
            if part and self._node is not None and not self._node.dead:
                self._leaving.append((self._node.id, part, [*share.held]))
        self._retry_leaves()

    def _retry_leaves(self) -> None:
        """Gives back what owners had that left while the server could not be reached, too."""
        # Not under the lock that the event loop takes: the server may be mute.
        with self._leaves:
            while self._leaving:
                self._connections.run("cm_leave", *self._leaving[0])
                del self._leaving[0]

    def find(self, owner: str) -> tuple[int, int]:
        """Returns the node and the number of an owner; 0 and 0 for none.

        An owner of this process is found as one of its living node, or with the negative number of
        the node if it has left. Blocks if it has to enter.
        """
        if owner in self._shares:
            node, part = self.enter(), self._shares[owner][0]
            self._names[part] = owner
            return node, part
        node, part = parse_owner(owner)
        return (-node if self._is_node(abs(node)) and node > 0 else node), part

    def share(self, owner: str) -> Share:
        """Returns what an owner of this process has."""
        return self._shares[owner][1] if owner in self._shares else Share()

    def knows(self, owner: str) -> bool | None:
        """True if an owner belongs to this process and lives; None if others have to be asked."""
        if owner in self._shares:
            return True
        node, _ = parse_owner(owner)
        return False if node <= 0 or self._is_node(node) else None

    def _is_node(self, node: int) -> bool:
        return self._node is not None and self._node.id == node and not self._node.dead

    def name_of(self, node: int, part: int) -> str:
        """Returns the name of the owner in a row."""
        if self._is_node(abs(node)):
            return self._names.get(part, f"{abs(node)}.{part}")
        name = f"{node}.{part}"
        # A row of an earlier node of this process: its owner goes on under the same name.
        return f"-{name}" if name in self._shares and node > 0 else name

    def wake(self, cell_id: str, nodes: Iterable[int]) -> None:
        """Wakes the waiters of a cell on some nodes, here at once."""
        me = self._node.id if self._node is not None else 0
        others = {node for node in nodes if node and node > 0}
        if me in others:
            self.bus.wake(cell_id)
        if others - {me}:
            self.bus.wake_nodes(cell_id, others - {me})

    def forget_cell(self, cell_id: str) -> None:
        """Notes that no owner of this process has a part in a cell any more."""
        with self._lock:
            for _, share in self._shares.values():
                share.drop(cell_id)


def parse_owner(owner: str) -> tuple[int, int]:
    """Returns the node and the number in the name of an owner; 0 and 0 if it is no such name."""
    found = _OWNER.fullmatch(owner)
    return (int(found[1]), int(found[2])) if found else (0, 0)


_open: "weakref.WeakSet[Membership]" = weakref.WeakSet()


@atexit.register
def _sign_off() -> None:
    """Leaves the fleet at the end of the process, so that nobody waits for a lease to end."""
    for membership in list(_open):
        with contextlib.suppress(StoreUnavailable):
            membership.close()
