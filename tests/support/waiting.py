"""Waiting in tests: polling, idleness, and tools that a test holds up."""

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio

from clawmode import tool
from clawmode.tools.tool import Tool, ToolContext
from clawmode.types import JsonObject

INTERVAL = 0.005
SECONDS = 10.0
"""The usual limit: half of the time that a test has."""


async def until(check: Callable[[], Any], seconds: float = SECONDS) -> Any:
    """Wait until `check()` is true, for state that sets no event: files, processes, other loops.

    Args:
        check: Returns what is waited for, or an awaitable of it.
        seconds: The limit.

    Returns:
        The first true value of `check`.

    Raises:
        TimeoutError: The value stayed false.
    """
    with anyio.fail_after(seconds):
        while True:
            found = check()
            if isinstance(found, Awaitable):
                found = await found
            if found:
                return found
            await anyio.sleep(INTERVAL)


def until_sync(check: Callable[[], Any], seconds: float = SECONDS) -> Any:
    """Do what `until` does, in a test or a thread without an event loop."""
    limit = time.monotonic() + seconds
    while not (found := check()):
        if time.monotonic() > limit:
            raise TimeoutError(f"still {found!r} after {seconds} seconds")
        time.sleep(INTERVAL)
    return found


async def idle() -> None:
    """Wait until every other task of the event loop waits for something.

    A test that proves that nothing happens calls this: all that can happen now has happened.
    Threads and other processes are not considered, and neither are tasks that wait for a time.
    """
    with anyio.fail_after(SECONDS):
        await anyio.wait_all_tasks_blocked()


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that is only waiting to be buried does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def undisturbed_time(*pids: int) -> float:
    """Return the seconds of a clock for upper bounds.

    The clock does not count the time in which this thread waited for a core that others had.

    Args:
        pids: Processes whose threads' waiting does not count either.
    """
    waited = _waited(Path("/proc/thread-self")) + sum(map(waited_for_core, pids))
    return time.monotonic() - waited


def waited_for_core(pid: int) -> float:
    """Return the seconds that the threads of a process have waited for a core that others had."""
    return sum(map(_waited, Path(f"/proc/{pid}/task").iterdir()))


def _waited(thread: Path) -> float:
    with suppress(OSError):  # the thread has ended, or the kernel has no such statistics
        return int((thread / "schedstat").read_text("ascii").split()[1]) / 1e9
    return 0.0


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fail if the block takes longer, by the clock of `undisturbed_time`."""
    began = undisturbed_time()
    with anyio.fail_after(max(SECONDS, seconds)):
        yield
    assert undisturbed_time() - began < seconds


GATE_TOOL = '''
import os
import anyio
from clawmode import tool

@tool(effect="read", idempotent=True)
async def gate() -> str:
    """Wait until the gate is open."""
    while not os.path.exists("gate-is-open"):
        await anyio.sleep(0.02)
    return "open"
'''
"""A gate in a module of tools for another process: the file `gate-is-open` in its folder opens it.
"""


class SlowTools:
    """A tool `slow` that returns when the test sets `answer`, and a tool `quick`."""

    def __init__(self) -> None:
        self.calls = 0
        self.answer = anyio.Event()

        @tool
        async def slow() -> int:
            """Take long."""
            self.calls += 1
            await self.answer.wait()
            return self.calls

        @tool
        async def quick() -> str:
            """Take no time."""
            return "quick"

        self.tools: list[Tool] = [slow, quick]


class LoopStall:
    """The longest time for which the event loop did not turn.

    Args:
        clock: `time.thread_time` does not count the time that other processes had the core.

    Attributes:
        seconds: The longest time so far.
        turns: The number of turns that were counted.
    """

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self.seconds = 0.0
        self.turns = 0

    async def watch(self) -> None:
        """Measure until the task is cancelled."""
        before = self._clock()
        while True:
            await anyio.sleep(0.001)
            now = self._clock()
            self.seconds = max(self.seconds, now - before)
            self.turns += 1
            before = now


class Gate:
    """A tool that runs until the test opens the gate.

    Attributes:
        tool: The tool.
        calls: The number of calls that have begun.
        entered: Set when the first call has begun.
        open: Set it, and all calls end.
    """

    def __init__(self, name: str = "slow", **options: Any) -> None:
        self.calls = 0
        self.entered = anyio.Event()
        self.open = anyio.Event()
        self.tool = Tool(name, "Slow.", {"type": "object"}, self._call, **options)

    async def _call(self, given: JsonObject, context: ToolContext) -> str:
        self.calls += 1
        self.entered.set()
        await self.open.wait()
        return "slow is done"
