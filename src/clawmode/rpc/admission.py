"""Connections whose client is not known yet: how many may be open, and for how long.

They are counted where they are accepted. Every later place is too late: asyncio accepts the whole
backlog before the first protocol runs, and a TLS handshake has no protocol. When there are too
many, the oldest one is closed, so that strangers can never keep a client with a token out.
"""

import asyncio
import resource
import socket
import weakref
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

CONNECT_SECONDS = 15.0
"""How long a connection may take to send its request; then, how long its client may take to say
who it is."""

MAX_STRANGERS = 256
"""Connections whose clients have not said who they are."""

MAX_CLOSING = 64
"""Connections that were dropped and are not closed yet; until they are, none is accepted."""

MAX_DESCRIPTORS = 65_536
"""Enough. Programs that close every descriptor up to the limit are slow with more."""

RESERVED_DESCRIPTORS = 512
"""For sessions, databases, workers, MCP servers and commands."""


@dataclass(frozen=True, slots=True)
class Descriptors:
    """How the descriptors of the process are shared out.

    Attributes:
        limit: How many the process may have.
        strangers: Connections whose client is not known.
        clients: Connections of clients.
    """

    limit: int
    strangers: int
    clients: int

    @classmethod
    def of(cls, limit: int, max_clients: int) -> "Descriptors":
        """Shares out `limit` descriptors; at least half of a small limit is kept in reserve."""
        strangers = max(min(MAX_STRANGERS, limit // 8), 1)
        left = limit - strangers - min(RESERVED_DESCRIPTORS, limit // 2)
        return cls(limit, strangers, max(min(max_clients, left), 1))


def raise_descriptor_limit() -> int:
    """Raises the soft limit on descriptors as far as the hard one allows, and returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    wanted = MAX_DESCRIPTORS if hard == unlimited else min(hard, MAX_DESCRIPTORS)
    if soft != unlimited and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return wanted
    return MAX_DESCRIPTORS if soft == unlimited else soft


class AcceptedSocket(socket.socket):
    """A connection that a `ListeningSocket` accepted."""

    doorway: "ListeningSocket | None" = None
    clock: asyncio.TimerHandle | None = None
    transport: asyncio.Transport | None = None
    dropped = False

    def keep(self, transport: asyncio.Transport) -> None:
        """The connection has a transport, which is the way to end it from now on."""
        self.transport = transport
        if self.dropped:
            transport.abort()

    def stop_clock(self) -> None:
        """The request is complete: what is left to do is ours."""
        if self.clock is not None:
            self.clock.cancel()

    def release(self) -> None:
        """The connection is no stranger's any more: its client is known, or it ends."""
        self.stop_clock()
        if self.doorway is not None:
            self.doorway.strangers.pop(self, None)

    def drop(self) -> None:
        """Ends the connection."""
        self.dropped = True
        self.release()
        if self.doorway is not None:
            self.doorway.closing.add(self)
        if self.transport is not None:
            self.transport.abort()
        else:  # asyncio owns it already and notices
            with suppress(OSError):
                self.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes it; called by asyncio."""
        self.release()
        if self.doorway is not None:
            self.doorway.closing.discard(self)
        super().close()


_ACCEPTED = weakref.WeakValueDictionary[int, AcceptedSocket]()


def accepted(transport: Any) -> AcceptedSocket | None:
    """The connection below a transport."""
    beneath = transport.get_extra_info("socket")
    return None if beneath is None else _ACCEPTED.get(beneath.fileno())


class ListeningSocket(socket.socket):
    """A listening socket that limits connections of strangers.

    Attributes:
        most: How many strangers may be connected.
        strangers: Their connections, the oldest first.
        closing: Connections that were dropped and are not closed yet.
    """

    most = MAX_STRANGERS

    def __init__(self, family: int) -> None:
        super().__init__(family, socket.SOCK_STREAM)
        # Weak: what asyncio lets go of does not count.
        self.strangers = weakref.WeakKeyDictionary[AcceptedSocket, None]()
        self.closing = weakref.WeakSet[AcceptedSocket]()

    def accept(self) -> tuple[socket.socket, Any]:
        """Accepts a connection; the oldest stranger has to go if there are too many."""
        if len(self.closing) >= MAX_CLOSING:
            raise BlockingIOError  # asyncio comes again as soon as it has closed them
        made, address = super().accept()
        new = AcceptedSocket(made.family, made.type, made.proto, fileno=made.detach())
        new.doorway = self
        # Referred to weakly: a connection is not kept by its clock.
        new.clock = asyncio.get_running_loop().call_later(
            CONNECT_SECONDS, _expire, weakref.ref(new)
        )
        _ACCEPTED[new.fileno()] = new
        self.strangers[new] = None
        if len(self.strangers) > self.most:
            next(iter(self.strangers)).drop()
        return new, address


def _expire(connection: "weakref.ref[AcceptedSocket]") -> None:
    if (late := connection()) is not None:
        late.drop()
