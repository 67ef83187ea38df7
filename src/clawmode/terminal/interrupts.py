"""The end of a command: Ctrl-C, made a cancellation like any other, and tools that go on."""

import signal
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import TaskStatus

from clawmode.app.console import print_note

THREADS_SECONDS = 0.5
"""How long idle threads may take to end."""


@asynccontextmanager
async def interruptible() -> AsyncIterator[None]:
    """Ctrl-C cancels the block, and comes out of it as a `KeyboardInterrupt`.

    asyncio's own way cancels the task from outside, which scopes of anyio can mistake for their own
    doing. A second Ctrl-C, while the first is being obeyed, is the default one.
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
        except Exception as error:  # else it would come out in a group
            failure = error
        tasks.cancel_scope.cancel()
    if stopped:
        raise KeyboardInterrupt
    if failure is not None:
        raise failure


def outlast_tools() -> None:
    """A tool that is not async cannot be stopped: it is waited for, and that is said."""
    threads = [thread for thread in threading.enumerate()[1:] if not thread.daemon]
    limit = time.monotonic() + THREADS_SECONDS
    for thread in threads:
        thread.join(max(limit - time.monotonic(), 0))
    if any(thread.is_alive() for thread in threads):
        print_note("a tool that cannot be stopped still runs (Ctrl-C leaves without it)")
    for thread in threads:
        thread.join()
