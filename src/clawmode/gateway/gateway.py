"""The gateway as such, without a wire: its clients, what it tells them, its life."""

import logging
import math
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import anyio
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectSendStream

from clawmode.addresses import Attempts
from clawmode.agent.diagnostics import SessionMonitor
from clawmode.agent.events import AgentEvent
from clawmode.agent.hooks import GatewayEvent
from clawmode.agent.runtime import Run
from clawmode.app.host import Host
from clawmode.cron.jobs import Jobs
from clawmode.cron.scheduler import Scheduler
from clawmode.foreign import message_of
from clawmode.gateway import logs, restart
from clawmode.gateway.approvals import SharedApprovals
from clawmode.gateway.client_tools import ClientTools
from clawmode.gateway.clients import Client, EncodedEvent
from clawmode.gateway.figures import Figures
from clawmode.gateway.ledger import Ledger, LedgerUnavailable
from clawmode.rpc import protocol
from clawmode.rpc.protocol import CONNECT_SCHEMA, RpcError, read_hello
from clawmode.rpc.scopes import EVENTS, granted
from clawmode.rpc.tokens import Token, TokenError, Tokens
from clawmode.tasks import run_logged
from clawmode.types import JsonObject

logger = logging.getLogger("clawmode.gateway")

NOTE_SECONDS = 2.0
"""How soon to write again to a ledger that could not be written."""

SHUTDOWN_NOTICE = 0.2
"""How long clients have to hear that it stops."""


@dataclass(eq=False, slots=True)
class Effect:
    """A request that is carried out: what came of it, when it is done."""

    done: anyio.Event = field(default_factory=anyio.Event)
    answer: JsonObject | None = None
    error: Exception | None = None


@dataclass(eq=False, slots=True, kw_only=True)
class Gateway:
    """Serves agents to clients.

    Attributes:
        host: The runtime, and what stands around it.
        approvals: The host's, which clients answer.
        process: The name of this process in the ledger.
        stopping: Whether it takes no new work.
        watch: Looks after sessions that are stuck, if that is wanted.
        max_clients: How many may be connected; by default as many as the configuration allows.
        token_lock: Held while a token is looked up: of many guesses made at once, none is looked up
            after the last one that is allowed has failed.
    """

    host: Host
    approvals: SharedApprovals
    tokens: Tokens
    ledger: Ledger
    jobs: Jobs
    process: str = field(default_factory=lambda: uuid.uuid4().hex)
    attempts: Attempts = field(default_factory=Attempts)
    token_lock: anyio.Lock = field(default_factory=anyio.Lock)
    started_at: float = field(default_factory=time.time)
    clients: dict[str, Client] = field(default_factory=dict[str, Client])
    stopping: bool = False
    ready: bool = False
    scheduler: Scheduler = field(init=False)
    client_tools: ClientTools = field(init=False)
    counters: dict[str, int] = field(default_factory=dict[str, int])
    figures: Figures = field(default_factory=Figures)
    watch: SessionMonitor | None = None
    max_clients: int = 0
    effects: dict[tuple[str, str, str], Effect] = field(
        default_factory=dict[tuple[str, str, str], Effect]
    )
    _notes: "MemoryObjectSendStream[Run] | None" = None
    _tasks: TaskGroup | None = None

    def __post_init__(self) -> None:
        cron = self.host.setup.configuration.cron
        self.client_tools = ClientTools(lambda: list(self.clients.values()))
        self.scheduler = Scheduler(
            self.jobs,
            self.host.runtime,
            max_concurrent=cron.max_concurrent_runs,
            cleanup_seconds=cron.cleanup_seconds,
            on_event=self._cron,
            continues=True,
        )
        self.approvals.tell = self.broadcast

    # ---- Its life ----

    @asynccontextmanager
    async def open(self, address: str = "") -> AsyncIterator[None]:
        """Runs what runs by itself: schedules, diagnostics, ticks; and continues what was left."""
        runtime, configuration = self.host.runtime, self.host.setup.configuration
        await self.ledger.tidy()
        unsubscribe = runtime.subscribe(self._watch)
        runtime.on_accept = self._accept
        # Without a limit: a run whose end is not noted would be continued at the next start.
        send, receive = anyio.create_memory_object_stream[Run](math.inf)
        self._notes = send
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                tasks.start_soon(self._write_notes, receive)
                tasks.start_soon(self._tick)
                if configuration.diagnostics.enabled:
                    self.watch = SessionMonitor(runtime, configuration.diagnostics, self._diagnose)
                    tasks.start_soon(self.watch.serve)
                await restart.continue_runs(runtime, self.ledger, self.scheduler, tasks)
                await restart.take_messages(self.host.inbox, self.ledger)
                self.host.inbox.keeper = self.ledger
                if configuration.cron.enabled:
                    tasks.start_soon(self.scheduler.serve)
                await self._announce("gateway_start", "gateway:startup", address)
                self.ready = True
                yield
                await self._stop(tasks, address)
        finally:
            self.ready, self._tasks = False, None
            unsubscribe()
            send.close()
            receive.close()

    async def _stop(self, tasks: TaskGroup, address: str) -> None:
        """Lets runs end as far as there is time; the others are continued at the next start."""
        self.stopping, self.ready = True, False
        self.broadcast("shutdown", {"reason": "stop", "restartExpectedMs": None})
        seconds = self.host.setup.configuration.gateway.shutdown_seconds
        under_way = sum(not run.ended.is_set() for run in self.host.runtime.runs())
        if under_way:
            runs = "1 run" if under_way == 1 else f"{under_way} runs"
            logger.info("it stops when %s ended, at the latest in %d s", runs, seconds)
        with anyio.move_on_after(seconds):
            for effect in tuple(self.effects.values()):
                await effect.done.wait()
            for run in self.host.runtime.runs():
                await run.ended.wait()
        await self._announce("gateway_stop", "gateway:shutdown", address)
        await anyio.sleep(SHUTDOWN_NOTICE)
        tasks.cancel_scope.cancel()

    async def _announce(self, hook: str, event: str, address: str) -> None:
        await self.host.hooks.notify(hook, GatewayEvent(address=address))
        if self.host.operator.has(event):
            await self.host.operator.run(event, {"address": address})

    async def _tick(self) -> None:
        while True:
            await anyio.sleep(protocol.TICK_MS / 1000)
            self.broadcast("tick", {"ts": int(time.time() * 1000)})
            with suppress(LedgerUnavailable):
                await self.ledger.tidy_now_and_then()

    def begin(self, work: Callable[..., Coroutine[Any, Any, Any]], *given: Any) -> None:
        """Does something beside all else, until it is done or the gateway stops.

        Raises:
            RpcError: The gateway is not open yet, or not any more.
        """
        if self._tasks is None or self.stopping:
            text = "the gateway stops" if self.stopping else "the gateway is not ready yet"
            raise RpcError("UNAVAILABLE", text, retry_after_ms=1_000)
        self._tasks.start_soon(run_logged, logger, work.__name__, work, *given)

    # ---- Clients ----

    async def connect(self, params: JsonObject, address: str) -> Client:
        """Lets a client in.

        Raises:
            RpcError: It is not let in.
        """
        protocol.check("connect", CONNECT_SCHEMA, params)
        hello = read_hello(params)
        token = await self.token_of(hello.token, address)
        scopes = granted(token.scopes, hello.scopes)
        if not scopes:
            raise RpcError("FORBIDDEN", "the token has none of these scopes", field="scopes")
        return Client(hello, token.name, scopes)

    async def token_of(self, shown: str, address: str, where: str = "connect") -> Token:
        """Whose token somebody at an address shows.

        Raises:
            RpcError: Nobody's; or too many attempts of the address have failed.
        """
        async with self.token_lock:
            if (seconds := self.attempts.wait(address)) > 0:
                wait = int(seconds * 1000) + 1
                raise RpcError("RATE_LIMITED", "too many attempts failed", retry_after_ms=wait)
            try:
                token = await anyio.to_thread.run_sync(self.tokens.find, shown)
            except TokenError as error:
                logger.error("%s: %s", where, error)
                raise RpcError("UNAVAILABLE", "tokens cannot be checked now") from None
            if token is None:
                self.attempts.fail(address)
                logger.warning("%s: %s showed a token that is not known", where, address)
                raise RpcError("UNAUTHORIZED", "this token is not known", field="auth.token")
        return token

    def join(self, client: Client, methods: Iterable[str]) -> JsonObject:
        """A client is connected, and may call these: the answer to its `connect`."""
        most = self.max_clients or self.host.setup.configuration.gateway.max_clients
        if len(self.clients) >= most:
            raise RpcError("UNAVAILABLE", f"{most} clients are connected", retry_after_ms=5_000)
        self.clients[client.id] = client
        return protocol.hello_ok(
            connection_id=client.id,
            scopes=tuple(sorted(client.scopes)),
            methods=tuple(sorted(methods)),
            events=tuple(sorted(EVENTS)),
            snapshot={"uptimeMs": int((time.time() - self.started_at) * 1000)},
        )

    def leave(self, client: Client) -> None:
        """A client has gone; what it began goes on."""
        self.clients.pop(client.id, None)
        self.client_tools.hand_over(client)

    def broadcast(
        self, name: str, payload: JsonObject, session_key: str = "", run_id: str = ""
    ) -> None:
        """Tells all clients that may know and want to."""
        if self.clients:
            event = EncodedEvent.of(name, payload, session_key, run_id)
            if self.host.runtime.known.are_in(event.payload):
                event = EncodedEvent.of(name, self.without_secrets(payload), session_key, run_id)
            for client in tuple(self.clients.values()):
                client.tell(event)

    def without_secrets(self, payload: JsonObject) -> JsonObject:
        """What clients may see: without the secrets that the setup knows."""
        known = self.host.runtime.known.value(payload)
        assert isinstance(known, dict)
        return known

    # ---- Runs ----

    async def _accept(self, run: Run) -> None:
        await self.ledger.accept(restart.row_of(run))

    def _watch(self, event: AgentEvent) -> None:
        key, run_id = event.session_key, event.run_id
        self.broadcast("agent", event.to_json(), key, run_id)
        if event.stream == "tool":
            self.figures.tool_event(event.data)
            self.broadcast("session.tool", {"sessionKey": key, **event.data}, key, run_id)
        elif event.stream == "assistant" and "message" in event.data:
            said: JsonObject = {"role": "assistant", "text": event.data["message"]}
            self.broadcast("session.message", {"sessionKey": key, "runId": run_id, **said}, key)
        elif event.stream == "lifecycle":
            run = self.host.runtime.find(run_id)
            if run is not None:
                self._note(run)
            about: JsonObject = {"sessionKey": key, "runId": run_id, "phase": event.data["phase"]}
            self.broadcast("sessions.changed", about)

    def _note(self, run: Run) -> None:
        """A run has started, or ended."""
        if run.result is None:
            logs.run_started(run)
        else:
            logs.run_ended(run, run.result)
            self.figures.run_ended(run.result)
        if self._notes is not None:
            self._notes.send_nowait(run)

    async def _write_notes(self, notes: AsyncIterator[Run]) -> None:
        async for run in notes:
            while not await self._written(run):  # noqa: ASYNC110 - a disk tells nobody
                await anyio.sleep(NOTE_SECONDS)

    async def _written(self, run: Run) -> bool:
        """Writes to the ledger that a run has started or ended; False: it has to be tried again."""
        try:
            if run.result is None:
                await self.ledger.start(run.id, run.started_at)
            else:
                result = run.result
                await self.ledger.end(run.id, result.ended_at, result.status, result.to_json())
        except LedgerUnavailable as error:
            logger.error("run %s: %s", run.id, message_of(error))
            return False
        return True

    def _cron(self, event: JsonObject) -> None:
        self.figures.cron_event(event)
        self.broadcast("cron", event)

    def _diagnose(self, event: JsonObject) -> None:
        self.broadcast("diagnostics", event)

    def chat(self, event: JsonObject) -> None:
        """Tells chat clients what a run says: for `Host`."""
        key, run_id = str(event["sessionKey"]), str(event["runId"])
        self.broadcast("chat", event, key, run_id)
