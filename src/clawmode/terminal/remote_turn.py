"""`clawmode agent` with a gateway: a turn that the gateway runs, shown like a local one."""

import signal
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import anyio
from anyio.abc import TaskGroup

from clawmode.agent.requests import AgentRequest, RunResult, Status
from clawmode.app.console import print_note, print_stderr
from clawmode.app.setup import Options, option_of
from clawmode.config import file as config_file
from clawmode.config import resolve as settings
from clawmode.exceptions import ClawmodeError, ConfigurationError
from clawmode.rpc.client import (
    GAP,
    Events,
    GatewayClient,
    GatewayUnreachable,
    RpcError,
    TurnResult,
)
from clawmode.rpc.presence import RunningGateway
from clawmode.terminal.agent_view import AgentView
from clawmode.terminal.desk import GATEWAY_STOPS, Desk, make_approvals
from clawmode.terminal.interrupts import interruptible
from clawmode.terminal.remote_questions import RemoteQuestions, read_event
from clawmode.terminal.turn import TerminalTurn, WaitingRun
from clawmode.types import JsonObject, JsonValue

CLIENT = "clawmode-agent"
ABORT_SECONDS = 10.0
GONE_SECONDS = 120.0
"""How long the gateway may be unreachable before the command gives up."""

POLL_SECONDS = 1.0
LAST_SECONDS = 2.0
"""How long the last events of a run may take after the gateway has reported its end."""

LOST = "(the connection to the gateway was lost; the rest of the reply follows at the end)"

STATUSES: tuple[Status, ...] = get_args(Status)


def check_options(options: Options, gateway: RunningGateway) -> None:
    """Checks that the gateway can honour the options of the command.

    Raises:
        ConfigurationError: An option works only for a run in this process.
    """
    given = {option_of(name): getattr(options, name) for name in ("tools", "mcp_config", "policy")}
    only_here = [option for option, value in given.items() if value]
    if options.approve == "never":
        only_here.append("--approve never")
    if options.approve == "ask" and _has_unasked_agents(gateway):
        only_here.append('--approve ask (its tools.approve is "always")')
    found = config_file.find(options.config)
    mine = "" if found is None else str(found.absolute())
    if options.config is not None and mine != gateway.config:
        only_here.append("--config")
    if only_here:
        raise ConfigurationError(
            f"a gateway runs on this state folder and does not accept {', '.join(only_here)}: add "
            f"--local to run the turn in this process"
        )
    if mine != gateway.config:
        print_note(
            f"the gateway uses its own configuration: {gateway.config or 'none'}, "
            f"not {mine or 'none'}"
        )


def _has_unasked_agents(gateway: RunningGateway) -> bool:
    """True if the gateway's configuration has agents that need no approval."""
    if not gateway.config:
        return False
    return bool(
        settings.approval_warning(settings.read(config_file.load(gateway.config).data).section)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteTurn(TerminalTurn):
    """A turn that the gateway runs.

    Attributes:
        state: The state folder of the gateway.
    """

    state: Path

    def _run(self, request: AgentRequest) -> RunResult | WaitingRun:
        return anyio.run(self._drive, request)

    async def _drive(self, request: AgentRequest) -> RunResult | WaitingRun:
        client = GatewayClient.local(self.state, client_id=CLIENT, mode="cli")
        ended: RunResult | WaitingRun | None = None
        async with interruptible(), client:
            with client.events() as events:
                run = await _begin_or_abort(client, request)
                if run is not None:
                    ended = await self._watch(client, events, run)
        if ended is None:
            raise KeyboardInterrupt
        return ended

    async def _watch(
        self, client: GatewayClient, events: Events, run: WaitingRun
    ) -> RunResult | WaitingRun:
        desk = None
        if self.approve in (None, "ask"):
            desk = Desk.at_terminal(
                self.view.paused, stdin_is_taken=self.stdin_is_taken, until=GATEWAY_STOPS
            )
        approvals = make_approvals(self.approve or "ask", desk)
        questions = RemoteQuestions(client, approvals, run.run_id)
        watcher = _RunWatcher(client, run, self.view, questions)
        ended = await watcher.watch(events, desk)
        return run if ended is None else read_result(run, ended)


# ---- The run ----


async def _begin_or_abort(client: GatewayClient, request: AgentRequest) -> WaitingRun | None:
    """Begins a run; returns None if Ctrl-C came first, and then aborts the run."""
    key = uuid.uuid4().hex
    try:
        async with interruptible():
            try:
                return await _begin(client, request, key)
            except anyio.get_cancelled_exc_class():
                with anyio.move_on_after(ABORT_SECONDS, shield=True), suppress(ClawmodeError):
                    if not request.resume:
                        # The same idempotency key returns the same run, if it has begun.
                        run = await _begin(client, request, key)
                        await client.call("sessions.abort", {"runId": run.run_id})
                raise
    except KeyboardInterrupt:  # the outer `interruptible` would wrap it in an ExceptionGroup
        return None


async def _begin(client: GatewayClient, request: AgentRequest, key: str) -> WaitingRun:
    """Begins a run, or finds the run to resume.

    Raises:
        ConfigurationError: The request is invalid.
    """
    try:
        if request.resume:
            run = await _find(client, request)
        else:
            run = await _start(client, request, key)
        await client.follow(run.session_key)
        return run
    except RpcError as error:
        if error.code in ("INVALID_REQUEST", "NOT_FOUND"):
            raise ConfigurationError(str(error)) from None
        raise


async def _start(client: GatewayClient, request: AgentRequest, key: str) -> WaitingRun:
    seconds = request.timeout_seconds
    optional: JsonObject = {
        **_session_of(request),
        "model": request.model,
        "thinking": request.thinking,
        "timeoutMs": None if seconds is None else max(int(seconds * 1000), 1),
        "channel": request.channel,
    }
    given: JsonObject = {name: value for name, value in optional.items() if value}
    given |= {"message": request.message, "idempotencyKey": key}
    accepted: dict[str, Any] = await client.call("agent", given)
    if "sessionKey" not in accepted:  # the gateway was restarted after it accepted the run
        return await _find_session(client, request, accepted["runId"])
    return WaitingRun(
        run_id=accepted["runId"],
        session_key=accepted["sessionKey"],
        session_id=accepted["sessionId"],
    )


async def _find(client: GatewayClient, request: AgentRequest) -> WaitingRun:
    try:
        # With a timeout of 0, this only checks that the gateway has the run.
        await client.call("agent.wait", {"runId": request.run_id, "timeoutMs": 0})
    except RpcError as error:
        if error.code != "NOT_FOUND":
            raise
        raise ConfigurationError(
            f"the gateway has no run {request.run_id[:80]}: add --local to resume a run of "
            "another process"
        ) from None
    return await _find_session(client, request, request.run_id)


async def _find_session(client: GatewayClient, request: AgentRequest, run_id: str) -> WaitingRun:
    given = {key: value for key, value in _session_of(request).items() if value}
    answer: dict[str, Any] = await client.call("sessions.get", given)
    session = answer["session"]
    return WaitingRun(run_id=run_id, session_key=session["key"], session_id=session["sessionId"])


def _session_of(request: AgentRequest) -> dict[str, JsonValue]:
    return {
        "sessionKey": request.session_key,
        "sessionId": request.session_id,
        "agentId": request.agent_id,
    }


@dataclass(slots=True)
class _RunWatcher:
    """Shows a run of the gateway, gets answers to its questions, and aborts it at Ctrl-C.

    Attributes:
        gone: True if the gateway was unreachable for too long.
    """

    client: GatewayClient
    run: WaitingRun
    view: AgentView
    questions: RemoteQuestions
    gone: bool = False
    _end_shown: anyio.Event = field(default_factory=anyio.Event)

    async def watch(self, events: Events, desk: Desk | None) -> TurnResult | None:
        """Watches the run to its end; returns None if the user wants to decide later."""
        ended: TurnResult | None = None
        failure: ClawmodeError | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._abort_on_signal)
            tasks.start_soon(self._show_events, events, tasks)
            tasks.start_soon(self._ask_pending, tasks)
            tasks.start_soon(self._give_up, tasks.cancel_scope)
            if desk is not None:
                tasks.start_soon(_put_questions, desk, tasks.cancel_scope)
            try:
                ended = await self.client.wait(self.run.run_id)
                with anyio.move_on_after(LAST_SECONDS) as late:
                    await self._end_shown.wait()
                if late.cancelled_caught:
                    self.view.mark_lost()
            except ClawmodeError as error:  # the task group would wrap it in an ExceptionGroup
                failure = error
            tasks.cancel_scope.cancel()
        if failure is not None or self.gone:
            raise failure or GatewayUnreachable(
                f"the gateway is gone; it resumes the run {self.run.run_id} when it is back"
            )
        return ended

    async def _show_events(self, events: Events, tasks: TaskGroup) -> None:
        try:
            async for event in events:
                if event.name == GAP:
                    self.view.mark_lost(LOST)
                    tasks.start_soon(self._ask_pending, tasks)
                elif event.name == "agent":
                    shown = read_event(event.payload)
                    if shown is not None and shown.run_id == self.run.run_id:
                        self.view.add(shown)
                        phase = shown.data.get("phase")
                        if shown.stream == "lifecycle" and phase in ("end", "error"):
                            self._end_shown.set()
                elif self.questions.is_new(event):
                    tasks.start_soon(self.questions.answer, event)
        except ClawmodeError as error:
            self.view.mark_lost(f"({error})")

    async def _ask_pending(self, tasks: TaskGroup) -> None:
        """Asks the questions that the gateway sent while this client was not connected."""
        try:
            for event in await self.questions.pending():
                if self.questions.is_new(event):
                    tasks.start_soon(self.questions.answer, event)
        except ClawmodeError as error:
            print_stderr(f"cannot fetch the open questions of the run: {error}")

    async def _give_up(self, scope: anyio.CancelScope) -> None:
        """Cancels the scope when the gateway has been unreachable for too long."""
        since = anyio.current_time()
        while anyio.current_time() - since < GONE_SECONDS:
            await anyio.sleep(min(POLL_SECONDS, GONE_SECONDS))
            if self.client.connected:
                since = anyio.current_time()
        self.gone = True
        scope.cancel()

    async def _abort_on_signal(self) -> None:
        """Aborts the run at the first Ctrl-C; a second one ends the command."""
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for _ in signals:
                break
        try:
            run_id: JsonObject = {"runId": self.run.run_id}
            await self.client.call("sessions.abort", run_id, timeout=ABORT_SECONDS)
        except ClawmodeError as error:
            print_stderr(f"the run could not be stopped and may continue: {error}")


async def _put_questions(desk: Desk, scope: anyio.CancelScope) -> None:
    await desk.serve()
    scope.cancel()


# ---- From the wire ----


def read_result(run: WaitingRun, ended: TurnResult) -> RunResult:
    """Parses the result of a run."""
    data: dict[str, Any] = ended.data
    return RunResult(
        run_id=run.run_id,
        session_key=str(data.get("sessionKey") or run.session_key),
        session_id=str(data.get("sessionId") or run.session_id),
        status=next((it for it in STATUSES if it == ended.status), "error"),
        payloads=tuple(data.get("payloads") or ()),
        usage=data.get("usage") or {},
        metadata=data.get("metadata") or {},
        error=ended.error or None,
        problem=data.get("problem"),
        started_at=(data.get("startedAt") or 0) / 1000,
        ended_at=(data.get("endedAt") or 0) / 1000,
    )
