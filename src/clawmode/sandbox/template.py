"""Parent side: the template, a booted process that forks workers.

A worker takes 165 ms of CPU time to boot. The template boots once, without a second thread and
without the lockdown, and never runs a guest. Every worker is a fork of it: the worker is ready in
milliseconds, shares most of its memory with the template, and gives up its rights by itself.

The template is a bare interpreter that was started without our environment and descriptors, so a
fork of it inherits nothing of ours. It reaps the workers; a pidfd tells this process that a worker
has ended. One template serves all pools of this process. Where forks are not possible, `process`
starts workers one by one.
"""

import contextlib
import logging
import os
import select
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from clawmode.exceptions import ProtocolError, RuntimeUnavailable
from clawmode.sandbox import artifacts
from clawmode.sandbox.frames import HEADER, decode_answer, encode, frame_length
from clawmode.sandbox.protocol import Acknowledgement, Boot, Failure, Fork

if TYPE_CHECKING:
    from clawmode.sandbox.lockdown import Mode

logger = logging.getLogger("clawmode.sandbox")

BOOT_SECONDS = 20.0
FORK_SECONDS = 2.0
"""Seconds that the template may take to fork; 2 ms are usual. Then the template is killed."""

MAX_FAILURES = 3
"""Templates that may fail before workers are started one by one."""


class TemplateFailed(Exception):
    """The template cannot be started, or has ended: workers must be started in another way."""


class SpawnedWorker(subprocess.Popen[bytes]):
    """A worker that was started without a template."""

    def __init__(
        self, command: list[str], source: int, sink: int, errors: int, control: int
    ) -> None:
        super().__init__(
            command,
            stdin=source,
            stdout=sink,
            stderr=errors,
            env={},
            cwd="/",
            pass_fds=(control,),
            start_new_session=True,
        )

    def gone(self) -> bool:
        """True if the process has ended and was reaped."""
        return self.poll() is not None


class ForkedWorker:
    """A fork of the template, with the methods of `SpawnedWorker` that are used."""

    def __init__(self, pid: int, descriptor: int, template: subprocess.Popen[bytes]) -> None:
        self.pid = pid
        self._template = template
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)
        self._status: int | None = None
        self._closed = False

    def poll(self) -> int | None:
        """Returns None while the worker runs. Its exit status is not known to this process."""
        if self._status is None and self._poll.poll(0):
            self._status = -1
        return self._status

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def gone(self) -> bool:
        """True if the worker has ended and was reaped, or will be by the init process."""
        if self._closed:
            return True
        try:
            signal.pidfd_send_signal(self._descriptor, 0)
        except ProcessLookupError:
            self._status = -1
        else:
            if self.poll() is None or self._template.poll() is None:
                return False
        self._closed = True
        os.close(self._descriptor)
        return True


class Template:
    """A booted process that forks workers. All methods can be called in any thread.

    Attributes:
        usable: False if forks are not possible here, or the template is closed.
    """

    def __init__(self) -> None:
        self.usable = True
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._booted = self._closed = False
        self._failures = 0

    @property
    def pid(self) -> int | None:
        """The process, while there is one."""
        return self._process.pid if self._process is not None else None

    @property
    def ready(self) -> bool:
        """True if a fork takes only milliseconds."""
        return self._booted

    def start(self) -> None:
        """Starts the process, unless it runs. It loads its modules until the first fork."""
        if self._lock.acquire(blocking=False):  # else another thread starts it, or forks
            try:
                with contextlib.suppress(TemplateFailed):
                    self._ensure()
            finally:
                self._lock.release()

    def boot(self, code: bytes) -> None:
        """Boots the process, unless it has booted. A process that fails is replaced by `fork`."""
        with self._lock, contextlib.suppress(TemplateFailed, RuntimeUnavailable):
            connection = self._ensure()
            try:
                if not self._booted:
                    self._boot(connection, code)
            except (OSError, EOFError, ProtocolError) as error:
                raise self._failed(f"{type(error).__name__}: {error}") from None

    def fork(self, code: bytes, lockdown: "Mode", descriptors: Sequence[int]) -> ForkedWorker:
        """Forks a worker, which gets copies of the descriptors. Blocks for some milliseconds.

        Args:
            code: The machine code of QuickJS, for a template that has not booted.
            lockdown: What the worker gives up.
            descriptors: Input, output, errors and control of the worker.

        Raises:
            TemplateFailed: The template has ended or cannot be started. The next call starts one.
            RuntimeUnavailable: The machine code cannot be loaded.
        """
        with self._lock:
            connection = self._ensure()
            try:
                if not self._booted:
                    self._boot(connection, code)
                connection.settimeout(FORK_SECONDS)
                socket.send_fds(connection, [encode(Fork(lockdown), 0)], descriptors)
                data, (descriptor,), _, _ = socket.recv_fds(connection, HEADER.size, 1)
                (pid,) = HEADER.unpack(data)
            except (OSError, EOFError, ValueError, struct.error, ProtocolError) as error:
                raise self._failed(f"{type(error).__name__}: {error}") from None
            self._failures = 0
            assert self._process is not None
            return ForkedWorker(pid, descriptor, self._process)

    def close(self) -> None:
        """Lets the process end when its workers have ended. `ended` is to be called until then."""
        self.usable, self._closed = False, True
        # Without the lock, which a thread may hold that waits for the template.
        process, connection = self._process, self._connection
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        if process is not None and not self._booted:
            process.kill()

    def ended(self) -> bool:
        """True if the process of a closed template has ended."""
        if self._process is not None and self._process.poll() is None:
            return False
        if not self._lock.acquire(blocking=False):
            return False
        try:
            self._remove()
        finally:
            self._lock.release()
        return True

    def kill(self) -> None:
        """Ends the process of a closed template that did not end in time."""
        if (process := self._process) is not None:
            process.kill()
        # In a thread: a boot thread may have the lock until it notices the end of the process.
        threading.Thread(target=self._remove_later, name="clawmode-template", daemon=True).start()

    def _remove_later(self) -> None:
        with self._lock:
            self._remove()

    def forget(self) -> None:
        """Called in a forked child of this process: the template belongs to the parent."""
        self.usable = False
        if self._connection is not None:
            self._connection.close()

    def _ensure(self) -> socket.socket:
        if self._connection is not None and self._process is not None:
            if self._process.poll() is None:
                return self._connection
            self._remove()
        if not self.usable:
            raise TemplateFailed("it is closed")
        try:
            self._connection, theirs = socket.socketpair()
        except OSError as error:
            raise self._failed(str(error)) from None
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own module and interpreter
                artifacts.python_command("forking", str(theirs.fileno())),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={},
                cwd="/",
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except OSError as error:
            raise self._failed(str(error)) from None
        finally:
            theirs.close()
        return self._connection

    def _boot(self, connection: socket.socket, code: bytes) -> None:
        connection.settimeout(BOOT_SECONDS)
        connection.sendall(encode(Boot(code, artifacts.cached_image()), 0))
        length = frame_length(_receive(connection, HEADER.size))
        ready = decode_answer(_receive(connection, length), 0)
        if isinstance(ready, Failure):
            # The machine code is whole, and yet it cannot be loaded: the next template compiles it.
            self._remove()
            artifacts.forget("quickjs")
            raise RuntimeUnavailable(ready.error)
        # The template has run no guest, so its image is as good as its code.
        if isinstance(ready, Acknowledgement) and ready.built:
            artifacts.keep_image(ready.built)
        self._booted = True

    def _failed(self, reason: str) -> TemplateFailed:
        if self._closed:  # the process ends by itself, after it has reaped its workers
            return TemplateFailed("it is closed")
        self._failures += 1
        errors = self._process.stderr if self._process is not None else None
        if self.usable:
            if errors is not None:
                os.set_blocking(errors.fileno(), False)
                reason = (errors.read() or b"").decode(errors="replace").strip()[-500:] or reason
            logger.warning("the template of the workers failed: %r", reason)
            self.usable = self._failures < MAX_FAILURES
        self._remove()
        return TemplateFailed(reason)

    def _remove(self) -> None:
        """Ends the process. Its workers live on: they depend on their own pipes."""
        process, connection = self._process, self._connection
        self._process, self._connection, self._booted = None, None, False
        if connection is not None:
            connection.close()
        if process is not None:
            process.kill()
            process.wait()
            if process.stderr is not None:
                process.stderr.close()


def _receive(connection: socket.socket, length: int) -> bytes:
    chunks: list[bytes] = []
    while length:
        chunk = connection.recv(min(length, 1 << 16))
        if not chunk:
            raise EOFError("the template has ended")
        chunks.append(chunk)
        length -= len(chunk)
    return b"".join(chunks)


# ---- One for all pools of this process ----

_sharing = threading.Lock()
_shared: Template | None = None
_users = 0
_early = False
"""True if `start_early` has started the template, and no pool uses it yet."""


def acquire() -> Template | None:
    """Returns the template of this process, started; None where workers cannot be forked.

    Each caller calls `release` once.
    """
    global _shared, _users, _early
    if not can_fork():
        return None
    with _sharing:
        if _early and _shared is not None and _shared.usable:
            _early = False
            return _shared  # it is counted already
        if _shared is None or not _shared.usable:
            _shared, _users = Template(), 0
        _users += 1
        _shared.start()
        return _shared


def start_early() -> None:
    """Starts the template for a process that is going to open a pool, and boots it in a thread.

    A command calls this function before it imports its modules, so that both happen concurrently.
    If the command ends before it opens a pool, the template ends with the command.
    """
    global _early
    template = acquire()
    if template is None:
        return
    _early = True

    def boot() -> None:
        # Otherwise the pool compiles the code, when the user can read the message about that.
        with contextlib.suppress(Exception):
            if (code := artifacts.load_cached("quickjs")) is not None:
                template.boot(code)

    threading.Thread(target=boot, name="clawmode-early", daemon=True).start()


def release(template: Template) -> bool:
    """Closes the template if no other pool uses it; returns whether it was closed."""
    global _shared, _users
    with _sharing:
        if template is _shared:
            _users -= 1
            if _users:
                return False
            _shared = None
        template.close()
        return True


@cache
def can_fork() -> bool:
    """True if workers can be forked: on Linux with pidfds, which tell of the end of a process."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


def _after_fork() -> None:
    global _shared, _sharing, _early
    _early = False
    _sharing = threading.Lock()
    if _shared is not None:
        _shared.forget()
    _shared = None


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_after_fork)
