"""The terminal of a chat: whoever writes, it appears above the prompt, whole lines, harmless.

While a chat has the terminal, nobody else has it: what tools and the processes that they start
write to stdout and stderr comes through a pipe, and they read nothing that is typed.
"""

import asyncio
import io
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import (
    AbstractContextManager,
    ExitStack,
    contextmanager,
    nullcontext,
    redirect_stderr,
    suppress,
)

import anyio
from prompt_toolkit.application import in_terminal
from prompt_toolkit.input.vt100 import Vt100Input
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.output.defaults import create_output
from prompt_toolkit.utils import get_cwidth

from clawmode.exceptions import ConfigurationError
from clawmode.tasks import Notifier
from clawmode.text import IN_TEXT, escape

PAUSE_SECONDS = 0.03
"""Between two times that the prompt makes room."""

WIPE = "\r\x1b[K"
MAX_LINE = 1 << 16
MAX_HELD = 10_000
"""Texts that are held back; then the oldest go."""

DRAIN_SECONDS = 0.5
"""How long to wait at the end for what processes have written."""


class Keys(Vt100Input):
    """What is typed. The terminal stays raw while something is printed: nothing is echoed then."""

    def cooked_mode(self) -> AbstractContextManager[None]:
        """Stays as it is."""
        return nullcontext()


class Screen:
    """The terminal. Used inside of `with`, and then of one event loop.

    Attributes:
        keys: What is typed.
        output: Where the prompt is drawn.
    """

    def __init__(self) -> None:
        self._terminal = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="backslashreplace")
        self._typed = os.fdopen(os.dup(0), encoding="utf-8")
        self.keys = Keys(self._typed)
        self.output = create_output(self._terminal)
        depth = self.output.get_default_color_depth()  # it looks at TERM and NO_COLOR
        self._has_colours = depth != ColorDepth.DEPTH_1_BIT
        self._opened = ExitStack()
        self._lock = threading.Lock()
        self._lines: list[str] = []
        self._noted = ""
        self._held = 0
        self._kept: deque[str] = deque(maxlen=MAX_HELD)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news = Notifier()
        self._turn = anyio.Lock()

    def __enter__(self) -> "Screen":
        sys.stdout.flush()
        sys.stderr.flush()
        kept = [os.dup(fd) for fd in range(3)]
        source, target = os.pipe()
        nothing = os.open(os.devnull, os.O_RDONLY)
        errors = target if os.isatty(2) else 2  # a file was asked for
        for fd, instead in enumerate((nothing, target, errors)):
            os.dup2(instead, fd)
        os.close(nothing)
        os.close(target)
        reader = threading.Thread(target=self._hear, args=(source,), daemon=True)
        reader.start()
        self._opened.callback(self._give_back, kept, reader)
        self._opened.enter_context(redirect_stderr(Lines(self.say, 2)))
        return self

    def __exit__(self, *error: object) -> None:
        self._opened.close()

    def _give_back(self, kept: list[int], reader: threading.Thread) -> None:
        sys.stdout.flush()
        for fd, before in enumerate(kept):
            os.dup2(before, fd)
            os.close(before)
        reader.join(DRAIN_SECONDS)  # a process that goes on may still have the pipe
        self._loop = None
        self._lines += self._kept
        self._print()
        self._typed.close()
        with suppress(OSError):
            self._terminal.close()

    def _hear(self, source: int) -> None:
        with os.fdopen(source, encoding="utf-8", errors="replace", newline="\n") as pipe:
            while line := pipe.readline(MAX_LINE):
                self.say(line.removesuffix("\n"))

    # ---- What is shown ----

    @property
    def width(self) -> int:
        """In columns."""
        return self.output.get_size().columns

    def say(self, text: str, colour: int = 0) -> None:
        """Shows lines above the prompt, soon. May be called in any thread."""
        self._add(text, self._kept if self._held else self._lines, colour)

    def say_now(self, text: str, colour: int = 0) -> None:
        """Shows lines even where others are held back."""
        self._add(text, self._lines, colour)

    def _add(self, text: str, where: "list[str] | deque[str]", colour: int) -> None:
        shown = escape(text, IN_TEXT)
        if colour and self._has_colours:
            shown = f"\x1b[{colour}m{shown}\x1b[0m"
        with self._lock:
            where.append(f"{shown}\n")
        self._wake()

    def _wake(self) -> None:
        if (loop := self._loop) is not None:
            loop.call_soon_threadsafe(self._news.notify)

    def note(self, text: str) -> None:
        """Says what is waited for before there is a prompt, until something else is shown."""
        self._noted = WIPE
        self._write(f"{WIPE}{escape(text)}")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Holds lines back: a question stands there, and nothing may pass for its words."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
            if not self._held:
                with self._lock:
                    self._lines += self._kept
                    self._kept.clear()
                self._wake()

    async def serve(self) -> None:
        """Shows what is said, until it is cancelled."""
        self._loop = asyncio.get_running_loop()
        while True:
            seen = self._news.count
            await self.shown()
            await anyio.sleep(PAUSE_SECONDS)
            await self._news.wait(seen)

    async def shown(self) -> None:
        """Waits until all that was said can be seen."""
        async with self._turn:
            with suppress(OSError):  # the terminal is gone, and soon the chat
                if self._lines:
                    async with in_terminal():
                        self._print()

    def _print(self) -> None:
        with self._lock:
            lines, self._lines = self._lines, list[str]()
            wipe, self._noted = self._noted, ""
        self._write(wipe + "".join(lines))

    def _write(self, text: str) -> None:
        with suppress(OSError):
            self.output.write_raw(text)
            self.output.flush()


class Lines(io.TextIOBase):
    """A stream whose lines go to a screen.

    Args:
        say: Shows a line.
        fd: What processes are given in its place.
    """

    def __init__(self, say: Callable[[str], None], fd: int) -> None:
        self._say = say
        self._fd = fd
        self._lock = threading.Lock()
        self._rest = ""

    def write(self, text: str) -> int:
        """Takes part of a line, or many."""
        with self._lock:
            whole, ended, self._rest = (self._rest + text).rpartition("\n")
            if len(self._rest) > MAX_LINE:
                whole, ended, self._rest = whole + ended + self._rest, "\n", ""
        if ended:
            self._say(whole)
        return len(text)

    def writable(self) -> bool:
        """Always."""
        return True

    def fileno(self) -> int:
        """Leads to the same screen."""
        return self._fd


def break_line(text: str, width: int) -> tuple[list[str], str]:
    """The lines that part of a line fills, broken between words, and what is left of it.

    A word that is longer than a line stays whole: it may be an address, to be copied.
    """
    lines: list[str] = []
    start, used, space = 0, 0, -1
    for at, char in enumerate(text):
        if char == " ":
            space = at
        used += max(get_cwidth(char), 0)
        if used > width and space > start:
            lines.append(text[start:space])
            start = space + 1
            used = get_cwidth(text[start : at + 1])
            space = -1
    return lines, text[start:]


def line_end(text: str, width: int) -> str:
    """Escapes the text, on one line that fits; of a longer text, the end."""
    line = escape(text, IN_TEXT).replace("\n", " ").expandtabs()
    if get_cwidth(line) <= width:
        return line
    while get_cwidth(line) >= width:
        line = line[1 + (get_cwidth(line) - width) // 2 :]
    return f"…{line}"


def check_terminal() -> None:
    """Looks whether there is a terminal that a chat can be shown on.

    Raises:
        ConfigurationError: There is none.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM") == "dumb":
        raise ConfigurationError(
            "chat needs a terminal on stdin and stdout; for one turn: clawmode agent -m TEXT"
        )
