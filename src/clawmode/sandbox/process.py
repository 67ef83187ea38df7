"""Parent side: one worker process. Starts it, asks it, stops it.

A worker gets one question at a time and is not trusted: it is killed if its answer is malformed,
belongs to another question, or is larger than the question allows.
"""

import contextlib
import logging
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

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
from clawmode.sandbox.pipes import Pipes
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
    Start,
)
from clawmode.sandbox.template import ForkedWorker, SpawnedWorker, Template, TemplateFailed
from clawmode.tasks import backoff
from clawmode.types import JsonText

if TYPE_CHECKING:
    from clawmode.sandbox.lockdown import Mode

logger = logging.getLogger("clawmode.sandbox")

BOOT_SECONDS = 20.0
GRACE = 0.25
"""Seconds after a step's deadline in which the worker may still answer; then it is killed."""

ABORT_GRACE = 0.015
"""Seconds after an abort in which the worker may still answer; then it is killed."""


class WorkerProcess:
    """A subprocess that runs guests.

    Attributes:
        booted: Resolves to the hash of the worker's image when the worker is ready.
        provided: The parts that the worker has, besides the engine.
        cells: The number of cells that the worker has started or restored.
        notes: The parts of the lockdown that this system lacks.
        alone: True if the worker is not to be used again after its present cell.
        idle_since: When the worker became idle, by `time.monotonic`.
    """

    def __init__(self, lockdown: "Mode", template: Template | None = None) -> None:
        self.booted: Future[bytes] = Future()
        self.provided: set[Part] = set()
        self.cells = 0
        self.alone = False
        self._setups: dict[bytes, None] = {}
        self.notes: tuple[str, ...] = ()
        self._boot_began = float("inf")
        self.idle_since = time.monotonic()
        self._lockdown: Mode = lockdown
        self._number = 0
        self._asking = False
        self._abort_wanted = False
        self._dead = False
        self._killing = threading.Lock()  # the boot thread may kill the worker too
        self._process: SpawnedWorker | ForkedWorker | None = None
        self._started = threading.Event()  # the process is there, or will never be
        self._template = template if template is not None and template.usable else None
        self._open()
        if self._template is None:
            try:
                self._spawn()
            except OSError as error:
                self._close(*self._ours, *self._theirs)
                raise RuntimeUnavailable(f"cannot start a worker: {error}") from None
        threading.Thread(target=self._boot, name="clawmode-boot", daemon=True).start()

    # ---- Start and end ----

    def _open(self) -> None:
        """Opens the pipes: input, output, errors and control of the worker."""
        pipes: list[tuple[int, int]] = []
        try:
            while len(pipes) < 4:
                pipes.append(os.pipe())
        except OSError as error:
            self._close(*(end for pipe in pipes for end in pipe))
            raise RuntimeUnavailable(f"cannot start a worker: {error}") from None
        (source, self._input), (self._output, sink), (self._errors, errors), last = pipes
        control, self._control = last
        self._theirs = [source, sink, errors, control]
        self._ours = [self._input, self._output, self._errors]
        self._pipes = Pipes(self._input, self._output)
        for descriptor in self._ours:
            os.set_blocking(descriptor, False)

    def _close(self, *descriptors: int) -> None:
        for descriptor in descriptors:
            os.close(descriptor)

    def _spawn(self) -> None:
        """Starts the process without a template."""
        source, sink, errors, control = self._theirs
        command = artifacts.python_command("worker", str(control), self._lockdown)
        self._adopt(SpawnedWorker(command, source, sink, errors, control))

    def _adopt(self, process: SpawnedWorker | ForkedWorker) -> None:
        self._close(*self._theirs)
        self._theirs = []
        with self._killing:
            self._process = process
            if self._dead:
                process.kill()
        self._started.set()

    def _boot(self) -> None:
        """Runs in the boot thread: gets the process, and waits until the worker is ready."""
        try:
            coming = artifacts.prepare("quickjs")
            while not coming.done():
                self._check_boot()
                with contextlib.suppress(TimeoutError):
                    coming.exception(0.1)
            # Not earlier: compiling can take minutes, and `artifacts` bounds it.
            ready = self._shake_hands(coming.result(), time.monotonic() + BOOT_SECONDS)
        except Exception as error:
            reason = str(error)
            if not self._dead and not isinstance(error, SandboxError):
                reason = f"{self._ending(0.5)} ({type(error).__name__})"
            self.kill()
            self._started.set()
            self._close(*self._theirs)
            self._theirs = []
            self.booted.set_exception(RuntimeUnavailable(f"a worker did not start: {reason}"))
            return
        self.notes = ready.notes
        self.booted.set_result(ready.image)

    def _check_boot(self) -> None:
        if self._dead:
            raise RuntimeUnavailable("it was ended while it was started")

    def _shake_hands(self, code: bytes, until: float) -> Acknowledgement:
        self._boot_began = time.monotonic()
        if self._template is not None:
            try:
                self._adopt(self._template.fork(code, self._lockdown, self._theirs))
            except TemplateFailed:
                self._check_boot()
                self._spawn()
        if isinstance(self._process, SpawnedWorker):
            view = memoryview(encode(Boot(code, artifacts.cached_image()), 0))
            while view:
                self._await(self._input, select.POLLOUT, until)
                with contextlib.suppress(BlockingIOError):
                    view = view[os.write(self._input, view) :]
        body = self._read_boot(frame_length(self._read_boot(HEADER.size, until)), until)
        ready = decode_answer(body, 0)
        if isinstance(ready, Failure):
            # The machine code is whole, and yet it cannot be loaded: the next worker compiles anew.
            artifacts.forget("quickjs")
            raise RuntimeUnavailable(ready.error)
        if not isinstance(ready, Acknowledgement):
            raise ProtocolError(f"expected ready, found {ready.kind}")
        return ready

    def _await(self, descriptor: int, event: int, until: float) -> None:
        poll = select.poll()
        poll.register(descriptor, event)
        if not poll.poll(max(until - time.monotonic(), 0) * 1000):
            raise TimeoutError("a worker hung during its start")

    def _read_boot(self, length: int, until: float) -> bytes:
        data = b""
        while len(data) < length:
            self._await(self._output, select.POLLIN, until)
            chunk = os.read(self._output, length - len(data))
            if not chunk:
                raise EOFError
            data += chunk
        return data

    def _ending(self, patience: float = 0) -> str:
        """Describes how the process ended. Its stderr is only logged, as models read errors."""
        if self._process is None:
            return "it was never started"
        ended = self._process.poll()
        until = time.monotonic() + patience
        while ended is None and time.monotonic() < until:
            time.sleep(0.005)
            ended = self._process.poll()
        stderr = b""
        with contextlib.suppress(BlockingIOError):
            stderr = os.read(self._errors, 65536)
        if lines := stderr.decode(errors="replace").strip().splitlines():
            logger.error("last line on stderr of worker %d: %r", self.pid, lines[-1][:500])
        known = isinstance(self._process, SpawnedWorker) and ended is not None
        return f"it ended with status {ended}" if known else "it ended"

    @property
    def pid(self) -> int:
        """The process, after waiting until it is forked; 0 if it never was."""
        self._started.wait(BOOT_SECONDS)
        return self._process.pid if self._process is not None else 0

    def booting_for(self) -> float:
        """Returns the seconds since the worker was sent its machine code."""
        return time.monotonic() - self._boot_began

    def died(self) -> bool:
        """True if the worker was ready once, and has ended since."""
        return self.booted.done() and not self.alive

    @property
    def alive(self) -> bool:
        return not self._dead and (self._process is None or self._process.poll() is None)

    def kill(self) -> None:
        """Kills the worker, if it is alive. Idempotent."""
        with self._killing:
            if self._dead:
                return
            self._dead = True
            if self._process is not None:
                self._process.kill()
        os.close(self._control)

    def reaped(self) -> bool:
        """True if a killed worker is gone; its pipes are then closed."""
        # The boot thread, or a pending question, still reads the pipes until they break.
        if not self.booted.done() or self._asking:
            return False
        if self._process is not None and not self._process.gone():
            return False
        self._pipes.release()
        self._close(*self._ours)
        self._ours = []
        return True

    # ---- Asking ----

    def is_equipped(self, start: Start) -> bool:
        """True if the worker has the parts and the setup that a cell starts with."""
        has_setup = not start.setup or start.setup in self._setups
        return has_setup and self.provided.issuperset(start.needs())

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
        allowed, most = answer_bounds(question)
        answered = False
        try:
            frame = encode(question, self._number)
            body = await self._pipes.exchange(
                frame, allowed, max(deadline, time.monotonic()) + GRACE
            )
            answer = verify(question, decode_answer(body, self._number, most))
            answered = True
            return answer
        except TimeoutError:
            text = "The program ran longer than it may, and its worker hung."
            raise DeadlineExceeded(text) from None
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
            if not answered:
                self.kill()

    async def abort(self) -> None:
        """Stops the running step, if there is one: through the control pipe, or by a kill."""
        if not self._asking or self._dead:
            return
        number, self._abort_wanted = self._number, True
        with contextlib.suppress(OSError):
            os.write(self._control, number.to_bytes(8, "big"))
        await self._pipes.answered(ABORT_GRACE)
        if self._asking and self._number == number:
            self.kill()

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the worker; for tests."""
        self._started.wait(BOOT_SECONDS)
        if self._process is not None:
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
