"""Waking whoever waits for a change of a store.

A wake is a hint: it may be lost, and waiters look again by themselves. A *topic* is what somebody
waits for: the id of a cell.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from anyio.lowlevel import current_token

POLL = 0.1
"""Seconds between looks at a store that does not know what other processes write."""

MOST = 2000
"""The number of remembered wakes."""

MISSED_SECONDS = 2.0
"""How long a wake is remembered that nobody waited for yet."""


class Bus(Protocol):
    """Wakes those who wait, in this process and, if the backend can, in others.

    Attributes:
        poll: Seconds after which whoever waits looks again, whether woken or not.
    """

    @property
    def poll(self) -> float: ...

    def watch(self, topic: str, wake: Callable[[], None]) -> AbstractContextManager[None]:
        """Context in which `wake` is called soon after a wake of the topic.

        It is called in the event loop of the caller, and also for a wake of the last seconds that
        nobody heard.
        """
        ...

    def wake(self, topic: str) -> None:
        """Wakes those who watch a topic in this process. May be called in any thread."""
        ...


class LocalBus:
    """The waiters of this process, whom only this process wakes: see `Bus`."""

    @property
    def poll(self) -> float:
        return POLL

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Starts without waiters, as the child of a fork does."""
        self._waiters: dict[str, list[tuple[Any, Callable[[], None]]]] = {}
        self._missed: OrderedDict[str, float] = OrderedDict()
        self._changed = threading.Condition()

    @contextmanager
    def watch(self, topic: str, wake: Callable[[], None]) -> Iterator[None]:
        loop: Any = current_token().native_token
        soon = getattr(loop, "call_soon_threadsafe", None) or loop.run_sync_soon
        waiter = (soon, wake)
        with self._changed:
            self._waiters.setdefault(topic, []).append(waiter)
            missed = self._missed.pop(topic, None)
        if missed is not None and time.monotonic() - missed < MISSED_SECONDS:
            soon(wake)  # it came after the caller had looked, and before the caller waited
        try:
            yield
        finally:
            with self._changed:
                waiters = self._waiters.get(topic, [])
                if waiter in waiters:
                    waiters.remove(waiter)
                if not waiters:
                    self._waiters.pop(topic, None)

    def wake(self, topic: str) -> None:
        with self._changed:
            waiters = list(self._waiters.get(topic, ()))
            if not waiters:
                self._missed[topic] = time.monotonic()
                self._missed.move_to_end(topic)
                if len(self._missed) > MOST:
                    self._missed.popitem(last=False)
        for soon, wake in waiters:
            try:
                soon(wake)
            except RuntimeError:  # its event loop has ended
                continue

    def wake_all(self) -> None:
        """Wakes all waiters in this process: wakes may have been missed."""
        for topic in list(self._waiters):
            self.wake(topic)
