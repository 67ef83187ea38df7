"""A node: this process as a member of the fleet, with a lease by the database's clock.

A lease only says when others may try to take over what this node has. Whether they succeed, and
that this node loses it then, is decided by the fence of each row. The session of the node holds an
advisory lock: if the process is killed, others see the lock free before the lease is over.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence

from clawmode import __version__
from clawmode.exceptions import ConfigurationError
from clawmode.postgres import migrations
from clawmode.postgres.bus import channel_of
from clawmode.postgres.connection import Connection, Connections, PostgresError, listen

logger = logging.getLogger("clawmode.postgres")

BEAT_SECONDS = 3.0
LEASE_SECONDS = 10.0
TICK_SECONDS = 1.0
"""How often a node looks for nodes that are overdue."""

HOUSE_SECONDS = 5.0
EXPIRED_AT_ONCE = 500


class Node:
    """One life of a process in the fleet. A node that was declared dead is never used again.

    Args:
        connections: The connections of the process.
        name: What people call the node.
        keys: The ids of its keys, the sealing one first.
        listens: False if PgBouncer is in between: nobody can wake this node then.
        images: Returns the images that the node can run.
        deliver: Called with each notification; None after some may have been missed.
        died: Called once if others have declared this node dead.
        chores: Called now and then, in a thread.

    Attributes:
        id: Its number, which no other node ever has.
        listening: True while notifications arrive.
        dead: True if others have declared the node dead.
        answered: When the server last answered the session of the node, by `time.monotonic`.
    """

    def __init__(
        self,
        connections: Connections,
        name: str,
        keys: Sequence[bytes],
        *,
        listens: bool,
        images: Callable[[], list[bytes]],
        deliver: Callable[[str | None], None],
        died: Callable[["Node"], None],
        chores: Callable[[], None],
    ) -> None:
        self._connections = connections
        self._name = name
        self._listens = listens
        self._images = images
        self._deliver = deliver
        self._died = died
        self._chores = chores
        self._stopping = threading.Event()
        self.listening = False
        self.dead = False
        ((self.id, strangers),) = connections.run(
            "cm_enter",
            *(name, __version__, migrations.version(), list(keys), listens),
            *(LEASE_SECONDS, BEAT_SECONDS),
        )
        self.answered = time.monotonic()
        if strangers:
            raise ConfigurationError(
                f"this process and {', '.join(strangers)} do not have each other's snapshot key, "
                "so programs that one of them parks could not be resumed by the other: give all "
                "nodes all keys first, then move the new key to the front",
                path="CLAWMODE_SNAPSHOT_KEY",
            )
        self._threads = [
            threading.Thread(target=work, name=f"clawmode {what}", daemon=True)
            for what, work in (("node", self._live), ("housekeeping", self._keep_house))
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Leaves the fleet in good order, if the server can be reached."""
        self._stopping.set()
        try:
            with self._connections.lent(0.5) as connection:
                connection.execute("select clawmode.cm_quit(%s)", (self.id,))
                # The thread waits for a notification.
                connection.execute("select pg_catalog.pg_notify(%s, '')", (channel_of(self.id),))
        except PostgresError:
            logger.info("node %d could not sign off", self.id)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(TICK_SECONDS + 1)

    # ---- The session of the node ----

    def _live(self) -> None:
        session: Connection | None = None
        while not self._stopping.is_set() and not self.dead:
            try:
                if session is None:
                    session = self._connections.open()
                    session.execute("select 1")
                    self._attend(session)
            except PostgresError as error:
                logger.info("node %d lost its session: %s", self.id, type(error).__name__)
            finally:
                self.listening = False
                if session is not None:
                    self._connections.discard(session)
                    session = None
            self._stopping.wait(0.25)
        if self.dead and not self._stopping.is_set():
            self._died(self)

    def _attend(self, session: Connection) -> None:
        """Beats and listens until the node ends. Never opens a transaction."""
        locked, beat = not self._listens, 0.0
        if self._listens:
            listen(session, channel_of(self.id))
            self._deliver(None)
            self.listening = True
        while not self._stopping.is_set():
            if not locked:
                # An earlier session, whose end the server has not seen yet, may still have it.
                lock = "select pg_catalog.pg_try_advisory_lock(20302, %s::int)"
                ((locked,),) = session.execute(lock, (self.id,)).fetchall()
            now = time.monotonic()
            if beats := now >= beat:
                beat = now + BEAT_SECONDS
            tick = "select * from clawmode.cm_tick(%s, %s, %s)"
            ((living, died),) = session.execute(tick, (self.id, beats, self._images())).fetchall()
            self.answered = time.monotonic()
            if not living:
                self.dead = True
                return
            for other in died:
                logger.warning("node %d was declared dead by node %d", other, self.id)
            if not self._listens:
                self._stopping.wait(TICK_SECONDS)
                continue
            until = now + TICK_SECONDS
            while not self._stopping.is_set() and (left := until - time.monotonic()) > 0:
                for notice in session.notifies(timeout=left):
                    self._deliver(notice.payload)
                    if self._stopping.is_set():
                        break

    def _keep_house(self) -> None:
        """Ends expired cells, a few at a time. One node of the fleet succeeds."""
        while not self._stopping.wait(HOUSE_SECONDS) and not self.dead:
            try:
                self._chores()
                while self._connections.run("cm_expire", EXPIRED_AT_ONCE) == [(EXPIRED_AT_ONCE,)]:
                    if self._stopping.wait(0.01):
                        return
            except Exception as error:
                logger.info("housekeeping failed: %s", type(error).__name__)
