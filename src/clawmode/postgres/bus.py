"""Waking whoever waits for a cell, on this node and on others.

A wake is sent after the commit, from a thread of its own, so that no statement waits for a
notification.
"""

import threading
import time
from collections.abc import Callable, Iterable
from urllib.parse import quote, unquote

from clawmode.code_mode.bus import MOST, LocalBus
from clawmode.postgres.connection import Connection, Connections, PostgresError

GATHER_SECONDS = 0.005
"""Wakes are sent at once, but then not again for so long: those in between go together."""

PAYLOAD = 7900
"""PostgreSQL allows less than 8,000 bytes in a notification."""

ALL = "*"
"""Wakes every waiter of a node: there are more than `MOST` to name."""

LONG_POLL = 5.0
"""Seconds after which a waiter looks again though it was not woken."""

SHORT_POLL = 0.25
"""The same while notifications do not arrive."""


class FleetBus(LocalBus):
    """The waiters of this process, and the wakes for other nodes.

    Args:
        connections: Where the thread that sends gets its connection.
        listening: True while wakes of other nodes arrive.
    """

    def __init__(self, connections: Connections, listening: Callable[[], bool]) -> None:
        self._connections = connections
        self._listening = listening
        super().__init__()

    @property
    def poll(self) -> float:
        return LONG_POLL if self._listening() else SHORT_POLL

    def forget(self) -> None:
        """Also starts without a thread."""
        super().forget()
        self._pending: dict[int, set[str]] = {}
        self._thread: threading.Thread | None = None
        self._stopped = False

    def deliver(self, payload: str | None) -> None:
        """Wakes the waiters that a notification names; None after some may have been missed."""
        for name in (ALL if payload is None else payload).split(","):
            if name == ALL:
                self.wake_all()
            elif name:
                self.wake(unquote(name))

    # ---- Sending ----

    def wake_nodes(self, cell_id: str, nodes: Iterable[int]) -> None:
        """Wakes the waiters of a cell on other nodes, soon."""
        with self._changed:
            for node in nodes:
                self._pending.setdefault(node, set()).add(cell_id)
            if self._pending and self._thread is None and not self._stopped:
                name = "clawmode notifier"
                self._thread = threading.Thread(target=self._send, name=name, daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """Sends what is pending, and ends the thread."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(2.0)

    def _send(self) -> None:
        connection: Connection | None = None
        while True:
            with self._changed:
                while not self._pending and not self._stopped:
                    self._changed.wait()
                pending, self._pending = self._pending, dict[int, set[str]]()
            if not pending:
                break
            try:
                if connection is None:
                    connection = self._connections.open()
                    # A wake that is lost with the server is one more that was lost.
                    connection.execute("set synchronous_commit = off")
                send(connection, pending)
            except PostgresError:  # lost wakes are normal
                if connection is not None:
                    self._connections.discard(connection)
                connection = None
            time.sleep(GATHER_SECONDS)
        if connection is not None:
            self._connections.discard(connection)


def send(connection: Connection, pending: dict[int, set[str]]) -> None:
    """Sends the wakes for some nodes as one statement."""
    channels: list[str] = []
    payloads: list[str] = []
    for node, cells in pending.items():
        for payload in packed(cells):
            channels.append(channel_of(node))
            payloads.append(payload)
    connection.execute(
        "select pg_catalog.pg_notify(c, p) from unnest(%s::text[], %s::text[]) as t (c, p)",
        (channels, payloads),
    )


def packed(cells: set[str]) -> list[str]:
    """Returns the names of cells as few payloads, each short enough for a notification."""
    if len(cells) > MOST:
        return [ALL]
    payloads = [""]
    for name in (quote(cell, safe="", errors="surrogatepass") for cell in sorted(cells)):
        if len(name) > PAYLOAD:
            return [ALL]
        if len(payloads[-1]) + len(name) >= PAYLOAD:
            payloads.append("")
        payloads[-1] += f",{name}" if payloads[-1] else name
    return payloads


def channel_of(node: int) -> str:
    """Returns the name of the channel that a node listens to."""
    return f"cm_n{node}"
