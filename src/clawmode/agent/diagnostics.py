"""Sessions that take long: whether each one is slow, stalled or stuck, and what is done about it.

    session.long_running   work is in progress and reports activity
    session.stalled        work is in progress without any activity
    session.stuck          no work is in progress, although the bookkeeping says so

`SessionWatchdog` is plain state with an injected clock. `SessionMonitor` feeds it with the events
of a runtime and checks it at regular intervals. A stalled run is aborted after
`diagnostics.stuckSessionAbortMs`; a stuck session is released as soon as nothing runs in it.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import field
from typing import TYPE_CHECKING, Literal, TypeAlias

import anyio

from clawmode.agent.events import AgentEvent
from clawmode.config.operations import Diagnostics
from clawmode.types import JsonObject, dataclass

if TYPE_CHECKING:
    from clawmode.agent.runtime import AgentRuntime

logger = logging.getLogger("clawmode.diagnostics")

Work: TypeAlias = Literal["run", "model", "tool"]
Kind: TypeAlias = Literal["session.long_running", "session.stalled", "session.stuck"]
Outcome: TypeAlias = Literal["aborted", "released", "changed", "refused", "failed"]
Report: TypeAlias = Callable[[JsonObject], None]

MAX_BACK_OFF = 32
"""The largest factor by which the pause between two reports of an unchanged session grows."""

CHECKS_PER_WARNING = 4
"""Checks in the time after which silence is reported, so that a report is not much too late."""

MAX_PAUSE = 30.0
GIVEN_UP = "The run was aborted: it made no progress for too long."


@dataclass(slots=True)
class Activity:
    """Work of a session in progress.

    Attributes:
        owned: False if the run that started the work is gone, so that no one will end it.
    """

    work: Work
    since: float
    owned: bool = True


@dataclass(frozen=True, slots=True)
class LastReport:
    """The last report about a session, and when the next one is due while nothing changes."""

    kind: Kind
    act: bool
    generation: int
    progress: float
    again: float
    factor: int = 1


@dataclass(slots=True)
class MonitoredSession:
    """The watchdog's view of a session.

    Attributes:
        processing: The time at which processing started; None while the session is idle.
        generation: How many times the session started to process.
        queued: The number of runs that wait for the session.
        progress: The time of the last sign of activity.
    """

    key: str
    processing: float | None = None
    generation: int = 0
    queued: int = 0
    progress: float = 0.0
    activities: dict[str, Activity] = field(default_factory=dict[str, Activity])
    last_report: LastReport | None = None

    @property
    def idle(self) -> bool:
        return self.processing is None


@dataclass(frozen=True, slots=True)
class Finding:
    """What is reported about a session.

    Attributes:
        silent: Seconds without activity.
        act: Whether the session needs recovery.
    """

    kind: Kind
    key: str
    generation: int
    silent: float
    work: str
    act: bool = False

    def to_json(self) -> JsonObject:
        """Returns the event that is logged and sent to gateway clients."""
        return {
            "type": self.kind,
            "sessionKey": self.key,
            "silentMs": round(self.silent * 1000),
            "work": self.work,
        }


class SessionWatchdog:
    """Decides which sessions are slow, stalled or stuck, and recovers them.

    Args:
        warn_seconds: Silence after which a session is reported.
        abort_seconds: Silence after which a run is aborted.
        clock: Returns the time in seconds.
        report: Receives each finding, and the result of each recovery.
        abort: Aborts the run of a session; returns False if nothing runs.
        gate: Returns whether a stuck session may be released.
    """

    def __init__(
        self,
        *,
        warn_seconds: float,
        abort_seconds: float,
        clock: Callable[[], float],
        report: Report,
        abort: Callable[[str], bool],
        gate: Callable[[str], bool] = lambda key: True,
    ) -> None:
        self.warn_seconds = warn_seconds
        self.abort_seconds = abort_seconds
        self._clock = clock
        self._report = report
        self._abort = abort
        self._gate = gate
        self._sessions: dict[str, MonitoredSession] = {}

    # ---- Activity ----

    def begin(self, key: str) -> int:
        """Notes that a session starts to process; returns its generation, for `end`."""
        session = self._session(key)
        session.generation += 1
        session.processing = session.progress = self._clock()
        return session.generation

    def end(self, key: str, generation: int) -> None:
        """Notes that a session is idle, unless a later generation has started since."""
        session = self._session(key)
        if session.generation == generation:
            session.processing = None
            self._forget_idle(session)

    def queue(self, key: str, change: int) -> None:
        """Adds `change`, which may be negative, to the number of runs that wait for a session."""
        session = self._session(key)
        session.queued += change
        self._forget_idle(session)

    def start_work(self, key: str, name: str, work: Work) -> None:
        """Notes that a model request or a tool call of a session has started."""
        session = self._session(key)
        session.activities[name] = Activity(work, self._clock())
        session.progress = self._clock()

    def end_work(self, key: str, name: str) -> None:
        """Notes that the work `name` of a session has ended."""
        session = self._session(key)
        session.activities.pop(name, None)
        session.progress = self._clock()
        self._forget_idle(session)

    def disown(self, key: str, name: str) -> None:
        """Notes that the run which started the work is gone, and has not ended the work."""
        session = self._sessions.get(key)
        activity = None if session is None else session.activities.get(name)
        if activity is not None:
            activity.owned = False

    def progress(self, key: str) -> None:
        """Notes a sign of activity: a reply, a chunk, a tool's progress update."""
        if (session := self._sessions.get(key)) is not None:
            session.progress = self._clock()

    def sessions(self) -> list[MonitoredSession]:
        """Returns the sessions that are not idle, or have something queued."""
        return list(self._sessions.values())

    def _session(self, key: str) -> MonitoredSession:
        return self._sessions.setdefault(key, MonitoredSession(key))

    def _forget_idle(self, session: MonitoredSession) -> None:
        if session.idle and not session.queued and not session.activities:
            self._sessions.pop(session.key, None)

    # ---- Findings ----

    def look(self) -> list[Finding]:
        """Checks every session: reports what is due, and recovers what needs recovery."""
        now = self._clock()
        found: list[Finding] = []
        for session in list(self._sessions.values()):
            finding = self.classify(session, now)
            if finding is None:
                session.last_report = None
            elif self._is_due(session, finding, now):
                found.append(finding)
                self._report(finding.to_json())
                if finding.act:
                    self._recover(session, finding)
        return found

    def classify(self, session: MonitoredSession, now: float) -> Finding | None:
        """Returns the state of a session, or None if there is nothing to report."""
        silent = now - session.progress
        owned = [it for it in session.activities.values() if it.owned]
        stale = [it for it in session.activities.values() if not it.owned]

        def finding(kind: Kind, work: str, *, act: bool = False) -> Finding:
            return Finding(kind, session.key, session.generation, silent, work, act)

        if session.processing is None:
            if session.queued and stale and silent >= self.warn_seconds:
                return finding("session.stuck", stale[0].work, act=True)
            return None
        if now - session.processing < self.warn_seconds:
            return None
        if not owned:
            if silent < self.warn_seconds:
                return None
            return finding("session.stuck", stale[0].work if stale else "nothing", act=True)
        works = {it.work for it in owned}
        work = "model" if "model" in works else "tool" if "tool" in works else "run"
        if silent < self.warn_seconds:
            return finding("session.long_running", work)
        # A model that is slow or does not stream is silent, although nothing is wrong with it.
        if work == "model" and silent < self.abort_seconds:
            return finding("session.long_running", work)
        return finding("session.stalled", work, act=silent >= self.abort_seconds)

    def _is_due(self, session: MonitoredSession, finding: Finding, now: float) -> bool:
        """True if the finding is new, or its last report is long enough ago."""
        last = session.last_report
        same = (
            last is not None
            and (last.kind, last.act) == (finding.kind, finding.act)
            and last.generation == session.generation
            and (last.progress == session.progress or finding.kind == "session.long_running")
        )
        if last is not None and same and now < last.again:
            return False
        factor = min(last.factor * 2, MAX_BACK_OFF) if last is not None and same else 1
        again = now + self.warn_seconds * factor
        session.last_report = LastReport(
            finding.kind, finding.act, session.generation, session.progress, again, factor
        )
        return True

    # ---- Recovery ----

    def _recover(self, session: MonitoredSession, finding: Finding) -> None:
        about: JsonObject = {"sessionKey": session.key, "reason": finding.kind}
        self._report({"type": "session.recovery.requested", **about})
        outcome = self._abort_or_release(session, finding)
        self._report({"type": "session.recovery.completed", **about, "outcome": outcome})

    def _abort_or_release(self, session: MonitoredSession, finding: Finding) -> Outcome:
        if session.generation != finding.generation:
            return "changed"
        if finding.kind == "session.stalled":
            # The aborted run ends its own work; until then the session is not idle.
            return "aborted" if self._abort(session.key) else "refused"
        if any(it.owned for it in session.activities.values()) or not self._gate(session.key):
            return "refused"
        session.activities.clear()
        session.processing = None
        self._forget_idle(session)
        return "released"


class SessionMonitor:
    """Watches the sessions of a runtime: feeds a `SessionWatchdog` with the events of runs.

    Args:
        runtime: The runtime whose sessions are watched.
        settings: The `diagnostics` section of the configuration.
        report: Receives each finding and recovery, which are logged too.
        clock: Returns the time in seconds.
    """

    def __init__(
        self,
        runtime: "AgentRuntime",
        settings: Diagnostics,
        report: Report = lambda event: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runtime = runtime
        self._on_report = report
        self._generations: dict[str, int] = {}
        self._calls: dict[str, set[str]] = {}
        self._keys: dict[str, str] = {}
        self.watchdog = SessionWatchdog(
            warn_seconds=0.0,
            abort_seconds=0.0,
            clock=clock,
            report=self._report,
            abort=lambda key: runtime.abort_running(key, GIVEN_UP),
            gate=lambda key: not runtime.is_running(key),
        )
        self.change(settings)

    def change(self, settings: Diagnostics) -> None:
        """Applies other limits from now on."""
        warn_seconds = settings.stuck_session_warn_ms / 1000
        self._pause = min(warn_seconds / CHECKS_PER_WARNING, MAX_PAUSE)
        self.watchdog.warn_seconds = warn_seconds
        self.watchdog.abort_seconds = settings.abort_ms() / 1000

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
        approvals = self._runtime.approvals
        # A run that waits for a person's answer is not stalled.
        for question in (*approvals.pending(), *approvals.pending_inputs()):
            if question.run.session_key:
                self.watchdog.progress(question.run.session_key)
        for session in self.watchdog.sessions():
            runs = self._runtime.under_way(session.key)
            waiting = sum(run.state == "queued" for run in runs)
            self.watchdog.queue(session.key, waiting - session.queued)
        # Without its end event, the work of a run that is gone would be counted for ever.
        for run_id, names in self._calls.items():
            run = self._runtime.find(run_id)
            if run is None or run.ended.is_set():
                for name in (*names, f"{run_id}:model"):
                    self.watchdog.disown(self._keys[run_id], name)
        self.watchdog.look()

    def take(self, event: AgentEvent) -> None:
        """Receives an event of a run: a listener for `AgentRuntime.subscribe`."""
        key, data, model = event.session_key, event.data, f"{event.run_id}:model"
        phase = data.get("phase")
        if event.stream == "lifecycle" and phase == "start":
            self._generations[event.run_id] = self.watchdog.begin(key)
            self._calls[event.run_id] = set()
            self._keys[event.run_id] = key
            self.watchdog.start_work(key, model, "model")
        elif event.stream == "lifecycle" and event.run_id in self._keys:
            for name in (*self._calls.pop(event.run_id), model):
                self.watchdog.end_work(key, name)
            del self._keys[event.run_id]
            self.watchdog.end(key, self._generations.pop(event.run_id))
        elif event.stream == "lifecycle":
            pass  # the run was aborted while it was queued
        elif event.stream == "tool" and data.get("parentId") is None and phase != "update":
            self._take_call(event, model, begins=phase == "start")
        else:
            self.watchdog.progress(key)

    def _take_call(self, event: AgentEvent, model: str, *, begins: bool) -> None:
        """Receives the start or end of a call. While calls run, the model is not asked."""
        calls = self._calls.get(event.run_id)
        if calls is None:
            return
        key, name = event.session_key, f"{event.run_id}:{event.data['callId']}"
        if begins:
            self.watchdog.end_work(key, model)
            self.watchdog.start_work(key, name, "tool")
            calls.add(name)
            return
        self.watchdog.end_work(key, name)
        calls.discard(name)
        if not calls:
            self.watchdog.start_work(key, model, "model")

    def _report(self, event: JsonObject) -> None:
        about = ", ".join(f"{name} {value}" for name, value in event.items() if name != "type")
        level = logging.INFO if event["type"] == "session.long_running" else logging.WARNING
        logger.log(level, "%s: %s", event["type"], about)
        self._on_report(event)
