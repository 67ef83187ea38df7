"""`clawmode gateway`: runs it until it is told to stop; says whether one runs, and stops it."""

import logging
import os
import signal
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from clawmode import __version__
from clawmode.app.host import open_host
from clawmode.app.setup import Setup
from clawmode.config import resolve as settings
from clawmode.cron.job import configured_jobs
from clawmode.cron.jobs import Jobs
from clawmode.exceptions import ClawmodeError, ConfigurationError
from clawmode.gateway.approvals import SharedApprovals
from clawmode.gateway.dispatch import Dispatcher
from clawmode.gateway.gateway import Gateway
from clawmode.gateway.ledger import Ledger
from clawmode.gateway.method_table import METHODS
from clawmode.gateway.reload import reload_at_signal
from clawmode.gateway.server import GatewayApp, serve
from clawmode.rpc import presence, protocol
from clawmode.rpc.admission import Descriptors, raise_descriptor_limit
from clawmode.rpc.client import GatewayClient
from clawmode.rpc.listen import check_reach, listen_at, tokens_of
from clawmode.rpc.presence import RunningGateway
from clawmode.rpc.tokens import Tokens, new_token
from clawmode.types import JsonObject

logger = logging.getLogger("clawmode.gateway")

STOP_SECONDS = 60.0
TELL_SECONDS = 0.5
ASK_SECONDS = 5.0
CLOSE_SECONDS = 8.0
"""How long connections may take to close."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayCommand:
    """Runs a gateway.

    Attributes:
        on_ready: Told where it is.
        host, port: Instead of those of the configuration.
    """

    setup: Setup
    on_ready: Callable[[RunningGateway], None]
    host: str = ""
    port: int | None = None

    def run(self) -> None:
        """Runs until SIGTERM or SIGINT.

        Raises:
            ConfigurationError: It cannot be meant.
            GatewayRuns: There is one already.
        """
        with presence.hold(self.setup.state):
            try:
                anyio.run(self._run)
            except BaseExceptionGroup as group:
                raise _told(group) from None

    async def _run(self) -> None:
        secret, section = new_token(), self.setup.configuration.gateway
        tokens = tokens_of(section, self.setup.state, secret)
        listen = listen_at(section, self.host, self.port)
        listen.check()
        check_reach(listen, tokens)
        try:
            bound = listen.bind()
        except OSError as error:
            reason = error.strerror or str(error)
            text = f"{listen.host}:{listen.port} cannot be listened at: {reason}"
            raise ConfigurationError(text, path="gateway.port") from None
        with bound:
            descriptors = self._share_descriptors()
            bound.most = descriptors.strangers
            here = RunningGateway(
                pid=os.getpid(),
                url=listen.url(bound),
                version=__version__,
                started_at=time.time(),
                token=secret,
                cert=listen.cert,
                config=str(self.setup.file or ""),
            )
            async with self._open(tokens) as gateway:
                gateway.max_clients = descriptors.clients
                routes = [channel.route() for channel in gateway.host.webhooks]
                dispatcher = Dispatcher(gateway, METHODS)
                wire = GatewayApp(dispatcher, section.allowed_origins, routes)
                if warning := settings.unasked(self.setup.configuration):
                    logger.warning("%s", warning)
                with presence.announced(self.setup.state, here):
                    await self._serve(gateway, here, partial(serve, wire, listen, bound))

    def _share_descriptors(self) -> Descriptors:
        wanted = self.setup.configuration.gateway.max_clients
        shared = Descriptors.of(raise_descriptor_limit(), wanted)
        if shared.clients < wanted:
            logger.warning(
                "gateway.maxClients is %d, but the process may only have %d files open: at most %d "
                "clients can connect. Raise the limit (ulimit -n, or LimitNOFILE of the service)",
                wanted,
                shared.limit,
                shared.clients,
            )
        return shared

    @asynccontextmanager
    async def _open(self, tokens: Tokens) -> AsyncIterator[Gateway]:
        setup, made = self.setup, list[Gateway]()
        approvals = SharedApprovals(partial(settings.approve_mode, setup.configuration))
        jobs = Jobs(setup.state, configured_jobs(setup.configuration.cron))
        process = uuid.uuid4().hex
        async with open_host(setup, approvals, on_chat=lambda it: made[0].chat(it)) as host:
            gateway = Gateway(
                host=host,
                approvals=approvals,
                tokens=tokens,
                ledger=Ledger(setup.state, process),
                jobs=jobs,
            )
            made.append(gateway)
            yield gateway

    async def _serve(
        self,
        gateway: Gateway,
        here: RunningGateway,
        listen: Callable[[anyio.Event], Coroutine[Any, Any, None]],
    ) -> None:
        """Serves clients from the first moment, and until all is written down."""
        stop, closed = anyio.Event(), anyio.Event()
        async with anyio.create_task_group() as tasks:

            async def listening() -> None:
                await listen(closed)
                tasks.cancel_scope.cancel()

            tasks.start_soon(listening)
            tasks.start_soon(_until_signal, stop)
            tasks.start_soon(reload_at_signal, gateway)
            async with gateway.open(here.url):
                self.on_ready(here)
                await stop.wait()
            for client in tuple(gateway.clients.values()):
                client.finish(protocol.CLOSE_RESTART, "the gateway stops")
            closed.set()
            tasks.cancel_scope.deadline = anyio.current_time() + CLOSE_SECONDS


def _told(group: "BaseExceptionGroup[BaseException]") -> BaseException:
    """What an operator can mend, in words; all else as it is."""
    for error in group.exceptions:
        found = _told(error) if isinstance(error, BaseExceptionGroup) else error
        if isinstance(found, ClawmodeError):
            return ConfigurationError(str(found))
        if isinstance(found, OSError):
            return ConfigurationError(found.strerror or str(found))
    return group


async def _until_signal(stop: anyio.Event) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for number in signals:
            if stop.is_set():
                os._exit(128 + number)  # a second one: at once; nothing is lost by it
            logger.info("%s: it stops", signal.Signals(number).name)
            stop.set()


# ---- From outside ----


def stop_gateway(
    state: Path, tell: Callable[[str], None] = lambda text: None, seconds: float = STOP_SECONDS
) -> RunningGateway | None:
    """Stops the gateway of a state folder, and waits for its end; None: none runs.

    Args:
        state: The folder.
        tell: Told what there is to wait for, if that takes a while.
        seconds: How long to wait.

    Raises:
        ConfigurationError: It does not stop.
    """
    known = presence.find(state)
    if known is None or not presence.is_held(state) or presence.holder(state) != known.pid:
        return None
    runs = _count_runs(state)
    os.kill(known.pid, signal.SIGTERM)
    began, told = time.monotonic(), False
    while presence.is_held(state):
        waited = time.monotonic() - began
        if waited > seconds:
            text = f"process {known.pid} has not stopped in {seconds:g} s; kill -9 {known.pid}"
            raise ConfigurationError(f"{text} ends it: runs are continued at the next start")
        if waited > TELL_SECONDS and not told:
            told = True
            tell(f"waiting for process {known.pid}" + (f" and {runs} to end" if runs else ""))
        time.sleep(0.05)
    return known


def ask_gateway(state: Path, method: str, params: JsonObject | None = None) -> JsonObject:
    """Calls a method of the gateway of a state folder.

    Raises:
        ClawmodeError: None runs, or it says no.
    """

    async def ask() -> JsonObject:
        async with GatewayClient.local(state, client_id="clawmode-gateway", mode="cli") as client:
            return await client.call(method, params or {}, timeout=ASK_SECONDS)

    return anyio.run(ask)


def _count_runs(state: Path) -> str:
    """How many runs are under way, in words; nothing if that cannot be found out."""
    try:
        runs: Any = ask_gateway(state, "status")["runs"]
    except (ClawmodeError, TimeoutError):
        return ""
    return f"{len(runs)} run{'' if len(runs) == 1 else 's'}" if runs else ""
