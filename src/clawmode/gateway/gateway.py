"""The gateway, without a network: its clients, the events that they receive, start and stop."""

import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectSendStream

from clawmode.addresses import Attempts
from clawmode.agent.diagnostics import SessionMonitor
from clawmode.agent.events import AgentEvent
from clawmode.agent.hooks import GatewayEvent
from clawmode.agent.run import AgentRun
from clawmode.cron.jobs import Jobs
from clawmode.cron.scheduler import Scheduler
from clawmode.gateway import logs, restart
from clawmode.gateway.approvals import SharedQuestions
from clawmode.gateway.client_tools import ClientTools
from clawmode.gateway.clients import Client, EncodedEvent
from clawmode.gateway.event_log import EventLog
from clawmode.gateway.figures import Figures
from clawmode.gateway.ledger import Ledger, LedgerUnavailable
from clawmode.gateway.logins import DROP_SECONDS, Grant, Logins, Session, check_attempts, revoked
from clawmode.gateway.run_feed import RunFeed
from clawmode.rpc import protocol
from clawmode.rpc.protocol import RpcError, read_hello
from clawmode.rpc.scopes import EVENTS, granted
from clawmode.rpc.tokens import Token, TokenError, Tokens
from clawmode.tasks import run_logged
from clawmode.tools.approvals import Approvals
from clawmode.types import JsonObject, dataclass

if TYPE_CHECKING:
    from clawmode.app.host import Host

logger = logging.getLogger("clawmode.gateway")

NOTE_SECONDS = 2.0
"""The pause before another attempt to write to the ledger."""

LOGIN_SECONDS = 2.0
"""The time between checks of the tokens of connected clients."""

SHUTDOWN_NOTICE = 0.2
"""The time for the event `shutdown` to reach clients before they are disconnected."""


@dataclass(eq=False, slots=True, kw_only=True)
class Gateway:
    """Serves agents to clients.

    Attributes:
        host: The runtime, with plugins, channels and the inbox. A reload replaces it.
        questions: The questions of the host's approvals, which clients answer.
        attempts: The failed attempts to authenticate, by address.
        token_lock: Held while a token is looked up, so that concurrent guesses count one by one.
        doctor_lock: Held while a client has everything checked.
        stopping: True from the start of the shutdown on: no new work is accepted.
        ready: True while the gateway accepts work.
        counters: The number of requests by method.
        watch: The monitor of stuck sessions, unless diagnostics are disabled.
        logins: The sessions of browsers.
        log: The last events, for clients that reconnect.
        feed: The tree of what runs now, and the clients that follow it.
        max_clients: The most connected clients; 0 for the limit of the configuration.
        effects: Requests with an effect that are being executed, by principal, method and
            idempotency key. Each event is set at the end of its request.
    """

    host: "Host"
    questions: SharedQuestions
    tokens: Tokens
    ledger: Ledger
    jobs: Jobs
    attempts: Attempts = field(default_factory=Attempts)
    token_lock: anyio.Lock = field(default_factory=anyio.Lock)
    doctor_lock: anyio.Lock = field(default_factory=anyio.Lock)
    started_at: float = field(default_factory=time.time)
    clients: dict[str, Client] = field(default_factory=dict[str, Client])
    stopping: bool = False
    ready: bool = False
    scheduler: Scheduler = field(init=False)
    client_tools: ClientTools = field(init=False)
    counters: dict[str, int] = field(default_factory=dict[str, int])
    figures: Figures = field(default_factory=Figures)
    watch: SessionMonitor | None = None
    logins: Logins = field(default_factory=Logins)
    log: EventLog = field(default_factory=EventLog)
    feed: RunFeed = field(init=False)
    max_clients: int = 0
    effects: dict[tuple[str, str, str], anyio.Event] = field(
        default_factory=dict[tuple[str, str, str], anyio.Event]
    )
    _notes: "MemoryObjectSendStream[AgentRun] | None" = None
    _tasks: TaskGroup | None = None

    def __post_init__(self) -> None:
        cron = self.host.setup.configuration.cron
        self.client_tools = ClientTools(lambda: list(self.clients.values()))
        self.scheduler = Scheduler(
            self.jobs,
            self.host.runtime,
            max_concurrent=cron.max_concurrent_runs,
            cleanup_seconds=cron.cleanup_seconds,
            on_event=self._on_cron_event,
            continues=True,
        )
        self.feed = RunFeed(self)
        self.questions.publish = self.feed.publish_question

    @property
    def approvals(self) -> Approvals:
        return self.questions.approvals

    # ---- Start and stop ----

    @asynccontextmanager
    async def open(self, address: str = "") -> AsyncIterator[None]:
        """Runs the gateway inside of the block: continues interrupted runs, then starts schedules.

        Args:
            address: The URL of the gateway, for hooks.
        """
        runtime, configuration = self.host.runtime, self.host.setup.configuration
        await self.ledger.tidy()
        unsubscribe = runtime.subscribe(self._on_agent_event)
        # Recorded before the client gets its response: a run that was accepted is never lost.
        runtime.on_accept = self._accept
        # Without a limit: a run whose end is not recorded would be continued at the next start.
        send, receive = anyio.create_memory_object_stream[AgentRun](math.inf)
        self._notes = send
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                tasks.start_soon(self._write_notes, receive)
                tasks.start_soon(self._tick)
                tasks.start_soon(self._check_logins)
                tasks.start_soon(self.feed.serve)
                if configuration.diagnostics.enabled:
                    tell = partial(self.broadcast, "diagnostics")
                    self.watch = SessionMonitor(runtime, configuration.diagnostics, tell)
                    tasks.start_soon(self.watch.serve)
                await self.feed.restore(runtime.store)
                await restart.continue_runs(runtime, self.ledger, self.scheduler, tasks)
                await restart.restore_messages(self.host.inbox, self.ledger)
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
        """Waits for runs to end, for a limited time. The next start continues the others."""
        self.stopping, self.ready = True, False
        self.broadcast("shutdown", {"reason": "stop", "restartExpectedMs": None})
        tasks.start_soon(run_logged, logger, "drain", self.host.backend.nodes.drain)
        seconds = self.host.setup.configuration.gateway.shutdown_seconds
        if under_way := sum(not run.ended.is_set() for run in self.host.runtime.runs()):
            runs = "1 run" if under_way == 1 else f"{under_way} runs"
            logger.info("waiting for %s to end, at most %d s", runs, seconds)
        with anyio.move_on_after(seconds):
            # Effects first: one of them may be about to start a run.
            for done in tuple(self.effects.values()):
                await done.wait()
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
        """Starts a background task, which ends with the gateway. Its exception is logged.

        Raises:
            RpcError: The gateway has not started yet, or is stopping.
        """
        if self._tasks is None or self.stopping:
            text = "the gateway is stopping" if self.stopping else "the gateway is not ready yet"
            raise RpcError("UNAVAILABLE", text, retry_after_ms=1_000)
        self._tasks.start_soon(run_logged, logger, work.__name__, work, *given)

    # ---- Clients ----

    async def connect(
        self, params: JsonObject, address: str, session: Session | None = None
    ) -> Client:
        """Authenticates a client.

        Args:
            params: The parameters of `connect`.
            address: The address of the client.
            session: The session of a browser, which takes the place of a token.

        Raises:
            RpcError: The parameters of `connect` or the token are not accepted.
        """
        hello = read_hello(params)
        if session is not None and not hello.auth.token:
            grant, session_id = session.grant, session.id
        elif not hello.auth.token:  # not a guess, so that an expired session locks nobody out
            raise RpcError("UNAUTHORIZED", "a token is required", field="auth.token")
        else:
            grant, session_id = Grant.of(await self.token_of(hello.auth.token, address)), ""
        scopes = granted(grant.scopes, hello.scopes)
        if not scopes:
            text = "the token has none of the requested scopes"
            raise RpcError("FORBIDDEN", text, field="scopes")
        return Client(hello, grant.principal, scopes, grant.token, session_id)

    async def token_of(self, token: str, address: str, where: str = "connect") -> Token:
        """Looks up a token that was sent from an address.

        Args:
            token: The token.
            address: The address of the client: its failed attempts are limited.
            where: What the token is for, for the log.

        Raises:
            RpcError: The token is unknown, or too many attempts from the address have failed.
        """
        async with self.token_lock:
            check_attempts(self.attempts, address)
            try:
                record = await anyio.to_thread.run_sync(self.tokens.find, token)
            except TokenError as error:
                logger.error("%s: %s", where, error)
                raise RpcError(
                    "UNAVAILABLE", "tokens cannot be checked: the gateway's log has the reason"
                ) from None
            if record is None:
                self.attempts.fail(address)
                logger.warning("%s: %s sent an unknown token", where, address)
                raise RpcError("UNAUTHORIZED", "this token is unknown", field="auth.token")
        return record

    def log_out(self, session_id: str, reason: str) -> None:
        """Ends the session of a browser, and its connections."""
        self.logins.close(session_id)
        for client in [it for it in self.clients.values() if it.session == session_id]:
            client.finish(protocol.CLOSE_LOGGED_OUT, reason)

    async def drop(self, tokens: Collection[str]) -> None:
        """Ends the connections and sessions that were opened with revoked tokens, in a moment."""
        await anyio.sleep(DROP_SECONDS)
        for client in [it for it in self.clients.values() if it.token in tokens]:
            self.logins.close(client.session)
            code = protocol.CLOSE_LOGGED_OUT if client.session else protocol.CLOSE_POLICY
            client.finish(code, "the token was revoked")

    async def _check_logins(self) -> None:
        """Ends what was opened with a revoked token, and keeps the sessions of open pages alive."""
        while True:
            await anyio.sleep(LOGIN_SECONDS)
            await self.logins.save()
            # `clawmode gateway token revoke` changes the file only.
            tokens = {client.token for client in self.clients.values()}
            if gone := await revoked(self.tokens, tokens):
                await self.drop(gone)
            for session_id in {client.session for client in self.clients.values()} - {""}:
                if self.logins.touch(session_id) is None:
                    self.log_out(session_id, "the session has ended")

    def join(self, client: Client, methods: Iterable[str]) -> JsonObject:
        """Adds a client, and returns the response to its `connect`.

        Args:
            client: The client.
            methods: The methods that it may call.

        Raises:
            RpcError: Too many clients are connected.
        """
        most = self.max_clients or self.host.setup.configuration.gateway.max_clients
        if len(self.clients) >= most:
            text = f"{most} clients are already connected"
            raise RpcError("UNAVAILABLE", text, retry_after_ms=5_000)
        self.clients[client.id] = client
        return protocol.hello_ok(
            connection_id=client.id,
            scopes=tuple(sorted(client.scopes)),
            methods=tuple(sorted(methods)),
            events=tuple(sorted(EVENTS)),
            snapshot={"uptimeMs": int((time.time() - self.started_at) * 1000)},
            position=self.log.position,
            principal=client.principal,
        )

    def leave(self, client: Client) -> None:
        """Removes a client. The runs that it started continue."""
        self.clients.pop(client.id, None)
        self.client_tools.hand_over(client)

    def broadcast(
        self, name: str, payload: JsonObject, session_key: str = "", run_id: str = "", **kept: Any
    ) -> None:
        """Sends an event to all clients that may see it and follow its session or run.

        `kept` says how the event is kept for clients that reconnect: see `EventLog.add`.
        """
        event = self.log.add(self.encode(name, payload, session_key, run_id), **kept)
        for client in tuple(self.clients.values()):
            client.notify(event)

    def encode(
        self, name: str, payload: JsonObject, session_key: str = "", run_id: str = ""
    ) -> EncodedEvent:
        """Returns an event without the configuration's secrets."""
        event = EncodedEvent.of(name, payload, session_key, run_id)
        # A search in the text is cheap; redacting the payload is not.
        if self.host.runtime.known.are_in(event.payload):
            event = EncodedEvent.of(name, self.without_secrets(payload), session_key, run_id)
        return event

    def without_secrets(self, payload: JsonObject) -> JsonObject:
        """Returns a payload with the configuration's secrets redacted."""
        redacted = self.host.runtime.known.value(payload)
        assert isinstance(redacted, dict)
        return redacted

    def learn_secrets(self, secrets: Iterable[str]) -> None:
        """Replaces the secrets that are redacted in events, responses and logs."""
        known = tuple(secrets)
        logs.learn(known)
        self.host.runtime.learn(known)

    # ---- Runs ----

    async def _accept(self, run: AgentRun) -> None:
        await self.ledger.accept(restart.row_of(run))
        self.feed.tree.accept(run)

    def _on_agent_event(self, event: AgentEvent) -> None:
        key, run_id = event.session_key, event.run_id
        self.feed.tree.take(event)
        # A part of a text is of no use without the others: `chat` has the text so far.
        self.broadcast("agent", event.to_json(), key, run_id, keep="delta" not in event.data)
        if event.stream == "tool":
            self.figures.tool_event(event.data)
            self.broadcast("session.tool", {"sessionKey": key, **event.data}, key, run_id)
        elif event.stream == "assistant" and "message" in event.data:
            message: JsonObject = {"role": "assistant", "text": event.data["message"]}
            self.broadcast("session.message", {"sessionKey": key, "runId": run_id, **message}, key)
        elif event.stream == "lifecycle":
            run = self.host.runtime.find(run_id)
            if run is not None:
                if run.result is None:
                    logs.run_started(run)
                else:
                    logs.run_ended(run, run.result)
                    self.figures.run_ended(run.result)
                # The ledger is written by another task: this callback must not wait for a disk.
                if self._notes is not None:
                    self._notes.send_nowait(run)
            about: JsonObject = {"sessionKey": key, "runId": run_id, "phase": event.data["phase"]}
            self.broadcast("sessions.changed", about)

    async def _write_notes(self, notes: AsyncIterator[AgentRun]) -> None:
        """Writes the start or the end of each run to the ledger."""
        async for run in notes:
            await restart.note(self.ledger, run, NOTE_SECONDS)

    def _on_cron_event(self, event: JsonObject) -> None:
        if event.get("phase") == "finished":  # a run has ended, or was skipped
            self.figures.cron[str(event.get("status"))] += 1
        self.broadcast("cron", event)

    def chat(self, event: JsonObject) -> None:
        """Sends an event of a chat to its clients. `Host` calls this."""
        key, run_id = str(event["sessionKey"]), str(event["runId"])
        last = event["state"] != "delta"
        self.broadcast("chat", event, key, run_id, slot=f"chat {run_id}", last=last)
