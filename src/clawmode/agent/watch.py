"""Watches the sessions of a runtime: what its runs emit goes to the monitor, on a clock."""

import logging
import time
from collections.abc import Callable

import anyio

from clawmode.agent.diagnostics import Report, SessionWatchdog
from clawmode.agent.events import AgentEvent
from clawmode.agent.runtime import AgentRuntime
from clawmode.config.operations import Diagnostics
from clawmode.types import JsonObject

logger = logging.getLogger("clawmode.diagnostics")

LOOKS = 4
"""How often it looks in the time after which silence is worth a line."""

MAX_PAUSE = 30.0
GIVEN_UP = "The run was given up: nothing has come of it for too long."


class SessionMonitor:
    """Watches sessions.

    Args:
        runtime: Whose.
        settings: After which silence.
        report: Told what is found, and what became of it; it is logged too.
        clock: The time, in seconds.
    """

    def __init__(
        self,
        runtime: AgentRuntime,
        settings: Diagnostics,
        report: Report = lambda event: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runtime = runtime
        self._told = report
        self._pause = min(settings.stuck_session_warn_ms / 1000 / LOOKS, MAX_PAUSE)
        self._generations: dict[str, int] = {}
        self._calls: dict[str, set[str]] = {}
        self._keys: dict[str, str] = {}
        self.monitor = SessionWatchdog(
            warn_seconds=settings.stuck_session_warn_ms / 1000,
            abort_seconds=settings.abort_ms() / 1000,
            clock=clock,
            report=self._report,
            abort=lambda key: runtime.abort_running(key, GIVEN_UP),
            gate=lambda key: not runtime.is_running(key),
        )

    def change(self, settings: Diagnostics) -> None:
        """Other limits hold from now on."""
        self._pause = min(settings.stuck_session_warn_ms / 1000 / LOOKS, MAX_PAUSE)
        self.monitor.warn_seconds = settings.stuck_session_warn_ms / 1000
        self.monitor.abort_seconds = settings.abort_ms() / 1000

    async def serve(self) -> None:
        """Watches until it is cancelled."""
        unsubscribe = self._runtime.subscribe(self.take)
        try:
            while True:
                await anyio.sleep(self._pause)
                self.look()
        finally:
            unsubscribe()

    def look(self) -> None:
        """Looks once. Who waits for a person is not stuck."""
        approvals = self._runtime.approvals
        for question in (*approvals.pending(), *approvals.pending_inputs()):
            if question.run.session_key:
                self.monitor.progress(question.run.session_key)
        for session in self.monitor.sessions():
            runs = self._runtime.under_way(session.key)
            waiting = sum(run.state == "queued" for run in runs)
            self.monitor.queue(session.key, waiting - session.queued)
        self._disown_lost()
        self.monitor.look()

    def _disown_lost(self) -> None:
        """A run that is gone, and of whose end nobody told, has nobody who will end its work."""
        for run_id, names in self._calls.items():
            run = self._runtime.find(run_id)
            if run is None or run.ended.is_set():
                key = self._keys[run_id]
                for name in (*names, f"{run_id}:model"):
                    self.monitor.disown(key, name)

    def take(self, event: AgentEvent) -> None:
        """Takes in what happened: a listener for `AgentRuntime.subscribe`."""
        key, data = event.session_key, event.data
        phase = data.get("phase")
        if event.stream == "lifecycle" and phase == "start":
            self._generations[event.run_id] = self.monitor.begin(key)
            self._calls[event.run_id] = set()
            self._keys[event.run_id] = key
            self.monitor.start_work(key, _model(event), "model")
        elif event.stream == "lifecycle":
            self._end(event)
        elif event.stream == "tool" and data.get("parentId") is None and phase != "update":
            self._call(event, str(data["callId"]), begins=phase == "start")
        else:
            self.monitor.progress(key)

    def _call(self, event: AgentEvent, call_id: str, *, begins: bool) -> None:
        """A call of the model: as long as one runs, the model is not asked."""
        calls = self._calls.get(event.run_id)
        if calls is None:
            return
        key, name = event.session_key, f"{event.run_id}:{call_id}"
        if begins:
            self.monitor.end_work(key, _model(event))
            self.monitor.start_work(key, name, "tool")
            calls.add(name)
            return
        self.monitor.end_work(key, name)
        calls.discard(name)
        if not calls:
            self.monitor.start_work(key, _model(event), "model")

    def _end(self, event: AgentEvent) -> None:
        if event.run_id not in self._keys:
            return  # it was aborted while it waited
        key = event.session_key
        del self._keys[event.run_id]
        for name in self._calls.pop(event.run_id, set[str]()):
            self.monitor.end_work(key, name)
        self.monitor.end_work(key, _model(event))
        if (generation := self._generations.pop(event.run_id, None)) is not None:
            self.monitor.end(key, generation)

    def _report(self, event: JsonObject) -> None:
        about = ", ".join(f"{name} {value}" for name, value in event.items() if name != "type")
        level = logging.INFO if event["type"] == "session.long_running" else logging.WARNING
        logger.log(level, "%s: %s", event["type"], about)
        self._told(event)


def _model(event: AgentEvent) -> str:
    return f"{event.run_id}:model"
