"""The terminal of a chat: all output appears above the prompt, in whole lines, escaped.

The chat has the terminal for itself: stdout and stderr of tools and of their child processes come
through a pipe, and none of them can read what the user types.
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
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.output.defaults import create_output
from prompt_toolkit.utils import get_cwidth

from clawmode.exceptions import ConfigurationError, UnsupportedPlatform
from clawmode.tasks import Notifier
from clawmode.text import IN_TEXT, escape

PAUSE_SECONDS = 0.03
"""The pause between two batches of lines: the prompt is redrawn for each batch."""

WIPE = "\r\x1b[K"
MAX_LINE = 1 << 16
MAX_HELD = 10_000
"""The most texts that are kept while a question is open; then the oldest are dropped."""

DRAIN_SECONDS = 0.5
"""How long to wait at the end for the last output of processes."""


if sys.platform != "win32":
    from prompt_toolkit.input.vt100 import Vt100Input
else:
    from prompt_toolkit.input import DummyInput as Vt100Input  # `Screen` cannot be opened there


class Keys(Vt100Input):
    """Keyboard input. The terminal stays raw during output, so that keys are not echoed."""

    def cooked_mode(self) -> AbstractContextManager[None]:
        return nullcontext()


class Screen:
    """The terminal. Use it inside of `with`, and in one event loop.

    Attributes:
        keys: The keyboard input.
        output: Where the prompt is drawn.
    """

    def __init__(self) -> None:
        self._terminal = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="backslashreplace")
        self._typed = os.fdopen(os.dup(0), encoding="utf-8")
        self.keys = Keys(self._typed)
        self.output = create_output(self._terminal)
        depth = self.output.get_default_color_depth()  # respects TERM and NO_COLOR
        self._has_colours = depth != ColorDepth.DEPTH_1_BIT
        self._opened = ExitStack()
        self._lock = threading.Lock()
        self._lines: list[str] = []
        self._note_wipe = ""
        self._pauses = 0
        self._kept: deque[str] = deque(maxlen=MAX_HELD)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changes = Notifier()
        self._printing = anyio.Lock()

    def __enter__(self) -> "Screen":
        if sys.platform == "win32":
            raise UnsupportedPlatform("The chat")
        sys.stdout.flush()
        sys.stderr.flush()
        saved = [os.dup(fd) for fd in range(3)]
        source, target = os.pipe()
        nothing = os.open(os.devnull, os.O_RDONLY)
        errors = target if os.isatty(2) else 2  # the user redirected stderr to a file
        for fd, instead in enumerate((nothing, target, errors)):
            os.dup2(instead, fd)
        os.close(nothing)
        os.close(target)
        reader = threading.Thread(target=self._read_pipe, args=(source,), daemon=True)
        reader.start()
        self._opened.callback(self._restore, saved, reader)
        self._opened.enter_context(redirect_stderr(Lines(self.say, 2)))
        return self

    def __exit__(self, *error: object) -> None:
        self._opened.close()

    def _restore(self, saved: list[int], reader: threading.Thread) -> None:
        sys.stdout.flush()
        for fd, before in enumerate(saved):
            os.dup2(before, fd)
            os.close(before)
        reader.join(DRAIN_SECONDS)  # with a limit: a child process may keep the pipe open
        self._loop = None
        self._lines += self._kept
        self._print()
        self._typed.close()
        with suppress(OSError):
            self._terminal.close()

    def _read_pipe(self, source: int) -> None:
        with os.fdopen(source, encoding="utf-8", errors="replace", newline="\n") as pipe:
            while line := pipe.readline(MAX_LINE):
                self.say(line.removesuffix("\n"))

    # ---- Output ----

    @property
    def width(self) -> int:
        """The width of the terminal in columns."""
        return self.output.get_size().columns

    def say(self, text: str, colour: int = 0) -> None:
        """Shows lines above the prompt, soon. Any thread may call it."""
        self._add(text, self._kept if self._pauses else self._lines, colour)

    def say_now(self, text: str, colour: int = 0) -> None:
        """Shows lines above the prompt, also while other output is paused."""
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
            loop.call_soon_threadsafe(self._changes.notify)

    def note(self, text: str) -> None:
        """Shows the current step while there is no prompt yet, until other output follows."""
        self._note_wipe = WIPE
        self._write(f"{WIPE}{escape(text)}")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Keeps lines back while a question is open: no other text may pass for the question."""
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1
            if not self._pauses:
                with self._lock:
                    self._lines += self._kept
                    self._kept.clear()
                self._wake()

    @property
    def is_paused(self) -> bool:
        """True while a question is open, also before it is shown."""
        return self._pauses > 0

    async def serve(self) -> None:
        """Shows lines as they come, until it is cancelled."""
        self._loop = asyncio.get_running_loop()
        while True:
            seen = self._changes.count
            await self.shown()
            await anyio.sleep(PAUSE_SECONDS)
            await self._changes.wait(seen)

    async def shown(self) -> None:
        """Waits until all lines so far are visible."""
        async with self._printing:
            with suppress(OSError):  # the terminal is gone; the prompt will end the chat
                if self._lines:
                    # Shielded: a cancelled `in_terminal` would block every later one.
                    with anyio.CancelScope(shield=True):
                        async with in_terminal():
                            self._print()

    def _print(self) -> None:
        with self._lock:
            lines, self._lines = self._lines, list[str]()
            wipe, self._note_wipe = self._note_wipe, ""
        self._write(wipe + "".join(lines))

    def _write(self, text: str) -> None:
        with suppress(OSError):
            self.output.write_raw(text)
            self.output.flush()


class Lines(io.TextIOBase):
    """A stream whose lines go to a screen.

    Args:
        say: Shows a line.
        fd: The descriptor for child processes, which leads to the same screen.
    """

    def __init__(self, say: Callable[[str], None], fd: int) -> None:
        self._say = say
        self._fd = fd
        self._lock = threading.Lock()
        self._rest = ""

    def write(self, text: str) -> int:
        with self._lock:
            whole, ended, self._rest = (self._rest + text).rpartition("\n")
            if len(self._rest) > MAX_LINE:
                whole, ended, self._rest = whole + ended + self._rest, "\n", ""
        if ended:
            self._say(whole)
        return len(text)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd


def break_line(text: str, width: int) -> tuple[list[str], str]:
    """Splits a text into full lines, broken between words, and the unfinished rest.

    A word that is longer than a line stays whole: it may be an address that the user copies.
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
    """Checks that stdin and stdout are a terminal that can show a chat.

    Raises:
        ConfigurationError: There is no such terminal.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM") == "dumb":
        raise ConfigurationError(
            "chat needs a terminal on stdin and stdout; for one turn, use clawmode agent -m TEXT"
        )
