"""What is seen of the runs of a chat: words line by line, calls as trees, and what goes on now."""

from collections import deque
from collections.abc import Callable
from typing import Any

from clawmode.agent.events import AgentEvent
from clawmode.agent.replies import is_silent
from clawmode.messaging.outbox import split_text
from clawmode.messaging.reply_delivery import may_be_silent
from clawmode.terminal.agent_view import AgentView
from clawmode.terminal.chat_screen import break_line, line_end
from clawmode.text import one_line

MAX_NAMES = 3
MAX_NAME_CHARS = 40
MAX_PART = 2_000
"""Characters of a line that is not shown before it ends."""

FENCE = "```"


class Words:
    """What a model says, in lines that are shown as soon as they are full.

    Args:
        say: Shows lines.
        width: Columns that there are.

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
        """Takes in what comes."""
        self.part += text
        if not self._begun:
            self.part = self.part.lstrip("\n")
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
        """Nothing more comes of this text."""
        if self.part and not (not self._begun and is_silent(self.part)):
            self._show(self.part)
        self.part, self._begun, self._in_code = "", False, False

    @property
    def seen(self) -> str:
        """Of the part, what can be shown already."""
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
    """One run, as far as it has come."""

    def __init__(self, say: Callable[[str], None], width: Callable[[], int]) -> None:
        self.words = Words(say, width)
        self.calls = AgentView(None, live=False, summary=True)
        self.streamed: set[str] = set()
        self.doing = "waiting for the model"
        self._open: dict[str, str] = {}

    def take(self, event: AgentEvent) -> None:
        data: dict[str, Any] = dict(event.data)
        if event.stream == "assistant" and "delta" not in data:
            self.words.end()
        self.calls.take(event)  # before more words: a tree ends there
        if event.stream == "assistant":
            self._hear(data)
        elif event.stream == "thinking":
            self.doing = "the model thinks"
        elif event.stream == "compaction":
            self.doing = "the conversation is summed up"
        elif event.stream == "tool":
            self._count(data)

    def _hear(self, data: dict[str, Any]) -> None:
        if delta := data.get("delta"):
            self.doing = "the model writes"
            self.words.add(str(delta))
        if "call" in data:
            self.doing = f"the model writes a call of {one_line(str(data['call']), MAX_NAME_CHARS)}"
        if text := str(data.get("message") or "").strip():
            self.streamed.update(split_text(text))

    def _count(self, data: dict[str, Any]) -> None:
        if data["phase"] == "start":
            self._open[data["callId"]] = one_line(str(data["name"]), MAX_NAME_CHARS)
        elif data["phase"] == "end":
            self._open.pop(data["callId"], None)
        names = list(self._open.values())
        more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
        self.doing = ", ".join(names[-MAX_NAMES:]) + more if names else "waiting for the model"


class ChatView:
    """Shows what happens in one conversation.

    Args:
        say: Shows lines.
        width: Columns that there are.
        fail: Shows why a run failed.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        width: Callable[[], int],
        fail: Callable[[str], None],
    ) -> None:
        self._say = say
        self._width = width
        self._fail = fail
        self._runs: dict[str, _RunView] = {}
        self._streamed: deque[set[str]] = deque(maxlen=2)

    def take(self, event: AgentEvent) -> None:
        """Takes in what happened."""
        phase = event.data.get("phase") if event.stream == "lifecycle" else None
        run = self._runs.get(event.run_id)
        if phase == "start":
            run = self._runs[event.run_id] = _RunView(self._say, self._width)
            # The words of the run before may still be on their way, to be shown no second time.
            self._streamed.append(run.streamed)
        elif run is not None and phase is not None:
            run.words.end()
            run.calls.close(None)
            del self._runs[event.run_id]
            self._tell_error(run, dict(event.data))
        elif run is not None:
            run.take(event)

    def _tell_error(self, run: _RunView, data: dict[str, Any]) -> None:
        error, status = str(data.get("error") or ""), data.get("status", "error")
        if error and status != "aborted":
            self._fail(f"{status}: {error}")
            run.streamed.update(split_text(error))  # the channel is sent it too

    def end_lines(self) -> None:
        """Shows what models have begun to write, as lines of their own."""
        for run in self._runs.values():
            run.words.end()

    def is_new(self, text: str) -> bool:
        """Whether a message that is sent was not seen already, as it came; asked once for each."""
        for streamed in self._streamed:
            if text in streamed:
                streamed.discard(text)
                return False
        return True

    @property
    def doing(self) -> str:
        """What goes on; nothing if nothing does."""
        return next((run.doing for run in self._runs.values()), "")

    @property
    def part(self) -> str:
        """The line that the model writes, or the end of it, if it is too long."""
        part = next((run.words.seen for run in self._runs.values()), "")
        return line_end(part, self._width() - 1)
