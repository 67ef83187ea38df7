"""What every test relies on: one backend, an environment without surprises, shared processes."""

import gc
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import wait
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from anyio._backends._asyncio import TestRunner
from hypothesis import settings
from tests.support.fuzzing import SHORT

if TYPE_CHECKING:
    from tests.support.forking import Zygote

    from clawmode import Pool


settings.load_profile(SHORT)  # `--hypothesis-profile=long` comes after that


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True, scope="session")
def _clean_environment() -> Iterator[None]:
    """No key and no provider of the machine reaches a test, and Ctrl-C has its usual effect."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a script runs us in its background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    saved = dict(os.environ)
    for name in list(os.environ):
        if name.endswith("_API_KEY") or name.startswith("CLAWMODE_SNAPSHOT"):
            del os.environ[name]
    yield
    os.environ.clear()
    os.environ.update(saved)


def pytest_runtest_setup() -> None:
    """Let synchronous tests call `anyio.run` while the loop of the fixtures below is open.

    Anyio's plugin notes its loop as the current one for as long as a fixture needs it.
    """
    if sniffio := sys.modules.get("sniffio"):
        sniffio.current_async_library_cvar.set(None)


@pytest.fixture(autouse=True, scope="session")
def _runner_survives_its_task() -> Iterator[None]:
    """Give anyio's test runner a new task after an exception has ended the old one.

    All async tests share the loop of the fixtures below, and one task in it. An exception that is
    not an `Exception`, such as hypothesis's `StopTest`, ends that task, and the plugin starts no
    other: every later async test would wait forever. The patch is private because the plugin has
    no public hook: it makes the runner itself, and hypothesis needs the exception to arrive
    unchanged, so a wrapper of the test function cannot catch it.
    """
    call = TestRunner._call_in_runner_task

    async def call_in_new_task(self: TestRunner, *args: Any, **options: Any) -> Any:
        task = self._runner_task
        if task is not None and task.done():
            if not task.cancelled():
                task.exception()  # else asyncio would log that nobody looked at it
            self._runner_task = None
        return await call(self, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TestRunner, "_call_in_runner_task", call_in_new_task)
        yield


def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile the machine code of the guest before the clock of a test runs.

    On a new machine that takes seconds, and the first tests would pay them.
    """
    if "PYTEST_XDIST_WORKER" in os.environ or session.config.option.collectonly:
        return
    from clawmode.exceptions import RuntimeUnavailable
    from clawmode.sandbox import artifacts

    with suppress(RuntimeUnavailable):  # the tests that need the files say so
        for part in ("quickjs", "swc"):
            artifacts.load(part)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start the zygote before the clock of a test runs, if a module needs it.

    The collected tests live until the end, so the garbage collector need not look at them again.
    """
    gc.collect()
    gc.freeze()
    forking = sys.modules.get("tests.support.forking")
    if forking is not None and session.items and not session.config.option.collectonly:
        forking.shared_zygote()


# A worker takes a third of a second to start, a zygote four: they are shared by all tests.

_shared: "list[Pool]" = []


@pytest.fixture(autouse=True)
def _replaced_workers_have_started() -> None:
    """Waits for workers that replace those which an earlier test has killed.

    A program that gets such a worker pays for its start, and many have little time.
    """
    wait([worker.booted for pool in _shared for worker in pool._workers.tenants], timeout=5)


@pytest.fixture(scope="session")
async def pool(anyio_backend: str) -> AsyncIterator["Pool"]:
    """Two workers."""
    from clawmode import Pool

    async with Pool(size=2) as opened:
        await opened.ready()
        _shared.append(opened)
        yield opened


@pytest.fixture(scope="session")
async def one_worker_pool(anyio_backend: str) -> AsyncIterator["Pool"]:
    """One worker that serves all cells."""
    from clawmode import Pool

    async with Pool(size=1, max_size=1) as opened:
        _shared.append(opened)
        yield opened


@pytest.fixture(scope="session")
def zygote() -> "Zygote":
    """Starts commands without the seconds that their imports take."""
    from tests.support.forking import shared_zygote

    return shared_zygote()


@pytest.fixture(autouse=True, scope="session")
def _no_zygote_is_left() -> Iterator[None]:
    yield
    if driver := sys.modules.get("tests.support.forking"):
        driver.end_shared_zygote()
