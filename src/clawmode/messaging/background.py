"""Work that goes on beside: what goes wrong with a piece of it is logged, and is its own affair."""

import logging
from collections.abc import Awaitable, Callable

import anyio
from anyio.abc import TaskGroup

logger = logging.getLogger("clawmode.chat")


class Beside:
    """A group of tasks that none of them brings down. Used inside of `async with`, in one task.

    Args:
        what: Whose work it is, for the log.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._tasks: TaskGroup | None = None

    async def __aenter__(self) -> "Beside":
        self._tasks = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._tasks is not None
        self._tasks.cancel_scope.cancel()
        await self._tasks.__aexit__(None, None, None)

    def start(self, do: Callable[..., Awaitable[object]], *given: object) -> None:
        """Begins a piece of work."""
        assert self._tasks is not None, f"{self._what} is used inside of `async with`"

        async def guarded() -> None:
            try:
                await do(*given)
            except Exception:
                logger.exception("%s", self._what)

        self._tasks.start_soon(guarded)
