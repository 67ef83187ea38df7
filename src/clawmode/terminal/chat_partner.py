"""The seam between a chat and the agent that it talks with: in this process, or in a gateway."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from clawmode.agent.events import Listener
from clawmode.messaging.inbox import How


@dataclass(frozen=True, slots=True)
class Receipt:
    """What happened to a line that was sent.

    Attributes:
        how: Whether it started a run, waits, or was a command, for example.
        text: The answer, if the partner does not send it by itself.
    """

    how: How
    text: str = ""


class Partner(Protocol):
    """The agent that a chat talks with.

    The methods may raise `ClawmodeError`: the chat shows the error, or ends if `serve` raised it.
    """

    @property
    def trouble(self) -> str:
        """Why the agent cannot be reached now; empty if it can."""
        ...

    @property
    def waiting(self) -> int:
        """The number of messages that wait."""
        ...

    def subscribe(
        self, watch: Listener, tell: Callable[[str], None], changed: Callable[[], None]
    ) -> Callable[[], None]:
        """Starts to report what happens; returns a function that stops the reports.

        Args:
            watch: Receives the events of runs.
            tell: Receives messages that are not part of a run's reply.
            changed: Called when `trouble` or `waiting` has changed.
        """
        ...

    async def serve(self) -> None:
        """Runs as long as the chat, and is cancelled at its end."""
        ...

    async def model(self) -> str:
        """Returns the model that answers, as `provider/name`."""
        ...

    async def send(self, text: str) -> Receipt:
        """Sends a message or a command."""
        ...

    async def stop(self) -> int:
        """Stops the runs, and drops waiting messages; returns the number of runs."""
        ...

    async def leave(self, say: Callable[[str], None]) -> None:
        """Ends the conversation, and tells the user what happens to active runs."""
        ...
