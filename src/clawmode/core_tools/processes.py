"""Commands that run: started, watched, their output kept in bounds, ended with all they started.

A command has a process group of its own and no descriptor of ours. The group ends with its leader:
what a command leaves behind is ended too. Only what makes itself a new session gets away.
"""

import contextlib
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

import anyio
from anyio.abc import Process

from clawmode.context import RunContext
from clawmode.exceptions import ToolProblem
from clawmode.tasks import Notifier, TaskOwner

State: TypeAlias = Literal["running", "completed", "failed"]

QUICK_LOOKS, QUICK, SLOW = 100, 0.01, 0.05
"""How often it is looked whether a command has ended: at first, and later."""
DRAIN_SECONDS = 0.5
"""How long output is read that is still on its way when a command has ended."""

DESCRIPTORS = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"

GONE = (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError)


class Owner(NamedTuple):
    """Whose a command is: others do not see it."""

    agent_id: str
    session_id: str
    session_key: str

    @classmethod
    def of(cls, run: RunContext) -> "Owner":
        """The session of a run; the run itself, if it has none."""
        if not run.session_id and not run.session_key:
            return cls(run.agent_id, f"run:{run.run_id}", "")
        return cls(run.agent_id, run.session_id, run.session_key)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLimits:
    """How much there may be.

    Attributes:
        running: Commands of one session at the same time.
        total: Commands of all sessions at the same time.
        finished: Commands of one session that have ended and can still be asked about.
        output_bytes: Kept of a command's output: half from the beginning, half from the end.
        grace_seconds: Between asking a command to end and ending it.
    """

    running: int = 16
    total: int = 64
    finished: int = 32
    output_bytes: int = 400_000
    grace_seconds: float = 2.0


class Output:
    """The beginning and the end of what a command said."""

    def __init__(self, limit: int) -> None:
        self._half = max(limit // 2, 1)
        self._head = bytearray()
        self._tail = bytearray()
        self.size = 0

    def add(self, data: bytes) -> None:
        """Takes more."""
        self.size += len(data)
        room = self._half - len(self._head)
        self._head += data[:room]
        self._tail += data[max(room, 0) :]
        if len(self._tail) > 2 * self._half:  # not each time: it is a copy
            del self._tail[: -self._half]

    def since(self, position: int) -> tuple[bytes, int, bytes]:
        """What came after a position: the part of the beginning, how much is lost, the rest."""
        tail = self._tail[-self._half :]
        tail_start = self.size - len(tail)
        head = bytes(self._head[position:])
        after = max(position, len(self._head))
        lost = max(tail_start - after, 0)
        return head, lost, bytes(tail[max(after - tail_start, 0) :])

    def text(self, position: int = 0) -> str:
        """The same as text."""
        head, lost, tail = self.since(position)
        if not lost:
            return (head + tail).decode("utf-8", "replace")
        gap = f"\n[{lost} bytes were left out]\n"
        return head.decode("utf-8", "replace") + gap + tail.decode("utf-8", "replace")

    @property
    def truncated(self) -> bool:
        """Whether something was left out."""
        return self.since(0)[1] > 0


@dataclass(eq=False, slots=True)
class Command:
    """One command, running or ended.

    Attributes:
        in_background: Whether nobody waits for it: then it can be found by its id.
        timed_out: Whether it was ended because of its time limit.
        told: How far its output was told to whoever polls.
    """

    id: str
    text: str
    owner: Owner
    run_id: str
    process: Process
    output: Output
    deadline: float
    in_background: bool = False
    timed_out: bool = False
    killed: bool = False
    exit_code: int | None = None
    told: int = 0
    began: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    ended: anyio.Event = field(default_factory=anyio.Event)
    news: Notifier = field(default_factory=Notifier)

    @property
    def state(self) -> State:
        """What became of it."""
        if not self.ended.is_set():
            return "running"
        return "completed" if self.exit_code == 0 else "failed"

    @property
    def duration(self) -> float:
        """Seconds that it has been running, or was."""
        return self.seconds if self.ended.is_set() else time.monotonic() - self.began

    def hear(self, data: bytes = b"") -> None:
        """Takes output, and wakes whoever polls."""
        self.output.add(data)
        self.news.notify()

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to it and all that it has started."""
        # The leader's pid names the group as long as there is anybody in it.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)


class ShellSessions(TaskOwner):
    """All commands of a process of ours. Used inside of `async with`, in one task."""

    def __init__(self, limits: ProcessLimits | None = None) -> None:
        self.limits = limits or ProcessLimits()
        self._commands: dict[str, Command] = {}
        self._closed = False

    async def _closing(self) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Ends all commands; no other can be started."""
        self._closed = True
        await self._end(list(self._commands.values()))

    async def end(self, run: RunContext, *, whole_session: bool = True) -> None:
        """Ends the commands of a run's session, or of the run alone, and forgets them."""
        owner = Owner.of(run)
        await self._end(
            [
                command
                for command in self._commands.values()
                if command.owner == owner and (whole_session or command.run_id == run.run_id)
            ]
        )

    async def _end(self, commands: Sequence[Command]) -> None:
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as tasks:
                for command in commands:
                    tasks.start_soon(self.kill, command)
        for command in commands:
            self._commands.pop(command.id, None)

    # ---- Starting ----

    async def start(
        self,
        argv: Sequence[str],
        *,
        text: str,
        folder: int,
        env: Mapping[str, str],
        run: RunContext,
        time_limit: float,
        takes_input: bool,
    ) -> Command:
        """Starts a command in the folder that a descriptor is of.

        Raises:
            ToolProblem: There are too many, or it cannot be started.
        """
        if self._tasks is None or self._closed:
            raise ToolProblem("closed", "no command can be started: the shell is closed")
        owner = Owner.of(run)
        self._check_room(owner)
        # By descriptor: a path could have become another folder's meanwhile. It is the child that
        # looks it up, among its own descriptors, before they are closed.
        place = f"{DESCRIPTORS}/{folder}"
        try:
            # Shielded: who gives up in the middle would leave a process that nobody knows.
            with anyio.CancelScope(shield=True):
                process = await anyio.open_process(
                    argv,
                    stdin=subprocess.PIPE if takes_input else subprocess.DEVNULL,
                    stderr=subprocess.STDOUT,
                    cwd=place,
                    env=env,
                    start_new_session=True,
                )
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ToolProblem("failed", f"the command cannot be started: {reason}") from None
        command = Command(
            id="sh_" + secrets.token_hex(6),
            text=text,
            owner=owner,
            run_id=run.run_id,
            process=process,
            output=Output(self.limits.output_bytes),
            deadline=time.monotonic() + time_limit,
        )
        self._commands[command.id] = command
        self._tasks.start_soon(self._tend, command)
        if self._closed:  # while it was started
            await self.kill(command)
            raise ToolProblem("closed", "no command can be started: the shell is closed")
        return command

    def _check_room(self, owner: Owner) -> None:
        running = [each for each in self._commands.values() if not each.ended.is_set()]
        mine = sum(each.owner == owner for each in running)
        if mine >= self.limits.running or len(running) >= self.limits.total:
            raise ToolProblem(
                "too_many", f"{mine} commands run already; end one with the tool `process`"
            )

    # ---- Watching ----

    async def _tend(self, command: Command) -> None:
        """Reads a command's output until it has ended, and ends it when its time is over."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._listen, command)
                await _exited(command, command.deadline)
                if command.process.returncode is None:
                    command.timed_out = True
                    await self._stop(command)
                command.signal(signal.SIGKILL)  # those whom it has left behind
                # Whoever got away may hold the pipe for as long as they like.
                tasks.cancel_scope.deadline = anyio.current_time() + DRAIN_SECONDS
        finally:
            command.signal(signal.SIGKILL)
            with anyio.CancelScope(shield=True):
                await _exited(command, time.monotonic() + DRAIN_SECONDS)
            _let_go(command.process)
            command.exit_code = command.process.returncode
            command.seconds = time.monotonic() - command.began
            command.ended.set()
            command.hear()
            self._forget_oldest(command.owner)

    @staticmethod
    async def _listen(command: Command) -> None:
        assert command.process.stdout is not None
        with contextlib.suppress(*GONE):
            async for chunk in command.process.stdout:
                command.hear(chunk)

    async def _stop(self, command: Command) -> None:
        command.signal(signal.SIGTERM)
        await _exited(command, time.monotonic() + self.limits.grace_seconds)
        command.signal(signal.SIGKILL)
        await _exited(command, time.monotonic() + self.limits.grace_seconds)

    def _forget_oldest(self, owner: Owner) -> None:
        kept = [each for each in self._commands.values() if each.owner == owner]
        done = [each for each in kept if each.ended.is_set() and each.in_background]
        for command in done[: -self.limits.finished]:
            self._commands.pop(command.id, None)

    # ---- Asking ----

    def find(self, command_id: str, run: RunContext) -> Command:
        """A command in the background, of the same session.

        Raises:
            ToolProblem: There is none, or it is another's: nobody learns which.
        """
        command = self._commands.get(command_id)
        if command is None or not command.in_background or command.owner != Owner.of(run):
            raise ToolProblem("not_found", f"there is no command {command_id[:80]!r}")
        return command

    def listed(self, run: RunContext) -> list[Command]:
        """The commands in the background of a session, oldest first."""
        owner = Owner.of(run)
        return [
            each for each in self._commands.values() if each.owner == owner and each.in_background
        ]

    async def kill(self, command: Command) -> None:
        """Ends a command, and returns when it has ended."""
        if command.ended.is_set():
            return
        command.killed = True
        with anyio.CancelScope(shield=True):
            await self._stop(command)
            with anyio.move_on_after(self.limits.grace_seconds + 2 * DRAIN_SECONDS):
                await command.ended.wait()

    def forget(self, command: Command) -> None:
        """Drops a command that has ended, and its output."""
        self._commands.pop(command.id, None)


async def _exited(command: Command, deadline: float) -> bool:
    """Whether it ends in time. Asked for again and again: `wait` also waits for the pipes."""
    looks = 0
    while command.process.returncode is None:
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        looks += 1
        await anyio.sleep(min(QUICK if looks < QUICK_LOOKS else SLOW, left))
    return True


def _let_go(process: Process) -> None:
    # A survivor that left the group may hold a pipe; asyncio would wait for it, and warn.
    transport = getattr(getattr(process, "_process", None), "_transport", None)
    if transport is not None:
        with contextlib.suppress(PermissionError):
            transport.close()
