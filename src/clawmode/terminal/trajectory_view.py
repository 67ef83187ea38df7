"""A session's runs as a tree for people: what was said, each call, and below it its nested calls.

Everything shown may be chosen by a model, a guest or a stranger's server: it is harmless, without
secrets, and bounded.
"""

import json
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from clawmode.app.console import duration
from clawmode.messages import AssistantMessage, Image, Text, UserMessage
from clawmode.redaction import Redactor
from clawmode.sessions.history import History
from clawmode.sessions.trajectory import Sidecar
from clawmode.sessions.tree import NestedStep, RunSteps, Step, runs_of, steps_of
from clawmode.terminal.call_tree import MAX_ID_CHARS, SYMBOLS, Line, State
from clawmode.text import one_line
from clawmode.types import JsonValue

MAX_RUNS = 100
MAX_STEPS = 500
MAX_NESTED = 200
"""Of a session, of a run and below a call: the latest. The others are counted."""

MAX_TEXT_CHARS = 300
MAX_ARGUMENT_CHARS = 100
MAX_SCANNED_CHARS = 16_000
"""Of a text, before secrets are taken out of it."""

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
    """A line to be, and what is below it."""

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
    """The runs of a session, or one of them, as lines of a tree.

    Args:
        history: What was said and done.
        sidecar: Knows better how long calls took.
        run_id: Only this run.
        redactor: Takes secrets out; by default one that knows none of them by value.
    """
    made = _Painter(redactor or Redactor(), {} if sidecar is None else sidecar.durations())
    runs = [run for run in runs_of(steps_of(history)) if run_id in (None, run.id)]
    lines: list[Line] = []
    if len(runs) > MAX_RUNS:
        lines.append(Line("", "⋮", "dim", f"{len(runs) - MAX_RUNS} earlier"))
    for run in runs[-MAX_RUNS:]:
        node = made.run(run)
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
    """The same as text that no terminal of this width wraps."""
    lines = tree_lines(history, sidecar, run_id=run_id, redactor=redactor)
    return [fit(str(line), width) for line in lines]


def fit(text: str, width: int) -> str:
    """A line cut to a width. Terminals disagree about characters: those not of a tree count two."""
    room = max(width, 20)
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
    """Says in a line what a step is."""

    def __init__(self, redactor: Redactor, durations: dict[tuple[str, str], float]) -> None:
        self._redactor = redactor
        self._durations = durations

    def run(self, run: RunSteps) -> _Node:
        steps = [step for step in run.steps if _is_shown(step)]
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
            return self._call(step)
        if isinstance(message, UserMessage):
            return _Node((">", "cyan"), f"user: {self._parts(message.content)}", [])
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
            return _Node(("⋮", "dim"), f"compaction: {self._text(_said(data.get('summary')))}", [])
        name = data.get("name") if step.entry.type == "custom" else step.entry.type
        return _Node(("•", "dim"), self._text(_said(name), MAX_ID_CHARS), [])

    def _call(self, step: Step) -> _Node:
        assert step.call is not None
        call = step.call
        words = [self._text(call.name, MAX_ID_CHARS)]
        seconds = self._durations.get((step.entry.run_id, call.id), step.seconds)
        if seconds is not None:
            words.append(duration(seconds))
        if step.state == "started":
            words.append("not answered")
        if given := self._text(_argument(call.arguments), MAX_ARGUMENT_CHARS):
            words.append(given)
        return _Node(_symbol(step.state), "  ".join(words), self._nested(step))

    def _nested(self, step: Step) -> list[_Node]:
        nodes = _earlier(len(step.nested) - MAX_NESTED)
        return nodes + [self._nested_call(it) for it in step.nested[-MAX_NESTED:]]

    def _nested_call(self, nested: NestedStep) -> _Node:
        call = nested.call
        words = [self._text(call.tool_id, MAX_ID_CHARS)]
        words.append("not ended" if call.state == "started" else duration(call.ms / 1000))
        if call.code is not None:
            words.append(self._text(call.code, MAX_ID_CHARS))
        return _Node(_symbol(call.state), "  ".join(words), [])

    def _parts(self, parts: Iterable[Text | Image]) -> str:
        said = "".join(part.text if isinstance(part, Text) else " (picture) " for part in parts)
        return self._text(said)

    def _text(self, text: str, limit: int = MAX_TEXT_CHARS) -> str:
        return one_line(self._redactor.text(text[:MAX_SCANNED_CHARS]), limit)


def _is_shown(step: Step) -> bool:
    """Results are told with their calls; a message that only calls has nothing to say."""
    message = step.entry.message
    if step.kind == "assistant" and isinstance(message, AssistantMessage):
        return bool(message.text) or message.stop not in ("stop", "tool_calls")
    return step.kind != "result"


def _earlier(count: int) -> list[_Node]:
    return [_Node(("⋮", "dim"), f"{count} earlier", [])] if count > 0 else []


def _symbol(state: str) -> tuple[str, str]:
    return SYMBOLS[_STATES.get(state, "open")]


def _argument(arguments: JsonValue) -> str:
    """What a call was given, in short: of `exec` the program."""
    if isinstance(arguments, dict) and isinstance(code := arguments.get("code"), str):
        return code
    return "" if arguments in ({}, "") else _said(arguments)


def _said(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
