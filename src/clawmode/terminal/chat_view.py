"""The runs of a chat on the screen: text line by line, calls as trees, and the current step."""

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from clawmode.agent.events import AgentEvent
from clawmode.agent.replies import is_silent
from clawmode.agent.requests import RunResult
from clawmode.messaging.outbox import split_text
from clawmode.messaging.reply_delivery import may_be_silent
from clawmode.terminal.chat_screen import break_line, line_end
from clawmode.text import one_line

MAX_NAMES = 3
MAX_NAME_CHARS = 40
MAX_PART = 2_000
"""The most characters of a line of code that are kept until the line ends."""

FENCE = "```"


class RunCalls(Protocol):
    """Shows the calls of one run; an `AgentView`."""

    def add(self, event: AgentEvent) -> None:
        """Shows an event of the run."""
        ...

    def close(self, result: RunResult | None) -> None:
        """Ends the output; called once, when the run has ended."""
        ...


MakeRunCalls: TypeAlias = Callable[[], RunCalls]


class LineWriter:
    """The text of a model, shown in lines as soon as they are full.

    Args:
        say: Shows lines.
        width: Returns the columns of the screen.

    Attributes:
        part: The line that is not full yet.
    """

    def __init__(self, say: Callable[[str], None], width: Callable[[], int]) -> None:
        self._say = say
        self._width = width
        self.part = ""
        self._begun = False
        self._in_code = False

    def add(self, text: str) -> None:
        """Adds a piece of text, and shows the lines that are full."""
        self.part += text
        if not self._begun:
            self.part = self.part.lstrip("\n")
            # The reply may turn out to be the word for "no reply", which is never shown.
            if may_be_silent(self.part):
                return
            self._begun = True
        *lines, self.part = self.part.split("\n")
        for line in lines:
            self._show(line)
        if not self._in_code and not self.part.startswith(FENCE):
            full, self.part = break_line(self.part, self._width() - 1)
            self._say_all(full)
        if len(self.part) > MAX_PART:
            self._say_all([self.part])
            self.part = ""

    def end(self) -> None:
        """Ends the text, and shows the rest of it."""
        if self.part and not (not self._begun and is_silent(self.part)):
            self._show(self.part)
        self.part, self._begun, self._in_code = "", False, False

    @property
    def visible_part(self) -> str:
        """The part, if it may be shown already."""
        return self.part if self._begun else ""

    def _show(self, line: str) -> None:
        if line.startswith(FENCE):
            self._in_code = not self._in_code
        elif not self._in_code:
            full, line = break_line(line, self._width() - 1)
            self._say_all(full)
        self._say_all([line])

    def _say_all(self, lines: list[str]) -> None:
        if lines:
            self._say("\n".join(lines))


class _RunView:
    """The state of one run on the screen."""

    def __init__(
        self, say: Callable[[str], None], width: Callable[[], int], calls: RunCalls
    ) -> None:
        self.writer = LineWriter(say, width)
        self.calls = calls
        self.streamed: set[str] = set()
        self.step = "waiting for the model"
        self._open: dict[str, str] = {}

    def add(self, event: AgentEvent) -> None:
        data: dict[str, Any] = dict(event.data)
        if event.stream == "assistant" and "delta" not in data:
            self.writer.end()
        self.calls.add(event)  # before the text: text ends a tree of calls
        if event.stream == "assistant":
            if delta := data.get("delta"):
                self.step = "the model writes"
                self.writer.add(str(delta))
            if "call" in data:
                name = one_line(str(data["call"]), MAX_NAME_CHARS)
                self.step = f"the model writes a call of {name}"
            if text := str(data.get("message") or "").strip():
                self.streamed.update(split_text(text))
        elif event.stream == "thinking":
            self.step = "the model thinks"
        elif event.stream == "compaction":
            self.step = "summarizing the conversation"
        elif event.stream == "tool":
            if data["phase"] == "start":
                self._open[data["callId"]] = one_line(str(data["name"]), MAX_NAME_CHARS)
            elif data["phase"] == "end":
                self._open.pop(data["callId"], None)
            names = list(self._open.values())
            more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
            self.step = ", ".join(names[-MAX_NAMES:]) + more if names else "waiting for the model"


class ChatView:
    """Shows the runs of one conversation.

    Args:
        say: Shows lines.
        width: Returns the columns of the screen.
        fail: Shows why a run failed.
        make_calls: Makes the view for the calls of a run.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        width: Callable[[], int],
        fail: Callable[[str], None],
        make_calls: MakeRunCalls,
    ) -> None:
        self._say = say
        self._width = width
        self._fail = fail
        self._make_calls = make_calls
        self._runs: dict[str, _RunView] = {}
        self._streamed: deque[set[str]] = deque(maxlen=2)

    def add(self, event: AgentEvent) -> None:
        """Shows an event of a run."""
        phase = event.data.get("phase") if event.stream == "lifecycle" else None
        run = self._runs.get(event.run_id)
        if phase == "start":
            run = self._runs[event.run_id] = _RunView(self._say, self._width, self._make_calls())
            # The channel may still deliver the reply of the run before, which was shown already.
            self._streamed.append(run.streamed)
        elif run is not None and phase is not None:
            run.writer.end()
            run.calls.close(None)
            del self._runs[event.run_id]
            error, status = str(event.data.get("error") or ""), event.data.get("status", "error")
            if error and status != "aborted":
                self._fail(f"{status}: {error}")
                run.streamed.update(split_text(error))  # the channel delivers the error, too
        elif run is not None:
            run.add(event)

    def end_lines(self) -> None:
        """Shows the unfinished lines of all models."""
        for run in self._runs.values():
            run.writer.end()

    def is_new(self, text: str) -> bool:
        """True if a delivered message was not streamed already. Ask once for each message."""
        for streamed in self._streamed:
            if text in streamed:
                streamed.discard(text)
                return False
        return True

    @property
    def step(self) -> str:
        """The current step of the first run; empty if no run is active."""
        return next((run.step for run in self._runs.values()), "")

    @property
    def part(self) -> str:
        """The unfinished line of the model; of a long line, the end."""
        part = next((run.writer.visible_part for run in self._runs.values()), "")
        return line_end(part, self._width() - 1)
