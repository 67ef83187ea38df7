"""Limits for connections that have not authenticated: how many may be open, and for how long.

Such a connection is called a stranger's. Strangers are counted when their connection is accepted.
Any later is too late: asyncio accepts the whole backlog before the first protocol runs, and a TLS
handshake has no protocol. If there are too many, the oldest connection is closed, so that strangers
can never keep out a client with a token.
"""

import asyncio
import socket
import weakref
from contextlib import suppress
from typing import Any

from clawmode.types import dataclass

CONNECT_SECONDS = 15.0
"""The time for a connection to send its HTTP request, and then again for the request `connect`."""

MAX_STRANGERS = 256
"""The most connections that have not authenticated."""

MAX_CLOSING = 64
"""The most dropped connections that asyncio has not closed yet. No more are accepted until then."""

MAX_DESCRIPTORS = 65_536
"""The highest limit to ask for: programs that close every descriptor up to the limit get slow."""

RESERVED_DESCRIPTORS = 512
"""Kept for sessions, databases, workers, MCP servers and commands."""


@dataclass(frozen=True, slots=True)
class Descriptors:
    """How the file descriptors of the process are divided.

    Attributes:
        limit: The most that the process may have.
        strangers: The most connections that have not authenticated.
        clients: The most connections of clients.
    """

    limit: int
    strangers: int
    clients: int

    @classmethod
    def of(cls, limit: int, max_clients: int) -> "Descriptors":
        """Divides `limit` descriptors. Of a small limit, half is kept in reserve."""
        strangers = max(min(MAX_STRANGERS, limit // 8), 1)
        left = limit - strangers - min(RESERVED_DESCRIPTORS, limit // 2)
        return cls(limit, strangers, max(min(max_clients, left), 1))


def raise_descriptor_limit() -> int:
    """Raises the soft limit on descriptors as far as the hard limit allows, and returns it."""
    import resource  # not on Windows

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    wanted = MAX_DESCRIPTORS if hard == unlimited else min(hard, MAX_DESCRIPTORS)
    if soft != unlimited and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return wanted
    return MAX_DESCRIPTORS if soft == unlimited else soft


class AcceptedSocket(socket.socket):
    """A connection that a `ListeningSocket` accepted.

    Attributes:
        clock: Drops the connection if its client takes too long.
        transport: asyncio's transport, as soon as there is one.
        dropped: True if the connection was closed by `drop`.
    """

    listener: "ListeningSocket | None" = None
    clock: asyncio.TimerHandle | None = None
    transport: asyncio.Transport | None = None
    dropped = False

    def keep(self, transport: asyncio.Transport) -> None:
        """Sets the transport, through which the connection must be closed from now on."""
        self.transport = transport
        if self.dropped:
            transport.abort()

    def stop_clock(self) -> None:
        """Stops the clock: the request is complete, and the client waits for the gateway."""
        if self.clock is not None:
            self.clock.cancel()

    def release(self) -> None:
        """Stops counting the connection as a stranger's: it authenticated, or is closed."""
        self.stop_clock()
        if self.listener is not None:
            self.listener.strangers.pop(self, None)

    def drop(self) -> None:
        """Closes the connection without waiting for its client."""
        self.dropped = True
        self.release()
        if self.listener is not None:
            self.listener.closing.add(self)
        if self.transport is not None:
            self.transport.abort()
        else:
            # asyncio already owns the socket, and closes it when it sees the end of the stream.
            with suppress(OSError):
                self.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes the socket, and stops counting it. asyncio calls this."""
        self.release()
        if self.listener is not None:
            self.listener.closing.discard(self)
        super().close()


_ACCEPTED = weakref.WeakValueDictionary[int, AcceptedSocket]()


def accepted(transport: Any) -> AcceptedSocket | None:
    """Returns the accepted socket of a transport, also if TLS wraps the socket."""
    wrapper = transport.get_extra_info("socket")
    return None if wrapper is None else _ACCEPTED.get(wrapper.fileno())


class ListeningSocket(socket.socket):
    """A listening socket that limits the connections of strangers.

    Attributes:
        most: The most connections of strangers.
        strangers: Their connections, oldest first.
        closing: Connections that were dropped, and that asyncio has not closed yet.
    """

    most = MAX_STRANGERS

    def __init__(self, family: int) -> None:
        super().__init__(family, socket.SOCK_STREAM)
        # Weak references: a socket that asyncio has released no longer counts.
        self.strangers = weakref.WeakKeyDictionary[AcceptedSocket, None]()
        self.closing = weakref.WeakSet[AcceptedSocket]()

    def accept(self) -> tuple[socket.socket, Any]:
        """Accepts a connection, and drops the oldest stranger's if there are too many."""
        if len(self.closing) >= MAX_CLOSING:
            raise BlockingIOError  # asyncio calls again when it has closed the dropped ones
        made, address = super().accept()
        new = AcceptedSocket(made.family, made.type, made.proto, fileno=made.detach())
        new.listener = self
        # A weak reference: the clock must not keep the connection alive.
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
