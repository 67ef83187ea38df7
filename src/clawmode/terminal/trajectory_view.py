"""The runs of a session as a tree of text: messages, calls, and nested calls below their `exec`.

A model, a guest or the server of a stranger may have chosen these texts, so all of them are
escaped, redacted and shortened.
"""

import json
from collections.abc import Iterator
from typing import NamedTuple

from clawmode.app.console import duration
from clawmode.messages import AssistantMessage, Text, UserMessage
from clawmode.redaction import Redactor
from clawmode.sessions.history import History
from clawmode.sessions.trajectory import Sidecar
from clawmode.sessions.tree import RunSteps, Step, runs_of, steps_of
from clawmode.terminal.call_tree import MAX_ID_CHARS, SYMBOLS, Line, State
from clawmode.text import one_line, shorten
from clawmode.types import JsonValue

MAX_RUNS = 100
MAX_STEPS = 500
MAX_NESTED = 200
"""The most runs of a session, steps of a run and calls below a call; older ones are counted."""

MAX_TEXT_CHARS = 300
MAX_ARGUMENT_CHARS = 100
MAX_SCANNED_CHARS = 16_000
"""The most characters of a text that are redacted; the rest is never shown."""

_STATES: dict[str, State] = {
    "started": "open",
    "completed": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
    "ok": "completed",
    "error": "failed",
    "timeout": "failed",
    "aborted": "cancelled",
}


class _Node(NamedTuple):
    """A line of the tree, with the nodes below it."""

    symbol: tuple[str, str]
    text: str
    below: "list[_Node]"


def tree_lines(
    history: History,
    sidecar: Sidecar | None = None,
    *,
    run_id: str | None = None,
    redactor: Redactor | None = None,
) -> list[Line]:
    """Returns the runs of a session, or one of them, as lines of a tree.

    Args:
        history: The transcript.
        sidecar: Has more precise durations of calls.
        run_id: Return only this run.
        redactor: Redacts secrets. Default: a redactor that knows no secret by value.
    """
    painter = _Painter(redactor or Redactor(), {} if sidecar is None else sidecar.durations())
    runs = [run for run in runs_of(steps_of(history)) if run_id in (None, run.id)]
    lines: list[Line] = []
    if len(runs) > MAX_RUNS:
        lines.append(Line("", "⋮", "dim", f"{len(runs) - MAX_RUNS} earlier"))
    for run in runs[-MAX_RUNS:]:
        node = painter.run(run)
        lines.append(Line("", *node.symbol, node.text))
        lines += _below(node.below, "")
    return lines


def render(
    history: History,
    *,
    width: int,
    run_id: str | None = None,
    sidecar: Sidecar | None = None,
    redactor: Redactor | None = None,
) -> list[str]:
    """Returns the runs of a session as lines that no terminal of this width wraps."""
    lines = tree_lines(history, sidecar, run_id=run_id, redactor=redactor)
    return [fit(str(line), width) for line in lines]


def fit(text: str, width: int) -> str:
    """Cuts a line to a width."""
    room = max(width, 20)
    # Terminals disagree about the width of characters; only these are safely one column wide.
    for at, char in enumerate(text):
        room -= 1 if char.isascii() or char in "├─└│✓✗…⋮•" else 2
        if room < 1 and at + 1 < len(text):
            return f"{text[:at]}…"
    return text


def _below(nodes: list[_Node], indent: str) -> Iterator[Line]:
    for node in nodes:
        last = node is nodes[-1]
        yield Line(f"{indent}{'└─ ' if last else '├─ '}", *node.symbol, node.text)
        yield from _below(node.below, indent + ("   " if last else "│  "))


class _Painter:
    """Makes the nodes of the tree from runs and steps."""

    def __init__(self, redactor: Redactor, durations: dict[tuple[str, str], float]) -> None:
        self._redactor = redactor
        self._durations = durations

    def run(self, run: RunSteps) -> _Node:
        steps: list[Step] = []
        for step in run.steps:  # without results, which are shown with their calls
            message, shown = step.entry.message, step.kind != "result"
            if step.kind == "assistant" and isinstance(message, AssistantMessage):
                shown = bool(message.text) or message.stop not in ("stop", "tool_calls")
            if shown:
                steps.append(step)
        below = _earlier(len(steps) - MAX_STEPS)
        below += [self._step(step) for step in steps[-MAX_STEPS:]]
        if not run.id:
            return _Node(("•", ""), "outside of a run", below)
        status = "unfinished" if run.end is None else str(run.end.data.get("status"))
        words = [f"run {self._text(run.id, MAX_ID_CHARS)}  {self._text(status, 20)}"]
        if run.start is not None and run.end is not None:
            words.append(duration(max(run.end.at - run.start.at, 0.0)))
        model = "" if run.start is None else run.start.data.get("model")
        if isinstance(model, str) and model:
            words.append(self._text(model, MAX_ID_CHARS))
        error = "" if run.end is None else run.end.data.get("error")
        if isinstance(error, str) and error:
            words.append(self._text(error, MAX_TEXT_CHARS))
        return _Node(_symbol(status), "  ".join(words), below)

    def _step(self, step: Step) -> _Node:
        message, data = step.entry.message, step.entry.data
        if step.call is not None:
            call = step.call
            words = [self._text(call.name, MAX_ID_CHARS)]
            seconds = self._durations.get((step.entry.run_id, call.id), step.seconds)
            if seconds is not None:
                words.append(duration(seconds))
            if step.state == "started":
                words.append("not answered")
            given = call.arguments
            if isinstance(given, dict) and isinstance(code := given.get("code"), str):
                given = code  # the program of an `exec`
            if given not in ({}, ""):
                words.append(self._text(_plain(given), MAX_ARGUMENT_CHARS))
            return _Node(_symbol(step.state), "  ".join(words), self._nested(step))
        if isinstance(message, UserMessage):
            parts = [it.text if isinstance(it, Text) else " (picture) " for it in message.content]
            return _Node((">", "cyan"), f"user: {self._text(''.join(parts))}", [])
        if isinstance(message, AssistantMessage):
            if message.stop in ("error", "aborted", "refused", "length"):
                text = f"model ({message.stop}): {self._text(message.error or message.text)}"
                return _Node(_symbol("error"), text, [])
            return _Node(("•", ""), f"model: {self._text(message.text)}", [])
        if step.kind == "nested":
            parent = step.nested[0].call.parent_id if step.nested else ""
            text = f"calls of {self._text(parent, MAX_ID_CHARS)}, which is not recorded"
            return _Node(_symbol("started"), text, self._nested(step))
        if step.entry.type == "compaction":
            return _Node(("⋮", "dim"), f"compaction: {self._text(_plain(data.get('summary')))}", [])
        name = data.get("name") if step.entry.type == "custom" else step.entry.type
        return _Node(("•", "dim"), self._text(_plain(name), MAX_ID_CHARS), [])

    def _nested(self, step: Step) -> list[_Node]:
        nodes = _earlier(len(step.nested) - MAX_NESTED)
        for call in (nested.call for nested in step.nested[-MAX_NESTED:]):
            words = [self._text(call.tool_id, MAX_ID_CHARS)]
            words.append("not ended" if call.state == "started" else duration(call.ms / 1000))
            if call.code is not None:
                words.append(self._text(call.code, MAX_ID_CHARS))
            nodes.append(_Node(_symbol(call.state), "  ".join(words), []))
        return nodes

    def _text(self, text: str, limit: int = MAX_TEXT_CHARS) -> str:
        return one_line(self._redactor.text(shorten(text, MAX_SCANNED_CHARS)), limit)


def _earlier(count: int) -> list[_Node]:
    return [_Node(("⋮", "dim"), f"{count} earlier", [])] if count > 0 else []


def _symbol(state: str) -> tuple[str, str]:
    return SYMBOLS[_STATES.get(state, "open")]


def _plain(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
