"""A task group that any task may open and close.

anyio lets only the task that entered a cancel scope leave it. A pytest fixture, a notebook and most
web frameworks open an object in one task and close it in another. So a task of its own enters and
leaves the group here; `open` and `close` only signal it.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import anyio
from anyio.abc import TaskGroup

_KEEPERS: set[asyncio.Task[None]] = set()
"""asyncio keeps weak references only: without this set an object that nobody closed would lose its
task, and with it the clean-up at the end of the event loop."""


class Lifetime:
    """Keeps a task group open, from `open` to `close` or to the end of the event loop.

    Args:
        name: Names the task, for people who debug.
        on_end: Awaited, shielded, before the group is left. The group then waits for its tasks:
            cancel `tasks.cancel_scope` here if they do not end by themselves.
    """

    def __init__(self, name: str, on_end: Callable[[TaskGroup], Awaitable[None]]) -> None:
        self._name = name
        self._on_end = on_end
        self._keeper: asyncio.Task[None] | None = None
        self._closing: anyio.Event | None = None
        self.tasks: TaskGroup | None = None

    async def open(self) -> TaskGroup:
        """Opens the group. To be called once."""
        assert self._keeper is None, "a lifetime is opened once"
        opened, self._closing = anyio.Event(), anyio.Event()
        keep = self._keep(opened, self._closing)
        self._keeper = asyncio.create_task(keep, name=self._name)
        _KEEPERS.add(self._keeper)
        self._keeper.add_done_callback(_KEEPERS.discard)
        try:
            await opened.wait()
        except BaseException:
            self._closing.set()
            raise
        assert self.tasks is not None
        return self.tasks

    async def _keep(self, opened: anyio.Event, closing: anyio.Event) -> None:
        async with anyio.create_task_group() as tasks:
            self.tasks = tasks
            opened.set()
            try:
                await closing.wait()
            finally:
                # Also when the event loop ends and cancels all that still runs.
                with anyio.CancelScope(shield=True):
                    await self._on_end(tasks)

    async def close(self) -> None:
        """Ends the group and waits until it has ended. Idempotent.

        A caller who is cancelled meanwhile leaves early by asyncio's own means only
        (`asyncio.wait_for`); the group ends in any case.

        Raises:
            ExceptionGroup: Tasks of the group failed.
        """
        if self._keeper is None or self._closing is None:
            return
        if not self._keeper.done():
            self._closing.set()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([self._keeper])
        with contextlib.suppress(asyncio.CancelledError):  # the event loop had ended before
            self._keeper.result()
