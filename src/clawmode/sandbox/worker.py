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
from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn

import wasmtime

from clawmode.exceptions import SnapshotError
from clawmode.sandbox.deadline import DeadlinePassed, DeadlineTimer
from clawmode.sandbox.frames import HEADER, decode_question, encode, frame_length
from clawmode.sandbox.guard import Guard, ModuleAccess
from clawmode.sandbox.image import load_image
from clawmode.sandbox.lockdown import Mode, give_up_calls, give_up_files
from clawmode.sandbox.machine import OutOfGuestMemory
from clawmode.sandbox.output import Exited, Outbox, OutputLimit
from clawmode.sandbox.protocol import (
    Acknowledgement,
    Answer,
    Boot,
    Completion,
    Failure,
    Fork,
    Freeze,
    Install,
    Limits,
    Outcome,
    Provide,
    Question,
    Request,
    Resume,
    Settlement,
    Start,
    Suspension,
)
from clawmode.sandbox.source import (
    STUCK,
    TOO_MANY,
    UnbalancedSource,
    clean_text,
    describe_failure,
    last_line,
    wrap,
)
from clawmode.sandbox.typescript import TransformError, TypeScript
from clawmode.sandbox.vm import FULFILLED, PENDING, REJECTED, IdleState, Vm
from clawmode.sandbox.wasm import THREAD_STACK, is_interrupt
from clawmode.types import ErrorCode

STEP = struct.Struct(">Q")
TRAPS = (wasmtime.Trap, wasmtime.WasmtimeError)


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
                self.running().install(question.key, question.data)
                return Acknowledgement()
            case Start():
                return self._step(question, lambda outbox: self._start(question, outbox))
            case Resume():
                return self._step(question, lambda outbox: self._resume(question, outbox))
            case Fork():
                raise AssertionError("only the template forks")
            case Freeze():
                try:
                    return self.running().freeze(packed=question.packed, keep=question.keep)
                except MemoryError:
                    self.running().drop()
                    text = "The program is too large to be frozen."
                    return Failure("snapshot_limit_exceeded", text)

    def _boot(self, boot: Boot) -> Acknowledgement | Failure:
        engine = self.timer.engine
        try:
            self._module = wasmtime.Module.deserialize(engine, boot.quickjs)
        except wasmtime.WasmtimeError as error:
            return Failure("runtime_unavailable", clean_text(f"the engine: {last_line(error)}"))
        image = None
        if boot.image:
            with contextlib.suppress(ValueError):  # of another build, so the prelude runs again
                image = load_image(boot.image)
        self._vm = Vm(engine, self._module, self.timer.arm, image)
        self._vm.warm_up()
        gc.collect()
        gc.freeze()
        built = b"" if image is not None else self._vm.image.dump()
        return replace(self.ready(), built=built)

    def warm_up(self) -> None:
        """Runs a program of our own, so that forks find everything loaded and compiled."""
        source = "return await tools.call('t')"
        resume = Resume((Settlement(1, True, b"1"),))
        for question in (Start(source), resume, Start(source), Freeze(packed=False)):
            encode(self.answer(decode_question(encode(question, 0)[HEADER.size :])[0]), 0)
        self.running().lay_out()
        gc.collect()
        gc.freeze()

    @property
    def booted(self) -> bool:
        return self._vm is not None

    def ready(self) -> Acknowledgement:
        """Returns the answer of a worker that has booted."""
        return Acknowledgement(self.running().image.digest, self.notes)

    def running(self) -> Vm:
        assert self._vm is not None
        return self._vm

    # ---- One step of a cell ----

    def _step(self, question: Start | Resume, enter: Callable[[Outbox], IdleState]) -> Outcome:
        outbox, vm = Outbox(question.output_left), self.running()
        self.timer.begin(question.budget)
        try:
            outcome = self._judge(enter(outbox), outbox, question.limits)
        except Exited:
            unmade = vm.unmade_calls()
            vm.drop()  # the guest was stopped in the middle of its code
            outcome = Completion(outbox.value or b"null", tuple(outbox.output), unmade=unmade)
        except Exception as error:
            vm.drop()
            code, text = self._describe(error, outbox)
            crashed = isinstance(error, TRAPS) and not is_interrupt(error)
            outcome = Failure(code, clean_text(text), tuple(outbox.output), crashed=crashed)
        finally:
            self.timer.end()
        if isinstance(outcome, Suspension):
            vm.keep_state(outbox)
        else:
            vm.close()
        if outbox.stored:
            outcome = replace(outcome, stored=tuple(outbox.stored.items()))
        return outcome

    def _start(self, start: Start, outbox: Outbox) -> IdleState:
        self._started = start
        if start.language == "typescript":
            assert self._typescript is not None
            transformed = self._typescript.transform(start.source)
            prepared = wrap(transformed.code, transformed.line_map, start.source)
        else:
            prepared = wrap(start.source)
        if "acorn" in start.needs():
            assert self._guard is not None
            self._guard.check(prepared)
        vm = self.running()
        if not vm.start(prepared, start, outbox):
            raise UnbalancedSource
        return vm.run(0)

    def _resume(self, resume: Resume, outbox: Outbox) -> IdleState:
        vm = self.running()
        self._started = None
        if resume.frozen is not None:
            vm.restore(resume.frozen, resume.limits)
        vm.resume(resume, outbox)
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
            return Failure(code, clean_text(text), output, requests, waiting=idle.waiting)
        if idle.overflow:
            code = "too_many_pending_tool_calls"
            return Failure(code, TOO_MANY, output, requests, waiting=idle.waiting)
        if idle.stuck:
            return Failure("internal_error", STUCK, output)
        if idle.ended and idle.state == FULFILLED:
            return Completion(outbox.value or b"null", output)
        # A cell can complete while an interval runs, but its main promise may wait for a tick.
        timers = idle.timeouts or int(idle.state == PENDING and idle.due > 0)
        frozen_at_most = self.running().frozen_at_most(limits.snapshot_bytes, self.timer.ran())
        return Suspension(requests, timers, idle.due, output, frozen_at_most, idle.waiting)

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
                return error.describe(self._started.source)
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
        if isinstance(error, TRAPS):
            return "internal_error", f"The program crashed its sandbox: {last_line(error)}"
        _report(error)
        return "internal_error", f"The sandbox failed: {type(error).__name__}"


# ---- The process ----


def serve(worker: Worker, source: int, sink: int, lockdown: Mode) -> None:
    """Answers frames from `source` on `sink` until the parent is gone."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    try:
        # Here, because no other thread can be started, and no module imported, after this.
        worker.notes += give_up_calls(lockdown)
        if worker.booted:  # it is a fork, whose parent waits for this answer
            write(sink, worker.ready())
        while True:
            header = read(source, HEADER.size)
            body = read(source, frame_length(header))
            question, number = decode_question(body)
            worker.timer.step = number
            write(sink, worker.answer(question), number)
            if worker.booted:
                worker.running().lay_out()  # while the parent reads the answer
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


def read(fd: int, length: int) -> bytes:
    """Reads exactly `length` bytes, or raises EOFError."""
    data = bytearray()
    while len(data) < length:
        chunk = os.read(fd, min(length - len(data), 1 << 20))
        if not chunk:
            raise EOFError
        data += chunk
    return bytes(data)


def write(fd: int, answer: Answer, number: int = 0) -> None:
    """Writes an answer as one frame."""
    data = memoryview(encode(answer, number))
    while data:
        data = data[os.write(fd, data) :]


def run(worker: Worker, source: int, sink: int, control: int, lockdown: Mode) -> NoReturn:
    """Locks this process down and serves in a second thread, until the parent is gone."""
    timer = worker.timer
    os.set_blocking(2, False)
    signal.signal(signal.SIGALRM, timer.on_alarm)
    threading.stack_size(THREAD_STACK)
    # In this thread, before the other is started: Landlock binds a thread and its later children.
    worker.notes += give_up_files(lockdown)
    threading.Thread(target=serve, args=(worker, source, sink, lockdown), daemon=True).start()
    while step := os.read(control, STEP.size):
        timer.on_abort(STEP.unpack(step)[0])
    os._exit(0)


def main(descriptor: str, lockdown: Mode) -> None:
    """Runs a worker on standard input and output, with the control pipe `descriptor`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A stray print must not end up in the middle of a frame.
    source, sink = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    run(Worker(DeadlineTimer()), source, sink, int(descriptor), lockdown)
