"""Sessions that take long: which are slow, which are stalled, which are stuck, and what is done.

    session.long_running   something is at work, and it shows
    session.stalled        something is at work, and nothing has come of it for too long
    session.stuck          nothing is at work: only the bookkeeping says so

Plain state and a clock that is handed in. What is found is told; a stalled run is aborted when it
has been silent for long enough, and a stuck session is released as soon as the gates allow.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from clawmode.types import JsonObject

Work: TypeAlias = Literal["run", "model", "tool"]
Kind: TypeAlias = Literal["session.long_running", "session.stalled", "session.stuck"]
Outcome: TypeAlias = Literal["aborted", "released", "changed", "refused", "failed"]

MAX_BACK_OFF = 32
"""Up to how many times as long a stuck session is left alone, while nothing changes."""


@dataclass(slots=True)
class Activity:
    """Work of a session that somebody began.

    Attributes:
        owned: Whether the one who began it is still there to end it.
    """

    work: Work
    since: float
    owned: bool = True


@dataclass(slots=True)
class MonitoredSession:
    """A session, as far as it is watched.

    Attributes:
        processing: Since when; None while it is idle.
        generation: Counts the times that it began to process.
        queued: How many wait for it.
        progress: When anything was last seen to come of it.
    """

    key: str
    processing: float | None = None
    generation: int = 0
    queued: int = 0
    progress: float = 0.0
    activities: dict[str, Activity] = field(default_factory=dict[str, Activity])
    told: "LastReport | None" = None

    @property
    def idle(self) -> bool:
        """Whether it says that it does nothing."""
        return self.processing is None


@dataclass(frozen=True, slots=True)
class LastReport:
    """What was last said about a session, and when to say it again."""

    kind: Kind
    act: bool
    generation: int
    progress: float
    again: float
    factor: int = 1


@dataclass(frozen=True, slots=True)
class Finding:
    """What is said about a session.

    Attributes:
        silent: Seconds without progress.
        act: Whether something is to be done about it.
    """

    kind: Kind
    key: str
    generation: int
    silent: float
    work: str
    act: bool = False

    def to_json(self) -> JsonObject:
        """As an event."""
        return {
            "type": self.kind,
            "sessionKey": self.key,
            "silentMs": round(self.silent * 1000),
            "work": self.work,
        }


Report: TypeAlias = Callable[[JsonObject], None]
Abort: TypeAlias = Callable[[str], bool]
"""Aborts what runs in a session; False if nothing does."""


class SessionWatchdog:
    """Watches sessions.

    Args:
        warn_seconds: Silence after which a session is worth a line.
        abort_seconds: Silence after which a run is aborted.
        clock: The time, in seconds.
        report: Told what is found, and what became of it.
        abort: Aborts the run of a session.
        gate: Whether a session that is stuck may be released.
    """

    def __init__(
        self,
        *,
        warn_seconds: float,
        abort_seconds: float,
        clock: Callable[[], float],
        report: Report,
        abort: Abort,
        gate: Callable[[str], bool] = lambda key: True,
    ) -> None:
        self.warn_seconds = warn_seconds
        self.abort_seconds = abort_seconds
        self._clock = clock
        self._report = report
        self._abort = abort
        self._gate = gate
        self._sessions: dict[str, MonitoredSession] = {}

    # ---- What is seen ----

    def begin(self, key: str) -> int:
        """A session begins to process; its generation."""
        session = self._session(key)
        session.generation += 1
        session.processing = session.progress = self._clock()
        return session.generation

    def end(self, key: str, generation: int) -> None:
        """It has ended, unless another has begun since."""
        session = self._session(key)
        if session.generation == generation:
            session.processing = None
            self._forget_idle(session)

    def queue(self, key: str, change: int) -> None:
        """More, or fewer, wait for it."""
        session = self._session(key)
        session.queued += change
        self._forget_idle(session)

    def start_work(self, key: str, name: str, work: Work) -> None:
        """Something is at work for it."""
        session = self._session(key)
        session.activities[name] = Activity(work, self._clock())
        session.progress = self._clock()

    def end_work(self, key: str, name: str) -> None:
        """That has ended."""
        session = self._session(key)
        session.activities.pop(name, None)
        session.progress = self._clock()
        self._forget_idle(session)

    def disown(self, key: str, name: str) -> None:
        """Whoever began it is gone, and has not ended it."""
        session = self._sessions.get(key)
        activity = None if session is None else session.activities.get(name)
        if activity is not None:
            activity.owned = False

    def progress(self, key: str) -> None:
        """Something has come of it: a reply, a chunk, a tool's report."""
        if (session := self._sessions.get(key)) is not None:
            session.progress = self._clock()

    def sessions(self) -> list[MonitoredSession]:
        """All that are watched."""
        return list(self._sessions.values())

    def _session(self, key: str) -> MonitoredSession:
        return self._sessions.setdefault(key, MonitoredSession(key))

    def _forget_idle(self, session: MonitoredSession) -> None:
        if session.idle and not session.queued and not session.activities:
            self._sessions.pop(session.key, None)

    # ---- What is found ----

    def look(self) -> list[Finding]:
        """Looks at every session, tells what is to be told, and does what is to be done."""
        now = self._clock()
        found: list[Finding] = []
        for session in list(self._sessions.values()):
            finding = self.classify(session, now)
            if finding is None:
                session.told = None
            elif self._is_due(session, finding, now):
                found.append(finding)
                self._report(finding.to_json())
                if finding.act:
                    self._recover(session, finding)
        return found

    def classify(self, session: MonitoredSession, now: float) -> Finding | None:
        """What a session is, if that is worth a line."""
        silent = now - session.progress
        owned = [it for it in session.activities.values() if it.owned]
        stale = [it for it in session.activities.values() if not it.owned]
        if session.idle:
            if session.queued and stale and silent >= self.warn_seconds:
                return self._finding("session.stuck", session, silent, stale[0].work, act=True)
            return None
        assert session.processing is not None
        if now - session.processing < self.warn_seconds:
            return None
        if not owned:
            if silent < self.warn_seconds:
                return None
            work = stale[0].work if stale else "nothing"
            return self._finding("session.stuck", session, silent, work, act=True)
        works = {it.work for it in owned}
        work = "model" if "model" in works else "tool" if "tool" in works else "run"
        if silent < self.warn_seconds:
            return self._finding("session.long_running", session, silent, work)
        # A model that is slow, or does not stream, is silent and well.
        if work == "model" and silent < self.abort_seconds:
            return self._finding("session.long_running", session, silent, work)
        act = silent >= self.abort_seconds
        return self._finding("session.stalled", session, silent, work, act=act)

    @staticmethod
    def _finding(
        kind: Kind, session: MonitoredSession, silent: float, work: str, *, act: bool = False
    ) -> Finding:
        return Finding(kind, session.key, session.generation, silent, work, act)

    def _is_due(self, session: MonitoredSession, finding: Finding, now: float) -> bool:
        """Whether to say it: at once if it is news, else less and less often."""
        told = session.told
        same = (
            told is not None
            and (told.kind, told.act) == (finding.kind, finding.act)
            and told.generation == session.generation
            and (told.progress == session.progress or finding.kind == "session.long_running")
        )
        if told is not None and same and now < told.again:
            return False
        factor = min(told.factor * 2, MAX_BACK_OFF) if told is not None and same else 1
        again = now + self.warn_seconds * factor
        session.told = LastReport(
            finding.kind, finding.act, session.generation, session.progress, again, factor
        )
        return True

    # ---- What is done ----

    def _recover(self, session: MonitoredSession, finding: Finding) -> None:
        about: JsonObject = {"sessionKey": session.key, "reason": finding.kind}
        self._report({"type": "session.recovery.requested", **about})
        outcome = self._try(session, finding)
        self._report({"type": "session.recovery.completed", **about, "outcome": outcome})

    def _try(self, session: MonitoredSession, finding: Finding) -> Outcome:
        if session.generation != finding.generation:
            return "changed"
        if finding.kind == "session.stalled":
            # Its owner drains it and ends it; until then it is not idle.
            return "aborted" if self._abort(session.key) else "refused"
        if any(it.owned for it in session.activities.values()) or not self._gate(session.key):
            return "refused"
        session.activities.clear()
        session.processing = None
        self._forget_idle(session)
        return "released"
