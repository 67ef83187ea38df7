"""Runs a gateway until a signal stops it; stops and asks a gateway from another process."""

import logging
import os
import signal
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio

from clawmode import __version__
from clawmode.addresses import Site
from clawmode.app.host import open_host
from clawmode.app.setup import Setup
from clawmode.config import resolve as settings
from clawmode.cron.job import configured_jobs
from clawmode.cron.jobs import Jobs
from clawmode.exceptions import ClawmodeError, ConfigurationError
from clawmode.gateway.approvals import SharedQuestions
from clawmode.gateway.dispatch import Dispatcher
from clawmode.gateway.gateway import Gateway
from clawmode.gateway.ledger import Ledger
from clawmode.gateway.logins import SESSIONS_FILE, Logins
from clawmode.gateway.method_table import METHODS
from clawmode.gateway.reload import reload_at_signal
from clawmode.gateway.server import GatewayApp, serve
from clawmode.rpc import presence, protocol
from clawmode.rpc.admission import Descriptors, raise_descriptor_limit
from clawmode.rpc.client import GatewayClient
from clawmode.rpc.listen import check_reach, listen_at, tokens_of
from clawmode.rpc.presence import RunningGateway
from clawmode.rpc.tokens import Tokens, new_token
from clawmode.types import JsonObject, dataclass

logger = logging.getLogger("clawmode.gateway")

STOP_SECONDS = 60.0
TELL_SECONDS = 0.5
ASK_SECONDS = 5.0
CLOSE_SECONDS = 8.0
"""The time for connections to close."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayCommand:
    """Runs a gateway in this process.

    Attributes:
        on_ready: Called when the gateway accepts work.
        host, port: Override those of the configuration.
    """

    setup: Setup
    on_ready: Callable[[RunningGateway], None]
    host: str = ""
    port: int | None = None

    def run(self) -> None:
        """Runs the gateway until SIGTERM or SIGINT.

        Raises:
            ConfigurationError: The configuration is invalid, or the address cannot be used.
            GatewayRuns: A gateway already runs on the state folder.
        """
        with presence.hold(self.setup.state):
            try:
                anyio.run(self._run)
            except BaseExceptionGroup as group:
                raise _for_operator(group) from None

    async def _run(self) -> None:
        secret, section = new_token(), self.setup.configuration.gateway
        tokens = tokens_of(section, self.setup.state, secret)
        listen = listen_at(section, self.host, self.port)
        listen.check()
        check_reach(listen, tokens)
        # Before plugins and servers are started: a port in use fails at once.
        try:
            bound = listen.bind()
        except OSError as error:
            reason = error.strerror or str(error)
            text = f"cannot listen on {listen.host}:{listen.port}: {reason}"
            raise ConfigurationError(text, path="gateway.port") from None
        with bound:
            descriptors = self._divide_descriptors()
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
                # Before the first request: a page that reconnects must not be sent to the login.
                gateway.logins.restore(tokens)
                gateway.max_clients = descriptors.clients
                routes = [channel.route() for channel in gateway.host.webhooks]
                dispatcher = Dispatcher(gateway, METHODS)
                origins = section.allowed_origins
                names = [urlsplit(origin).hostname or "" for origin in origins]
                names += [name.lower() for name in section.allowed_hosts]
                site = Site(listen.host, names=frozenset(names) - {""})
                app = GatewayApp(dispatcher, origins, routes, site)
                if warning := settings.approval_warning(self.setup.configuration):
                    logger.warning("%s", warning)
                with presence.announced(self.setup.state, here):
                    await self._serve(gateway, here, partial(serve, app, listen, bound))

    def _divide_descriptors(self) -> Descriptors:
        wanted = self.setup.configuration.gateway.max_clients
        descriptors = Descriptors.of(raise_descriptor_limit(), wanted)
        if descriptors.clients < wanted:
            logger.warning(
                "gateway.maxClients is %d, but the process may only have %d files open: at most %d "
                "clients can connect. Raise the limit (ulimit -n, or LimitNOFILE of the service)",
                wanted,
                descriptors.limit,
                descriptors.clients,
            )
        return descriptors

    @asynccontextmanager
    async def _open(self, tokens: Tokens) -> AsyncIterator[Gateway]:
        # The host needs a callback of the gateway, and the gateway needs the host.
        setup, opened = self.setup, list[Gateway]()
        questions = SharedQuestions(partial(settings.approve_mode, setup.configuration))
        jobs = Jobs(setup.state, configured_jobs(setup.configuration.cron))
        process = uuid.uuid4().hex
        async with open_host(
            setup, questions.approvals, on_chat=lambda event: opened[0].chat(event)
        ) as host:
            gateway = Gateway(
                host=host,
                questions=questions,
                tokens=tokens,
                ledger=Ledger(setup.state, process),
                jobs=jobs,
                logins=Logins(file=setup.state / SESSIONS_FILE),
            )
            opened.append(gateway)
            yield gateway

    async def _serve(
        self,
        gateway: Gateway,
        here: RunningGateway,
        listen: Callable[[anyio.Event], Coroutine[Any, Any, None]],
    ) -> None:
        """Serves clients during the start, while the gateway runs, and until it has stopped.

        So clients see a gateway that is not ready, or stopping, instead of none.
        """
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
                client.finish(protocol.CLOSE_RESTART, "the gateway is stopping")
            closed.set()
            # A client that does not read must not keep the process alive.
            tasks.cancel_scope.deadline = anyio.current_time() + CLOSE_SECONDS


def _for_operator(group: "BaseExceptionGroup[BaseException]") -> BaseException:
    """Returns the error of the group that an operator can fix, else the group itself."""
    for error in group.exceptions:
        found = _for_operator(error) if isinstance(error, BaseExceptionGroup) else error
        if isinstance(found, ClawmodeError):
            return ConfigurationError(str(found))
        if isinstance(found, OSError):
            return ConfigurationError(found.strerror or str(found))
    return group


async def _until_signal(stop: anyio.Event) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for number in signals:
            # The second signal ends the process at once. Nothing is lost: the next start continues
            # the runs.
            if stop.is_set():
                os._exit(128 + number)
            logger.info("stopping because of %s", signal.Signals(number).name)
            stop.set()


# ---- From another process ----


def stop_gateway(
    state: Path, tell: Callable[[str], None] = lambda text: None, seconds: float = STOP_SECONDS
) -> RunningGateway | None:
    """Stops the gateway of a state folder, and waits until it has stopped.

    Args:
        state: The state folder.
        tell: Called with a message if the gateway takes a while.
        seconds: How long to wait.

    Returns:
        The gateway that was stopped; None if none was running.

    Raises:
        ConfigurationError: The gateway has not stopped in time.
    """
    # The announced process id may belong to another process by now: the holder of the lock
    # confirms it.
    known = presence.find(state)
    if known is None or not presence.is_held(state) or presence.holder(state) != known.pid:
        return None
    runs = _count_runs(state)
    os.kill(known.pid, signal.SIGTERM)
    began, told = time.monotonic(), False
    while presence.is_held(state):
        waited = time.monotonic() - began
        if waited > TELL_SECONDS and not told:
            told = True
            tell(f"waiting for process {known.pid}" + (f" and {runs} to end" if runs else ""))
        if waited > seconds:
            text = f"process {known.pid} has not stopped in {seconds:g} s; kill -9 {known.pid}"
            raise ConfigurationError(f"{text} ends it, and the next start continues its runs")
        time.sleep(0.05)
    return known


def ask_gateway(state: Path, method: str, params: JsonObject | None = None) -> JsonObject:
    """Calls a method of the gateway of a state folder.

    Raises:
        ClawmodeError: No gateway runs, or it responds with an error.
    """

    async def ask() -> JsonObject:
        async with GatewayClient.local(state, client_id="clawmode-gateway", mode="cli") as client:
            return await client.call(method, params or {}, timeout=ASK_SECONDS)

    return anyio.run(ask)


def dashboard_link(state: Path) -> tuple[str, int]:
    """Returns a link that logs a browser on this machine in, and the seconds that it is valid.

    Raises:
        ClawmodeError: No gateway runs, or it responds with an error.
    """
    answer: Any = ask_gateway(state, "dashboard.link")
    known = presence.find(state)
    if known is None:
        raise ConfigurationError("the gateway has just stopped")
    url = f"http{known.url.removeprefix('ws')}"
    # A gateway that listens on every address is reached on this one.
    for every, here in (("//0.0.0.0:", "//127.0.0.1:"), ("//[::]:", "//[::1]:")):
        url = url.replace(every, here)
    return url + answer["path"], int(answer["expiresInMs"]) // 1000


def _count_runs(state: Path) -> str:
    """Returns the number of runs in words; empty if it is 0 or unknown."""
    try:
        runs: Any = ask_gateway(state, "status")["runs"]
    except (ClawmodeError, TimeoutError):
        return ""
    return f"{len(runs)} run{'' if len(runs) == 1 else 's'}" if runs else ""
