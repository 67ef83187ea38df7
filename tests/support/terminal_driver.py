"""`clawmode chat` in a terminal that answers as terminals do, with somebody who reads and types."""

import fcntl
import os
import re
import struct
import subprocess
import termios
import uuid
from collections.abc import Callable
from pathlib import Path

from tests.support.command_driver import Seat
from tests.support.forking import SECONDS, Zygote
from tests.support.waiting import until_sync

WHERE, HERE = b"\x1b[6n", b"\x1b[1;1R"
"""Where is the cursor, and where it is said to be."""

READY = "(/help, Ctrl-D ends)"


class Chatter(Seat):
    """A person in a chat; arguments as for `Seat`. The chat is there when it is entered.

    Attributes:
        is_slow: True if the terminal does not say for now where its cursor is.
    """

    def __init__(self, zygote: Zygote, *arguments: str, cwd: Path) -> None:
        super().__init__(zygote, "chat", *arguments, cwd=cwd)
        self.is_slow = False

    def __enter__(self) -> "Chatter":
        self.reads(READY)
        self.reads("\x1b[?2004h")  # the prompt is there
        return self

    def says(self, text: str, *answers: str) -> None:
        """Types a line, sees it, and reads what comes, in this order."""
        self.types(f"{text}\r")
        for wanted in (text, *answers):
            self.reads(wanted)

    @property
    def transcript(self) -> str:
        """What was printed above the prompt, and stays there."""
        # The prompt is erased for it, and drawn again; before that, the cursor may be looked for.
        drawn = r"\x1b\[\?2004l(.*?)(?:\x1b\[6n|\x1b\[\?2004h|\Z)"
        return "".join(re.findall(drawn, self.seen, re.DOTALL))

    def resizes(self, rows: int, columns: int) -> None:
        """Makes the terminal larger or smaller."""
        size = struct.pack("4H", rows, columns, 0, 0)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)

    def hangs_up(self) -> None:
        """Closes the terminal."""
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, self._master)
        os.close(nothing)

    def signals(self, number: int) -> None:
        """Sends the process a signal."""
        os.kill(self.pid, number)

    def ends(self) -> int | None:
        """The exit status of a chat whose terminal is gone."""
        return self._process.wait(SECONDS)

    def _receive(self) -> bool:
        before = len(self._seen)
        came = super()._receive()
        for _ in range(self._seen.count(WHERE, max(before - len(WHERE) + 1, 0))):
            if not self.is_slow:
                os.write(self._master, HERE)
        return came


class Tmux:
    """A command on a real screen, in a server of its own. Used inside of `with`."""

    def __init__(self, command: str, *, cwd: Path, size: tuple[int, int]) -> None:
        self._name = f"clawmode-{uuid.uuid4().hex[:8]}"
        rows, columns = map(str, size)
        start = ("new-session", "-d", "-x", columns, "-y", rows, "-c", os.fspath(cwd))
        self._run("-f", os.devnull, *start, f"{command}; exec cat")
        self._run("set", "-g", "status", "off")

    def __enter__(self) -> "Tmux":
        return self

    def __exit__(self, *error: object) -> None:
        self._run("kill-server")

    def types(self, *keys: str) -> None:
        """Presses keys, some of them by name."""
        self._run("send-keys", *keys)

    def resizes(self, rows: int, columns: int) -> None:
        """Makes the window larger or smaller."""
        self._run("resize-window", "-x", str(columns), "-y", str(rows))

    def until(self, seen: Callable[[list[str]], bool]) -> list[str]:
        """Waits until the screen shows something; its lines, without spaces at their ends."""
        lines: list[str] = []

        def fits() -> bool:
            screen = self._run("capture-pane", "-p")
            lines[:] = [line.rstrip() for line in screen.split("\n")[:-1]]
            return bool(lines) and seen(lines)

        try:
            until_sync(fits, SECONDS)
        except TimeoutError:
            raise AssertionError("\n".join(lines)) from None
        return lines

    def _run(self, *arguments: str) -> str:
        done = subprocess.run(
            ["tmux", "-L", self._name, *arguments], capture_output=True, text=True, check=True
        )
        return done.stdout
