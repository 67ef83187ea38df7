"""Processes that a zygote forks: programs without the seconds that their imports take."""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

SECONDS = 30
"""For one command, a little less than a test has: so that the test can say what it saw."""

ZYGOTE = Path(__file__).with_name("zygote.py")
FORKED = Path(__file__).with_name("forked.py")


class Started:
    """A process that a zygote has started; for `Person` it is like one of `subprocess`.

    Attributes:
        stdout: What it writes there, once it has ended; None if that is a terminal.
    """

    stdin: None = None

    def __init__(self, told: Path, stdout: Path | None) -> None:
        # For writing too, so that it does not wait for the other end.
        self._told = os.open(told, os.O_RDWR)
        self._lines = b""
        self.returncode: int | None = None
        self._hear(1, SECONDS)
        self.pid = int(self._lines.split()[0])
        self.stdout = None if stdout is None else stdout.open("rb")

    def poll(self) -> int | None:
        """The exit status, if it has ended."""
        return self.wait(0.1)  # it may be on its way

    def send_signal(self, number: int) -> None:
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float = SECONDS) -> int | None:
        """Wait for the end; None if the process still runs."""
        if self.returncode is None and self._hear(2, timeout):
            self.returncode = int(self._lines.split()[1])
            os.close(self._told)
        return self.returncode

    def _hear(self, lines: int, seconds: float) -> bool:
        limit = time.monotonic() + seconds
        while self._lines.count(b"\n") < lines:
            poll = select.poll()
            poll.register(self._told, select.POLLIN)
            if not poll.poll(max(limit - time.monotonic(), 0) * 1000):
                return False
            self._lines += os.read(self._told, 100)
        return True


class Zygote:
    """Starts commands. Used inside of `with`."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.socket = Path(self._folder.name) / "socket"
        self._process = subprocess.Popen(
            [sys.executable, str(ZYGOTE), str(self.socket)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._number = 0

    def __enter__(self) -> "Zygote":
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate()
        self._folder.cleanup()

    def file(self, name: str) -> Path:
        """A file of the command that is started next."""
        return Path(self._folder.name) / f"{self._number}-{name}"

    def start(
        self,
        arguments: tuple[str, ...],
        cwd: Path,
        streams: list[Path],
        stdout: Path | None,
        environment: dict[str, str] | None = None,
        files: int = 0,
    ) -> Started:
        """Start a command.

        Args:
            arguments: Of the command.
            cwd: Where it runs.
            streams: Its stdin, stdout and stderr.
            stdout: The file to read its output from, if that is none of a terminal.
            environment: Beside that of the test.
            files: The limit of open files; 0 leaves the limit as it is.
        """
        told = self.file("told")
        self._number += 1
        os.mkfifo(told)
        # Where the tests run, these may speak of another terminal.
        inherited = {key: it for key, it in os.environ.items() if key not in ("COLUMNS", "LINES")}
        order = {
            "arguments": ["-m", "clawmode", *arguments],
            "cwd": os.fspath(cwd),
            "streams": [*map(os.fspath, streams)],
            "environment": {**inherited, **(environment or {})},
            "told": os.fspath(told),
            "files": files,
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        return Started(told, stdout)

    def run(
        self,
        *arguments: str,
        cwd: Path,
        stdin: str = "",
        stdout: str = "",
        begun: Callable[[], None] = lambda: None,
        **environment: str,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command to its end, where no terminal is.

        Args:
            arguments: Of the command.
            cwd: Where it runs.
            stdin: What it reads.
            stdout: The file to write to, if that is not to be looked at.
            begun: Called when it has its streams.
            environment: Beside that of the test.
        """
        given, out, err = (self.file(name) for name in ("in", "out", "err"))
        given.write_text(stdin, "utf-8")
        out.touch()
        streams = [given, Path(stdout) if stdout else out, err]
        started = self.start(arguments, cwd, streams, None, environment)
        begun()
        status = started.wait()
        if status is None:
            os.killpg(started.pid, signal.SIGKILL)
            raise AssertionError(f"it did not end: {err.read_text('utf-8')}")
        said = [path.read_bytes().decode() for path in (out, err)]
        return subprocess.CompletedProcess(arguments, status, *said)


@cache
def shared_zygote() -> Zygote:
    """Return the zygote of this process, made at the first call; `tests/conftest.py` ends it."""
    return Zygote().__enter__()


def end_shared_zygote() -> None:
    if shared_zygote.cache_info().currsize:
        shared_zygote().__exit__()


def interpreter() -> list[str]:
    """Return the start of a command line that does what `[sys.executable]` does, without imports.

    For `-m clawmode …` and `PROGRAM.py …`. The process that runs the program is another one than
    the one that is started: a test that stops or measures the process uses `sys.executable`.
    """
    return [sys.executable, "-I", "-S", str(FORKED), str(shared_zygote().socket)]
