"""An agent in processes of its own, what kills them at random, and what has to hold all the same.

    python agent_program.py

Imports all there is once, which takes seconds; then each order, a line of JSON, becomes a process
that runs one turn. Prints one line of JSON for each thing that a test should know. `kill_agents`
is for the soak too.
"""

import gc
import json
import logging
import os
import random
import resource
import select
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import Process
from tests.support.agent_driver import configured
from tests.support.session_writer import Lines, check, say

# They take seconds, and here no clock of a test runs.
import clawmode.models.anthropic_sdk
import clawmode.models.openai_sdk  # noqa: F401
from clawmode import tool
from clawmode.agent.models import ModelPool
from clawmode.agent.requests import AgentRequest
from clawmode.agent.resolver import ConfigResolver
from clawmode.agent.runtime import AgentRuntime
from clawmode.commands.cli import main
from clawmode.messages import ToolMessage
from clawmode.models.providers import Api
from clawmode.sessions.history import History, read_transcript
from clawmode.sessions.store import SessionStore
from clawmode.testing import ScriptRequest, ScriptServer, Turn, call, pause

KEY = "sk-secret-of-the-test"
WIRES: tuple[Api, ...] = ("openai-completions", "openai-responses", "anthropic-messages")

# ---- What a process does ----


async def run_turn(order: dict[str, Any]) -> None:
    """One turn, as `AgentRequest` has it."""
    state = Path(order["state"])
    api, url = order["api"], order["url"]
    provider = {"baseUrl": url if api == "anthropic-messages" else f"{url}/v1", "api": api}
    configuration = configured(
        agents={"defaults": {"model": "wire/a"}},
        models={"providers": {"wire": {**provider, "apiKey": KEY, "local": False}}},
        session={"writeLock": {"acquireTimeoutMs": order.get("lockMs", 10_000)}},
    )

    @tool(effect="write")
    async def note(id: str) -> str:
        """Leave a mark that outlives the process. Not to be repeated."""
        await anyio.sleep(random.uniform(0, 0.01))
        with (state / "effects").open("a") as effects:
            effects.write(f"{id}\n")
        await anyio.sleep(random.uniform(0, 0.01))
        return id

    async with ModelPool(configuration) as models:
        runtime = AgentRuntime(
            resolver=ConfigResolver(configuration, models, state),
            sessions=SessionStore(state / "sessions"),
            state=state,
            tools=[note],
        )
        async with runtime:
            run = await runtime.start(AgentRequest(**order["request"]))
            result = await runtime.result(run.id)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    tell("result", status=result.status, error=result.error, peakMb=peak)


def tell(what: str, pid: int = 0, **more: object) -> None:
    say(say=what, pid=pid or os.getpid(), **more)


def serve() -> None:
    """Takes orders until there are no more: to run a turn, and to kill the process that does."""
    gc.freeze()  # so that processes share it
    print(flush=True)
    children: dict[int, int] = {}
    while True:
        ready, *_ = select.select([0, *children], (), ())
        for pidfd in [it for it in ready if it != 0]:
            pid = children.pop(pidfd)
            _, status = os.waitpid(pid, 0)
            os.close(pidfd)
            tell("ended", pid, code=os.waitstatus_to_exitcode(status))
        if 0 not in ready:
            continue
        if not (line := _line()):
            return
        order = json.loads(line)
        if "kill" in order:
            # It is our child: until we wait for it, its number is nobody else's.
            for pidfd, pid in children.items():
                if pid == order["kill"]:
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            continue
        if pid := os.fork():
            children[os.pidfd_open(pid)] = pid
            tell("started", pid)
            continue
        for pidfd in children:
            os.close(pidfd)
        _take_streams(order)
        if "command" in order:
            sys.argv = ["clawmode", *order["command"]]
            main()
        anyio.run(run_turn, order)
        os._exit(0)  # to clean up all that was imported takes long


def _take_streams(order: dict[str, Any]) -> None:
    """From now on stdin is empty, and a command writes where it was told to."""
    for number, path in enumerate((os.devnull, *order.get("streams", ()))):
        opened = os.open(path, os.O_RDWR)
        os.dup2(opened, number)
        os.close(opened)


def _line() -> bytes:
    """One order, and no byte of the next: that is for the next look."""
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(0, 1)):
        line += byte
    return line


# ---- What a test does with it ----


class Program:
    """Starts turns in processes of their own."""

    def __init__(self, process: Process) -> None:
        assert process.stdout is not None
        self._process = process
        self._lines = Lines(process.stdout)
        self._kept: list[dict[str, Any]] = []
        self._state = Path()
        self._url = ""

    def use(self, state: Path, server: ScriptServer) -> None:
        """From now on turns are there, with models of this server."""
        self._state, self._url = state, server.url

    async def ready(self) -> None:
        """Waits until it has imported all there is."""
        assert self._process.stdout is not None
        assert await self._process.stdout.receive(1) == b"\n"

    async def _order(self, **order: Any) -> None:
        assert self._process.stdin is not None
        await self._process.stdin.send(json.dumps(order).encode() + b"\n")

    async def next(self, what: str, pid: int = 0) -> dict[str, Any]:
        """The next line that says `what`, of this process."""
        for line in self._kept:
            if line["say"] == what and pid in (0, line["pid"]):
                self._kept.remove(line)
                return line
        while True:
            line = await self._lines.next()
            if line["say"] == what and pid in (0, line["pid"]):
                return line
            self._kept.append(line)

    async def start(self, api: Api = "anthropic-messages", lock_ms: int = 10_000, **it: Any) -> int:
        """Starts a turn; the process it runs in."""
        state = str(self._state)
        await self._order(state=state, url=self._url, api=api, lockMs=lock_ms, request=it)
        return int((await self.next("started"))["pid"])

    async def command(self, *arguments: str) -> tuple[int, str, str]:
        """Runs `clawmode`: its exit status, and what it wrote to stdout and stderr."""
        streams = [self._state / name for name in ("stdout", "stderr")]
        for path in streams:
            path.write_bytes(b"")
        await self._order(command=arguments, streams=[*map(str, streams)])
        pid = int((await self.next("started"))["pid"])
        ended = await self.next("ended", pid)
        return int(ended["code"]), streams[0].read_text(), streams[1].read_text()

    async def kill(self, pid: int) -> None:
        """Kills it, and waits until it is gone."""
        await self._order(kill=pid)
        await self.next("ended", pid)

    async def result(self, pid: int) -> dict[str, Any]:
        """What came of a turn."""
        ended = await self.next("ended", pid)
        assert ended["code"] == 0
        return await self.next("result", pid)

    async def killed_at(
        self, pid: int, moment: Callable[[], Awaitable[object]]
    ) -> dict[str, Any] | None:
        """Kills it at a moment; what came of it, if it was faster."""
        result = None
        async with anyio.create_task_group() as tasks:

            async def stop() -> None:
                await moment()
                tasks.cancel_scope.cancel()

            tasks.start_soon(stop)
            result = await self.result(pid)
            tasks.cancel_scope.cancel()
        if result is None:
            await self.kill(pid)
        return result

    async def history(self, key: str | None = None) -> History | None:
        """The transcript as it stands."""
        store = SessionStore(self._state / "sessions")
        try:
            path = (await store.resolve(key)).transcript
        finally:
            store.close()
        return await anyio.to_thread.run_sync(read_transcript, path) if path.exists() else None

    def effects(self) -> list[str]:
        """All marks that were left."""
        path = self._state / "effects"
        return path.read_text().split() if path.exists() else []


@asynccontextmanager
async def opened_program() -> AsyncIterator[Program]:
    """A program that is ready."""
    command = [sys.executable, str(Path(__file__))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = await anyio.open_process(command, stderr=None, env=environment)
    async with process:
        program = Program(process)
        try:
            with anyio.fail_after(60):
                await program.ready()
            yield program
        finally:
            process.kill()


# ---- A turn that is killed ----


@dataclass
class Plan:
    """What the model wants in one run: programs with effects, one of which is parked.

    What comes next follows from what was answered, so it does not matter how often it is asked.
    """

    run_id: str
    parked: str = ""
    came_to: str = "lost"
    wait_was_lost: bool = False

    def react(self, request: ScriptRequest) -> Turn:
        for name, sources in self._steps().items():
            ids = [f"{self.run_id}-{name}{number}" for number in range(len(sources))]
            if ids[0] not in request.results:
                calls = zip(ids, sources, strict=True)
                return Turn("So:", *(call("exec", {"code": it}, id=id) for id, it in calls))
            if name == "park" and (wait := self._wait(request, ids[0])) is not None:
                return wait
        return Turn("done")

    def _steps(self) -> dict[str, list[str]]:
        def note(number: int) -> str:
            return f"await tools.note({{ id: '{self.run_id}-{number}' }});"

        both = f"await Promise.all([{note(2)[6:-1]}, {note(3)[6:-1]}])"
        return {
            "one": [f"{note(1)} return 1"],
            "both": [both],
            "park": [f"{note(4)} await yield_control(); {note(5)} return 'after'"],
            "side": [note(6), note(7)],
        }

    def _wait(self, request: ScriptRequest, parked: str) -> Turn | None:
        found = _read(request.results[parked])
        if found.get("status") != "waiting":
            return None  # lost: nobody knows its id
        self.parked = found["runId"]
        ids = (f"{self.run_id}-wait{number}" for number in range(20))
        for wait in ids:
            if wait not in request.results:
                return Turn(call("wait", {"runId": self.parked}, id=wait))
            answer = _read(request.results[wait])
            if answer.get("status") in ("completed", "failed"):
                self.came_to = str(answer.get("value", answer.get("code")))
                return None
            self.wait_was_lost |= not answer
        raise AssertionError("waited too often")


def _read(text: str | None) -> dict[str, Any]:
    try:
        return json.loads(text or "")
    except ValueError:
        return {}  # "unknown"


@dataclass
class Killed:
    """What was seen of it.

    Attributes:
        continued: How often a run went on under its own id.
        strangers: How often another run wanted the program that it had parked.
        parked: What came of these programs.
    """

    kills: int = 0
    runs: int = 0
    continued: int = 0
    strangers: int = 0
    parked: Counter[str] = field(default_factory=Counter[str])


class Killer:
    """Kills agents at random moments of their turns, and has every run continued to its end."""

    def __init__(self, program: Program, server: ScriptServer, seed: int) -> None:
        self._program = program
        self._server = server
        self._chance = random.Random(seed)
        self.found = Killed()
        self.plan = Plan("none")
        self.stranger = ""
        self._asked = anyio.Event()
        self._window = 1.0

    def react(self, request: ScriptRequest) -> Turn:
        """The script of the server."""
        if not self.stranger:
            self._asked.set()
            turn = self.plan.react(request)
            return Turn(pause(self._chance.uniform(0, 0.03)), *turn.parts)
        if self.stranger in request.results:
            return Turn("no luck")
        return Turn(call("wait", {"runId": self.plan.parked}, id=self.stranger))

    async def measure(self) -> None:
        """How long a turn takes that nobody disturbs."""
        self.plan = Plan("measured")
        pid = await self._program.start(message="go", run_id="measured", session_key="measured")
        await self._asked.wait()
        began = anyio.current_time()
        assert (await self._program.result(pid))["status"] == "ok"
        assert self.plan.came_to == "after"
        self._window = anyio.current_time() - began

    async def live(self, kills: int) -> None:
        """One run, killed up to so many times before it may end."""
        key = f"killed:{self.found.runs // 5}"
        run_id = f"run-{self.found.runs}"
        self.plan = Plan(run_id)
        self.found.runs += 1
        resume = False
        for left in range(kills, -1, -1):
            api = self._chance.choice(WIRES)
            request = {"message": "" if resume else "go", "resume": resume}
            self._asked = anyio.Event()
            pid = await self._program.start(api, session_key=key, run_id=run_id, **request)
            result = await self._program.killed_at(
                pid, self._moment if left else anyio.sleep_forever
            )
            history = await self._program.history(key)
            if history is not None:
                self._check(history)
            if result is not None:
                self._judge(result)
                break
            self.found.kills += 1
            if self._has_ended(history, run_id):
                break
            resume = history is not None and run_id in history.open_runs()
            self.found.continued += resume
            if resume and self.plan.parked and self._chance.random() < 0.5:
                await self._try_as_a_stranger(key)
        history = await self._program.history(key)
        assert history is not None
        assert history.open_runs() == {}
        # Nobody knows how far it came while it was waited for; parked, it is whole.
        assert self.plan.wait_was_lost or self.plan.came_to in ("after", "lost"), self.plan
        self.found.parked[self.plan.came_to] += 1

    async def _moment(self) -> None:
        """Some moment of a turn; most of the time after the model was asked for the first time."""
        if self._chance.random() < 0.8:
            await self._asked.wait()
        await anyio.sleep(self._chance.uniform(0, self._window))

    def _judge(self, result: dict[str, Any]) -> None:
        # Killed before the message was recorded: the only case in which the run cannot be resumed.
        expected = ("error", True) if "send it again" in str(result["error"]) else ("ok", False)
        assert (result["status"], bool(result["error"])) == expected, result

    @staticmethod
    def _has_ended(history: History | None, run_id: str) -> bool:
        entries = () if history is None else history.entries
        return any(it.run_id == run_id and it.data.get("phase") == "end" for it in entries)

    def _check(self, history: History) -> None:
        check(history, set(), self._program.effects())
        for served in self._server.requests:
            said = served.body.get("messages") or served.body["input"]
            assert said[-1].get("role") != "assistant", "a model was asked nothing"
        self._server.requests.clear()

    async def _try_as_a_stranger(self, key: str) -> None:
        """Another run of the session wants the program that is parked: it does not get it."""
        self.stranger = f"stranger-{self.found.strangers}"
        self.found.strangers += 1
        pid = await self._program.start(message="mine?", session_key=key, run_id=self.stranger)
        result = await self._program.result(pid)
        assert result["status"] == "ok", result
        history = await self._program.history(key)
        assert history is not None
        (answer,) = [
            it.message
            for it in history.entries
            if it.run_id == self.stranger and isinstance(it.message, ToolMessage)
        ]
        assert '"code":"invalid_input"' in answer.text
        assert "after" not in answer.text
        self._server.requests.clear()
        self.stranger = ""


async def kill_agents(
    program: Program,
    state: Path,
    kills: int,
    seed: int = 0,
    advance: Callable[[], None] = lambda: None,
) -> Killed:
    """Kills agents in the middle of turns, so many times.

    Args:
        program: Starts them.
        state: Where they are.
        kills: How many times.
        seed: Of the moments.
        advance: Called after each kill.

    Raises:
        AssertionError: A transcript that cannot be read, a result or an effect that is there twice,
            a run that cannot go on, a program that a stranger could have.
    """
    killers: list[Killer] = []
    async with ScriptServer(lambda request: killers[0].react(request)) as server:
        program.use(state, server)
        killer = Killer(program, server, seed)
        killers.append(killer)
        await killer.measure()
        while killer.found.kills < kills:
            before = killer.found.kills
            await killer.live(min(3, kills - before))
            for _ in range(killer.found.kills - before):
                advance()
    return killer.found


if __name__ == "__main__":
    logging.getLogger("clawmode").setLevel(logging.CRITICAL)
    serve()
