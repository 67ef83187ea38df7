"""What foreign code raises: tools, hooks and approvers run in our tasks."""

import asyncio
import math

import anyio


def is_ours(error: BaseException) -> bool:
    """Whether it must get through: somebody cancels us, or a person interrupts the program.

    Everything else is the foreign code's own, `sys.exit()` and a `CancelledError` that nobody asked
    for included: raised further it would end the task group, and with it every program of the run.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        scoped = anyio.current_effective_deadline() == -math.inf
        return scoped or (task is not None and task.cancelling() > 0)
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(KeyboardInterrupt) is not None
    return isinstance(error, KeyboardInterrupt)


def told(error: BaseException) -> str:
    """Its message, else its name."""
    try:
        return str(error) or type(error).__name__
    except Exception:
        return type(error).__name__
