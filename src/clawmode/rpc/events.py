"""Events that wait for a client's readers: bounded, and never lost in silence."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import anyio

from clawmode.exceptions import ClawmodeError
from clawmode.types import JsonObject

GAP = "client.gap"
"""An event of the client's own: what was told meanwhile is missing. `{reason, missed?}`."""


class EventsLost(ClawmodeError):
    """Events came faster than they were read: from here on some are missing."""


@dataclass(frozen=True, slots=True)
class Event:
    """What the gateway tells."""

    name: str
    payload: JsonObject


class Events:
    """Events as they come, from the moment it is made. An iterator; close it, or use `with`.

    Who reads too slowly gets what was kept, and then `EventsLost`.

    Args:
        most: How many are kept.
        forget: Told when it wants no more.
    """

    def __init__(self, most: int, forget: Callable[["Events"], None]) -> None:
        self._kept: deque[Event] = deque()
        self._most = most
        self._forget = forget
        self._news = anyio.Event()
        self._failure: ClawmodeError | None = None
        self._ended = False

    def put(self, event: Event) -> None:
        """One more."""
        if len(self._kept) >= self._most:
            self.end(EventsLost(f"more than {self._most} events waited to be read"))
        elif not self._ended:
            self._kept.append(event)
            self._news.set()

    def end(self, failure: ClawmodeError | None = None) -> None:
        """There will be no more; because of a failure, if there is one."""
        if not self._ended:
            self._ended, self._failure = True, failure
            self._forget(self)
            self._news.set()

    def close(self) -> None:
        """Wants no more."""
        self._kept.clear()
        self.end()

    def __enter__(self) -> "Events":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __aiter__(self) -> "Events":
        return self

    async def __anext__(self) -> Event:
        while not self._kept:
            if self._failure is not None:
                raise self._failure
            if self._ended:
                raise StopAsyncIteration
            self._news = anyio.Event()
            await self._news.wait()
        return self._kept.popleft()
