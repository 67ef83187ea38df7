"""The identity that the cells, snapshots and calls of a run are bound to."""

from dataclasses import field
from typing import NamedTuple
from uuid import uuid4

from clawmode.types import dataclass


class Scope(NamedTuple):
    """The owner of a cell or snapshot. Access requires that all four fields are equal."""

    agent_id: str
    session_id: str
    session_key: str
    run_id: str


class RandomId(str):
    """A generated run id. The type marks that no other process can know the id."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """One run of one agent in one session.

    Only the same run, session and agent can wait for a cell that the run parked. Without a given
    `run_id` the id is random, so nobody can wait for the run's cells after this process has ended.
    """

    agent_id: str = "main"
    session_id: str = ""
    session_key: str = ""
    run_id: str = field(default_factory=lambda: RandomId(uuid4().hex))
    sender: str = ""
    channel: str = ""

    @property
    def scope(self) -> Scope:
        return Scope(self.agent_id, self.session_id, self.session_key, self.run_id)
