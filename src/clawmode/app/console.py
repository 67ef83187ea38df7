"""Standard output and standard error of a command: lines, tables, progress, text that fits a width.

Texts may be chosen by a guest or by the server of a stranger. They are escaped, so that they cannot
move the cursor, hide characters or pass as markup. rich takes a third of a second to import, so
only the functions that need rich import it.
"""

import json
import logging
import os
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from getpass import getpass

from clawmode.config.mcp_values import InputField
from clawmode.exceptions import UnsupportedPlatform
from clawmode.text import IN_TEXT, escape, one_line

MAX_CELL_CHARS = 400
MAX_WIDTH = 10_000

RED, YELLOW, CYAN = 31, 33, 36


# ---- Text ----


def fold(line: str, width: int) -> list[str]:
    """Splits a line into parts that no terminal wraps.

    A line that the terminal wraps continues at the left edge, where it would look like our text.
    """
    from rich.cells import chop_cells

    # Terminals disagree about the width of characters, by a factor of two.
    room = max(width, 20)
    return chop_cells(line, room if line.isascii() else room // 2) or [""]


def fold_words(line: str, width: int) -> list[str]:
    """Splits a line between words; only a word that is longer than a line is cut."""
    room = max(width, 20)
    columns = room if line.isascii() else room // 2
    return textwrap.wrap(line, columns, break_on_hyphens=False) or [""]


def wrap(text: str, width: int) -> str:
    """Breaks lines between words. A long word stays whole, so that users can copy it."""
    lines = (
        textwrap.wrap(line, max(width, 20), break_long_words=False, break_on_hyphens=False) or [""]
        for line in text.split("\n")
    )
    return "\n".join(part for parts in lines for part in parts)


def duration(seconds: float) -> str:
    """Formats seconds for people, such as `340 ms`, `2.1 s` or `3 min 5 s`."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if rest else f"{minutes} min"


def pretty(value: object) -> str:
    """Formats a value as JSON with indentation."""
    return json.dumps(value, indent=2, ensure_ascii=False)


# ---- Standard error and output ----


def print_note(text: str) -> None:
    """Writes a line to stderr that begins with `clawmode:`."""
    print_stderr(f"clawmode: {text}")


def print_stderr(text: str, colour: int = 0) -> None:
    """Writes lines to stderr, escaped; on a terminal in the given ANSI colour."""
    line = escape(text, IN_TEXT)
    if colour and sys.stderr.isatty() and not os.environ.get("NO_COLOR"):
        line = f"\x1b[{colour}m{line}\x1b[0m"
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def ask_input(asked: InputField) -> str | None:
    """Asks the user for a value that a configuration leaves open; None without a terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    about = asked.description or asked.id
    if asked.options:
        about += f" ({', '.join(asked.options)})"
    elif asked.default and not asked.hidden:
        about += f" [{asked.default}]"
    print_note(f"{one_line(about, MAX_CELL_CHARS)}:")
    try:
        # Both prompts are written to stderr or to the terminal: stdout is for results.
        answer = getpass("> ") if asked.hidden else sys.stdin.readline()
    except EOFError:
        return None
    answer = answer.strip() or asked.default
    return answer if not asked.options or answer in asked.options else None


def forget_keys(source: int) -> None:
    """Drops keys that were pressed before a question appeared: they must not answer it.

    Raises:
        UnsupportedPlatform: The operating system cannot drop them.
    """
    try:
        import termios
    except ImportError:  # on Windows
        raise UnsupportedPlatform("A question at the terminal") from None
    termios.tcflush(source, termios.TCIFLUSH)


class Progress:
    """A line on stderr with the progress of a slow operation, if stderr is a terminal.

    Args:
        label: The name of the things that are counted.
        total: The number of things.
    """

    def __init__(self, label: str, total: int) -> None:
        self._label = label
        self._total = total
        self._done = 0
        self._live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

    def __enter__(self) -> "Progress":
        self._show()
        return self

    def __exit__(self, *error: object) -> None:
        self._wipe()

    def step(self, note: str = "") -> None:
        """Counts one more as done; a note is printed and stays on the screen."""
        self._done += 1
        if note:
            self._wipe()
            print_note(note)
        self._show()

    def _show(self) -> None:
        if self._live:
            sys.stderr.write(f"\r\x1b[K{self._label}: {self._done} of {self._total} …")
            sys.stderr.flush()

    def _wipe(self) -> None:
        if self._live:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


class ProgramOutput:
    """The stdout of the process, reserved for the result of the command.

    Everything else that writes to stdout from now on, including tools and their child processes,
    writes to stderr instead. A reader that closes the pipe does not stop the command.

    Attributes:
        failure: Why output could not be written; empty if the reader closed the pipe.
    """

    def __init__(self) -> None:
        self._file = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="backslashreplace")
        self.is_terminal = self._file.isatty()
        self.failure = ""
        sys.stdout.flush()
        # The descriptor is replaced, not `sys.stdout`: child processes inherit the descriptor.
        os.dup2(2, 1)

    def say(self, text: str) -> None:
        """Writes lines, escaped if stdout is a terminal."""
        self.stream(f"{text}\n")

    def stream(self, text: str) -> None:
        """Writes part of a line, escaped if stdout is a terminal."""
        self.write(escape(text, IN_TEXT) if self.is_terminal else text)

    def write(self, text: str) -> None:
        """Writes the text without escaping it."""
        try:
            self._file.write(text)
            self._file.flush()
        except OSError as error:
            if not isinstance(error, BrokenPipeError):
                self.failure = error.strerror or str(error)
            # Later writes, and the flush at exit, must not fail again.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._file.fileno())
            os.close(nowhere)

    def json(self, value: object) -> None:
        """Writes a value as one line of JSON."""
        self.write(json.dumps(value, ensure_ascii=False) + "\n")

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Writes a table; in a pipe or a file, each row is one line of any length."""
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        width = None if self.is_terminal else MAX_WIDTH
        console = Console(file=self._file, highlight=False, width=width)
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(*(Text(one_line(cell, MAX_CELL_CHARS)) for cell in row))
        with console.capture() as captured:
            console.print(table)
        # The last column is padded too.
        self.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


# ---- Logs ----


def _is_about_servers(record: logging.LogRecord) -> bool:
    # `open_servers` and calls report a server that cannot be reached, with its last words; a file
    # has everything else that servers write to stderr.
    if record.name == "clawmode.mcp.stderr":
        return True
    return record.name == "clawmode.mcp" and record.levelno == logging.WARNING


class _LogPrinter(logging.Handler):
    def __init__(
        self,
        paused: Callable[[], AbstractContextManager[None]],
        hides: Callable[[logging.LogRecord], bool],
    ) -> None:
        super().__init__()
        self._paused = paused
        self._hides = hides

    def emit(self, record: logging.LogRecord) -> None:
        if self._hides(record):
            return
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f": {type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
        with self._paused():
            print_stderr(f"{record.name}: {text}")


@contextmanager
def printed_logs(
    paused: Callable[[], AbstractContextManager[None]] = nullcontext,
    hides: Callable[[logging.LogRecord], bool] = _is_about_servers,
) -> Iterator[None]:
    """Prints the log of the block on stderr: one escaped line each, without tracebacks.

    Args:
        paused: Keeps other output off the terminal.
        hides: True for a record that the user sees in another way.
    """
    logger = logging.getLogger("clawmode")
    handler = _LogPrinter(paused, hides)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
