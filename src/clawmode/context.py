"""Who asks: the identity that a run's cells, snapshots and calls are bound to."""

from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import uuid4


class Scope(NamedTuple):
    """Whose something is: all four must agree."""

    agent_id: str
    session_id: str
    session_key: str
    run_id: str


class RandomId(str):
    """The id of a run that got none: no other process can know it."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """One run of one agent in one session.

    What a run parks, only the same run, session and agent can wait for. A `run_id` that is not
    given is random, so nobody can wait for the run's programs after this process has ended.
    """

    agent_id: str = "main"
    session_id: str = ""
    session_key: str = ""
    run_id: str = field(default_factory=lambda: RandomId(uuid4().hex))
    sender: str = ""
    channel: str = ""

    @property
    def scope(self) -> Scope:
        """What of it decides whose a cell is."""
        return Scope(self.agent_id, self.session_id, self.session_key, self.run_id)
