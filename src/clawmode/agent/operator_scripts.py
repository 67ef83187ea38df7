"""The operator's scripts: an event in, one JSON object out, within a time limit.

A program gets the event on its stdin, and of our environment only PATH, HOME and LANG; it is killed
with all processes that it has started. A Python file runs in this process with all our rights; a
function of it that is not async runs in a thread, which cannot be killed.
"""

import asyncio
import contextlib
import contextvars
import importlib.util
import inspect
import itertools
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Protocol

import anyio
from anyio.abc import ByteReceiveStream, Process

from clawmode.exceptions import ClawmodeError, message_of
from clawmode.redaction import Redactor
from clawmode.tasks import GONE, close_pipes, exited, must_propagate, signal_group
from clawmode.text import shorten
from clawmode.types import JsonObject, copy_json, dataclass, refuse_constant

MAX_ANSWER = 1 << 20
MAX_STDERR = 4_096
MAX_REASON = 500
DRAIN_SECONDS = 0.5
"""How long the rest of the output is read after a program has exited."""

PASSED_ON = ("PATH", "HOME", "LANG")


_numbers = itertools.count(1)


class ScriptError(ClawmodeError):
    """A script failed, took too long, or returned an invalid answer."""


class Script(Protocol):
    """A program or Python file that answers events."""

    async def ask(self, event: JsonObject) -> JsonObject:
        """Runs the script; returns its answer, which is empty if the script returns nothing.

        Raises:
            ScriptError: The script failed, took too long, or returned an invalid answer.
        """
        ...


def parse_answer(text: bytes) -> JsonObject:
    """Parses the answer of a script.

    Raises:
        ScriptError: The text is not one JSON object.
    """
    if not text.strip():
        return {}
    try:
        value = json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        raise ScriptError("its answer is not JSON") from None
    if not isinstance(value, dict):
        raise ScriptError("its answer is not a JSON object")
    return value


# ---- Programs ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program and its arguments.

    Attributes:
        folder: The working directory; a relative path to the program starts from it.
        env: Additional environment variables. They may be secret, and are redacted in errors.
    """

    argv: tuple[str, ...]
    folder: Path
    seconds: float
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)

    async def ask(self, event: JsonObject) -> JsonObject:
        data = json.dumps(event).encode()
        # Shielded: a caller cancelled in the middle would leave a process that nobody kills.
        with anyio.CancelScope(shield=True):
            process = await self._start()
        exchange = _Exchange(process)
        try:
            with anyio.move_on_after(self.seconds) as scope:
                await exchange.run(data)
        finally:
            with anyio.CancelScope(shield=True):
                await exchange.end()
        if scope.cancelled_caught:
            raise ScriptError(f"it took longer than {self.seconds:g} s, and was killed")
        if exchange.too_much:
            raise ScriptError(f"it wrote more than {MAX_ANSWER} bytes, and was killed")
        code = exchange.process.returncode
        if code != 0:
            how = f"was killed by signal {-code}" if code and code < 0 else f"exited with {code}"
            last = bytes(exchange.stderr).decode("utf-8", "replace").strip().splitlines()[-1:]
            said = Redactor(self.env.values()).text("".join(last))[:MAX_REASON]
            raise ScriptError(f"it {how}" + (f": {said}" if said else ""))
        return parse_answer(bytes(exchange.stdout))

    async def _start(self) -> Process:
        ours = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        try:
            return await anyio.open_process(
                [self._program(), *self.argv[1:]],
                cwd=self.folder,
                env=ours | dict(self.env),
                start_new_session=True,  # a process group, to be killed as a whole
            )
        except (OSError, ValueError) as error:  # ValueError: a NUL character
            reason = getattr(error, "strerror", None) or "the command contains a NUL character"
            raise ScriptError(f"it cannot be started: {reason}") from None

    def _program(self) -> str:
        return os.path.expanduser(self.argv[0])


class _Exchange:
    """The input and output of one process."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.stdout = bytearray()
        self.stderr = bytearray()
        self.too_much = False

    async def run(self, data: bytes) -> None:
        """Writes the event, and reads the output until the process has exited."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._write, data)
            tasks.start_soon(self._listen, self.process.stdout, self._take_answer)
            tasks.start_soon(self._listen, self.process.stderr, self._take_error)
            await exited(self.process)
            self._kill()  # the children that it left behind
            # A child that left the group may hold the pipes open for ever.
            tasks.cancel_scope.deadline = anyio.current_time() + DRAIN_SECONDS

    async def end(self) -> None:
        """Kills the process and its children."""
        self._kill()
        await exited(self.process, DRAIN_SECONDS)
        close_pipes(self.process)

    def _kill(self) -> None:
        signal_group(self.process, signal.SIGKILL)

    async def _write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(*GONE):
            await self.process.stdin.send(data)
        with contextlib.suppress(*GONE):
            await self.process.stdin.aclose()

    @staticmethod
    async def _listen(stream: ByteReceiveStream | None, take: Callable[[bytes], None]) -> None:
        assert stream is not None
        with contextlib.suppress(*GONE):
            async for chunk in stream:
                take(chunk)

    def _take_answer(self, chunk: bytes) -> None:
        self.stdout += chunk[: MAX_ANSWER + 1 - len(self.stdout)]
        if len(self.stdout) > MAX_ANSWER:
            self.too_much = True
            self._kill()

    def _take_error(self, chunk: bytes) -> None:
        self.stderr += chunk
        del self.stderr[:-MAX_STDERR]


# ---- Python files ----


class PythonFile:
    """A Python file with a function `handle(event)`, loaded at the first event.

    Args:
        name: The name of the hook, which becomes part of the module's name.
        path: The file.
        seconds: The time limit of one event.
    """

    def __init__(self, name: str, path: Path, seconds: float) -> None:
        self._path = path
        self._seconds = seconds
        self._module = f"clawmode_hook_{next(_numbers)}_{re.sub(r'[^A-Za-z0-9]', '_', name)}"
        self._handle: Callable[[JsonObject], Any] | None = None
        self._loading = anyio.Lock()
        self._hanging: list[threading.Event] = []

    async def ask(self, event: JsonObject) -> JsonObject:
        # A second thread would only hang too.
        self._hanging = [ended for ended in self._hanging if not ended.is_set()]
        if self._hanging:
            raise ScriptError("an earlier call of `handle` has not returned yet")
        answer: Any = None
        try:
            with anyio.move_on_after(self._seconds) as scope:
                answer = await self._call(event)
        except ScriptError:
            raise
        except BaseException as error:
            if must_propagate(error):
                raise
            reason = Redactor().text(f"{type(error).__name__}: {message_of(error)}")
            raise ScriptError(shorten(reason, MAX_REASON)) from None
        if scope.cancelled_caught:
            raise ScriptError(f"it took longer than {self._seconds:g} s")
        # The same limits apply as to the output of a program.
        if answer is None:
            return {}
        try:
            text = json.dumps(answer, allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError):
            raise ScriptError(f"its answer is not JSON but {type(answer).__name__}") from None
        if len(text) > MAX_ANSWER:
            raise ScriptError(f"its answer is over {MAX_ANSWER} bytes")
        return parse_answer(text)

    async def _call(self, event: JsonObject) -> Any:
        async with self._loading:
            if self._handle is None:
                await self._in_thread(self._load)
            handle = self._handle
        assert handle is not None
        shown = copy_json(event)
        if inspect.iscoroutinefunction(handle):
            return await handle(shown)
        answer = await self._in_thread(handle, shown)
        return await answer if inspect.isawaitable(answer) else answer

    def _load(self) -> None:
        spec = importlib.util.spec_from_file_location(self._module, self._path)
        if spec is None or spec.loader is None or not self._path.is_file():
            raise ScriptError(f"{str(self._path)!r} is not a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[self._module] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[self._module]
            raise
        handle = getattr(module, "handle", None)
        if not callable(handle):
            raise ScriptError("it has no function `handle(event)`")
        self._handle = handle

    async def _in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a function in a daemon thread: if it hangs, the process can still exit."""
        loop, done, ended = asyncio.get_running_loop(), anyio.Event(), threading.Event()
        outcome: list[Any] = []
        failure: list[BaseException] = []

        def work() -> None:
            try:
                outcome.append(function(*arguments))
            except BaseException as error:
                failure.append(error)
            ended.set()
            with contextlib.suppress(RuntimeError):  # the event loop was closed
                loop.call_soon_threadsafe(done.set)

        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(work,), name=self._module, daemon=True).start()
        try:
            await done.wait()
        finally:
            if not ended.is_set():
                self._hanging.append(ended)
        if failure:
            error = failure[0]
            # In a task, StopIteration, SystemExit and CancelledError have a meaning of their own.
            if isinstance(error, Exception) and not isinstance(error, StopIteration):
                raise error
            raise ScriptError(shorten(f"{type(error).__name__}: {message_of(error)}", MAX_REASON))
        return outcome[0]
