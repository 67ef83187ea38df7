"""What the tests and the soak put agents through: many sessions at once, aborts at any moment."""

import asyncio
import contextlib
import json
import math
import random
import sqlite3
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from anyio.lowlevel import checkpoint
from tests.support.agent_driver import Agent, configured, opened
from tests.support.waiting import until

from clawmode import tool
from clawmode.agent.events import AgentEvent
from clawmode.agent.requests import AgentRequest, RunResult
from clawmode.agent.run import AgentRun
from clawmode.code_mode.results import read_compact
from clawmode.testing import ScriptedModel, ScriptRequest, Turn, call, pause, think
from clawmode.tools.approvals import Approvals
from clawmode.tools.tool import ToolContext
from clawmode.types import JsonObject


@tool(effect="read")
async def double(n: int) -> int:
    """Double a number."""
    await anyio.sleep(random.uniform(0, 0.005))
    return 2 * n


def reply(result: RunResult) -> str:
    """The last words of a run; what goes out beside them is not the matter here."""
    texts = [str(it["text"]) for it in result.payloads if not it.get("isError")]
    return texts[-1] if texts else ""


# ---- Many sessions ----

TWICE = "const once = await tools.double({ n: %d }); return tools.double({ n: once })"


def many(request: ScriptRequest) -> Turn:
    """Answers `<session> <turn>` with a call, and then with what came of it."""
    session, turn = request.said.split()
    call_id = f"{session}-{turn}"
    moment = pause(random.uniform(0, 0.02))
    if call_id not in request.results:
        number = int(turn) + 10
        if "exec" in request.tool_names:
            return Turn(moment, call("exec", {"code": TWICE % number}, id=call_id))
        return Turn("Let me see. ", moment, call("double", {"n": number}, id=call_id))
    found = request.last_result()
    return Turn(moment, f"{request.said}: {found['value'] if isinstance(found, dict) else found}")


def lines_of(session: str, turns: list[str], coder: bool) -> Iterator[tuple[Any, ...]]:
    """What the transcript of a session has to say, line by line."""
    yield ("session",)
    for number, run_id in enumerate(turns):
        call_id = f"{session}-{number}"
        yield "run", run_id, "start"
        yield "message", run_id, "user", f"{session} {number}"
        said = "" if coder else "Let me see. "
        yield "message", run_id, "assistant", said, call_id
        for nested in ("1", "2") if coder else ():
            yield "nested", run_id, call_id, nested, "started"
            yield "nested", run_id, call_id, nested, "completed"
        yield "message", run_id, "tool", call_id
        result = (number + 10) * (4 if coder else 2)
        yield "message", run_id, "assistant", f"{session} {number}: {result}"
        yield "run", run_id, "end"


def told(line: dict[str, Any]) -> tuple[Any, ...]:
    """A line of a transcript in short."""
    kind, run_id = line["type"], line.get("runId")
    if kind == "session":
        return (kind,)
    if kind == "run":
        return kind, run_id, line["phase"]
    if kind == "nested":
        return kind, run_id, line["parentId"], line["callId"].rpartition(":")[2], line["state"]
    message = line["message"]
    if message["role"] == "tool":
        return kind, run_id, "tool", message["callId"]
    text = "".join(part.get("text", "") for part in message["content"])
    calls = [part["id"] for part in message["content"] if part["type"] == "toolCall"]
    return kind, run_id, message["role"], text, *calls


def check_events(events: list[AgentEvent], sessions: dict[str, list[str]]) -> None:
    """Without a gap in each run; and in a session, one run after the other."""
    by_run: defaultdict[str, list[AgentEvent]] = defaultdict(list)
    under_way: dict[str, list[str]] = defaultdict(list)
    for event in events:
        by_run[event.run_id].append(event)
        if event.run_id not in under_way[event.session_key]:
            under_way[event.session_key].append(event.run_id)
        assert under_way[event.session_key][-1] == event.run_id, "two runs at once"
    assert sorted(under_way.values()) == sorted(sessions.values())
    for found in by_run.values():
        assert [event.seq for event in found] == list(range(1, len(found) + 1))
        phases = [event.data["phase"] for event in found if event.stream == "lifecycle"]
        assert phases == ["start", "end"]
        assert found[-1].stream == "lifecycle"


class Crowd:
    """Many sessions of one agent, every other one in code mode. Used inside of `async with`."""

    def __init__(self, state: Path, sessions: int) -> None:
        self._sessions = sessions
        self._model = ScriptedModel(many)
        configuration = configured(
            agents={
                "defaults": {"model": "scripted/a"},
                "list": [{"id": "plain"}, {"id": "coder", "tools": {"codeMode": True}}],
            },
            tools={"codeMode": False},
        )
        self._opened = opened(
            state,
            self._model,
            configuration=configuration,
            tools=[double],
            max_concurrent=sessions,
        )
        self._rounds = 0

    async def __aenter__(self) -> "Crowd":
        self._agent = await self._opened.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._opened.__aexit__(*error)

    async def run(self, turns: int) -> dict[str, list[str]]:
        """So many turns in each of as many new sessions, all of them asked for at once.

        Returns:
            What each session was answered, in the order of its turns.

        Raises:
            AssertionError: Something was lost, doubled or mixed up.
        """
        self._rounds += 1
        names = [f"{self._rounds}.{number}" for number in range(self._sessions)]
        keys = {name: f"agent:{'coder' if int(name[-1]) % 2 else 'plain'}:{name}" for name in names}
        started: dict[str, list[str]] = {key: [] for key in keys.values()}
        for number in range(turns):
            for name, key in keys.items():
                request = AgentRequest(message=f"{name} {number}", session_key=key)
                started[key].append((await self._agent.runtime.start(request)).id)
        replies: dict[str, list[str]] = {name: [] for name in names}
        for name, key in keys.items():
            for number, run_id in enumerate(started[key]):
                result = await self._agent.runtime.result(run_id)
                text = f"{name} {number}: {(number + 10) * (4 if 'coder' in key else 2)}"
                assert (result.error, reply(result)) == (None, text)
                replies[name].append(reply(result))
        check_events(self._agent.events, started)
        for name, key in keys.items():
            session = await self._agent.runtime.sessions.resolve(key)
            lines = [json.loads(line) for line in session.transcript.read_bytes().splitlines()]
            assert len({line["id"] for line in lines}) == len(lines)
            assert [told(line) for line in lines] == [*lines_of(name, started[key], "coder" in key)]
        assert self._agent.runtime._lanes._lanes == {}
        self._agent.events.clear()
        self._model.requests.clear()
        return replies


# ---- Aborts ----

ALL_KINDS = """
text("begun");
const [a, b] = await Promise.all([tools.double({ n: 1 }), tools.plod({ n: 2 })]);
await yield_control();
return [a, b, await tools.order({ item: "rose" })];
"""


plodding: list[int] = []
"""The calls of `plod` that run now."""


@tool(effect="read")
def plod(n: int, context: ToolContext) -> int:
    """Take a while, in a thread that nobody can stop."""
    plodding.append(n)
    for step in range(5):
        context.update(step)
        time.sleep(0.005)
    plodding.remove(n)
    return n


@tool(effect="write")
async def order(item: str) -> str:
    """Order an item, once somebody has allowed it."""
    await checkpoint()
    return item


def everything(request: ScriptRequest) -> Turn:
    """A turn with all that there is: thoughts, words, calls, nested ones, a wait, a question."""
    if request.said.endswith("again"):
        return Turn("fine")
    name = request.said
    if "exec" not in request.tool_names:
        calls: list[tuple[str, JsonObject]] = [
            ("double", {"n": 1}),
            ("plod", {"n": 2}),
            ("order", {"item": "rose"}),
        ]
        if f"{name}-double" in request.results:
            found = [request.results[f"{name}-{each}"] for each, _ in calls]
            return Turn(f"It is {found}.", delay=0.001)
        made = [call(each, given, id=f"{name}-{each}") for each, given in calls]
        return Turn(think("Well, well."), "Let me see. ", *made, delay=0.001)
    if f"{name}-exec" not in request.results:
        source = call("exec", {"code": ALL_KINDS}, id=f"{name}-exec")
        plain = call("exec", {"code": "return 1"}, id=f"{name}-plain")
        return Turn(think("Well, well."), "Let me see. ", source, plain, delay=0.001)
    for number in range(20):
        found: Any = read_compact(request.results[f"{name}-{number or 'exec'}"] or "")
        if found["status"] != "waiting":
            return Turn(f"It is {found['value']}.", delay=0.001)
        wait = f"{name}-{number + 1}"
        if wait not in request.results:
            return Turn(call("wait", {"runId": found["runId"]}, id=wait))
    raise AssertionError("waited too often")


async def check_crowd(folder: Path, sessions: int) -> None:
    """Runs five turns in each of many sessions at once, and checks that each got its replies.

    Raises:
        AssertionError: A reply was lost, came twice, or came to another session.
    """
    async with Crowd(folder, sessions) as crowd:
        replies = await crowd.run(5)
    assert len(replies) == sessions
    for session, texts in replies.items():
        told = [text.partition(":")[0] for text in texts]
        assert told == [f"{session} {turn}" for turn in range(5)]


@dataclass
class Ordeal:
    """An agent whose runs are aborted, and what it was like before."""

    agent: Agent
    state: Path
    tasks: set[asyncio.Task[Any]]

    async def start(self, name: str) -> AgentRun:
        return await self.agent.runtime.start(AgentRequest(message=name, session_key=name))

    def events(self, run: AgentRun) -> list[AgentEvent]:
        return [event for event in self.agent.events if event.run_id == run.id]

    async def check(self, run: AgentRun) -> None:
        """It has ended, once and for good, and left nothing behind."""
        runtime = self.agent.runtime
        with anyio.fail_after(5):
            result = await runtime.result(run.id)
            await until(lambda: not asyncio.all_tasks() - self.tasks)
        assert result.status in ("aborted", "ok")
        assert not runtime.abort(run.id)
        assert runtime.approvals.pending() == []
        assert runtime._lanes._lanes == {}
        assert parked(self.state) == 0
        events = self.events(run)
        assert [it.seq for it in events] == list(range(1, len(events) + 1))
        ends = [it for it in events if it.data.get("phase") in ("end", "error")]
        ends = [it for it in ends if it.stream == "lifecycle"]
        assert ends == events[-1:]
        assert ends[0].data["status"] == result.status
        calls: defaultdict[Any, list[Any]] = defaultdict(list)
        for event in events:
            if event.stream == "tool" and event.data["phase"] != "update":
                calls[event.data["callId"]].append(event.data["phase"])
        assert all(phases == ["start", "end"] for phases in calls.values()), calls
        await self._check_transcript(run, result)

    async def _check_transcript(self, run: AgentRun, result: RunResult) -> None:
        key = run.session.key
        again = await self.agent.ask(f"{run.request.message} again", session_key=key)
        assert (again.status, reply(again)) == ("ok", "fine")
        history = await self.agent.history(key)
        assert (history.problems, history.open_runs()) == ([], {})
        own = [it for it in history.entries if it.run_id == run.id]
        phases = [(it.data["phase"], it.data.get("status")) for it in own if it.type == "run"]
        assert phases in ([], [("start", None), ("end", result.status)])
        assert bool(phases) is bool(own)
        states: defaultdict[str, list[str]] = defaultdict(list)
        for entry in own:
            if entry.type == "nested":
                states[str(entry.data["callId"])].append(str(entry.data["state"]))
        assert all(len(it) == 2 and it[0] == "started" for it in states.values()), states


def parked(state: Path) -> int:
    if not (state / "cells.sqlite").exists():
        return 0
    with contextlib.closing(sqlite3.connect(state / "cells.sqlite")) as database:
        return int(database.execute("select count(*) from cells").fetchone()[0])


@asynccontextmanager
async def ordeal(state: Path, code_mode: bool = True) -> AsyncIterator[Ordeal]:
    approvals = Approvals(ask_for=["order"])
    config = configured(tools={"codeMode": {"enabled": code_mode, "timeoutMs": 2000}})
    async with anyio.create_task_group() as people:
        async with opened(
            state,
            ScriptedModel(everything),
            configuration=config,
            tools=[double, plod, order],
            approvals=approvals,
        ) as agent:
            people.start_soon(_allow, approvals)
            await agent.ask("again", session_key="first")  # opens what is opened once
            yield Ordeal(agent, state, asyncio.all_tasks())
            await until(lambda: not plodding)  # nobody can stop the threads
            last = {event.run_id: event.stream for event in agent.events}
            assert set(last.values()) == {"lifecycle"}
        people.cancel_scope.cancel()


async def _allow(approvals: Approvals) -> None:
    while True:
        for question in await until(approvals.pending, math.inf):
            approvals.resolve(question.id, "allow-once")
        # The call has to run before its question is gone.
        await until(lambda: not approvals.pending(), math.inf)


async def how_long(found: Ordeal) -> tuple[float, int]:
    """How long a turn takes that nobody disturbs, and how many events it has."""
    began = time.monotonic()
    run = await found.start("whole")
    result = await found.agent.runtime.result(run.id)
    seconds = time.monotonic() - began
    assert reply(result).replace("'2'", "2") == "It is [2, 2, 'rose']."
    await found.check(run)
    return seconds, len(found.events(run))


async def abort_at_events(found: Ordeal, count: int) -> None:
    """Aborts so many runs, each when it tells of something else."""
    _, events = await how_long(found)
    for number in range(count):
        moment = random.randint(1, events)

        def stop(event: AgentEvent, moment: int = moment) -> None:
            if event.seq == moment:
                found.agent.runtime.abort(event.run_id)

        unsubscribe = found.agent.runtime.subscribe(stop)
        run = await found.start(f"e{number}")
        await found.agent.runtime.result(run.id)
        unsubscribe()
        await found.check(run)


async def abort_at_moments(found: Ordeal, count: int) -> None:
    """Aborts so many runs, each after another time; the first before it has begun."""
    seconds, _ = await how_long(found)
    for number in range(count):
        run = await found.start(f"t{number}")
        if number:
            await anyio.sleep(random.uniform(0, seconds))
        found.agent.runtime.abort(run.id)
        await found.check(run)
