"""Parent side: one worker process. Starts it, asks it, stops it.

A worker gets one question at a time and is not trusted: it is killed if its answer is malformed,
belongs to another question, or is larger than the question allows.
"""

import contextlib
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Literal

import anyio

from clawmode.exceptions import (
    Aborted,
    DeadlineExceeded,
    ProtocolError,
    RuntimeUnavailable,
    SandboxError,
)
from clawmode.sandbox import artifacts
from clawmode.sandbox.frames import (
    HEADER,
    answer_bounds,
    decode_answer,
    encode,
    frame_length,
    verify,
)
from clawmode.sandbox.protocol import (
    MAX_SETUPS,
    Acknowledgement,
    Answer,
    Boot,
    Failure,
    Install,
    Part,
    Provide,
    Question,
)
from clawmode.tasks import backoff
from clawmode.types import JsonText

logger = logging.getLogger("clawmode.sandbox")

BOOT_SECONDS = 20.0
GRACE = 0.25
"""Seconds after a step's deadline in which the worker may still answer; then it is killed."""

ABORT_GRACE = 0.015
"""Seconds after an abort in which the worker may still answer; then it is killed."""

Lockdown = Literal["off", "best-effort", "required"]


class WorkerProcess:
    """A subprocess that runs guests.

    Attributes:
        booted: Resolves to the hash of the worker's image when the worker is ready.
        provided: The parts that the worker has, besides the engine.
        cells: The number of cells that the worker has started.
        notes: The parts of the lockdown that this system lacks.
        idle_since: When the worker became idle, by `time.monotonic`.
    """

    def __init__(self, lockdown: Lockdown) -> None:
        self.booted: Future[bytes] = Future()
        self.provided: set[Part] = set()
        self.cells = 0
        self._setups: dict[bytes, None] = {}
        self.notes: tuple[str, ...] = ()
        self._boot_began = float("inf")
        self.idle_since = time.monotonic()
        self._lockdown: Lockdown = lockdown
        self._number = 0
        self._buffer = bytearray()
        self._asking = False
        self._abort_wanted = False
        self._dead = False
        self._killing = threading.Lock()  # the boot thread may kill the worker too
        self._answered: anyio.Event | None = None
        self._start()
        threading.Thread(target=self._boot, name="clawmode-boot", daemon=True).start()

    # ---- Start and end ----

    def _start(self) -> None:
        try:
            control, self._control = os.pipe()
        except OSError as error:
            raise RuntimeUnavailable(f"cannot start a worker: {error}") from None
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own module and interpreter
                artifacts.python_command("worker", str(control), self._lockdown),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                env={},
                cwd="/",
                pass_fds=(control,),
                start_new_session=True,
            )
        except OSError as error:
            os.close(self._control)
            raise RuntimeUnavailable(f"cannot start a worker: {error}") from None
        finally:
            os.close(control)
        process = self._process
        self._streams = [pipe for pipe in (process.stdin, process.stdout, process.stderr) if pipe]
        self._input, self._output, self._errors = (pipe.fileno() for pipe in self._streams)

    def _boot(self) -> None:
        """Runs in the boot thread: sends the machine code and waits until the worker is ready."""
        watchdog = threading.Timer(BOOT_SECONDS, self.kill)
        watchdog.daemon = True
        try:
            coming = artifacts.prepare("quickjs")
            while not coming.done():
                if self._dead:
                    raise RuntimeUnavailable("it was ended while its machine code was prepared")
                with contextlib.suppress(TimeoutError):
                    coming.exception(0.1)
            # Not earlier: compiling can take minutes, and `artifacts` bounds it.
            watchdog.start()
            ready = self._shake_hands(coming.result())
        except Exception as error:
            reason = str(error)
            if not self._dead and not isinstance(error, SandboxError):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(0.5)
                reason = f"{self._ending()} ({type(error).__name__})"
            self.booted.set_exception(RuntimeUnavailable(f"a worker did not start: {reason}"))
            self.kill()
            return
        finally:
            watchdog.cancel()
        self.notes = ready.notes
        os.set_blocking(self._input, False)
        os.set_blocking(self._output, False)
        self.booted.set_result(ready.image)

    def _shake_hands(self, code: bytes) -> Acknowledgement:
        self._boot_began = time.monotonic()
        view = memoryview(encode(Boot(code), 0))
        while view:
            view = view[os.write(self._input, view) :]
        body = self._read_blocking(frame_length(self._read_blocking(HEADER.size)))
        ready = decode_answer(body, 0)
        if isinstance(ready, Failure):
            # The machine code is whole, and yet it cannot be loaded: the next worker compiles anew.
            artifacts.forget("quickjs")
            raise RuntimeUnavailable(ready.error)
        if not isinstance(ready, Acknowledgement):
            raise ProtocolError(f"expected ready, found {ready.kind}")
        return ready

    def _read_blocking(self, length: int) -> bytes:
        data = b""
        while len(data) < length:
            chunk = os.read(self._output, length - len(data))
            if not chunk:
                raise EOFError
            data += chunk
        return data

    def _ending(self) -> str:
        """Describes how the process ended. Its stderr is only logged, as models read errors."""
        os.set_blocking(self._errors, False)
        stderr = b""
        with contextlib.suppress(BlockingIOError):
            stderr = os.read(self._errors, 65536)
        if lines := stderr.decode(errors="replace").strip().splitlines():
            logger.error("last line on stderr of worker %d: %r", self.pid, lines[-1][:500])
        status = self._process.poll()
        return "it ended" if status is None else f"it ended with status {status}"

    @property
    def pid(self) -> int:
        return self._process.pid

    def booting_for(self) -> float:
        """Returns the seconds since the worker was sent its machine code."""
        return time.monotonic() - self._boot_began

    def died(self) -> bool:
        """True if the worker was ready once, and has ended since."""
        return self.booted.done() and not self.alive

    @property
    def alive(self) -> bool:
        return not self._dead and self._process.poll() is None

    def kill(self) -> None:
        """Kills the worker, if it is alive. Idempotent."""
        with self._killing:
            if self._dead:
                return
            self._dead = True
        self._process.kill()
        os.close(self._control)

    def reaped(self) -> bool:
        """True if a killed worker is gone; its pipes are then closed."""
        # The boot thread, or a pending question, still reads the pipes until they break.
        if self._process.poll() is None or not self.booted.done() or self._asking:
            return False
        for pipe in self._streams:
            pipe.close()
        return True

    # ---- Asking ----

    async def provide(self, part: Part, deadline: float) -> None:
        """Sends a part, unless the worker has it.

        Raises:
            DeadlineExceeded: The part was not loaded by the deadline.
        """
        if part in self.provided:
            return
        # `Pool.prepare` has usually loaded the part. If not, loading continues after the deadline,
        # for the next cell, and does not cost the worker its life.
        with anyio.move_on_after(deadline - time.monotonic()) as late:
            data = await loaded(part)
        if late.cancelled_caught:
            raise DeadlineExceeded(f"The program never ran: {part} took too long to load.")
        await self.ask(Provide(part, data), deadline)
        self.provided.add(part)

    async def install(self, key: bytes, data: JsonText, deadline: float) -> None:
        """Sends a setup, unless the worker has it. The worker forgets the oldest of too many."""
        if key in self._setups:
            return
        await self.ask(Install(key, data), deadline)
        self._setups[key] = None
        if len(self._setups) > MAX_SETUPS:
            del self._setups[next(iter(self._setups))]

    async def ask(self, question: Question, deadline: float) -> Answer:
        """Sends a question and waits for the answer.

        Raises:
            DeadlineExceeded: No answer arrived by `deadline` and a grace; the worker was killed.
            Aborted: The worker did not react to an abort, and was killed.
            RuntimeUnavailable: The worker died, or was killed because its answer was invalid.
        """
        assert not self._asking, "a worker gets one question at a time"
        self._asking, self._abort_wanted = True, False
        self._number += 1
        self._answered = anyio.Event()
        answered = False
        try:
            with anyio.move_on_after(max(deadline - time.monotonic(), 0) + GRACE):
                await self._send(encode(question, self._number))
                answer = verify(question, await self._receive(*answer_bounds(question)))
                answered = True
                return answer
            raise DeadlineExceeded("The program ran longer than it may, and its worker hung.")
        except (OSError, EOFError):
            if self._abort_wanted:
                raise Aborted from None
            self.kill()
            raise RuntimeUnavailable(f"the worker died: {self._ending()}") from None
        except ProtocolError as error:
            logger.error("worker %d sent an invalid answer: %s", self.pid, error)
            raise RuntimeUnavailable(f"the worker sent an invalid answer: {error}") from None
        finally:
            self._asking = False
            self._answered.set()
            if not answered:
                self.kill()

    async def _send(self, data: bytes) -> None:
        fd = self._input
        view = memoryview(data)
        while True:
            with contextlib.suppress(BlockingIOError):
                view = view[os.write(fd, view) :]
            if not view:
                return
            await anyio.wait_writable(fd)

    async def _receive(self, allowed: int, most: int) -> Answer:
        length = frame_length(await self._read(HEADER.size))
        if length > allowed:
            raise ProtocolError(f"an answer of {length} bytes, {allowed} allowed")
        body = await self._read(length)
        if self._buffer:
            raise ProtocolError("more than one answer")
        return decode_answer(body, self._number, most)

    async def _read(self, length: int) -> bytes:
        fd, buffer = self._output, self._buffer
        while len(buffer) < length:
            try:
                chunk = os.read(fd, max(65536, min(length - len(buffer), 1 << 20)))
            except BlockingIOError:
                await anyio.wait_readable(fd)
                continue
            if not chunk:
                raise EOFError
            buffer += chunk
        data = bytes(buffer[:length])
        del buffer[:length]
        return data

    async def abort(self) -> None:
        """Stops the running step, if there is one: through the control pipe, or by a kill."""
        if not self._asking or self._dead:
            return
        number, self._abort_wanted = self._number, True
        with contextlib.suppress(OSError):
            os.write(self._control, number.to_bytes(8, "big"))
        with anyio.move_on_after(ABORT_GRACE):
            assert self._answered is not None
            await self._answered.wait()
        if self._asking and self._number == number:
            self.kill()

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the worker; for tests."""
        self._process.send_signal(number)


async def loaded(part: Part, check: Callable[[], object] = bool) -> bytes:
    """Loads a part without blocking the event loop. A cancelled wait does not stop the loading.

    Args:
        part: The part to load.
        check: Called repeatedly during the wait, to end the wait by raising an exception.

    Raises:
        RuntimeUnavailable: The file is missing or altered, or cannot be compiled.
    """
    future, looks = artifacts.prepare(part), 0
    while not future.done():  # a thousand cells may wait here, and compiling takes seconds
        check()
        looks += 1
        await anyio.sleep(backoff(looks, 0.001, 0.1, jitter=0))
    return future.result()
