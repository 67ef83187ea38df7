"""A run of an agent at a terminal: the reply on stdout, calls as a tree on stderr.

A terminal shows the reply while the model writes it. A pipe or a file gets each reply once, when it
is complete.
"""

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Any

from clawmode.agent.events import AgentEvent
from clawmode.agent.requests import RunResult
from clawmode.app.console import RED, ProgramOutput, duration, print_stderr, wrap
from clawmode.terminal.call_tree import CallView
from clawmode.text import one_line
from clawmode.tools.executor import CallEvent

MAX_ARGS_CHARS = 60
MIN_ARGS_CHARS = 16
AROUND_ARGS = 20
"""The columns around the arguments: the guide, the name of the tool, the time."""

WAITS = "… waiting for the model"
THINKS = "… the model thinks"
WRITES = "… the model writes"


class AgentView:
    """Shows the events of one run.

    Args:
        out: Where the reply goes; None if the result is printed as JSON instead.
        live: Show calls while they run, and a note about the current step.
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
        self._has_text = False
        self._streams = out is not None and out.is_terminal
        self._reply: list[str] = []  # pieces of the reply that the model is writing
        self._replies: Counter[str] = Counter()  # complete replies that were shown, by text
        self._events_lost = False
        self._note = ""
        self._pauses = 0
        self._kept: list[AgentEvent] = []

    def add(self, event: AgentEvent) -> None:
        """Shows an event; a listener for `AgentRuntime.subscribe`."""
        if self._pauses:
            self._kept.append(event)
        else:
            self._show(event)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Shows nothing while the block runs; events of that time are shown afterwards."""
        self._clear_note()
        self._end_line()
        self._pauses += 1
        try:
            with nullcontext() if self._calls is None else self._calls.paused():
                yield
        finally:
            self._pauses -= 1
            while self._kept and not self._pauses:
                self._show(self._kept.pop(0))

    def note(self, text: str) -> None:
        """Shows the current step on a terminal, until other output follows."""
        if self._live and not self._in_line and self._calls is None and text != self._note:
            self._clear_note()
            sys.stderr.write(text)
            sys.stderr.flush()
            self._note = text

    def close(self, result: RunResult | None) -> None:
        """Ends the output; with a result, shows the rest of the reply and a summary."""
        self._clear_note()
        self._end_line()
        self._close_calls()
        self._clear_note()
        if result is None:
            return
        # Without events of the model, a hook may have answered in its place.
        if self._events_lost or (not self._has_text and result.status == "ok"):
            # The texts of the result that were not shown, and the rest of one that was cut off.
            for payload in result.payloads:
                text = str(payload.get("text", "")).strip()
                if self._out is None or (payload.get("isError") and result.error is not None):
                    continue  # errors are printed on stderr
                if self._replies[text]:
                    self._replies[text] -= 1
                elif not (self._has_text and payload.get("kind")):
                    rest = text.removeprefix("".join(self._reply).strip()).lstrip()
                    self._reply.clear()
                    if rest:
                        self._out.say(rest)
        elif result.status in ("aborted", "timeout"):
            self._write_reply()
        if self._summary:
            print_stderr(_footer(result, time.time() - self._began))
        if result.error is not None and result.status != "aborted" and self._out is not None:
            text = f"{result.status}: {result.error}"
            with suppress(OSError):  # stderr is not a terminal
                text = wrap(text, os.get_terminal_size(2).columns - 1)
            print_stderr(text, RED)

    def mark_lost(self, note: str = "") -> None:
        """Records that events were lost. The missing text is shown at the end.

        Args:
            note: A line for the user, shown the first time.
        """
        if note and self._out is not None and not self._events_lost:
            with self.paused():
                print_stderr(note)
        self._events_lost = True
        if not self._streams:
            self._reply.clear()

    def _show(self, event: AgentEvent) -> None:
        data: dict[str, Any] = dict(event.data)
        if event.stream == "assistant":
            self._close_calls()
            if data.get("reset"):
                self._clear_note()
                self._end_line()
                print_stderr("(the reply was cut off; the model starts again)")
            if self._out is not None and not self._events_lost:
                self._add_text(data, self._out)
            if "text" in data:
                self._end_line()
                self.note(WAITS)
            if "call" in data:
                self._end_line()
                self.note(f"… the model writes a call of {one_line(str(data['call']), 40)}")
        elif event.stream == "tool":
            self._show_call(data)
        elif event.stream == "thinking":
            self.note(THINKS)
        elif data.get("phase") == "start":
            self.note(WAITS)

    def _clear_note(self) -> None:
        if self._note:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._note = ""

    # ---- The reply ----

    def _add_text(self, data: dict[str, Any], out: ProgramOutput) -> None:
        if data.get("reset"):
            self._reply.clear()
        if delta := data.get("delta"):
            self._has_text = True
            self._reply.append(delta)
            if self._streams:
                self._clear_note()
                self._in_line = not delta.endswith("\n")
                out.stream(delta)
            else:
                self.note(WRITES)
        if "text" in data and self._reply and not self._streams:
            self._reply += [] if self._reply[-1].endswith("\n") else ["\n"]
        if "message" in data:
            self._replies[str(data["message"] or "").strip()] += 1
            self._write_reply()

    def _write_reply(self) -> None:
        """Writes a reply that was not streamed."""
        if self._out is not None and not self._streams and self._reply:
            text = "".join(self._reply)
            self._out.stream(text if text.endswith("\n") else f"{text}\n")
        self._reply.clear()

    def _end_line(self) -> None:
        if self._in_line and self._out is not None:
            self._out.stream("\n")
        self._in_line = False

    # ---- Calls ----

    def _show_call(self, data: dict[str, Any]) -> None:
        nested = data.get("parentId") is not None
        failed = "failed" if data.get("isError") else "completed"
        event = CallEvent(
            data["phase"],
            data["callId"],
            data["name"] if nested else _call_text(data),
            data.get("parentId"),
            data.get("state") or failed,
            data.get("ms", 0) / 1000,
            data.get("update"),
            data.get("code"),
        )
        if nested:
            if event.phase == "start":
                self._nested[event.call_id] = event
            elif event.phase == "end":
                self._nested.pop(event.call_id, None)
            if self._calls is not None:
                self._calls.add(self._below(event))
                self._settle()
        else:
            self._add_outer(event, str(data["name"]))

    def _add_outer(self, event: CallEvent, name: str) -> None:
        """Adds a call of the model; concurrent calls share a tree."""
        if event.phase == "start":
            if not self._open:
                self._close_calls()
            self._clear_note()
            self._end_line()
            self._open[event.call_id] = replace(event, tool_id=name)
            if self._calls is None:
                self._calls = CallView(live=self._live, summary=self._summary, title="the model")
            self._calls.add(event)
            if name == "wait":
                # Calls that the program began before it was parked continue below the `wait`.
                for begun in self._nested.values():
                    self._calls.add(self._below(begun))
        elif self._calls is not None:
            self._calls.add(event)
        if event.phase == "end":
            self._open.pop(event.call_id, None)
            self._settle()

    def _below(self, event: CallEvent) -> CallEvent:
        """Returns the event with its parent in the tree: the `exec`, or the `wait` after it."""
        if event.parent_id in self._open:
            return event
        waits = [key for key, call in self._open.items() if call.tool_id == "wait"]
        return replace(event, parent_id=waits[0]) if waits else event

    def _settle(self) -> None:
        # Cancelled nested calls end after the call that made them, so both have to be empty.
        if not self._open and not self._nested:
            self._close_calls()
            self.note(WAITS)

    def _close_calls(self) -> None:
        if self._calls is not None:
            self._calls.close()
            self._calls = None


def _call_text(data: dict[str, Any]) -> str:
    """Returns the name of a call and its shortened arguments."""
    args: Any = data.get("args")
    if not args:
        return str(data["name"])
    if isinstance(args, dict) and isinstance(code := args.get("code"), str):
        args = code.strip()
    elif isinstance(args, dict) and len(args) == 1 and data["name"] == "wait":
        (args,) = args.values()
    text = args if isinstance(args, str) else json.dumps(args, ensure_ascii=False)
    try:
        columns = os.get_terminal_size(2).columns
        room = max(min(MAX_ARGS_CHARS, columns - AROUND_ARGS), MIN_ARGS_CHARS)
    except OSError:
        room = MAX_ARGS_CHARS
    return f"{data['name']}  {one_line(text, room)}"


def _footer(result: RunResult, seconds: float) -> str:
    """Returns the summary of a run; a run that was stopped may lack parts of it."""
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
