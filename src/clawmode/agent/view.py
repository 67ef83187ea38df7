"""A run as people see it: words as they come on stdout, calls as a tree on stderr."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from clawmode.agent.events import AgentEvent
from clawmode.agent.requests import RunResult
from clawmode.executor import CallEvent
from clawmode.terminal import CallView, ProgramOutput, complain, duration, one_line

MAX_ARGS_CHARS = 60


class AgentView:
    """Shows the events of one run.

    Args:
        out: Where the model's words go; None if a program reads the result instead.
        live: Show calls while they run.
        summary: Show calls when they have ended.
    """

    def __init__(self, out: ProgramOutput | None, *, live: bool, summary: bool) -> None:
        self._out = out
        self._live = live
        self._summary = summary
        self._calls: CallView | None = None
        self._open: set[str] = set()
        self._in_line = False

    def take(self, event: AgentEvent) -> None:
        """Takes in what happened: a listener for `AgentRuntime.subscribe`."""
        data: dict[str, Any] = dict(event.data)
        if event.stream == "assistant":
            self._speak(data)
        elif event.stream == "tool":
            self._call(data)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leaves the terminal to others."""
        self._end_line()
        if self._calls is None:
            yield
        else:
            with self._calls.paused():
                yield

    def close(self, result: RunResult | None) -> None:
        """Shows how it ended."""
        self._end_line()
        self._close_calls()
        if result is not None and self._summary:
            complain(_footer(result))

    # ---- Words ----

    def _speak(self, data: dict[str, Any]) -> None:
        if self._out is None:
            return
        if data.get("reset"):
            self._end_line()
            complain("(the model was cut off, and begins again)")
        if delta := data.get("delta"):
            self._in_line = not delta.endswith("\n")
            self._out.stream(delta)
        if "text" in data:
            self._end_line()

    def _end_line(self) -> None:
        if self._in_line and self._out is not None:
            self._out.stream("\n")
        self._in_line = False

    # ---- Calls ----

    def _call(self, data: dict[str, Any]) -> None:
        parent = data.get("parentId")
        if self._calls is None:
            self._end_line()
            self._calls = CallView(live=self._live, summary=self._summary, title="the model")
        failed = "failed" if data.get("isError") else "completed"
        self._calls.take(
            CallEvent(
                data["phase"],
                data["callId"],
                _words(data) if parent is None else data["name"],
                parent,
                data.get("state") or failed,
                data.get("ms", 0) / 1000,
                data.get("update"),
                data.get("code"),
            )
        )
        if parent is None:
            self._follow(data)

    def _follow(self, data: dict[str, Any]) -> None:
        if data["phase"] == "start":
            self._open.add(data["callId"])
        elif data["phase"] == "end":
            self._open.discard(data["callId"])
            if not self._open:
                self._close_calls()

    def _close_calls(self) -> None:
        if self._calls is not None:
            self._calls.close()
            self._calls = None


def _words(data: dict[str, Any]) -> str:
    """A call of the model in a few words: what it is, and what with."""
    args = data.get("args")
    if not args:
        return str(data["name"])
    code = args.get("code") if isinstance(args, dict) else None
    text = code.strip() if isinstance(code, str) else json.dumps(args, ensure_ascii=False)
    return f"{data['name']}  {one_line(text, MAX_ARGS_CHARS)}"


def _footer(result: RunResult) -> str:
    known: dict[str, Any] = result.metadata
    turns = known.get("assistantTurns", 0)
    parts = [
        duration(result.ended_at - result.started_at),
        f"{turns} {'request' if turns == 1 else 'requests'}",
        f"{result.usage.get('input', 0):,} tokens in, {result.usage.get('output', 0):,} out",
        "code mode" if known.get("codeModeEngaged") else "direct tools",
        f"session {result.session_key}",
    ]
    return " · ".join(parts)
