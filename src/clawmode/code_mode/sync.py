"""`CodeMode.sync`: the same object for code without an event loop, in scripts and notebooks.

The `CodeMode` lives in a thread with an event loop of its own. Each method hands its call to that
thread and blocks until the call has returned, so any thread may call it, also one whose event loop
is running.
"""

import atexit
import threading
import warnings
import weakref
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal

from clawmode.code_mode.surface import Format, HasDefinitions
from clawmode.exceptions import NotOpen
from clawmode.types import JsonObject, JsonValue

if TYPE_CHECKING:
    from clawmode.catalog.namespaces import NamespaceRegistry
    from clawmode.code_mode.code_mode import CodeMode
    from clawmode.code_mode.config import CodeModeConfig
    from clawmode.code_mode.results import CodeModeResult
    from clawmode.code_mode.stores import SnapshotStore
    from clawmode.context import RunContext
    from clawmode.mcp.settings import ServerSettings
    from clawmode.tools.approvals import Approvals
    from clawmode.tools.executor import Watcher
    from clawmode.tools.hooks import Hooks
    from clawmode.tools.policy import Policy
    from clawmode.tools.tool import Tool

T = TypeVar("T")

NOT_OPEN = (
    "The CodeMode is not open: use it inside `with CodeMode.sync(...) as code_mode:`, or call "
    "`start()` first."
)
NOT_CLOSED = "A CodeMode was not closed: use `with CodeMode.sync(...)`, or call `close()`."
IN_ITS_LOOP = (
    "An async function that clawmode runs, such as an async tool, cannot call a synchronous "
    "CodeMode: the call would wait for itself. Make the function a plain `def`."
)


class SyncArguments(TypedDict, total=False):
    """The arguments of `CodeMode`, without those that belong to an event loop."""

    tools: "Iterable[Tool | Callable[..., Any]]"
    mcp_servers: "Mapping[str, JsonValue] | Iterable[ServerSettings]"
    config: "CodeModeConfig | Mapping[str, JsonValue] | None"
    policy: "Policy | Mapping[str, JsonValue] | None"
    hooks: "Hooks | None"
    approvals: "Approvals | None"
    namespaces: "NamespaceRegistry | None"
    store: "SnapshotStore | None"
    context: "RunContext | None"


def outside_of_loops(make: Callable[[], T]) -> T:
    """Makes an object that another event loop will use.

    Locks and events of anyio belong to the library of the event loop in which they are made.
    """
    try:
        anyio.get_current_task()
    except Exception:  # of different classes, by version: no event loop runs in this thread
        inside = False
    else:
        inside = True
    if not inside:  # outside of the handler, so that errors of `make` are not chained to its error
        return make()
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(make).result()


_open: "weakref.WeakSet[SyncCodeMode]" = weakref.WeakSet()


class SyncCodeMode(HasDefinitions):
    """A `CodeMode` whose methods block. `CodeMode.sync(...)` creates it.

    All methods may be called from any thread. Tools that are plain functions run in threads; tools
    that are async run in the event loop of this object, not in one of the caller's.
    """

    def __init__(self, code_mode: "CodeMode") -> None:
        self._code_mode = code_mode
        self._portal: BlockingPortal | None = None
        self._thread = 0
        self._opened = ExitStack()
        self._changing = threading.Lock()

    # ---- Open and close ----

    def start(self) -> "SyncCodeMode":
        """Starts the thread, a worker and the MCP servers. Call it only once.

        Raises:
            ConfigurationError: The object was opened before.
        """
        with self._changing, ExitStack() as opened:
            portal = opened.enter_context(start_blocking_portal(name="clawmode-sync"))
            opened.callback(portal.call, self._code_mode.aclose)
            self._thread = portal.call(threading.get_ident)
            portal.call(self._code_mode.start)
            self._portal, self._opened = portal, opened.pop_all()
        _open.add(self)
        return self

    def close(self) -> None:
        """Ends running programs, workers, servers and the thread. Idempotent, from any thread."""
        with self._changing:
            self._portal = None
            _open.discard(self)
            self._opened.close()

    def __enter__(self) -> "SyncCodeMode":
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        if self._portal is not None:
            warnings.warn(NOT_CLOSED, ResourceWarning, stacklevel=2, source=self)
            # Not in this thread: the garbage collector may call this in the thread of the loop.
            threading.Thread(target=self._opened.pop_all().close, name="clawmode-close").start()

    def _call(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        portal = self._portal
        if portal is None:
            raise NotOpen(NOT_OPEN)
        if self._thread == threading.get_ident():
            raise NotOpen(IN_ITS_LOOP)
        future = portal.start_task_soon(function)
        try:
            return future.result()
        except BaseException:  # Ctrl-C ends the wait of this thread, and then the call
            future.cancel()
            raise

    # ---- For a model ----

    def _define(self, format: Format, max_chars: int | None) -> list[JsonObject]:
        made: Any = self._code_mode.definitions

        async def define() -> list[JsonObject]:
            return made(format, max_chars=max_chars)

        return self._call(define)

    def call(
        self, name: str, arguments: object, *, call_id: str = "exec", with_images: bool = False
    ) -> dict[str, JsonValue]:
        """Makes a tool call of a model, as `CodeMode.call` does."""
        return self._call(
            lambda: self._code_mode.call(name, arguments, call_id=call_id, with_images=with_images)
        )

    # ---- Programs ----

    def exec(
        self,
        code: str,
        language: str = "javascript",
        *,
        call_id: str = "exec",
        yield_ms: float | None = None,
    ) -> "CodeModeResult":
        """Starts a program and runs it until it ends or has to wait, as `CodeMode.exec` does."""
        return self._call(
            lambda: self._code_mode.exec(code, language, call_id=call_id, yield_ms=yield_ms)
        )

    def wait(
        self, run_id: str, *, call_id: str = "wait", yield_ms: float | None = None
    ) -> "CodeModeResult":
        """Resumes a program whose last result was `waiting`, as `CodeMode.wait` does."""
        return self._call(lambda: self._code_mode.wait(run_id, call_id=call_id, yield_ms=yield_ms))

    def abort(self, run_id: str) -> bool:
        """Ends a program, as `CodeMode.abort` does."""
        return self._call(lambda: self._code_mode.abort(run_id))

    def offer(self, tools: "Iterable[Tool | Callable[..., Any]]") -> None:
        """Replaces the tools that programs can call, as `CodeMode.offer` does."""

        async def offer() -> None:
            self._code_mode.offer(tools)

        self._call(offer)

    def watch(self, watcher: "Watcher") -> Callable[[], None]:
        """Calls `watcher`, in the thread of this object, with the events of every nested call."""
        return self._code_mode.watch(watcher)

    @property
    def missing_servers(self) -> dict[str, str]:
        """MCP servers that cannot be reached, with the reasons for people."""
        return self._code_mode.missing_servers


@atexit.register
def _close_all() -> None:
    """Ends what a script has forgotten to close, so that no worker outlives the interpreter."""
    for each in list(_open):
        warnings.warn(NOT_CLOSED, ResourceWarning, stacklevel=2, source=each)
        each.close()
