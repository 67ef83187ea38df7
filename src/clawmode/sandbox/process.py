"""Parent side: one worker process. Start it, ask it, stop it.

A worker is asked one thing at a time and trusted with nothing: an answer that is malformed, to
another question, or larger than the question allows, kills it.
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
from dataclasses import replace
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
    MAX_FRAME,
    decode_answer,
    encode,
    frame_length,
    read_json,
)
from clawmode.sandbox.protocol import (
    ITEM_BYTES,
    MAX_ERROR,
    MAX_REQUEST,
    MAX_SETUPS,
    Acknowledgement,
    Answer,
    Boot,
    Completion,
    Failure,
    Freeze,
    FrozenCell,
    Install,
    Output,
    Part,
    Provide,
    Question,
    Resume,
    Start,
    Suspension,
)
from clawmode.tasks import backoff
from clawmode.types import JsonText

logger = logging.getLogger("clawmode.sandbox")

BOOT_SECONDS = 20.0
GRACE = 0.25
"""How long after a step's deadline the worker may still answer; then it is killed."""

ABORT_GRACE = 0.015
"""The same after an abort."""

Lockdown = Literal["off", "best-effort", "required"]


class WorkerProcess:
    """A subprocess that runs guests.

    Attributes:
        booted: Resolves when the worker is ready, with the hash of its image.
        provided: The parts that it has been given beside the engine.
        cells: How many cells it has started.
        notes: What the worker could not give up.
    """

    def __init__(self, lockdown: Lockdown) -> None:
        self.booted: Future[bytes] = Future()
        self.provided: set[Part] = set()
        self.cells = 0
        self._setups: dict[bytes, None] = {}
        self.notes: tuple[str, ...] = ()
        self._handed = float("inf")
        self.idle_since = time.monotonic()
        self._lockdown: Lockdown = lockdown
        self._number = 0
        self._buffer = bytearray()
        self._asking = False
        self._abort_wanted = False
        self._dead = False
        self._killing = threading.Lock()  # the boot thread kills too
        self._answered: anyio.Event | None = None
        self._start()
        threading.Thread(target=self._boot, name="clawmode-boot", daemon=True).start()

    # ---- Start and end ----

    def _start(self) -> None:
        try:
            control, self._control = os.pipe()
        except OSError as error:
            raise RuntimeUnavailable(f"no worker could be started: {error}") from None
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
            raise RuntimeUnavailable(f"no worker could be started: {error}") from None
        finally:
            os.close(control)
        process = self._process
        self._streams = [pipe for pipe in (process.stdin, process.stdout, process.stderr) if pipe]
        self._input, self._output, self._errors = (pipe.fileno() for pipe in self._streams)

    def _boot(self) -> None:
        """In a thread of its own: hands over the machine code and waits until it is ready."""
        watchdog = threading.Timer(BOOT_SECONDS, self.kill)
        watchdog.daemon = True
        try:
            code = self._await_code()
            # Only now: preparing the code takes as long as it takes, and is bounded elsewhere.
            watchdog.start()
            ready = self._shake_hands(code)
        except Exception as error:
            self.booted.set_exception(
                RuntimeUnavailable(f"a worker did not start: {self._why(error)}")
            )
            self.kill()
            return
        finally:
            watchdog.cancel()
        self.notes = ready.notes
        os.set_blocking(self._input, False)
        os.set_blocking(self._output, False)
        self.booted.set_result(ready.image)

    def _await_code(self) -> bytes:
        coming = artifacts.prepare("quickjs")
        while not self._dead:
            with contextlib.suppress(TimeoutError):
                return coming.result(0.1)
        raise RuntimeUnavailable("it was ended while its machine code was prepared")

    def _why(self, error: Exception) -> str:
        if self._dead or isinstance(error, SandboxError):
            return str(error)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.5)
        return f"{self._ending()} ({type(error).__name__})"

    def _shake_hands(self, code: bytes) -> Acknowledgement:
        self._handed = time.monotonic()
        view = memoryview(encode(Boot(code), 0))
        while view:
            view = view[os.write(self._input, view) :]
        body = self._read_blocking(frame_length(self._read_blocking(HEADER.size)))
        ready = decode_answer(body, 0)
        if isinstance(ready, Failure):
            # The machine code could not be loaded, whole as it is: made again next time.
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
        """How the process ended. Its last line on stderr is only logged: models read errors."""
        os.set_blocking(self._errors, False)
        said = b""
        with contextlib.suppress(BlockingIOError):
            said = os.read(self._errors, 65536)
        if lines := said.decode(errors="replace").strip().splitlines():
            logger.error("the last line of worker %d: %r", self.pid, lines[-1][:500])
        status = self._process.poll()
        return "it ended" if status is None else f"it ended with status {status}"

    @property
    def pid(self) -> int:
        """The worker's process id."""
        return self._process.pid

    def booting_for(self) -> float:
        """Seconds since it was given its machine code."""
        return time.monotonic() - self._handed

    def died(self) -> bool:
        """Whether a worker that had come up has ended by itself."""
        return self.booted.done() and not self.alive

    @property
    def alive(self) -> bool:
        """Whether it has not been killed, nor has ended by itself."""
        return not self._dead and self._process.poll() is None

    def kill(self) -> None:
        """Ends the worker at once. Idempotent."""
        with self._killing:
            if self._dead:
                return
            self._dead = True
        self._process.kill()
        os.close(self._control)

    def reaped(self) -> bool:
        """Whether a killed worker is gone; what it held is then given back."""
        # Who reads its pipes (the boot thread, or a question) ends when they break, not before.
        if self._process.poll() is None or not self.booted.done() or self._asking:
            return False
        for pipe in self._streams:
            pipe.close()
        return True

    # ---- Asking ----

    async def provide(self, part: Part, deadline: float) -> None:
        """Hands over a part that the worker lacks."""
        if part in self.provided:
            return
        # `Pool.prepare` has seen to it, so it is there. If not, loading continues when the cell is
        # late or gone, for the next one's sake, and costs no worker.
        with anyio.move_on_after(deadline - time.monotonic()) as late:
            data = await loaded(part)
        if late.cancelled_caught:
            raise DeadlineExceeded(f"The program never ran: {part} took too long to load.")
        await self.ask(Provide(part, data), deadline)
        self.provided.add(part)

    async def install(self, key: bytes, data: JsonText, deadline: float) -> None:
        """Installs a setup that the worker lacks; it forgets the oldest when there are too many."""
        if key in self._setups:
            return
        await self.ask(Install(key, data), deadline)
        self._setups[key] = None
        if len(self._setups) > MAX_SETUPS:
            del self._setups[next(iter(self._setups))]

    async def ask(self, question: Question, deadline: float) -> Answer:
        """Asks one thing.

        Raises:
            DeadlineExceeded: No answer by `deadline` and a grace; the worker is dead.
            Aborted: It was killed because it did not heed an abort.
            RuntimeUnavailable: It died, or answered nonsense; it is dead.
        """
        assert not self._asking, "a worker is asked one thing at a time"
        self._asking, self._abort_wanted = True, False
        self._number += 1
        self._answered = anyio.Event()
        answered = False
        try:
            with anyio.move_on_after(max(deadline - time.monotonic(), 0) + GRACE):
                await self._send(encode(question, self._number))
                answer = _verified(question, await self._receive(*_allowed(question)))
                answered = True
                return answer
            raise DeadlineExceeded("The program ran longer than it may, and its worker hung.")
        except (OSError, EOFError):
            if self._abort_wanted:
                raise Aborted from None
            self.kill()
            raise RuntimeUnavailable(f"the worker died: {self._ending()}") from None
        except ProtocolError as error:
            logger.error("worker %d answered nonsense: %s", self.pid, error)
            raise RuntimeUnavailable(f"the worker answered nonsense: {error}") from None
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
        """Stops the step that runs now, if one does: by its own means, or by killing the worker."""
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
        """Sends the worker a signal; for tests."""
        self._process.send_signal(number)


async def loaded(part: Part, check: Callable[[], object] = bool) -> bytes:
    """`artifacts.load` without blocking the event loop. Cancelling it does not stop the loading.

    Args:
        part: What to load.
        check: Called now and then while it waits; what it raises ends the wait.

    Raises:
        RuntimeUnavailable: The file is missing or altered, or cannot be compiled.
    """
    future, looks = artifacts.prepare(part), 0
    while not future.done():  # a thousand cells may wait here, and compiling takes seconds
        check()
        looks += 1
        await anyio.sleep(backoff(looks, 0.001, 0.1, jitter=0))
    return future.result()


def _allowed(question: Question) -> tuple[int, int]:
    """How long an answer to this question can be, and how many items a list in it can have."""
    if isinstance(question, Start | Resume):
        limits, left = question.limits, question.output_left
        # Requests were text in the guest's heap, output had its own limit.
        items = max(limits.max_calls + limits.max_others, left // ITEM_BYTES["text"])
        return 2 * limits.memory_bytes + left + (1 << 20), items + 16
    return (MAX_FRAME if isinstance(question, Freeze) else 1 << 16), 64


def _verified(question: Question, answer: Answer) -> Answer:
    """Returns the answer with its JSON parsed.

    Raises:
        ProtocolError: It is no answer to this question, or more than the question allows.
    """
    match question, answer:
        case (Start() | Resume()) as asked, (Completion() | Suspension() | Failure()):
            _check_limits(asked, answer)
            output = tuple(_parsed(item) for item in answer.output)
            if isinstance(answer, Completion):
                return Completion(answer.value, output, read_json(answer.value))
            return replace(answer, output=output) if output else answer
        case ((Boot() | Provide() | Install()), Acknowledgement()):
            return answer
        case Freeze(), FrozenCell() | Failure():
            return answer
        case _:
            raise ProtocolError(f"{answer.kind!r} in answer to {question.kind!r}")


def _check_limits(asked: Start | Resume, answer: Completion | Suspension | Failure) -> None:
    size = sum(item.size for item in answer.output)
    size += len(answer.value) if isinstance(answer, Completion) else 0
    if size > asked.output_left:
        raise ProtocolError(f"{size} bytes of output, {asked.output_left} allowed")
    if isinstance(answer, Failure) and len(answer.error) > MAX_ERROR:
        raise ProtocolError(f"an error of {len(answer.error)} characters")
    requests = () if isinstance(answer, Completion) else answer.requests
    if len(requests) > asked.limits.max_calls + asked.limits.max_others:
        raise ProtocolError(f"{len(requests)} requests")
    if any(len(request.args) > 4 * MAX_REQUEST for request in requests):
        raise ProtocolError("a request over its limit")
    ids = [request.id for request in requests]
    if ids != sorted(set(ids)):
        raise ProtocolError("requests out of order")


def _parsed(item: Output) -> Output:
    value = read_json(item.body)
    if item.type == "text" and not isinstance(value, str):
        raise ProtocolError(f"a text that is {type(value).__name__}")
    return Output(item.type, item.body, value)
