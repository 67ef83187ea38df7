"""The end of a command: Ctrl-C as a cancellation, and tools that cannot be stopped."""

import signal
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import TaskStatus

from clawmode.app.console import print_note

THREADS_SECONDS = 0.5
"""How long idle threads may take to end before a note says that a tool still runs."""


@asynccontextmanager
async def interruptible() -> AsyncIterator[None]:
    """Lets Ctrl-C cancel the block; the block then raises `KeyboardInterrupt`.

    asyncio's own handler cancels the task from outside, which the scopes of anyio can mistake for
    their own cancellation. A second Ctrl-C, during the cancellation, has the default effect.
    """
    stopped = False
    failure: Exception | None = None

    async def watch(*, task_status: TaskStatus[None]) -> None:
        nonlocal stopped
        with anyio.open_signal_receiver(signal.SIGINT) as signals:
            task_status.started()
            async for _ in signals:
                stopped = True
                tasks.cancel_scope.cancel()
                return

    async with anyio.create_task_group() as tasks:
        await tasks.start(watch)
        try:
            yield
        except Exception as error:  # the task group would wrap it in an ExceptionGroup
            failure = error
        tasks.cancel_scope.cancel()
    if stopped:
        raise KeyboardInterrupt
    if failure is not None:
        raise failure


def join_tool_threads() -> None:
    """Waits for tools that run in threads and cannot be stopped, and tells the user why."""
    threads = [thread for thread in threading.enumerate()[1:] if not thread.daemon]
    limit = time.monotonic() + THREADS_SECONDS
    for thread in threads:
        thread.join(max(limit - time.monotonic(), 0))
    if any(thread.is_alive() for thread in threads):
        print_note("waiting for a tool that cannot be stopped (Ctrl-C ends without waiting)")
    for thread in threads:
        thread.join()
