"""Ctrl-C, made a cancellation like any other."""

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import TaskStatus


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
