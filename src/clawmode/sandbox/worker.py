"""Worker side: the process that runs guests. One message in, one message out.

There are two threads. The serving thread has the large stack that guests need: it reads a message,
runs the VM and writes the answer. The main thread waits for an alarm at the deadline, or for the
number of a step on the control pipe; either increments the epoch, and the guest stops within
microseconds. When the parent dies, both pipes close and the process ends, whatever the guest does.
"""

import contextlib
import gc
import os
import signal
import struct
import threading
import time
from collections.abc import Callable

import wasmtime

from clawmode.exceptions import SnapshotError
from clawmode.sandbox.frames import HEADER, decode_question, encode, frame_length
from clawmode.sandbox.guard import Guard, ModuleAccess
from clawmode.sandbox.lockdown import Mode, give_up_calls, give_up_files
from clawmode.sandbox.machine import OutOfGuestMemory
from clawmode.sandbox.output import Outbox, OutputLimit
from clawmode.sandbox.protocol import (
    MAX_ERROR,
    Acknowledgement,
    Answer,
    Boot,
    Completion,
    Failure,
    Freeze,
    Install,
    Limits,
    Outcome,
    Provide,
    Question,
    Request,
    Resume,
    Start,
    Suspension,
)
from clawmode.sandbox.source import SHELL, describe_failure, looks_like_shell, wrap
from clawmode.sandbox.typescript import TransformError, TypeScript
from clawmode.sandbox.vm import FULFILLED, PENDING, REJECTED, IdleState, Vm
from clawmode.sandbox.wasm import THREAD_STACK, is_interrupt, new_engine
from clawmode.types import ErrorCode

STEP = struct.Struct(">Q")


class DeadlinePassed(Exception):
    """The deadline passed before the guest was entered."""


class DeadlineTimer:
    """The deadline of the running step. The serving thread sets it, the main thread enforces it."""

    def __init__(self) -> None:
        self.engine = new_engine()
        self.step = 0
        self.aborted = False
        self._deadline = float("inf")

    def begin(self, budget: float) -> None:
        """Starts the timer of a step that may take `budget` seconds."""
        self.aborted = False
        self._deadline = time.monotonic() + budget
        signal.setitimer(signal.ITIMER_REAL, max(budget, 1e-6))

    def end(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        self._deadline = float("inf")
        self.aborted = False

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
        """Main thread: stops `step`, if it still runs."""
        if step == self.step and self._deadline != float("inf"):
            self.aborted = True
            self.engine.increment_epoch()


class Worker:
    """Answers the parent's questions, with at most one live cell."""

    def __init__(self, timer: DeadlineTimer) -> None:
        self.timer = timer
        self.notes: tuple[str, ...] = ()
        self._module: wasmtime.Module | None = None
        self._vm: Vm | None = None
        self._typescript: TypeScript | None = None
        self._guard: Guard | None = None
        self._started: Start | None = None

    def answer(self, question: Question) -> Answer:
        match question:
            case Boot():
                return self._boot(question)
            case Provide():
                engine, arm = self.timer.engine, self.timer.arm
                if question.part == "swc":
                    module = wasmtime.Module.deserialize(engine, question.data)
                    self._typescript = TypeScript(engine, module, arm)
                else:
                    assert self._module is not None
                    self._guard = Guard(engine, self._module, question.data, arm)
                return Acknowledgement()
            case Install():
                self._running().install(question.key, question.data)
                return Acknowledgement()
            case Start():
                return self._step(question, lambda outbox: self._start(question, outbox))
            case Resume():
                return self._step(question, lambda outbox: self._resume(question, outbox))
            case Freeze():
                try:
                    return self._running().freeze()
                except MemoryError:
                    self._running().drop()
                    text = "The program is too large to be frozen."
                    return Failure("snapshot_limit_exceeded", text)

    def _boot(self, boot: Boot) -> Acknowledgement | Failure:
        engine = self.timer.engine
        try:
            self._module = wasmtime.Module.deserialize(engine, boot.quickjs)
        except wasmtime.WasmtimeError as error:
            return Failure("runtime_unavailable", _clean(f"the engine: {_first_line(error)}"))
        self._vm = Vm(engine, self._module, self.timer.arm)
        self._vm.warm_up()
        gc.collect()
        gc.freeze()
        return Acknowledgement(self._vm.image.digest, self.notes)

    def _running(self) -> Vm:
        assert self._vm is not None
        return self._vm

    # ---- One step of a cell ----

    def _step(self, question: Start | Resume, enter: Callable[[Outbox], IdleState]) -> Outcome:
        outbox, vm = Outbox(question.output_left), self._running()
        self.timer.begin(question.budget)
        try:
            outcome = self._judge(enter(outbox), outbox, question.limits)
        except Exception as error:
            vm.drop()
            code, text = self._describe(error, outbox)
            trapped = isinstance(error, wasmtime.Trap | wasmtime.WasmtimeError)
            crashed = trapped and not is_interrupt(error)
            outcome = Failure(code, _clean(text), tuple(outbox.output), crashed=crashed)
        finally:
            self.timer.end()
        if not isinstance(outcome, Suspension):
            vm.close()
        return outcome

    def _start(self, start: Start, outbox: Outbox) -> IdleState:
        self._started = start
        source, line_map = start.source, None
        if start.language == "typescript":
            assert self._typescript is not None
            transformed = self._typescript.transform(source)
            source, line_map = transformed.code, transformed.line_map
        prepared = wrap(source, line_map)
        if "acorn" in start.needs():
            assert self._guard is not None
            self._guard.check(prepared)
        vm = self._running()
        if not vm.start(prepared, start, outbox):
            raise UnbalancedSource
        return vm.run(0)

    def _resume(self, resume: Resume, outbox: Outbox) -> IdleState:
        vm = self._running()
        self._started = None
        if resume.frozen is not None:
            vm.restore(resume.frozen, resume.limits)
        vm.resume(resume.settled, resume.limits, outbox)
        return vm.run(resume.now)

    def _judge(self, idle: IdleState, outbox: Outbox, limits: Limits) -> Outcome:
        """Returns the outcome of a step that ended without an exception."""
        output = tuple(outbox.output)
        lines = (line.split(b" ", 2) for line in idle.requests.splitlines())
        requests = tuple(
            Request(int(number), method.decode(), args)  # pyrefly: ignore - the prelude's methods
            for number, method, args in lines
        )
        if idle.state == REJECTED:
            if outbox.failure is None:
                # Only a lack of memory keeps the prelude from describing the failure.
                raise OutOfGuestMemory
            code, text = describe_failure(
                outbox.failure, self._started, outbox.compile_failure, filled=idle.filled
            )
            return Failure(code, _clean(text), output, requests)
        if idle.overflow:
            return Failure("too_many_pending_tool_calls", TOO_MANY, output, requests)
        if idle.stuck:
            return Failure("internal_error", STUCK, output)
        if idle.ended and idle.state == FULFILLED:
            return Completion(outbox.value or b"null", output)
        # A cell can complete while an interval runs, but its main promise may wait for a tick.
        timers = idle.timeouts or int(idle.state == PENDING and idle.due > 0)
        frozen_at_most = self._running().frozen_at_most(limits.snapshot_bytes)
        return Suspension(requests, timers, idle.due, output, frozen_at_most)

    def _describe(self, error: Exception, outbox: Outbox) -> tuple[ErrorCode, str]:
        """Returns the error code and the text for an exception that ended a step."""
        match error:
            case OutputLimit():
                return "output_limit_exceeded", (
                    f"The program emitted more than it may: {outbox.omitted} bytes were left out."
                )
            case OutOfGuestMemory():
                return "memory_limit_exceeded", "The program used more memory than it may."
            case TransformError():
                assert self._started is not None
                return _transform_failure(error, self._started.source)
            case ModuleAccess():
                return "module_access_denied", (
                    f"`{error.what}` at line {error.line}, column {error.column}: programs have "
                    "no modules. Call tools instead."
                )
            case UnbalancedSource():
                return "invalid_input", "SyntaxError: a `}` closes more than was opened."
            case SnapshotError():
                return error.code, str(error)
        if isinstance(error, DeadlinePassed) or is_interrupt(error):
            if self.timer.aborted:
                return "aborted", "The program was aborted."
            if outbox.prefix is not None:
                with contextlib.suppress(OutputLimit):
                    outbox.cut_short()
                return self._describe(OutputLimit(), outbox)
            return "timeout", "The program ran longer than it may."
        if isinstance(error, wasmtime.Trap | wasmtime.WasmtimeError):
            return "internal_error", f"The program crashed its sandbox: {_first_line(error)}"
        _report(error)
        return "internal_error", f"The sandbox failed: {type(error).__name__}"


class UnbalancedSource(Exception):
    """The source closes the function that it is wrapped in."""


TOO_MANY = "The program opened more calls at once than it may. Await some before starting more."
STUCK = "The program waits for a promise that nothing can settle."


def _transform_failure(error: TransformError, source: str) -> tuple[ErrorCode, str]:
    if looks_like_shell(source):
        return "invalid_input", SHELL
    if error.kind == "module":
        return "module_access_denied", (
            f"Line {error.line}, column {error.column}: programs have no modules. "
            "Call tools instead."
        )
    position = f" (line {error.line}, column {error.column})" if error.line else ""
    snippet = f"\n    {error.snippet}" if error.snippet else ""
    return "typescript_transform_failed", f"{error.message}{position}{snippet}"


def _clean(text: str) -> str:
    """Replaces lone surrogates, which cannot be encoded, and bounds the length."""
    return text[: MAX_ERROR - 1].encode("utf-8", "replace").decode()


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["trap"])[-1].strip()[:200]


# ---- The process ----


def serve(worker: Worker, source: int, sink: int, lockdown: Mode) -> None:
    """Answers frames from `source` on `sink` until the parent is gone."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    try:
        # Here, because no other thread can be started, and no module imported, after this.
        worker.notes += give_up_calls(lockdown)
        while True:
            header = _read(source, HEADER.size)
            body = _read(source, frame_length(header))
            question, number = decode_question(body)
            worker.timer.step = number
            answer = memoryview(encode(worker.answer(question), number))
            while answer:
                answer = answer[os.write(sink, answer) :]
    except EOFError:
        os._exit(0)
    except BaseException as error:
        try:
            _report(error)
        finally:
            os._exit(1)


def _report(error: BaseException) -> None:
    """Writes an error to stderr, which the parent reads when the worker has died."""
    with contextlib.suppress(OSError):
        os.write(2, f"{type(error).__name__}: {str(error)[:500]}\n".encode(errors="replace"))


def _read(fd: int, length: int) -> bytes:
    first = os.read(fd, length)
    if len(first) == length:
        return first
    chunks, missing = [first], length - len(first)
    while missing:
        if not chunks[-1]:
            raise EOFError
        chunks.append(os.read(fd, min(missing, 1 << 20)))
        missing -= len(chunks[-1])
    return b"".join(chunks)


def main(descriptor: str, lockdown: Mode) -> None:
    """Runs a worker on standard input and output, with the control pipe `descriptor`."""
    control = int(descriptor)
    # A stray print must not end up in the middle of a frame.
    source, sink = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    os.set_blocking(2, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    timer = DeadlineTimer()
    signal.signal(signal.SIGALRM, timer.on_alarm)
    threading.stack_size(THREAD_STACK)
    worker = Worker(timer)
    # In this thread, before the other is started: Landlock binds a thread and its later children.
    worker.notes += give_up_files(lockdown)
    threading.Thread(target=serve, args=(worker, source, sink, lockdown), daemon=True).start()
    while step := os.read(control, STEP.size):
        timer.on_abort(STEP.unpack(step)[0])
    os._exit(0)
