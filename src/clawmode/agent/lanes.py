"""The order of runs: one run of a session at a time, and a limited number in total."""

import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import field

import anyio

from clawmode.types import dataclass

MAX_ASIDE = 100
"""Runs that wait for people and do not count as concurrent. The limit bounds their open files."""


@dataclass(slots=True)
class _Lane:
    lock: anyio.Lock = field(default_factory=anyio.Lock)
    users: int = 0


class Place:
    """A run's place among the concurrent runs.

    Args:
        shared: Limits the concurrent runs; None if this run needs no place.
        aside: Limits the runs that wait for people.
    """

    def __init__(
        self, shared: anyio.Semaphore | None = None, aside: anyio.Semaphore | None = None
    ) -> None:
        self._shared, self._aside = shared, aside
        self._held: anyio.Semaphore | None = None

    async def take(self) -> None:
        """Waits for a place, unless the run holds one."""
        if self._shared is not None and self._held is not self._shared:
            await self._shared.acquire()
            self.leave()
            self._held = self._shared

    def step_aside(self) -> None:
        """Frees the place while the run waits for a person, unless too many runs do."""
        if self._aside is None or self._held is not self._shared:
            return
        with contextlib.suppress(anyio.WouldBlock):
            self._aside.acquire_nowait()
            self.leave()
            self._held = self._aside

    def leave(self) -> None:
        """Frees the place, at the end of the run."""
        held, self._held = self._held, None
        if held is not None:
            held.release()


class Lanes:
    """A lane for each session, and a limit that all sessions share.

    Args:
        limit: The number of concurrent runs; 0 for the default.
    """

    def __init__(self, limit: int = 0) -> None:
        self._shared = anyio.Semaphore(limit or max(8, 4 * (os.cpu_count() or 1)))
        self._aside = anyio.Semaphore(MAX_ASIDE)
        self._lanes: dict[str, _Lane] = {}

    @contextlib.asynccontextmanager
    async def enter(self, key: str, *, shared: bool = True) -> AsyncIterator[Place]:
        """Waits for the caller's turn, and holds its place inside of the block.

        Args:
            key: The session.
            shared: Whether the caller counts as a concurrent run. Short work on a session, such as
                a reset, does not.
        """
        lane = self._lanes.setdefault(key, _Lane())
        lane.users += 1
        place = Place(self._shared, self._aside) if shared else Place()
        try:
            # The session's lock first: a run that waits for its session must not take a place.
            async with lane.lock:
                await place.take()
                yield place
        finally:
            place.leave()
            lane.users -= 1
            if not lane.users:
                del self._lanes[key]
