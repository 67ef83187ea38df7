"""Messages from people to a run in progress: kept until the model is asked again."""

from collections.abc import Callable
from dataclasses import dataclass, field

from clawmode.messages import UserMessage
from clawmode.tasks import Notifier


@dataclass(frozen=True, slots=True)
class IncomingMessage:
    """A message to a run in progress.

    Attributes:
        id: The id by which the message can be withdrawn before it is read.
    """

    id: str
    message: UserMessage


@dataclass(slots=True)
class Intake:
    """The messages that wait for one run.

    A closed intake accepts no message: the sender has to start another run.

    Attributes:
        on_read: Called with the ids of messages that were read.
    """

    on_read: Callable[[list[str]], None] = lambda ids: None
    _waiting: list[IncomingMessage] = field(default_factory=list[IncomingMessage])
    _closed: bool = True
    _arrived: Notifier = field(default_factory=Notifier)

    def open(self) -> None:
        """Accepts messages from now on."""
        self._closed = False

    @property
    def is_open(self) -> bool:
        return not self._closed

    def add(self, message: IncomingMessage) -> bool:
        """Adds a message; returns False if the intake is closed."""
        if not self._closed:
            self._waiting.append(message)
            self._arrived.notify()
        return not self._closed

    async def arrival(self) -> None:
        """Waits until there is a message to read."""
        while not self._waiting:
            await self._arrived.wait()

    def withdraw(self, message_id: str) -> bool:
        """Removes a message; returns False if it was read already, or is unknown."""
        before = len(self._waiting)
        self._waiting = [message for message in self._waiting if message.id != message_id]
        return len(self._waiting) < before

    def waits(self) -> bool:
        """True if there is a message to read."""
        return bool(self._waiting)

    def read(self) -> list[UserMessage]:
        """Removes and returns the messages since the last call."""
        messages = self._take_all()
        if messages:
            self.on_read([message.id for message in messages])
        return [message.message for message in messages]

    def finish(self) -> bool:
        """Closes the intake unless there is a message to read; returns whether it is closed."""
        self._closed = self._closed or not self._waiting
        return not self._waiting

    def close(self) -> list[IncomingMessage]:
        """Closes the intake; returns the messages that were not read."""
        self._closed = True
        return self._take_all()

    def _take_all(self) -> list[IncomingMessage]:
        messages = self._waiting.copy()
        self._waiting.clear()
        return messages
