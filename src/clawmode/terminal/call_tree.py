"""Calls as a tree: what a program or a model calls, live on a terminal and as a summary at the end.

Names and updates may be chosen by a guest or by the server of a stranger, so they are escaped and
shortened before they are shown.
"""

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from clawmode.app.console import duration
from clawmode.text import one_line
from clawmode.tools.executor import CallEvent
from clawmode.types import dataclass

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

MAX_CALLS_KEPT = 200
MAX_ID_CHARS = 120
MAX_UPDATE_CHARS = 80
REFRESHES_PER_SECOND = 8

State: TypeAlias = Literal["open", "completed", "failed", "cancelled"]

SYMBOLS: dict[State, tuple[str, str]] = {
    "open": ("…", "yellow"),
    "completed": ("✓", "green"),
    "failed": ("✗", "red"),
    "cancelled": ("-", "dim"),
}


class Line(NamedTuple):
    """A line of a tree: the guide that leads to it, a symbol with its style, and the text."""

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

    def __str__(self) -> str:
        seconds = time.monotonic() - self.began if self.state == "open" else self.seconds
        update = f"  {self.update}" if self.update else ""
        return f"{self.tool_id}  {duration(seconds)}{update}"


@dataclass(slots=True)
class CallTree:
    """Calls in the order of their start, with nested calls below their parents.

    The tree keeps the latest calls and all open calls, and counts the others. Any thread may add
    events.

    Attributes:
        title: The name of the caller, for the first line.
    """

    title: str = "exec"
    _rows: dict[str, _CallRow] = field(default_factory=dict[str, _CallRow])
    _ended: int = 0
    _failed: int = 0
    _dropped: int = 0
    _said: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, event: CallEvent) -> None:
        """Adds the start, an update or the end of a call."""
        with self._lock:
            row = self._rows.get(event.call_id)
            if event.phase == "start":
                parent = event.parent_id if event.parent_id in self._rows else None
                name = one_line(event.tool_id, MAX_ID_CHARS)
                self._rows[event.call_id] = _CallRow(name, time.monotonic(), parent)
                ended = (key for key, row in self._rows.items() if row.state != "open")
                if len(self._rows) > MAX_CALLS_KEPT and (oldest := next(ended, None)):
                    del self._rows[oldest]
                    self._dropped += 1
            elif event.phase == "update" and (row is not None or event.tool_id == "notify"):
                # What a program says with `notify` belongs to the call that runs the program.
                row = row or self._rows.get(event.parent_id or "")
                value = event.update
                try:
                    text = (
                        value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
                    )
                except (TypeError, ValueError, RecursionError):
                    text = f"({type(value).__name__})"
                if row is None:
                    self._said = f"  {one_line(text, MAX_UPDATE_CHARS)}"
                else:
                    row.update = one_line(text, MAX_UPDATE_CHARS)
            elif row is not None and row.state == "open":
                row.state, row.seconds = event.state or "completed", event.seconds
                self._ended += 1
                self._failed += row.state == "failed"

    def __bool__(self) -> bool:
        return bool(self._rows or self._said)

    @property
    def open(self) -> int:
        """The number of calls that have not ended."""
        return self._dropped + len(self._rows) - self._ended

    def lines(self, limit: int = MAX_CALLS_KEPT) -> list[Line]:
        """Returns the tree as lines, with the latest `limit` calls at most."""
        with self._lock:
            rows = list(self._rows.items())
            shown = dict(rows[max(len(rows) - max(limit, 1), 0) :])
            count = self._dropped + len(rows)
            left_out = count - len(shown)
            failed = f", {self._failed} failed" if self._failed else ""
            still = f", {self.open} open" if self.open else ""
            calls = f"{count} {'call' if count == 1 else 'calls'}{failed}{still}"
            head = f"{self.title}: {calls}{self._said}"
            lines = [Line("", "", "", head)]
            if left_out:
                lines.append(Line("├─ ", "⋮", "dim", f"{left_out} earlier"))
            lines += _branches(shown)
        if left_out and len(lines) == 2:
            lines[-1] = lines[-1]._replace(guide="└─ ")
        return lines


def _branches(rows: dict[str, _CallRow]) -> list[Line]:
    """Returns the lines of a tree of two levels: nested calls make no calls of their own."""
    below: dict[str | None, list[tuple[str, _CallRow]]] = {}
    for call_id, row in rows.items():
        below.setdefault(row.parent if row.parent in rows else None, []).append((call_id, row))
    lines: list[Line] = []
    top = below.get(None, [])
    for number, (call_id, row) in enumerate(top):
        last = number == len(top) - 1
        lines.append(Line("└─ " if last else "├─ ", *SYMBOLS[row.state], str(row)))
        nested = below.get(call_id, [])
        stem = "   " if last else "│  "
        for place, (_, child) in enumerate(nested):
            guide = stem + ("└─ " if place == len(nested) - 1 else "├─ ")
            lines.append(Line(guide, *SYMBOLS[child.state], str(child)))
    return lines


class CallView:
    """A tree of calls on stderr.

    Args:
        live: Show the tree while calls run; for terminals only.
        summary: Show the tree at the end.
        title: The name of the caller, for the first line.
    """

    def __init__(self, *, live: bool, summary: bool, title: str = "exec") -> None:
        self._tree = CallTree(title)
        self._summary = summary
        # Tools that run in threads report their calls from these threads.
        self._lock = threading.RLock()
        self._pauses = 0
        self._closed = False
        self._live: Live | None = None
        self._console: Console | None = None
        if live:
            # Imported here, not at the first call, where the import would block the event loop.
            import rich.console
            import rich.live  # for `_start`

            self._console = rich.console.Console(file=sys.stderr, highlight=False)

    def add(self, event: CallEvent) -> None:
        """Adds the start, an update or the end of a call; a watcher for `CodeMode.watch`."""
        self._tree.add(event)
        if self._console is not None:
            self._start()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Removes the live tree from the terminal while the block runs."""
        with self._lock:
            self._pauses += 1
            self._stop()
        try:
            yield
        finally:
            with self._lock:
                self._pauses -= 1
            if self._console is not None and self._tree.open:
                self._start()

    def close(self) -> None:
        """Removes the live tree and prints the summary. Later events show nothing."""
        with self._lock:
            done, self._closed = self._closed, True
            self._stop()
        if done or not self._tree or not self._summary:
            return
        if self._console is not None:
            # Not wrapped: the rest of a long line would look like our own text.
            self._console.print(self._render(), no_wrap=True, overflow="ellipsis")
        else:
            sys.stderr.write("".join(f"{line}\n" for line in self._tree.lines()))
            sys.stderr.flush()

    def _start(self) -> None:
        from rich.live import Live

        with self._lock:
            if self._live is None and not (self._pauses or self._closed):
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
        # rich cannot remove more lines than fit on the screen.
        assert self._console is not None
        return self._render(max(self._console.height - 4, 1))

    def _render(self, limit: int = MAX_CALLS_KEPT) -> "Text":
        from rich.text import Text

        tree = Text(no_wrap=True, overflow="ellipsis")
        for number, line in enumerate(self._tree.lines(limit)):
            tree.append("\n" if number else "")
            tree.append(line.guide, "dim").append(line.symbol, line.style)
            tree.append(f" {line.text}" if line.symbol else line.text)
        return tree
