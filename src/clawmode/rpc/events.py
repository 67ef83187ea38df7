"""The events of a gateway, buffered for each reader in a client. Lost events are reported."""

from collections import deque
from collections.abc import Callable

from clawmode.exceptions import ClawmodeError
from clawmode.tasks import Notifier
from clawmode.types import JsonObject, dataclass

GAP = "client.gap"
"""An event that the client inserts where events are missing. Payload: `{reason, missed?}`."""


class EventsLost(ClawmodeError):
    """Events came faster than they were read: later events are missing."""


@dataclass(frozen=True, slots=True)
class Event:
    """An event of the gateway, or `GAP`."""

    name: str
    payload: JsonObject


class Events:
    """An async iterator over the events from its creation on. Close it, or use it with `with`.

    A reader that is too slow gets the buffered events, and then `EventsLost`.

    Args:
        most: The size of the buffer.
        forget: Called with this iterator when it takes no more events.
    """

    def __init__(self, most: int, forget: Callable[["Events"], None]) -> None:
        self._buffer: deque[Event] = deque()
        self._most = most
        self._forget = forget
        self._changed = Notifier()
        self._failure: ClawmodeError | None = None
        self._ended = False

    def put(self, event: Event) -> None:
        """Adds an event to the buffer."""
        if len(self._buffer) >= self._most:
            self.end(EventsLost(f"more than {self._most} events were not read in time"))
        elif not self._ended:
            self._buffer.append(event)
            self._changed.notify()

    def end(self, failure: ClawmodeError | None = None) -> None:
        """Takes no more events. The reader gets the buffered events, then `failure` if given."""
        if not self._ended:
            self._ended, self._failure = True, failure
            self._forget(self)
            self._changed.notify()

    def close(self) -> None:
        """Drops the buffered events, and takes no more. Idempotent."""
        self._buffer.clear()
        self.end()

    def __enter__(self) -> "Events":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __aiter__(self) -> "Events":
        return self

    async def __anext__(self) -> Event:
        while not self._buffer:
            if self._failure is not None:
                raise self._failure
            if self._ended:
                raise StopAsyncIteration
            await self._changed.wait()
        return self._buffer.popleft()
