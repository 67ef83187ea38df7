"""A process of its own that locks, waits for or writes to a session, and what kills it at random.

    python session_writer.py hold FILE | take FILE SECONDS | write FOLDER KEY SEED

Prints one line of JSON for each thing that a test should know. `kill_writers` is for the soak too.
"""

import json
import os
import random
import sys
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import ByteReceiveStream, Process
from anyio.lowlevel import checkpoint
from anyio.streams.text import TextReceiveStream

from clawmode.messages import AssistantMessage, Text, ToolCall, ToolMessage, UserMessage
from clawmode.sessions.history import UNANSWERED, History, read_transcript
from clawmode.sessions.lock import SessionBusy, SessionLock
from clawmode.sessions.store import SessionStore
from clawmode.sessions.transcript import Transcript, open_session

KILLS_EACH = 10
"""How often writers to one session are killed; then comes the next: reading takes time."""


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


# ---- What the process does ----


async def hold(path: str) -> None:
    async with SessionLock(path).hold(10):
        say(holds=os.getpid())
        await anyio.sleep_forever()


async def take(path: str, seconds: str) -> None:
    try:
        async with SessionLock(path).hold(float(seconds)):
            say(got=os.getpid())
    except SessionBusy as busy:
        say(busy=str(busy), pid=busy.pid)


async def queue(path: str, seconds: str) -> None:
    """Take a lock that another process holds, and report when the wait has begun."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(take, path, seconds)
        await anyio.wait_all_tasks_blocked()
        say(waits=os.getpid())


async def write(folder: str, key: str, seed: str) -> None:
    """Runs without end; what an earlier process left unfinished first, under its own id."""
    chance, own = random.Random(int(seed)), uuid.uuid4().hex[:12]
    session = await SessionStore(folder).resolve(key)
    async with open_session(session, 10) as transcript:
        for run in transcript.open_runs().values():
            transcript.start_run(run.id)
            for call in run.unanswered:
                _answer(transcript, run.id, call, UNANSWERED)
            transcript.end_run(run.id, "ok")
        say(ready=os.getpid())
        for number in range(1_000_000):
            _turn(transcript, Path(folder), f"{own}-{number}", chance)
            await checkpoint()


def _turn(transcript: Transcript, folder: Path, run_id: str, chance: random.Random) -> None:
    transcript.start_run(run_id, model="scripted/one", trigger="test", code_mode=True)
    transcript.message(run_id, UserMessage.of("go on"))
    calls = tuple(ToolCall(f"{run_id}-{n}", "exec", {"code": "return 1"}) for n in range(3))
    transcript.message(run_id, AssistantMessage(content=calls, stop="tool_calls"))
    for call in calls:
        with (folder / "effects").open("a") as effects:
            effects.write(f"{call.id}\n")
        ids = {"parent_id": call.id, "call_id": "1", "tool_id": "openclaw:core:t"}
        transcript.nested(run_id, **ids, state="started")
        transcript.nested(run_id, **ids, state="completed", seconds=0.01)
        # Large ones are written page by page, and a kill can come in between.
        size = chance.choice((10, 1_000, 100_000, 1_500_000))
        _answer(transcript, run_id, call, "x" * size)
        say(result=call.id)
    transcript.message(run_id, AssistantMessage(content=(Text("done"),)))
    transcript.end_run(run_id, "ok")
    say(ended=run_id)


def _answer(transcript: Transcript, run_id: str, call: ToolCall, text: str) -> None:
    result = ToolMessage(call_id=call.id, name=call.name, content=(Text(text),))
    assert transcript.message(run_id, result)
    assert not transcript.message(run_id, result), "recorded twice"


# ---- What a test does with it ----


class Lines:
    """What a process says, line by line."""

    def __init__(self, stream: ByteReceiveStream) -> None:
        self._stream, self._rest = TextReceiveStream(stream), ""

    async def next(self) -> dict[str, Any]:
        with anyio.fail_after(15):
            while "\n" not in self._rest:
                self._rest += await self._stream.receive()
        line, _, self._rest = self._rest.partition("\n")
        return json.loads(line)

    async def rest(self) -> list[dict[str, Any]]:
        """Everything until its end, without a line that was cut off."""
        with anyio.fail_after(15):
            async for more in self._stream:
                self._rest += more
        return [json.loads(line) for line in self._rest.split("\n")[:-1]]


@asynccontextmanager
async def started(*what: str) -> AsyncIterator[tuple[Process, Lines]]:
    command = [sys.executable, str(Path(__file__)), *what]
    process = await anyio.open_process(command, stderr=None)
    async with process:
        assert process.stdout is not None
        try:
            yield process, Lines(process.stdout)
        finally:
            if process.returncode is None:
                process.kill()


@dataclass(frozen=True)
class Killed:
    """What was found after so many kills."""

    kills: int
    torn: int
    results: int


async def kill_writers(folder: Path, kills: int, *, seed: int = 0, seconds: float = 0.05) -> Killed:
    """Kills writers to one session at random moments, one after another.

    Raises:
        AssertionError: A transcript that cannot be read, a result that was lost or is there twice.
    """
    chance = random.Random(seed)
    found = Killed(0, 0, 0)
    told: set[str] = set()
    (folder / "effects").touch()
    for number in range(kills):
        key = f"killed:{number // KILLS_EACH}"
        if number % KILLS_EACH == 0:
            told = set()
        async with started("write", str(folder), key, str(seed + number)) as (process, lines):
            assert "ready" in await lines.next()
            await anyio.sleep(chance.uniform(0, seconds))
            process.kill()
            await process.wait()
            more = {line["result"] for line in await lines.rest() if "result" in line}
        told |= more
        store = SessionStore(folder)
        path = (await store.resolve(key, create=False)).transcript
        store.close()
        history = await anyio.to_thread.run_sync(read_transcript, path)
        check(history, told, (folder / "effects").read_text().split())
        torn = not path.read_bytes().endswith(b"\n")
        found = Killed(number + 1, found.torn + torn, found.results + len(more))
    return found


def check(history: History, told: set[str], effects: list[str]) -> None:
    """Nothing unreadable, nothing lost, nothing twice, nothing out of order."""
    assert history.problems == []
    results = Counter(
        entry.message.call_id for entry in history.entries if isinstance(entry.message, ToolMessage)
    )
    assert [call for call, times in results.items() if times > 1] == []
    assert told <= results.keys(), "a result was told of, and is lost"
    assert max(Counter(effects).values(), default=0) <= 1
    assert told <= set(effects)
    assert len(history.open_runs()) <= 1
    # What a model would be told: each call, and right behind it its result.
    waiting: list[str] = []
    for message in history.messages():
        if isinstance(message, ToolMessage):
            assert waiting.pop(0) == message.call_id
        else:
            assert waiting == []
            waiting = [call.id for call in getattr(message, "calls", ())]
    assert waiting == []


if __name__ == "__main__":
    what: dict[str, Any] = {"hold": hold, "take": take, "queue": queue, "write": write}
    anyio.run(what[sys.argv[1]], *sys.argv[2:])
