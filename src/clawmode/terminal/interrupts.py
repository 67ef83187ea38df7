"""The end of a command: Ctrl-C as a cancellation, and tools that cannot be stopped."""

import signal
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import TaskStatus

from clawmode.app.console import print_note
from clawmode.tasks import background_tasks

THREADS_SECONDS = 0.5
"""How long idle threads may take to end before a note says that a tool still runs."""


@asynccontextmanager
async def interruptible(*ending: signal.Signals) -> AsyncIterator[None]:
    """Lets Ctrl-C cancel the block; the block then raises `KeyboardInterrupt`.

    asyncio's own handler cancels the task from outside, which the scopes of anyio can mistake for
    their own cancellation. A second Ctrl-C, during the cancellation, has the default effect.

    Args:
        ending: More signals that cancel the block, which then ends without an exception.
    """
    stopped = False

    async def watch(*, task_status: TaskStatus[None]) -> None:
        nonlocal stopped
        with anyio.open_signal_receiver(signal.SIGINT, *ending) as signals:
            task_status.started()
            async for number in signals:
                stopped = number == signal.SIGINT
                tasks.cancel_scope.cancel()
                return

    try:
        async with background_tasks() as tasks:
            await tasks.start(watch)
            yield
    finally:
        if stopped:
            raise KeyboardInterrupt


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
