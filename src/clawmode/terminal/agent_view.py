"""A run as people see it: words on stdout, calls as a tree on stderr.

A terminal shows words as they come. A pipe or a file gets every answer once, when it is complete.
"""

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from clawmode.agent.events import AgentEvent
from clawmode.agent.requests import RunResult
from clawmode.app.console import ProgramOutput, duration, print_stderr
from clawmode.terminal.call_tree import CallView
from clawmode.text import one_line
from clawmode.tools.executor import CallEvent

MAX_ARGS_CHARS = 60
MIN_ARGS_CHARS = 16
BESIDE_ARGS = 20
"""Columns for what stands around the arguments: the guide, the tool's name, the time."""

WAITS = "… waiting for the model"
THINKS = "… the model thinks"
WRITES = "… the model writes"


class AgentView:
    """Shows the events of one run.

    Args:
        out: Where the model's words go; None if a program reads the result instead.
        live: Show calls while they run, and what is waited for.
        summary: Show calls when they have ended.
    """

    def __init__(self, out: ProgramOutput | None, *, live: bool, summary: bool) -> None:
        self._began = time.time()
        self._out = out
        self._live = live
        self._summary = summary
        self._calls: CallView | None = None
        self._open: dict[str, CallEvent] = {}
        self._nested: dict[str, CallEvent] = {}
        self._in_line = False
        self._spoke = False
        self._at_once = out is not None and out.is_terminal
        self._answer: list[str] = []  # pieces of the answer that is being given
        self._answers: Counter[str] = Counter()
        self._torn = False
        self._noted = ""
        self._held = 0
        self._kept: list[AgentEvent] = []

    def take(self, event: AgentEvent) -> None:
        """Takes in what happened: a listener for `AgentRuntime.subscribe`."""
        if self._held:
            self._kept.append(event)
        else:
            self._show(event)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leaves the terminal to others. What happens meanwhile is shown afterwards."""
        self._wipe()
        self._end_line()
        self._held += 1
        try:
            with nullcontext() if self._calls is None else self._calls.paused():
                yield
        finally:
            self._held -= 1
            while self._kept and not self._held:
                self._show(self._kept.pop(0))

    def note(self, text: str) -> None:
        """Says on a terminal what is waited for, until something else is shown."""
        if self._live and not self._in_line and self._calls is None and text != self._noted:
            self._wipe()
            sys.stderr.write(text)
            sys.stderr.flush()
            self._noted = text

    def close(self, result: RunResult | None) -> None:
        """Shows how it ended."""
        self._wipe()
        self._end_line()
        self._close_calls()
        self._wipe()
        if result is None:
            return
        if self._torn or (not self._spoke and result.status == "ok"):  # or a hook has answered
            self._say_missed(result)
        elif result.status in ("aborted", "timeout"):  # what the model had said is recorded
            self._write_answer()
        if self._summary:
            print_stderr(_footer(result, time.time() - self._began))

    def lose_words(self, note: str = "") -> None:
        """Says that events were lost. The words that are missing are shown at the end.

        Args:
            note: What the user is told, the first time.
        """
        if note and self._out is not None and not self._torn:
            with self.paused():
                print_stderr(note)
        self._torn = True
        if not self._at_once:
            self._answer.clear()

    def _show(self, event: AgentEvent) -> None:
        data: dict[str, Any] = dict(event.data)
        if event.stream == "assistant":
            self._speak(data)
        elif event.stream == "tool":
            self._call(data)
        elif event.stream == "thinking":
            self.note(THINKS)
        elif data.get("phase") == "start":
            self.note(WAITS)

    def _wipe(self) -> None:
        if self._noted:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._noted = ""

    # ---- Words ----

    def _speak(self, data: dict[str, Any]) -> None:
        self._close_calls()
        if data.get("reset"):
            self._wipe()
            self._end_line()
            print_stderr("(the model was cut off, and begins again)")
        if self._out is not None and not self._torn:
            self._hear(data, self._out)
        if "text" in data:
            self._end_line()
            self.note(WAITS)
        if "call" in data:
            self._end_line()
            self.note(f"… the model writes a call of {one_line(str(data['call']), 40)}")

    def _hear(self, data: dict[str, Any], out: ProgramOutput) -> None:
        if data.get("reset"):
            self._answer.clear()
        if delta := data.get("delta"):
            self._spoke = True
            self._answer.append(delta)
            if self._at_once:
                self._wipe()
                self._in_line = not delta.endswith("\n")
                out.stream(delta)
            else:
                self.note(WRITES)
        if "text" in data and self._answer and not self._at_once:
            self._answer += [] if self._answer[-1].endswith("\n") else ["\n"]
        if "message" in data:
            self._answers[str(data["message"] or "").strip()] += 1
            self._write_answer()

    def _write_answer(self) -> None:
        """Writes an answer that was not written as it came."""
        if self._out is not None and not self._at_once and self._answer:
            text = "".join(self._answer)
            self._out.stream(text if text.endswith("\n") else f"{text}\n")
        self._answer.clear()

    def _say_missed(self, result: RunResult) -> None:
        """Writes what the result says and was not heard; of an answer that was cut, the rest."""
        for payload in result.payloads:
            text = str(payload.get("text", "")).strip()
            if self._out is None or (payload.get("isError") and result.error is not None):
                continue  # errors are told on stderr
            if self._answers[text]:
                self._answers[text] -= 1
            elif not (self._spoke and payload.get("kind")):
                rest = text.removeprefix("".join(self._answer).strip()).lstrip()
                self._answer.clear()
                if rest:
                    self._out.say(rest)

    def _end_line(self) -> None:
        if self._in_line and self._out is not None:
            self._out.stream("\n")
        self._in_line = False

    # ---- Calls ----

    def _call(self, data: dict[str, Any]) -> None:
        nested = data.get("parentId") is not None
        failed = "failed" if data.get("isError") else "completed"
        event = CallEvent(
            data["phase"],
            data["callId"],
            data["name"] if nested else _words(data),
            data.get("parentId"),
            data.get("state") or failed,
            data.get("ms", 0) / 1000,
            data.get("update"),
            data.get("code"),
        )
        if nested:
            self._take_nested(event)
        else:
            self._take_outer(event, str(data["name"]))

    def _take_outer(self, event: CallEvent, name: str) -> None:
        """A call of the model; those that it makes side by side share a tree."""
        if event.phase == "start":
            if not self._open:
                self._close_calls()
            self._wipe()
            self._end_line()
            self._open[event.call_id] = replace(event, tool_id=name)
            if self._calls is None:
                self._calls = CallView(live=self._live, summary=self._summary, title="the model")
            self._calls.add(event)
            if name == "wait":
                # What its program had begun before it was parked goes on below it.
                for begun in self._nested.values():
                    self._calls.add(self._below(begun))
        elif self._calls is not None:
            self._calls.add(event)
        if event.phase == "end":
            self._open.pop(event.call_id, None)
            self._settle()

    def _take_nested(self, event: CallEvent) -> None:
        if event.phase == "start":
            self._nested[event.call_id] = event
        elif event.phase == "end":
            self._nested.pop(event.call_id, None)
        if self._calls is not None:
            self._calls.add(self._below(event))
            self._settle()

    def _below(self, event: CallEvent) -> CallEvent:
        """Below the call that made it, or below the `wait` for a program that made it before."""
        if event.parent_id in self._open:
            return event
        waits = [key for key, call in self._open.items() if call.tool_id == "wait"]
        return replace(event, parent_id=waits[0]) if waits else event

    def _settle(self) -> None:
        # Nested calls that are cancelled end after the call that made them.
        if not self._open and not self._nested:
            self._close_calls()
            self.note(WAITS)

    def _close_calls(self) -> None:
        if self._calls is not None:
            self._calls.close()
            self._calls = None


def _words(data: dict[str, Any]) -> str:
    """A call of the model in a few words: what it is, and what with."""
    args: Any = data.get("args")
    if not args:
        return str(data["name"])
    if isinstance(args, dict) and isinstance(code := args.get("code"), str):
        args = code.strip()
    elif isinstance(args, dict) and len(args) == 1 and data["name"] == "wait":
        (args,) = args.values()
    text = args if isinstance(args, str) else json.dumps(args, ensure_ascii=False)
    return f"{data['name']}  {one_line(text, _room())}"


def _room() -> int:
    """Characters for arguments: the time is to be seen behind them."""
    try:
        columns = os.get_terminal_size(2).columns
    except OSError:
        return MAX_ARGS_CHARS
    return max(min(MAX_ARGS_CHARS, columns - BESIDE_ARGS), MIN_ARGS_CHARS)


def _footer(result: RunResult, seconds: float) -> str:
    """What the run was, as far as that is known of one that was stopped; and how long it took."""
    known: dict[str, Any] = result.metadata
    parts = [duration(max(seconds, 0.0))]
    if "modelRequests" in known:
        count = known["modelRequests"]
        parts.append(f"{count} {'request' if count == 1 else 'requests'}")
    if "model" in known:
        parts.append(one_line(f"{known.get('provider')}/{known['model']}", MAX_ARGS_CHARS))
    if result.usage:
        usage: dict[str, Any] = result.usage
        parts.append(f"{usage.get('input', 0):,} tokens in, {usage.get('output', 0):,} out")
    if "codeModeEngaged" in known:
        direct = "direct tools" if known.get("visibleTools") else "no tools"
        parts.append("code mode" if known["codeModeEngaged"] else direct)
    return " · ".join([*parts, f"session {result.session_key}"])
