"""The command in a process of its own: without a terminal, and with a person at one."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.forking import SECONDS, Started, interpreter, shared_zygote

from clawmode.app.loading import agree


def command_line(*arguments: str) -> list[str]:
    """Return a command line for `clawmode`, forked from a zygote."""
    return [*interpreter(), "-m", "clawmode", *arguments]


def trusted(folder: Path, text: str) -> None:
    """Writes the configuration of a working folder, and agrees to it as its user."""
    (folder / "clawmode.json5").write_text(text, "utf-8")
    agree(str(folder / "clawmode.json5"))


SHOP = '''
import os, subprocess, sys, threading
import anyio
from clawmode import ToolContext, tool

@tool(effect="read")
async def price(item: str) -> int:
    """The price of an item."""
    return len(item)

@tool(effect="write", label="Order an item")
async def order(item: str, count: int = 1) -> str:
    """Order an item for good."""
    return f"{count} {item}"

@tool
async def undeclared() -> str:
    """Do something or other."""
    return "done"

@tool(effect="read")
async def noisy() -> int:
    """Print a lot."""
    print("printed", flush=True)
    subprocess.run([sys.executable, "-c", "print('printed by a child')"])
    return 1

@tool(effect="read")
async def steps(context: ToolContext) -> str:
    """Report steps. A file `hold-one` or `hold-two` holds it up."""
    for name, update in (("one", "one \\x1b[2J[bold]\\u202e"), ("two", {"two": 2})):
        context.update(update)
        await anyio.sleep(0.3)
        while os.path.exists(f"hold-{name}"):
            await anyio.sleep(0.02)
    return "done"

@tool(effect="read")
async def forever() -> None:
    """Take forever."""
    print("begun", flush=True)
    await anyio.sleep_forever()

@tool(effect="read")
def block() -> None:
    """Take very long in a thread."""
    print("begun", flush=True)
    threading.Event().wait()

@tool(effect="read")
async def hello() -> None:
    """Say that it has begun."""
    print("begun", flush=True)

TOOLS = [price, order, undeclared, noisy, steps, forever, block, hello]
'''


def clawmode(
    *arguments: str, stdin: str = "", cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs the command where no terminal is."""
    return subprocess.run(
        command_line(*arguments),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        cwd=cwd,
        start_new_session=True,
    )


def answer(done: subprocess.CompletedProcess[str]) -> Any:
    """The JSON that a command printed, and nothing besides."""
    return json.loads(done.stdout)


class Person:
    """A terminal with the command in it, and somebody who reads and types.

    Args:
        arguments: Of the command.
        cwd: Where it runs.
        stdin: What it reads; None is the terminal.
        stdout_too: Whether stdout is the terminal, like stderr.
        size: Rows and columns.
        environment: Beside that of the test.
    """

    def __init__(
        self,
        *arguments: str,
        cwd: Path,
        stdin: str | None = None,
        stdout_too: bool = False,
        size: tuple[int, int] = (24, 80),
        environment: dict[str, str] | None = None,
    ) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", *size, 0, 0))
        self._arguments, self._cwd = arguments, cwd
        self._stdin, self._stdout_too = stdin, stdout_too
        self._environment = {"TERM": "xterm", **(environment or {})}
        self._process = self._start(slave)
        os.close(slave)
        self._seen = b""
        self._read_to = 0
        self._limit = time.monotonic() + SECONDS

    def _start(self, slave: int) -> "Started | subprocess.Popen[bytes]":
        zygote, terminal = shared_zygote(), Path(os.ttyname(slave))
        given, out = terminal, zygote.file("out")
        out.touch()
        if self._stdin is not None:
            given = zygote.file("in")
            given.write_text(self._stdin, "utf-8")
        streams = [given, terminal if self._stdout_too else out, terminal]
        shown = None if self._stdout_too else out
        return zygote.start(self._arguments, self._cwd, streams, shown, self._environment)

    def _start_program(self, slave: int, *program: str) -> "subprocess.Popen[bytes]":
        """Starts a program in a new interpreter; its stdin is the terminal."""
        # Makes the terminal the controlling one, so that there is a /dev/tty and Ctrl-C.
        boot = """import fcntl, os, sys, termios
fcntl.ioctl(2, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])"""
        return subprocess.Popen(
            [sys.executable, "-c", boot, *program],
            stdin=slave,
            stdout=slave if self._stdout_too else subprocess.PIPE,
            stderr=slave,
            cwd=self._cwd,
            env={**os.environ, **self._environment},
            start_new_session=True,
        )

    def __enter__(self) -> "Person":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            with suppress(ProcessLookupError):  # it has just ended
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        os.close(self._master)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def seen(self) -> str:
        """All that the terminal was sent."""
        return self._seen.decode("utf-8", "replace").replace("\r\n", "\n")

    def reads(self, text: str) -> None:
        """Waits until a text appears that was not read before."""
        wanted = text.encode()
        while (at := self._seen.find(wanted, self._read_to)) < 0:
            assert self._receive(), f"{text!r} never came: {self.seen!r}"
        self._read_to = at + len(wanted)

    def types(self, text: str) -> None:
        """Presses keys."""
        os.write(self._master, text.encode())

    def leaves(self) -> tuple[int, str]:
        """Waits for the end: the exit status, and what went to stdout."""
        while self._receive():
            pass
        out = self._process.stdout.read().decode() if self._process.stdout else ""
        status = self._process.wait(SECONDS)
        assert status is not None
        return status, out

    def _receive(self) -> bool:
        """Takes what comes; False: nothing will any more."""
        poll = select.poll()
        poll.register(self._master, select.POLLIN)
        ready = poll.poll(max(self._limit - time.monotonic(), 0) * 1000)
        assert ready, f"nothing more came: {self.seen!r}"
        try:
            data = os.read(self._master, 65536)
        except OSError:  # the other end is closed
            return False
        self._seen += data
        return bool(data)


class FreshPerson(Person):
    """A person whose command runs in a new interpreter, and has yet to import its libraries."""

    def _start(self, slave: int) -> "Started | subprocess.Popen[bytes]":
        assert self._stdin is None
        return self._start_program(slave, sys.executable, "-m", "clawmode", *self._arguments)


def plain(text: str) -> str:
    """What a terminal was sent, without the view's own colours and movements."""
    return re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", text)
