"""What people say to a run while it goes on: kept until the model is asked again."""

from collections.abc import Callable
from dataclasses import dataclass, field

from clawmode.messages import UserMessage
from clawmode.tasks import Notifier


@dataclass(frozen=True, slots=True)
class IncomingMessage:
    """One message.

    Attributes:
        id: By which it can be taken back, as long as it was not read.
    """

    id: str
    message: UserMessage


@dataclass(slots=True)
class Intake:
    """The messages that wait for one run. Closed, it takes no more: they are another run's.

    Attributes:
        on_read: Told which were read.
    """

    on_read: Callable[[list[str]], None] = lambda ids: None
    _waiting: list[IncomingMessage] = field(default_factory=list[IncomingMessage])
    _closed: bool = True
    _arrived: Notifier = field(default_factory=Notifier)

    def open(self) -> None:
        """From now on it takes messages."""
        self._closed = False

    @property
    def is_open(self) -> bool:
        """Whether it takes messages."""
        return not self._closed

    def add(self, said: IncomingMessage) -> bool:
        """One more; False if it takes none."""
        if not self._closed:
            self._waiting.append(said)
            self._arrived.notify()
        return not self._closed

    async def arrival(self) -> None:
        """Waits until there is something to read."""
        while not self._waiting:
            await self._arrived.wait()

    def withdraw(self, said_id: str) -> bool:
        """Takes a message back; False if it was read, or never came."""
        before = len(self._waiting)
        self._waiting = [said for said in self._waiting if said.id != said_id]
        return len(self._waiting) < before

    def waits(self) -> bool:
        """Whether there is something to read."""
        return bool(self._waiting)

    def read(self) -> list[UserMessage]:
        """What was said since it was last read."""
        taken = self._taken()
        if taken:
            self.on_read([said.id for said in taken])
        return [said.message for said in taken]

    def finish(self) -> bool:
        """Closes it, unless there is something to read; whether it is closed."""
        self._closed = self._closed or not self._waiting
        return not self._waiting

    def close(self) -> list[IncomingMessage]:
        """Closes it for good; what nobody has read."""
        self._closed = True
        return self._taken()

    def _taken(self) -> list[IncomingMessage]:
        waiting = self._waiting.copy()
        self._waiting.clear()
        return waiting
