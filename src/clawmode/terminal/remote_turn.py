"""`clawmode agent` as a client: a turn that the gateway runs, shown as if it ran here."""

import signal
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import anyio
from anyio.abc import TaskGroup

from clawmode.agent.events import AgentEvent, Stream
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
from clawmode.terminal.desk import Terminal
from clawmode.terminal.interrupts import interruptible
from clawmode.terminal.remote_questions import RemoteDesk, RemoteQuestions, remote_approvals
from clawmode.terminal.turn import Left, ShownTurn
from clawmode.types import JsonObject, JsonValue

CLIENT = "clawmode-agent"
ABORT_SECONDS = 10.0
GONE_SECONDS = 120.0
"""How long a gateway may be away."""

LOOK_SECONDS = 1.0
LAST_SECONDS = 2.0
"""How long what a run said last may take to be shown, when its end is known."""

LOST = "(the connection to the gateway was lost; the rest of the reply follows at the end)"

STREAMS: tuple[Stream, ...] = get_args(Stream)
STATUSES: tuple[Status, ...] = get_args(Status)


def check_options(options: Options, place: RunningGateway) -> None:
    """What is given has to be what the gateway can honour.

    Raises:
        ConfigurationError: Something holds for a run of this process alone.
    """
    given = {option_of(name): getattr(options, name) for name in ("tools", "mcp_config", "policy")}
    only_here = [option for option, value in given.items() if value]
    if options.approve == "never":
        only_here.append("--approve never")
    if options.approve == "ask" and _asks_nobody(place):
        only_here.append('--approve ask (its tools.approve is "always")')
    found = config_file.find(options.config)
    mine = "" if found is None else str(found.absolute())
    if options.config is not None and mine != place.config:
        only_here.append("--config")
    if only_here:
        raise ConfigurationError(
            f"a gateway runs on this state folder, and {', '.join(only_here)} cannot be given to "
            f"it: run the turn in this process with --local"
        )
    if mine != place.config:
        print_note(
            f"the gateway's configuration is used: {place.config or 'none'}, not {mine or 'none'}"
        )


def _asks_nobody(place: RunningGateway) -> bool:
    """Whether the gateway's configuration has agents that need no approval."""
    if not place.config:
        return False
    return bool(
        settings.approval_warning(settings.read(config_file.load(place.config).data).section)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteTurn(ShownTurn):
    """A turn that the gateway runs.

    Attributes:
        state: The state folder that it runs on.
    """

    state: Path

    def _turn(self, request: AgentRequest, view: AgentView) -> RunResult | Left:
        return anyio.run(self._drive, request, view)

    async def _drive(self, request: AgentRequest, view: AgentView) -> RunResult | Left:
        client = GatewayClient.local(self.state, client_id=CLIENT, mode="cli")
        ended: RunResult | Left | None = None
        async with interruptible(), client:
            with client.events() as events:
                begun = await _begin_or_abort(client, request)
                if begun is not None:
                    ended = await self._watch(client, events, begun, view)
        if ended is None:
            raise KeyboardInterrupt
        return ended

    async def _watch(
        self, client: GatewayClient, events: Events, begun: Left, view: AgentView
    ) -> RunResult | Left:
        asks = self.approve in (None, "ask")
        terminal = Terminal.find(stdin_is_taken=self.stdin_is_taken) if asks else None
        approvals = remote_approvals(self.approve or "ask", terminal, view.paused)
        questions = RemoteQuestions(client, approvals, begun.run_id)
        watched = _Watched(client, begun, view, questions)
        desk = approvals if isinstance(approvals, RemoteDesk) else None
        ended = await watched.to_its_end(events, desk)
        if ended is None:
            return begun
        return read_result(begun, ended)


# ---- The run ----


async def _begin_or_abort(client: GatewayClient, request: AgentRequest) -> Left | None:
    """As `_begin`. None: Ctrl-C came first, and a run that was begun is not left to itself."""
    key = uuid.uuid4().hex
    try:
        async with interruptible():
            try:
                return await _begin(client, request, key)
            except anyio.get_cancelled_exc_class():
                with anyio.move_on_after(ABORT_SECONDS, shield=True), suppress(ClawmodeError):
                    if not request.resume:
                        begun = await _begin(client, request, key)  # it is the same one
                        await client.call("sessions.abort", {"runId": begun.run_id})
                raise
    except KeyboardInterrupt:  # inside of another one it would come out in a group
        return None


async def _begin(client: GatewayClient, request: AgentRequest, key: str) -> Left:
    """Has a run begun, or finds the one to go on with.

    Raises:
        ConfigurationError: It cannot be meant.
    """
    try:
        begun = _find(client, request) if request.resume else _start(client, request, key)
        found = await begun
        await client.follow(found.session_key)
        return found
    except RpcError as error:
        if error.code in ("INVALID_REQUEST", "NOT_FOUND"):
            raise ConfigurationError(str(error)) from None
        raise


async def _start(client: GatewayClient, request: AgentRequest, key: str) -> Left:
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
    if "sessionKey" not in accepted:  # the gateway was started again meanwhile
        return await _find_session(client, request, accepted["runId"])
    return Left(
        run_id=accepted["runId"],
        session_key=accepted["sessionKey"],
        session_id=accepted["sessionId"],
    )


async def _find(client: GatewayClient, request: AgentRequest) -> Left:
    try:
        await client.call("agent.wait", {"runId": request.run_id, "timeoutMs": 0})
    except RpcError as error:
        if error.code != "NOT_FOUND":
            raise
        text = f"the gateway knows no run {request.run_id[:80]}: one of another process goes on"
        raise ConfigurationError(f"{text} with --local") from None
    return await _find_session(client, request, request.run_id)


async def _find_session(client: GatewayClient, request: AgentRequest, run_id: str) -> Left:
    given = {key: value for key, value in _session_of(request).items() if value}
    answer: dict[str, Any] = await client.call("sessions.get", given)
    session = answer["session"]
    return Left(run_id=run_id, session_key=session["key"], session_id=session["sessionId"])


def _session_of(request: AgentRequest) -> dict[str, JsonValue]:
    return {
        "sessionKey": request.session_key,
        "sessionId": request.session_id,
        "agentId": request.agent_id,
    }


@dataclass(slots=True)
class _Watched:
    """A run that a person watches, answers for, and can stop.

    Attributes:
        gone: Whether the gateway was away for too long.
    """

    client: GatewayClient
    begun: Left
    view: AgentView
    questions: RemoteQuestions
    gone: bool = False
    _seen: anyio.Event = field(default_factory=anyio.Event)

    async def to_its_end(self, events: Events, desk: RemoteDesk | None) -> TurnResult | None:
        """Shows it. None: somebody wants to decide later."""
        ended: TurnResult | None = None
        failure: ClawmodeError | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._abort_when_stopped)
            tasks.start_soon(self._watch, events, tasks)
            tasks.start_soon(self._catch_up, tasks)
            tasks.start_soon(self._give_up, tasks.cancel_scope)
            if desk is not None:
                tasks.start_soon(_put_questions, desk, tasks.cancel_scope)
            try:
                ended = await self.client.wait(self.begun.run_id)
                with anyio.move_on_after(LAST_SECONDS) as late:
                    await self._seen.wait()
                if late.cancelled_caught:
                    self.view.lose_words()
            except ClawmodeError as error:  # else it would come out in a group
                failure = error
            tasks.cancel_scope.cancel()
        if failure is not None or self.gone:
            raise failure or GatewayUnreachable(
                f"the gateway is gone; it goes on with run {self.begun.run_id} when it is back"
            )
        return ended

    async def _watch(self, events: Events, tasks: TaskGroup) -> None:
        try:
            async for event in events:
                if event.name == GAP:
                    self.view.lose_words(LOST)
                    tasks.start_soon(self._catch_up, tasks)
                elif event.name == "agent":
                    self._show(event.payload)
                elif self.questions.is_new(event):
                    tasks.start_soon(self.questions.answer, event)
        except ClawmodeError as error:
            self.view.lose_words(f"({error})")

    def _show(self, payload: JsonObject) -> None:
        event = read_event(payload)
        if event is None or event.run_id != self.begun.run_id:
            return
        self.view.take(event)
        if event.stream == "lifecycle" and event.data.get("phase") in ("end", "error"):
            self._seen.set()

    async def _catch_up(self, tasks: TaskGroup) -> None:
        """Questions that were asked while nobody listened."""
        try:
            for event in await self.questions.waiting():
                if self.questions.is_new(event):
                    tasks.start_soon(self.questions.answer, event)
        except ClawmodeError as error:
            print_stderr(f"questions of the run cannot be seen: {error}")

    async def _give_up(self, scope: anyio.CancelScope) -> None:
        """Does not wait for ever for a gateway that does not come back."""
        since = anyio.current_time()
        while anyio.current_time() - since < GONE_SECONDS:
            await anyio.sleep(min(LOOK_SECONDS, GONE_SECONDS))
            if self.client.connected:
                since = anyio.current_time()
        self.gone = True
        scope.cancel()

    async def _abort_when_stopped(self) -> None:
        """Ctrl-C stops the run, which is written down; a second one stops the command."""
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for _ in signals:
                break
        try:
            run_id: JsonObject = {"runId": self.begun.run_id}
            await self.client.call("sessions.abort", run_id, timeout=ABORT_SECONDS)
        except ClawmodeError as error:
            print_stderr(f"the run may go on: {error}")


async def _put_questions(desk: RemoteDesk, scope: anyio.CancelScope) -> None:
    await desk.serve()
    scope.cancel()


# ---- From the wire ----


def read_event(data: dict[str, Any]) -> AgentEvent | None:
    """An event of a run as the gateway tells it; None if it is of no kind that is known."""
    stream = next((it for it in STREAMS if it == data.get("stream")), None)
    content = data.get("data")
    if stream is None or not isinstance(content, dict):
        return None
    return AgentEvent(
        run_id=str(data.get("runId")),
        seq=int(data.get("seq", 0)),
        stream=stream,
        data=content,
        session_key=str(data.get("sessionKey", "")),
        at=data.get("ts", 0) / 1000,
    )


def read_result(begun: Left, ended: TurnResult) -> RunResult:
    """What came of a run, as the gateway tells it."""
    data: dict[str, Any] = ended.data
    return RunResult(
        run_id=begun.run_id,
        session_key=str(data.get("sessionKey") or begun.session_key),
        session_id=str(data.get("sessionId") or begun.session_id),
        status=next((it for it in STATUSES if it == ended.status), "error"),
        payloads=tuple(data.get("payloads") or ()),
        usage=data.get("usage") or {},
        metadata=data.get("metadata") or {},
        error=ended.error or None,
        problem=data.get("problem"),
        started_at=(data.get("startedAt") or 0) / 1000,
        ended_at=(data.get("endedAt") or 0) / 1000,
    )
