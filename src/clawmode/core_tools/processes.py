"""Starts, monitors and ends shell commands, and keeps a bounded part of their output.

Each command has its own process group and inherits no descriptors. When the command ends, the rest
of its group is killed. Only a process that creates a new session (`setsid`) survives.
"""

import contextlib
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Literal, NamedTuple, TypeAlias

import anyio
from anyio.abc import Process

from clawmode.context import RunContext
from clawmode.exceptions import ToolProblem
from clawmode.tasks import GONE, Notifier, TaskOwner, close_pipes, exited, signal_group
from clawmode.types import dataclass

State: TypeAlias = Literal["running", "completed", "failed"]

DRAIN_SECONDS = 0.5
"""How long the remaining output is read after a command has ended."""

DESCRIPTORS = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"


class Owner(NamedTuple):
    """The owner of a command. Other owners cannot see the command."""

    agent_id: str
    session_id: str
    session_key: str

    @classmethod
    def of(cls, run: RunContext) -> "Owner":
        """Returns the session of a run, or the run itself if it has no session."""
        if not run.session_id and not run.session_key:
            return cls(run.agent_id, f"run:{run.run_id}", "")
        return cls(run.agent_id, run.session_id, run.session_key)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLimits:
    """Limits on commands and their output.

    Attributes:
        running: Concurrent commands of one session.
        total: Concurrent commands of all sessions.
        finished: Finished commands of one session that are still listed.
        output_bytes: The size of the kept output: half from its start, half from its end.
        grace_seconds: The time between SIGTERM and SIGKILL.
    """

    running: int = 16
    total: int = 64
    finished: int = 32
    output_bytes: int = 400_000
    grace_seconds: float = 2.0


class Output:
    """The start and the end of the output of a command."""

    def __init__(self, limit: int) -> None:
        self._half = max(limit // 2, 1)
        self._head = bytearray()
        self._tail = bytearray()
        self.size = 0

    def add(self, data: bytes) -> None:
        self.size += len(data)
        room = self._half - len(self._head)
        self._head += data[:room]
        self._tail += data[max(room, 0) :]
        if len(self._tail) > 2 * self._half:  # not at every call, because it copies
            del self._tail[: -self._half]

    def since(self, position: int) -> tuple[bytes, int, bytes]:
        """Returns the output from a position on: kept start, number of lost bytes, kept end."""
        tail = self._tail[-self._half :]
        tail_start = self.size - len(tail)
        head = bytes(self._head[position:])
        after = max(position, len(self._head))
        lost = max(tail_start - after, 0)
        return head, lost, bytes(tail[max(after - tail_start, 0) :])

    def text(self, position: int = 0) -> str:
        """Returns the output from a position on as text, with a note about lost bytes."""
        head, lost, tail = self.since(position)
        if not lost:
            return (head + tail).decode("utf-8", "replace")
        gap = f"\n[{lost} bytes omitted]\n"
        return head.decode("utf-8", "replace") + gap + tail.decode("utf-8", "replace")

    @property
    def truncated(self) -> bool:
        """True if a part of the output was dropped."""
        return self.since(0)[1] > 0


@dataclass(eq=False, slots=True)
class Command:
    """One command, running or ended.

    Attributes:
        in_background: True if no tool call waits for the command; then `find` returns it.
        timed_out: True if the command was ended because of its time limit.
        reported: How many bytes of the output tool results have reported.
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
    exit_code: int | None = None
    reported: int = 0
    began: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    ended: anyio.Event = field(default_factory=anyio.Event)
    news: Notifier = field(default_factory=Notifier)

    @property
    def state(self) -> State:
        if not self.ended.is_set():
            return "running"
        return "completed" if self.exit_code == 0 else "failed"

    @property
    def duration(self) -> float:
        """The running time in seconds, so far or in total."""
        return self.seconds if self.ended.is_set() else time.monotonic() - self.began

    def add_output(self, data: bytes = b"") -> None:
        """Adds output, and wakes waiting polls."""
        self.output.add(data)
        self.news.notify()

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the whole process group of the command."""
        signal_group(self.process, number)


class ShellSessions(TaskOwner):
    """All running commands of this process. Used inside `async with`, in one task."""

    def __init__(self, limits: ProcessLimits | None = None) -> None:
        self.limits = limits or ProcessLimits()
        self._commands: dict[str, Command] = {}
        self._closed = False

    async def _closing(self) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Ends all commands, and prevents new ones."""
        self._closed = True
        await self._end(list(self._commands.values()))

    async def end(self, run: RunContext, *, whole_session: bool = True) -> None:
        """Ends and removes the commands of a run's session, or only those of the run."""
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
        """Starts a command in the folder of a descriptor.

        Raises:
            ToolProblem: Too many commands are running, or the command cannot be started.
        """
        if self._tasks is None or self._closed:
            raise ToolProblem("closed", "no command can be started: the shell is closed")
        owner = Owner.of(run)
        running = [command for command in self._commands.values() if not command.ended.is_set()]
        own = sum(command.owner == owner for command in running)
        if own >= self.limits.running or len(running) >= self.limits.total:
            raise ToolProblem(
                "too_many", f"{own} commands are already running; end one with the tool `process`"
            )
        # By descriptor, because the path may lead to another folder by now. The child process
        # resolves it among its own descriptors, before it closes them.
        place = f"{DESCRIPTORS}/{folder}"
        try:
            # Shielded, because a cancellation here would leave an unknown process.
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
            raise ToolProblem("failed", f"cannot start the command: {reason}") from None
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
        if self._closed:  # while the process was started
            await self.kill(command)
            raise ToolProblem("closed", "no command can be started: the shell is closed")
        return command

    # ---- Monitoring ----

    async def _tend(self, command: Command) -> None:
        """Reads the output of a command until it has ended, and enforces its time limit."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._listen, command)
                if not await exited(command.process, command.deadline - time.monotonic()):
                    command.timed_out = True
                    await self._stop(command)
                command.signal(signal.SIGKILL)  # processes that the command left running
                # A process that left the group may keep the pipe open for ever.
                tasks.cancel_scope.deadline = anyio.current_time() + DRAIN_SECONDS
        finally:
            command.signal(signal.SIGKILL)
            with anyio.CancelScope(shield=True):
                await exited(command.process, DRAIN_SECONDS)
            close_pipes(command.process)
            command.exit_code = command.process.returncode
            command.seconds = time.monotonic() - command.began
            command.ended.set()
            command.add_output()
            finished = [
                other
                for other in self._commands.values()
                if other.owner == command.owner and other.ended.is_set() and other.in_background
            ]
            for oldest in finished[: -self.limits.finished]:
                self._commands.pop(oldest.id, None)

    @staticmethod
    async def _listen(command: Command) -> None:
        assert command.process.stdout is not None
        with contextlib.suppress(*GONE):
            async for chunk in command.process.stdout:
                command.add_output(chunk)

    async def _stop(self, command: Command) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            command.signal(number)
            await exited(command.process, self.limits.grace_seconds)

    # ---- Background commands ----

    def find(self, command_id: str, run: RunContext) -> Command:
        """Returns a background command of the same session.

        Raises:
            ToolProblem: The command does not exist, or belongs to another session. The message is
                the same for both.
        """
        command = self._commands.get(command_id)
        if command is None or not command.in_background or command.owner != Owner.of(run):
            raise ToolProblem("not_found", f"the command {command_id[:80]!r} does not exist")
        return command

    def listed(self, run: RunContext) -> list[Command]:
        """Returns the background commands of a session, oldest first."""
        owner = Owner.of(run)
        return [
            command
            for command in self._commands.values()
            if command.owner == owner and command.in_background
        ]

    async def kill(self, command: Command) -> None:
        """Ends a command, and waits for its end."""
        if command.ended.is_set():
            return
        with anyio.CancelScope(shield=True):
            await self._stop(command)
            with anyio.move_on_after(self.limits.grace_seconds + 2 * DRAIN_SECONDS):
                await command.ended.wait()

    def forget(self, command: Command) -> None:
        """Removes a finished command and its output."""
        self._commands.pop(command.id, None)
