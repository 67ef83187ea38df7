"""Worker side: the deadline of a step, and how it stops a guest: by the epoch of the engine."""

import signal
import time
from collections.abc import Callable
from typing import TypeAlias

import wasmtime

from clawmode.sandbox.wasm import new_engine

Arm: TypeAlias = Callable[[wasmtime.Store], None]
"""Lets a store run until the deadline of the step."""


class DeadlinePassed(Exception):
    """The deadline passed before the guest was entered."""


class DeadlineTimer:
    """The deadline of the running step. The serving thread sets it, the main thread enforces it."""

    def __init__(self) -> None:
        self.engine = new_engine()
        self.step = 0
        self.aborted = False
        self._abort = -1
        self._began = 0.0
        self._deadline = float("inf")

    def begin(self, budget: float) -> None:
        """Starts the timer of a step that may take `budget` seconds."""
        self._began = time.monotonic()
        self._deadline = self._began + budget
        # The abort may have come first. After the line above, `on_abort` finds the step running.
        self.aborted = self._abort == self.step
        signal.setitimer(signal.ITIMER_REAL, max(budget, 1e-6))

    def end(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        self._deadline = float("inf")
        self.aborted = False

    def ran(self) -> float:
        """Returns the seconds since the step began."""
        return time.monotonic() - self._began

    def arm(self, store: wasmtime.Store) -> None:
        """Lets `store` run until the next epoch.

        Raises:
            DeadlinePassed: The deadline has passed already.
        """
        store.set_epoch_deadline(1)
        # Checked after the line above, so that an epoch incremented in between is not lost.
        if self.aborted or time.monotonic() >= self._deadline:
            raise DeadlinePassed

    def on_alarm(self, *_: object) -> None:
        """Main thread: handles an alarm of this step, or a late one of the previous step."""
        left = self._deadline - time.monotonic()
        if left <= 0.0005:
            self.engine.increment_epoch()
        elif left != float("inf"):
            signal.setitimer(signal.ITIMER_REAL, left)

    def on_abort(self, step: int) -> None:
        """Main thread: stops `step`, if it still runs, or will not let it begin."""
        self._abort = step
        if step == self.step and self._deadline != float("inf"):
            self.aborted = True
            self.engine.increment_epoch()
