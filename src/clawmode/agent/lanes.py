"""Who runs when: one run of a session at a time, in the order they came, and so many in all."""

import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import anyio

MAX_ASIDE = 100
"""Runs that wait for people and do not count: each holds open files. More of them count."""


def default_limit() -> int:
    """How many runs go on side by side unless somebody says otherwise."""
    return max(8, 4 * (os.cpu_count() or 1))


@dataclass(slots=True)
class _Lane:
    lock: anyio.Lock = field(default_factory=anyio.Lock)
    users: int = 0


class Place:
    """A run's place among those that go on side by side.

    Args:
        shared: The places; None: it needs none.
        aside: The places of runs that wait for people.
    """

    def __init__(
        self, shared: anyio.Semaphore | None = None, aside: anyio.Semaphore | None = None
    ) -> None:
        self._shared, self._aside = shared, aside
        self._held: anyio.Semaphore | None = None

    async def take(self) -> None:
        """Waits for a place, unless the run has it."""
        if self._shared is not None and self._held is not self._shared:
            await self._shared.acquire()
            self.leave()
            self._held = self._shared

    def step_aside(self) -> None:
        """Lets another run go on while this one waits for a person, unless too many do."""
        if self._aside is None or self._held is not self._shared:
            return
        with contextlib.suppress(anyio.WouldBlock):
            self._aside.acquire_nowait()
            self.leave()
            self._held = self._aside

    def leave(self) -> None:
        """The run has ended."""
        held, self._held = self._held, None
        if held is not None:
            held.release()


class Lanes:
    """A lane for each session, and one that all of them share.

    Args:
        limit: How many runs go on side by side.
    """

    def __init__(self, limit: int = 0) -> None:
        self._shared = anyio.Semaphore(limit or default_limit())
        self._aside = anyio.Semaphore(MAX_ASIDE)
        self._lanes: dict[str, _Lane] = {}

    def waiting(self, key: str) -> int:
        """How many are in a session's lane, the one that runs included."""
        lane = self._lanes.get(key)
        return 0 if lane is None else lane.users

    @contextlib.asynccontextmanager
    async def enter(self, key: str, *, shared: bool = True) -> AsyncIterator[Place]:
        """Waits until it is this one's turn, and keeps its place.

        Args:
            key: In which session.
            shared: Whether it takes one of the places that all sessions share: who does no work
                does not wait for them.
        """
        lane = self._lanes.setdefault(key, _Lane())
        lane.users += 1
        place = Place(self._shared, self._aside) if shared else Place()
        try:
            # The session's first: who waits for their own session takes no place of the others.
            async with lane.lock:
                await place.take()
                yield place
        finally:
            place.leave()
            lane.users -= 1
            if not lane.users:
                del self._lanes[key]
