"""`clawmode agent` with a gateway: a turn that the gateway runs, shown like a local one."""

import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, get_args

import anyio
from anyio.abc import TaskGroup

from clawmode.agent.events import AgentEvent
from clawmode.agent.requests import AgentRequest, RunResult, Status
from clawmode.app.console import print_note, print_stderr
from clawmode.app.setup import Options, option_of, state_folder
from clawmode.config import file as config_file
from clawmode.config import resolve as settings
from clawmode.exceptions import ClawmodeError, ConfigurationError
from clawmode.rpc.client import GAP, Events, GatewayClient, GatewayUnreachable, RpcError, TurnResult
from clawmode.rpc.presence import RunningGateway
from clawmode.tasks import background_tasks
from clawmode.terminal.agent_view import AgentView
from clawmode.terminal.desk import GATEWAY_STOPS
from clawmode.terminal.interrupts import interruptible
from clawmode.terminal.remote_questions import RemoteQuestions
from clawmode.terminal.turn import WaitingRun
from clawmode.tools.approvals import Approvals, Mode
from clawmode.types import JsonObject

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
    if options.approve == "ask" and gateway.config:
        its = settings.read(config_file.load(gateway.config).data).section
        if settings.approval_warning(its):
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


@contextmanager
def rejections() -> Iterator[None]:
    """Turns the error of a request that the gateway rejects into a `ConfigurationError`."""
    try:
        yield
    except RpcError as error:
        if error.code in ("INVALID_REQUEST", "NOT_FOUND"):
            raise ConfigurationError(str(error)) from None
        raise


class RemoteTurn:
    """A turn that the gateway runs.

    Args:
        options: The options of the command.
        gateway: The gateway.

    Raises:
        ConfigurationError: The gateway does not accept an option.
    """

    until = GATEWAY_STOPS
    client_id = "clawmode-agent"
    _view: AgentView
    _client: GatewayClient
    _events: Events
    _approvals: Approvals
    _questions: RemoteQuestions
    _run: WaitingRun
    _stopped = False

    def __init__(self, options: Options, gateway: RunningGateway) -> None:
        check_options(options, gateway)
        self._state = state_folder(options.state)
        self._end_shown = anyio.Event()

    def prepare(self, request: AgentRequest, view: AgentView) -> Mode:
        self._view = view
        return "ask"  # the gateway asks only if its configuration says so

    @asynccontextmanager
    async def open(self, approvals: Approvals) -> AsyncIterator[None]:
        self._approvals = approvals
        self._client = GatewayClient.local(self._state, client_id=self.client_id, mode="cli")
        async with self._client:
            with self._client.events() as self._events:
                yield

    # ---- The start ----

    async def start(self, request: AgentRequest) -> WaitingRun | None:
        key = uuid.uuid4().hex
        try:
            async with interruptible():
                try:
                    self._run = await self._begin(request, key)
                except anyio.get_cancelled_exc_class():
                    with anyio.move_on_after(ABORT_SECONDS, shield=True), suppress(ClawmodeError):
                        if not request.resume:
                            # The same idempotency key returns the same run, if it has begun.
                            run = await self._begin(request, key)
                            await self._client.call("sessions.abort", {"runId": run.run_id})
                    raise
        except KeyboardInterrupt:  # the outer `interruptible` would wrap it in an ExceptionGroup
            self._stopped = True
            return None
        self._questions = RemoteQuestions(self._client, self._approvals, runId=self._run.run_id)
        return self._run

    async def _begin(self, request: AgentRequest, key: str) -> WaitingRun:
        """Begins a run, or finds the run to resume.

        Raises:
            ConfigurationError: The request is invalid.
        """
        session: JsonObject = {
            "sessionKey": request.session_key,
            "sessionId": request.session_id,
            "agentId": request.agent_id,
        }
        session = {name: value for name, value in session.items() if value}
        found: dict[str, Any] = {"runId": request.run_id}
        with rejections():
            if request.resume:
                await self._check_run(request.run_id)
            else:
                seconds = request.timeout_seconds
                optional: JsonObject = {
                    "model": request.model,
                    "thinking": request.thinking,
                    "timeoutMs": None if seconds is None else max(int(seconds * 1000), 1),
                    "channel": request.channel,
                }
                given = session | {name: value for name, value in optional.items() if value}
                given |= {"message": request.message, "idempotencyKey": key}
                found |= await self._client.call("agent", given)
            if "sessionKey" not in found:  # resumed, or the gateway has restarted since
                answer: dict[str, Any] = await self._client.call("sessions.get", session)
                known = answer["session"]
                found |= {"sessionKey": known["key"], "sessionId": known["sessionId"]}
            await self._client.follow(found["sessionKey"])
        return WaitingRun(
            request=request,
            run_id=found["runId"],
            session_key=found["sessionKey"],
            session_id=found["sessionId"],
        )

    async def _check_run(self, run_id: str) -> None:
        try:
            # With a timeout of 0, this only checks that the gateway has the run.
            await self._client.call("agent.wait", {"runId": run_id, "timeoutMs": 0})
        except RpcError as error:
            if error.code != "NOT_FOUND":
                raise
            raise ConfigurationError(
                f"the gateway has no run {run_id[:80]}: add --local to resume a run of another "
                "process"
            ) from None

    # ---- The run ----

    async def result(self) -> RunResult | None:
        if self._stopped:
            return None
        ended: TurnResult | None = None
        async with background_tasks() as tasks:
            tasks.start_soon(self._follow, tasks)
            tasks.start_soon(self._give_up, tasks.cancel_scope)
            ended = await self._client.wait(self._run.run_id)
            with anyio.move_on_after(LAST_SECONDS) as late:
                await self._end_shown.wait()
            if late.cancelled_caught:
                self._view.mark_lost()
        if ended is None:
            raise GatewayUnreachable(
                f"the gateway is gone; it resumes the run {self._run.run_id} when it is back"
            )
        return read_result(self._run, ended)

    async def _follow(self, tasks: TaskGroup) -> None:
        """Shows the events of the run, and gets answers to its questions."""
        await self._ask_pending(tasks)
        try:
            async for event in self._events:
                if event.name == GAP:
                    self._view.mark_lost(LOST)
                    await self._ask_pending(tasks)
                elif event.name == "agent":
                    shown = AgentEvent.read(event.payload)
                    if shown is not None and shown.run_id == self._run.run_id:
                        self._view.add(shown)
                        phase = shown.data.get("phase")
                        if shown.stream == "lifecycle" and phase in ("end", "error"):
                            self._end_shown.set()
                else:
                    self._questions.take(event, tasks)
        except ClawmodeError as error:
            self._view.mark_lost(f"({error})")

    async def _ask_pending(self, tasks: TaskGroup) -> None:
        """Asks the questions that the gateway sent while this client was not connected."""
        try:
            await self._questions.refresh(tasks)
        except ClawmodeError as error:
            print_stderr(f"cannot fetch the open questions of the run: {error}")

    async def _give_up(self, scope: anyio.CancelScope) -> None:
        """Cancels the scope when the gateway has been unreachable for too long."""
        since = anyio.current_time()
        while anyio.current_time() - since < GONE_SECONDS:
            await anyio.sleep(min(POLL_SECONDS, GONE_SECONDS))
            if self._client.connected:
                since = anyio.current_time()
        scope.cancel()

    async def stop(self) -> int:
        try:
            run_id: JsonObject = {"runId": self._run.run_id}
            await self._client.call("sessions.abort", run_id, timeout=ABORT_SECONDS)
        except ClawmodeError as error:
            print_stderr(f"the run could not be stopped and may continue: {error}")
        return 1

    async def leave(self, say: Callable[[str], None]) -> bool:
        """The gateway continues the run, and keeps its questions open."""
        return True


def read_result(run: WaitingRun, ended: TurnResult) -> RunResult:
    """Parses the result of a run.

    By hand: a result always ends the turn, so every member that is missing gets a default.
    """
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
