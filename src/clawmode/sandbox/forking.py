"""Worker side: the template, a booted worker without a cell that is forked for each request.

It has one thread and is not locked down, because otherwise it could not fork. So it never runs a
guest, and gets nothing from the parent but machine code, the image and the pipes of its forks.
"""

import contextlib
import ctypes
import os
import select
import signal
import socket
from typing import NoReturn

from clawmode.sandbox.deadline import DeadlineTimer
from clawmode.sandbox.frames import HEADER, decode_question, frame_length
from clawmode.sandbox.protocol import Fork
from clawmode.sandbox.worker import Worker, read, run, write

END_SECONDS = 5
"""Seconds that the template waits for its workers, when its parent is gone."""


def main(descriptor: str) -> None:
    """Boots a worker and forks it for each request on the socket `descriptor`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve_forks(Worker(DeadlineTimer()), socket.socket(fileno=int(descriptor)))


def _trim_memory() -> None:
    """Gives freed memory back to the system, so that no fork inherits it."""
    with contextlib.suppress(AttributeError):  # not every C library has the function
        ctypes.CDLL(None).malloc_trim(0)


def serve_forks(worker: Worker, connection: socket.socket) -> NoReturn:
    """Boots the worker and forks it on demand, until the parent is gone. Reaps the forks."""
    woken, wake = os.pipe2(os.O_NONBLOCK)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # only a signal with a handler wakes up
    poll, warm = select.poll(), False
    poll.register(connection, select.POLLIN)
    poll.register(woken, select.POLLIN)
    while True:
        ready = [descriptor for descriptor, _ in poll.poll()]
        if woken in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(woken, 4096)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
        if connection.fileno() not in ready:
            continue
        header, descriptors, _, _ = socket.recv_fds(connection, HEADER.size, 4)
        if len(header) < HEADER.size:
            break
        body = read(connection.fileno(), frame_length(header))
        question, number = decode_question(body)
        if not isinstance(question, Fork):
            write(connection.fileno(), worker.answer(question), number)
            del body, question
            _trim_memory()
        elif pid := os.fork():
            answer, process = HEADER.pack(pid), os.pidfd_open(pid)
            for descriptor in descriptors:
                os.close(descriptor)
            with contextlib.suppress(OSError):  # the parent is gone, as the next read shows
                socket.send_fds(connection, [answer], [process])
            os.close(process)
            if not warm:  # only now: the first fork must not wait
                worker.warm_up()
                warm = True
        else:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            connection.close()
            os.close(woken)
            os.close(wake)
            os.setsid()
            source, sink, errors, control = descriptors
            os.dup2(errors, 2)
            os.close(errors)
            run(worker, source, sink, control, question.lockdown)
    signal.alarm(END_SECONDS)  # the workers end too: their pipes are closed, or they were killed
    with contextlib.suppress(ChildProcessError):
        while os.wait():
            pass
    os._exit(0)
