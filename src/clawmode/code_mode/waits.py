"""Pending calls of `wait`, and the results that their callers did not hear.

A caller of `wait` that is cancelled must not end the program that it waits for. So a separate task
drives the program, and the caller only waits for the task. If the caller is cancelled, the program
runs to its next suspension and is parked again; its result is kept for the next `wait`.
"""

import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import field

import anyio
from anyio.abc import TaskGroup

from clawmode.code_mode.results import CodeModeResult
from clawmode.types import dataclass

MAX_UNHEARD, DISMISS_SECONDS = 256, 2.0


@dataclass(slots=True)
class PendingWait:
    """A `wait` that has not returned.

    Attributes:
        left: True if the caller was cancelled.
        on_leave: Called once when the caller is cancelled.
        result: The result, once `done` is set.
        error: The exception, once `done` is set.
    """

    left: bool = False
    on_leave: Callable[[], None] = lambda: None
    done: anyio.Event = field(default_factory=anyio.Event)
    result: CodeModeResult | None = None
    error: Exception | None = None


@dataclass(slots=True)
class Waits:
    """The pending waits of one `CodeMode`."""

    _under_way: dict[str, PendingWait] = field(default_factory=dict[str, PendingWait])
    _unheard: OrderedDict[str, CodeModeResult] = field(
        default_factory=OrderedDict[str, CodeModeResult]
    )

    async def free(self, run_id: str, deadline: float) -> bool:
        """True if no `wait` for the program is pending.

        A `wait` whose caller was cancelled is about to park the program, so this waits for its end.
        """
        waiting = self._under_way.get(run_id)
        if waiting is not None and waiting.left:
            with anyio.move_on_after(max(deadline - time.monotonic(), 0)):
                await waiting.done.wait()
        return run_id not in self._under_way

    async def make(
        self,
        run_id: str,
        tasks: TaskGroup | None,
        wait: Callable[[PendingWait], Awaitable[CodeModeResult]],
    ) -> CodeModeResult | None:
        """Runs a `wait` for a program that is `free`. Returns None if `tasks` was cancelled.

        Args:
            run_id: The program.
            tasks: Where the `wait` continues after the caller is cancelled; None to end it then.
            wait: The `wait` itself.
        """
        waiting = self._under_way[run_id] = PendingWait()
        earlier = self._unheard.pop(run_id, None)
        if tasks is None:
            await self._serve(run_id, waiting, wait, earlier)
        else:
            tasks.start_soon(self._serve, run_id, waiting, wait, earlier)
        try:
            await waiting.done.wait()
        except BaseException:
            waiting.left = True
            waiting.on_leave()
            self._keep(run_id, waiting)
            raise
        if waiting.error is not None:
            raise waiting.error
        return waiting.result

    async def dismiss(self) -> None:
        """Ends all waits as if their callers were cancelled, and gives them a moment to park."""
        waits = list(self._under_way.values())
        for waiting in waits:
            waiting.on_leave()
        with anyio.move_on_after(DISMISS_SECONDS):
            for waiting in waits:
                await waiting.done.wait()

    async def _serve(
        self,
        run_id: str,
        waiting: PendingWait,
        wait: Callable[[PendingWait], Awaitable[CodeModeResult]],
        earlier: CodeModeResult | None,
    ) -> None:
        try:
            if earlier is not None and earlier.status != "waiting":
                waiting.result = earlier
                return
            result = await wait(waiting)
            if earlier is not None:
                result = result.after(earlier)
            waiting.result = result
        except Exception as error:  # raised in the caller; here it would cancel all programs
            waiting.error = error
        finally:
            del self._under_way[run_id]
            if waiting.left:
                self._keep(run_id, waiting)
            waiting.done.set()

    def _keep(self, run_id: str, waiting: PendingWait) -> None:
        """Keeps a result that the store does not have, because the program has already ended."""
        result = waiting.result
        if result is not None and (
            result.status != "waiting" or result.output or result.attachments
        ):
            self._unheard[run_id] = result
            if len(self._unheard) > MAX_UNHEARD:
                self._unheard.popitem(last=False)
