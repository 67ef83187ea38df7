"""Records what a run does: in the transcript, in the trajectory, and as events for listeners."""

import contextlib
import threading
from collections.abc import Callable, Iterator

import anyio

from clawmode.agent.events import Stream, call_data
from clawmode.agent.hooks import AgentHooks
from clawmode.agent.run import AgentRun
from clawmode.agent.toolbox import fail
from clawmode.messages import AssistantMessage, Message, Text, ToolMessage
from clawmode.sessions.entries import TranscriptError
from clawmode.sessions.history import UNANSWERED
from clawmode.sessions.sanitize import bounded
from clawmode.sessions.trajectory import Trajectory
from clawmode.sessions.transcript import EntryTooLarge, NestedState
from clawmode.tools.executor import CallEvent
from clawmode.types import JsonObject

TOO_LARGE = "The result was too large for the transcript, and is not shown."

STATES: dict[str | None, NestedState] = {
    "completed": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
}


class Recorder:
    """The sink of one run's loop, and the watcher of its calls.

    Args:
        run: A run whose transcript is open, and has the start of the run.
        trajectory: An open trajectory.
        stop: Ends the run: it must not continue if its messages cannot be recorded.

    Attributes:
        failure: Why `stop` was called; None if it was not.
    """

    def __init__(self, run: AgentRun, trajectory: Trajectory, stop: Callable[[], None]) -> None:
        self._run = run
        self._trajectory = trajectory
        self._stop = stop
        self._persist = AgentHooks(run.shared.hooks).persist
        self._thread = threading.get_ident()
        self.failure: str | None = None

    # ---- The sink of the loop ----

    def emit(self, stream: Stream, data: JsonObject) -> None:
        self._run.emit(stream, data)
        if stream == "tool" and data["phase"] != "update":
            self.trace("tool.call", data)

    def trace(self, kind: str, data: JsonObject) -> None:
        self._trajectory.write(kind, data)

    def record(self, message: Message) -> None:
        if isinstance(message, AssistantMessage):
            completed: JsonObject = {
                "provider": message.provider,
                "model": message.model,
                "stop": message.stop,
                "usage": message.usage.to_json(),
                "text": message.text,
                "calls": [{"id": call.id, "name": call.name} for call in message.calls],
            }
            self.trace("model.completed", completed)
        elif isinstance(message, ToolMessage):
            message = self._persist(message)
        with self._stop_on_failure():
            try:
                self._run.transcript.message(self._run.id, message)
            except EntryTooLarge:
                if not isinstance(message, ToolMessage):
                    raise
                # Without any result the call would count as lost in a crash.
                note = (Text(TOO_LARGE),)
                small = ToolMessage(
                    call_id=message.call_id, name=message.name, content=note, is_error=True
                )
                self._run.transcript.message(self._run.id, small)

    async def secure(self) -> None:
        with self._stop_on_failure():
            await self._run.transcript.sync()

    def settle_lost_calls(self) -> None:
        """Records an error for each call whose result was lost when its process ended."""
        found = self._run.transcript.open_runs().get(self._run.id)
        for call in () if found is None else found.unanswered:
            self.record(fail(call, UNANSWERED))

    @contextlib.contextmanager
    def _stop_on_failure(self) -> Iterator[None]:
        try:
            yield
        except TranscriptError as error:
            self.failure = self.failure or str(error)
            self._stop()

    # ---- Calls ----

    def watch(self, event: CallEvent) -> None:
        """Receives an event of a call. A tool that is not async reports from its own thread."""
        if threading.get_ident() == self._thread:
            self._take(event)
        else:
            with contextlib.suppress(RuntimeError):  # the event loop was closed
                anyio.from_thread.run_sync(self._take, event)

    def _take(self, event: CallEvent) -> None:
        if event.parent_id is None and event.phase != "update":
            return  # the loop emits the events of its own calls
        data = call_data(event)
        if event.phase == "update":
            data["update"] = bounded(event.update)
        self.emit("tool", data)
        if event.parent_id is None or event.phase == "update":
            return
        with self._stop_on_failure():
            self._run.transcript.nested(
                self._run.id,
                parent_id=event.parent_id,
                call_id=event.call_id,
                tool_id=event.tool_id,
                state="started" if event.phase == "start" else STATES[event.state],
                seconds=event.seconds,
                code=event.code,
            )
