"""Exceptions raised by foreign code: tools, hooks and approvers, which run in our own tasks."""

import asyncio
import math

import anyio


def must_propagate(error: BaseException) -> bool:
    """True if the exception must propagate: our own task was cancelled, or the user pressed Ctrl-C.

    Every other exception is the foreign code's own failure. That includes `SystemExit` and a
    `CancelledError` that nobody requested: if it propagated, it would end the task group, and with
    it every program of the run.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        # anyio cancels by the deadline of a scope, and `Task.cancel` is counted by asyncio: a
        # cancellation that shows in neither was raised by the foreign code itself.
        scoped = anyio.current_effective_deadline() == -math.inf
        return scoped or (task is not None and task.cancelling() > 0)
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(KeyboardInterrupt) is not None
    return isinstance(error, KeyboardInterrupt)


def message_of(error: BaseException) -> str:
    """Returns the exception's message, or its class name if the message is empty or raises."""
    try:
        return str(error) or type(error).__name__
    except Exception:
        return type(error).__name__
