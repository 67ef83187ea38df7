"""What people see: text made harmless, tables, and nested calls as a tree, live on a terminal.

Names, updates and texts may be chosen by a guest or a stranger's server. Nothing of theirs moves a
cursor, hides a character or is read as markup. rich takes a third of a second to import, so it
waits until something needs it.
"""

import json
import os
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from clawmode.text import IN_TEXT, escape, one_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from clawmode.tools.executor import CallEvent
    from clawmode.types import JsonValue

MAX_CALLS_KEPT = 200
MAX_ID_CHARS = 120
MAX_UPDATE_CHARS = 80
MAX_CELL_CHARS = 400
MAX_WIDTH = 10_000
REFRESHES_PER_SECOND = 8

RED, YELLOW, CYAN = 31, 33, 36

State: TypeAlias = Literal["open", "completed", "failed", "cancelled"]

SYMBOLS: dict[State, tuple[str, str]] = {
    "open": ("…", "yellow"),
    "completed": ("✓", "green"),
    "failed": ("✗", "red"),
    "cancelled": ("-", "dim"),
}


# ---- Text ----


def fold(line: str, width: int) -> list[str]:
    """The line in parts that no terminal wraps: at the left edge they would look like ours."""
    from rich.cells import chop_cells

    # Terminals disagree about the width of characters, by a factor of two.
    room = max(width, 20)
    return chop_cells(line, room if line.isascii() else room // 2) or [""]


def fold_words(line: str, width: int) -> list[str]:
    """As `fold`, but broken between words; only a word that is longer than a line is cut."""
    room = max(width, 20)
    columns = room if line.isascii() else room // 2
    return textwrap.wrap(line, columns, break_on_hyphens=False) or [""]


def wrap(text: str, width: int) -> str:
    """The text with lines broken between words. A longer word stays whole, to be copied."""
    lines = (
        textwrap.wrap(line, max(width, 20), break_long_words=False, break_on_hyphens=False) or [""]
        for line in text.split("\n")
    )
    return "\n".join(part for parts in lines for part in parts)


def duration(seconds: float) -> str:
    """A time as people say it."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if rest else f"{minutes} min"


def pretty(value: object) -> str:
    """JSON for people."""
    return json.dumps(value, indent=2, ensure_ascii=False)


# ---- Standard error and output ----


def tell(text: str) -> None:
    """Says something to whoever runs the command."""
    complain(f"clawmode: {text}")


def complain(text: str, colour: int = 0) -> None:
    """Writes lines to stderr, on a terminal in a colour."""
    line = escape(text, IN_TEXT)
    if colour and sys.stderr.isatty() and not os.environ.get("NO_COLOR"):
        line = f"\x1b[{colour}m{line}\x1b[0m"
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


class Progress:
    """Shows on stderr how far something is that takes long: on a terminal, while it does.

    Args:
        what: What is counted.
        total: How many there are.
    """

    def __init__(self, what: str, total: int) -> None:
        self._what = what
        self._total = total
        self._done = 0
        self._live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

    def __enter__(self) -> "Progress":
        self._show()
        return self

    def __exit__(self, *error: object) -> None:
        self._wipe()

    def step(self, note: str = "") -> None:
        """One more is done; a note stays on the screen."""
        self._done += 1
        if note:
            self._wipe()
            tell(note)
        self._show()

    def _show(self) -> None:
        if self._live:
            sys.stderr.write(f"\r\x1b[K{self._what}: {self._done} of {self._total} …")
            sys.stderr.flush()

    def _wipe(self) -> None:
        if self._live:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


class ProgramOutput:
    """The process's stdout, for what a program says alone.

    Whatever else writes there from now on, tools and the processes they start included, writes to
    stderr. A reader that has gone away does not stop a program.

    Attributes:
        failure: Why something could not be written, if that was not the reader's choice.
    """

    def __init__(self) -> None:
        self._file = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="backslashreplace")
        self.is_terminal = self._file.isatty()
        self.failure = ""
        sys.stdout.flush()
        os.dup2(2, 1)

    def say(self, text: str) -> None:
        """Writes lines; on a terminal harmless ones."""
        self.stream(f"{text}\n")

    def stream(self, text: str) -> None:
        """Writes part of a line, as `say` does whole ones."""
        self.write(escape(text, IN_TEXT) if self.is_terminal else text)

    def write(self, text: str) -> None:
        """Writes as it stands."""
        try:
            self._file.write(text)
            self._file.flush()
        except OSError as error:
            if not isinstance(error, BrokenPipeError):
                self.failure = error.strerror or str(error)
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._file.fileno())
            os.close(nowhere)

    def json(self, value: object) -> None:
        """Writes a value for programs."""
        self.write(json.dumps(value, ensure_ascii=False) + "\n")

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Writes a table; where nobody watches, with a line for each row, however long."""
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


# ---- Nested calls ----


class Line(NamedTuple):
    """A line of a tree: what leads to it, its symbol with a style, and the words."""

    guide: str
    symbol: str
    style: str
    text: str

    def __str__(self) -> str:
        return f"{self.guide}{self.symbol} {self.text}" if self.symbol else self.text


@dataclass(slots=True)
class _CallRow:
    tool_id: str
    began: float
    parent: str | None = None
    state: State = "open"
    seconds: float = 0.0
    update: str = ""


@dataclass(slots=True)
class CallTree:
    """Calls in the order in which they began, nested ones below those they are nested in.

    The last ones are kept, and all that are open; of the others only the number. May be fed from
    any thread.

    Attributes:
        title: What they are calls of.
    """

    title: str = "exec"
    _rows: dict[str, _CallRow] = field(default_factory=dict[str, _CallRow])
    _ended: int = 0
    _failed: int = 0
    _dropped: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, event: "CallEvent") -> None:
        """Takes in what happened to a call."""
        with self._lock:
            row = self._rows.get(event.call_id)
            if event.phase == "start":
                parent = event.parent_id if event.parent_id in self._rows else None
                name = one_line(event.tool_id, MAX_ID_CHARS)
                self._rows[event.call_id] = _CallRow(name, time.monotonic(), parent)
                self._drop()
            elif row is not None and event.phase == "update":
                row.update = _show_update(event.update)
            elif row is not None and row.state == "open":
                row.state, row.seconds = event.state or "completed", event.seconds
                self._ended += 1
                self._failed += row.state == "failed"

    def __bool__(self) -> bool:
        return bool(self._rows)

    @property
    def open(self) -> int:
        """How many calls have not ended."""
        return self._dropped + len(self._rows) - self._ended

    def lines(self, limit: int = MAX_CALLS_KEPT) -> list[Line]:
        """The tree as lines, with at most `limit` calls: the latest."""
        with self._lock:
            rows = list(self._rows.items())
            shown = dict(rows[max(len(rows) - max(limit, 1), 0) :])
            left_out = self._dropped + len(rows) - len(shown)
            lines = [Line("", "", "", self._head())]
            if left_out:
                lines.append(Line("├─ ", "⋮", "dim", f"{left_out} earlier"))
            lines += _branches(shown)
        if left_out and len(lines) == 2:
            lines[-1] = lines[-1]._replace(guide="└─ ")
        return lines

    def _head(self) -> str:
        count = self._dropped + len(self._rows)
        failed = f", {self._failed} failed" if self._failed else ""
        still = f", {self.open} open" if self.open else ""
        return f"{self.title}: {count} {'call' if count == 1 else 'calls'}{failed}{still}"

    def _drop(self) -> None:
        if len(self._rows) <= MAX_CALLS_KEPT:
            return
        oldest = next((key for key, row in self._rows.items() if row.state != "open"), None)
        if oldest is not None:
            del self._rows[oldest]
            self._dropped += 1


def _branches(rows: dict[str, _CallRow]) -> list[Line]:
    """The rows as a tree of two levels: deeper nothing nests."""
    below: dict[str | None, list[tuple[str, _CallRow]]] = {}
    for call_id, row in rows.items():
        below.setdefault(row.parent if row.parent in rows else None, []).append((call_id, row))
    lines: list[Line] = []
    top = below.get(None, [])
    for number, (call_id, row) in enumerate(top):
        last = number == len(top) - 1
        lines.append(Line("└─ " if last else "├─ ", *SYMBOLS[row.state], _say(row)))
        nested = below.get(call_id, [])
        stem = "   " if last else "│  "
        for place, (_, child) in enumerate(nested):
            guide = stem + ("└─ " if place == len(nested) - 1 else "├─ ")
            lines.append(Line(guide, *SYMBOLS[child.state], _say(child)))
    return lines


def _say(row: _CallRow) -> str:
    seconds = time.monotonic() - row.began if row.state == "open" else row.seconds
    update = f"  {row.update}" if row.update else ""
    return f"{row.tool_id}  {duration(seconds)}{update}"


def _show_update(value: "JsonValue") -> str:
    try:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = f"({type(value).__name__})"
    return one_line(text, MAX_UPDATE_CHARS)


class CallView:
    """Shows a tree of calls on stderr: while they run if that is a terminal, and at the end.

    Args:
        live: Show it while calls run.
        summary: Show it at the end.
        title: What they are calls of.
    """

    def __init__(self, *, live: bool, summary: bool, title: str = "exec") -> None:
        self._tree = CallTree(title)
        self._summary = summary
        self._lock = threading.RLock()
        self._held = 0
        self._closed = False
        self._live: Live | None = None
        self._console = _console() if live else None

    def take(self, event: "CallEvent") -> None:
        """Takes in what happened to a call: a watcher for `CodeMode.watch`."""
        self._tree.take(event)
        if self._console is not None:
            self._start()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leaves the terminal to others."""
        with self._lock:
            self._held += 1
            self._stop()
        try:
            yield
        finally:
            with self._lock:
                self._held -= 1
            if self._console is not None and self._tree.open:
                self._start()

    def close(self) -> None:
        """Shows how it ended. Nothing is shown after that."""
        with self._lock:
            done, self._closed = self._closed, True
            self._stop()
        if done or not self._tree or not self._summary:
            return
        if self._console is not None:
            # Not wrapped: the rest of a long line would stand where our own words do.
            self._console.print(self._render(), no_wrap=True, overflow="ellipsis")
        else:
            sys.stderr.write("".join(f"{line}\n" for line in self._tree.lines()))
            sys.stderr.flush()

    def _start(self) -> None:
        from rich.live import Live

        with self._lock:
            if self._live is None and not (self._held or self._closed):
                self._live = Live(
                    console=self._console,
                    transient=True,
                    refresh_per_second=REFRESHES_PER_SECOND,
                    get_renderable=self._render_top,
                )
                self._live.start(refresh=True)

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _render_top(self) -> "Text":
        # More than a screen could not be wiped away again.
        assert self._console is not None
        return self._render(max(self._console.height - 4, 1))

    def _render(self, limit: int = MAX_CALLS_KEPT) -> "Text":
        from rich.text import Text

        made = Text(no_wrap=True, overflow="ellipsis")
        for number, line in enumerate(self._tree.lines(limit)):
            made.append("\n" if number else "")
            made.append(line.guide, "dim").append(line.symbol, line.style)
            made.append(f" {line.text}" if line.symbol else line.text)
        return made


def _console() -> "Console":
    # All of it is imported here: at the first call it would hold up the event loop.
    import rich.live  # noqa: F401 - for `_start`
    from rich.console import Console

    return Console(file=sys.stderr, highlight=False)
