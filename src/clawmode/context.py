"""Who asks: the identity that a run's cells, snapshots and calls are bound to."""

from dataclasses import dataclass, field
from uuid import uuid4


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """One run of one agent in one session.

    What a run parks, only the same run, session and agent can wait for.
    """

    agent_id: str = "main"
    session_id: str = ""
    session_key: str = ""
    run_id: str = field(default_factory=lambda: uuid4().hex)
    sender: str = ""
    channel: str = ""
