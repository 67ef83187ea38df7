"""uvicorn, as the gateway and `clawmode mcp --http` use it: bounded, quiet, without signals."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from clawmode.rpc import admission
from clawmode.rpc.admission import AcceptedSocket

TRUST = "clawmode.trust"
"""The key of the ASGI state with a callable: the client of the connection has authenticated."""

NOISE = ("Invalid HTTP request received.", "Unsupported upgrade request.")


def _without_noise(record: logging.LogRecord) -> bool:
    """Drops tracebacks, and lines with which strangers could fill the log."""
    record.exc_info = None
    return record.msg not in NOISE


logging.getLogger("uvicorn.error").addFilter(_without_noise)


class LimitedHttp(H11Protocol):
    """uvicorn's protocol with a time limit for the request: see `admission`."""

    accepted: AcceptedSocket | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.accepted = admission.accepted(transport)
        if self.accepted is not None:
            self.accepted.keep(transport)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.accepted is None:
            return
        # The application of this request has not run yet: its task was just created.
        if self.scope is not None:
            self.scope["state"][TRUST] = self.accepted.release
        # The clock stops when the whole request was received.
        complete = self.cycle is not None and not self.cycle.more_body
        upgraded = self.transport.get_protocol() is not self
        if complete or upgraded:
            self.accepted.stop_clock()


class QuietServer(uvicorn.Server):
    """uvicorn's server, which leaves signals to the command.

    Args:
        app: The application.
        settings: More settings of uvicorn.
    """

    def __init__(self, app: Any, **settings: Any) -> None:
        config = uvicorn.Config(
            app,
            http=LimitedHttp,
            log_config=None,
            access_log=False,
            lifespan="off",
            proxy_headers=False,  # otherwise a client could choose the address that is limited
            h11_max_incomplete_event_size=64 << 10,
            **settings,
        )
        super().__init__(config)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
