"""`exec` and `process`: commands of the shell, in the foreground, in the background, and between.

`exec` is not a sandbox: a command that may run can do what the user can. What may run is decided by
`exec_policy`; here is where it starts, with what it can see of us, and how it ends.
"""

import base64
import logging
import os
import re
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import anyio

from clawmode.core_tools.confined import Workspace
from clawmode.core_tools.exec_approvals import ExecRules
from clawmode.core_tools.exec_policy import EXEC_ID, PROCESS_ID, ExecGuard
from clawmode.core_tools.processes import Command, ProcessLimits, ShellSessions
from clawmode.exceptions import ToolProblem
from clawmode.redaction import Redactor, secrecy_of
from clawmode.tools.function import tool
from clawmode.tools.tool import Tool, ToolContext, ToolResult
from clawmode.types import JsonObject, JsonValue

logger = logging.getLogger("clawmode.core_tools")

MAX_COMMAND = 100_000
MAX_WRITE = 1 << 20
MAX_VARIABLES = 100
MAX_POLL_MS = 60_000
MAX_LOG_LINES = 2_000
WRITE_SECONDS = 10.0

Action: TypeAlias = Literal["list", "poll", "log", "write", "kill", "remove"]


@dataclass(frozen=True, slots=True)
class Withheld:
    """Secrets that the setup knows of: commands do not inherit variables that hold one.

    Attributes:
        names: Variables that the configuration reads a secret from.
        values: The secrets themselves, wherever they stand.
    """

    names: frozenset[str] = frozenset()
    values: tuple[str, ...] = field(default=(), repr=False)

    def __or__(self, other: "Withheld") -> "Withheld":
        values = dict.fromkeys((*self.values, *other.values))
        return Withheld(self.names | other.names, tuple(values))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellSettings:
    """How commands run.

    Attributes:
        rules: Which may, and whom to ask.
        shell: What a command is handed to; empty: bash, else sh.
        timeout_seconds: A command that sets no limit has this one, and none has more than
            `max_timeout_seconds`.
        yield_ms: After this, a command that is still running goes on in the background.
        background: Whether commands may run in the background at all.
        env: Variables that commands get.
        keep_env: Variables of ours that they get though they look like secrets.
        withheld: Variables of ours that they do not get, whatever they look like.
        limits: How many there may be.
    """

    rules: ExecRules = field(default_factory=ExecRules)
    shell: tuple[str, ...] = ()
    timeout_seconds: float = 1_800.0
    max_timeout_seconds: float = 86_400.0
    yield_ms: int = 10_000
    background: bool = True
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    keep_env: tuple[str, ...] = ()
    withheld: Withheld = field(default_factory=Withheld)
    limits: ProcessLimits = field(default_factory=ProcessLimits)

    def environment(self) -> dict[str, str]:
        """What a command sees of our environment."""
        return reduced(os.environ, self.keep_env, self.withheld) | dict(self.env)


def shell_tools(
    workspace: Workspace, settings: ShellSettings, sessions: ShellSessions, guard: ExecGuard
) -> tuple[Tool, ...]:
    """The two tools, for one workspace."""
    shell = _Shell(workspace, settings, sessions, guard, settings.shell or _default_shell())
    exec_ = tool(name="exec", effect="write")(shell.exec_)
    process = tool(effect="write")(shell.process)
    return (exec_, process) if settings.background else (exec_,)


@dataclass(frozen=True, slots=True)
class _Shell:
    """What the tools do. Models read the names and docstrings of `exec_` and `process`."""

    workspace: Workspace
    settings: ShellSettings
    sessions: ShellSessions
    guard: ExecGuard
    argv: tuple[str, ...]

    async def exec_(
        self,
        command: str,
        context: ToolContext,
        workdir: str | None = None,
        env: dict[str, str] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - as models know it
        background: bool = False,
        yieldMs: int | None = None,
    ) -> ToolResult:
        """Run a shell command in the workspace, and get its output (stdout and stderr together).

        One that still runs after `yieldMs` goes on in the background: use `process` with the
        `sessionId`. What a command leaves running is ended with it: use `background`, not `&`.

        Args:
            command: For the shell.
            context: Whose command it is.
            workdir: A folder of the workspace to run it in.
            env: Variables to add to its environment.
            timeout: Seconds after which it is ended.
            background: Go on at once; only then `process` can write to it.
            yieldMs: How long to wait for it, in milliseconds.
        """
        params: JsonObject = {"command": command, "workdir": workdir, "env": {**(env or {})}}
        self.guard.redeem(EXEC_ID, params, context.run, context.call_id)
        _check(command, env or {})
        folder = await anyio.to_thread.run_sync(self.workspace.open_folder, workdir or ".")
        try:
            running = await self.sessions.start(
                [*self.argv, command],
                text=command,
                folder=folder,
                env=self.settings.environment() | (env or {}),
                run=context.run,
                time_limit=_time_limit(self.settings, timeout),
                takes_input=background and self.settings.background,
            )
        finally:
            os.close(folder)
        logger.info("session %s runs the command %s", context.run.session_key, _program(command))
        patience = _patience(self.settings, background, yieldMs)
        return await _wait_for(running, self.sessions, patience)

    async def process(
        self,
        action: Action,
        context: ToolContext,
        sessionId: str | None = None,
        data: str = "",
        eof: bool = False,
        timeoutMs: int = 0,
        offset: int = 1,
        limit: int = 200,
    ) -> ToolResult:
        """Deal with commands that run in the background: those of this session.

        `list` shows them; `poll` gives what is new of one's output; `log` gives lines of all that
        is kept of it; `write` writes to its stdin; `kill` ends it; `remove` ends and forgets it.

        Args:
            action: What to do.
            context: Whose commands they are.
            sessionId: Which command, as `exec` said.
            data: What to write.
            eof: Close its stdin after that.
            timeoutMs: How long `poll` waits for something new, in milliseconds.
            offset: The first line of the log, from 1.
            limit: How many lines of the log.
        """
        if action == "list":
            return _list(self.sessions.listed(context.run))
        if not sessionId:
            raise ToolProblem("bad_input", f"{action} needs a sessionId; `list` shows them")
        command = self.sessions.find(sessionId, context.run)
        if action == "poll":
            return await _poll(command, min(max(timeoutMs, 0), MAX_POLL_MS))
        if action == "log":
            return _log(command, offset, min(max(limit, 1), MAX_LOG_LINES))
        if action == "write":
            params: JsonObject = {"sessionId": sessionId, "data": data}
            self.guard.redeem(PROCESS_ID, params, context.run, context.call_id)
            return await _write(command, data, eof)
        return await self._end(command, forget=action == "remove")

    async def _end(self, command: Command, *, forget: bool) -> ToolResult:
        await self.sessions.kill(command)
        result = _news(command)
        if forget:
            self.sessions.forget(command)
        return result


def _default_shell() -> tuple[str, ...]:
    found = next((path for path in ("/bin/bash", "/usr/bin/bash") if os.path.exists(path)), "")
    return (found, "-c") if found else ("/bin/sh", "-c")


_PROGRAM = re.compile(r"\s*+(?:\w++=\S*+\s++)*+(?:\S*/)?([\w.+-]{1,60})(?=[\s;|&]|$)")


def _program(command: str) -> str:
    """The name of the program that a command runs first: its arguments may hold secrets."""
    found = _PROGRAM.match(command[:1_000])
    return found[1] if found else "of the shell"


# ---- Environment ----

_REFUSED = re.compile(r"LD_.*|DYLD_.*|BASH_FUNC_.*|BASH_ENV|ENV|SHELLOPTS|BASHOPTS|PS4|IFS|PATH")
"""Variables by which another program would run than the one that was looked at."""
_OURS = frozenset({"PWD", "OLDPWD", "SHLVL", "_"})
"""What our own shell said about itself."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,200}")
_NEEDED = frozenset({"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TERM", "TMPDIR"})
"""What programs do not work without, whatever a secret may have in common with it."""


def reduced(
    environment: Mapping[str, str],
    keep: Iterable[str] = (),
    withheld: Withheld = Withheld(),  # noqa: B008 - frozen
) -> dict[str, str]:
    """An environment without known secrets, and without what looks like one by name or by value."""
    kept = _NEEDED.union(keep)
    redactor = Redactor(withheld.values)
    return {
        name: value
        for name, value in environment.items()
        if name in kept
        or not (name in withheld.names or _looks_secret(name, value[:10_000], redactor))
    }


def _looks_secret(name: str, value: str, redactor: Redactor) -> bool:
    if name in _OURS or _REFUSED.fullmatch(name):
        return True
    last = name.upper().rpartition("_")[2]
    if secrecy_of(name) or last in ("KEY", "KEYS", "PAT", "DSN") or _is_basic(value):
        return True
    return redactor.text(value) != value


def _is_basic(value: str) -> bool:
    """Whether it is a header with a name and a password."""
    scheme, _, encoded = value.strip().partition(" ")
    try:
        return scheme.lower() == "basic" and b":" in base64.b64decode(encoded, validate=True)
    except ValueError:
        return False


def _check(command: str, env: Mapping[str, str]) -> None:
    if not command.strip():
        raise ToolProblem("bad_input", "the command is empty")
    if len(command) > MAX_COMMAND:
        raise ToolProblem("bad_input", f"the command has over {MAX_COMMAND} characters")
    if len(env) > MAX_VARIABLES:
        raise ToolProblem("bad_input", f"at most {MAX_VARIABLES} variables can be set")
    for name, value in env.items():
        if not _NAME.fullmatch(name) or _REFUSED.fullmatch(name):
            raise ToolProblem("bad_input", f"the variable {name[:80]!r} cannot be set")
        _check_text(value, f"the variable {name}")
    _check_text(command, "the command")


def _check_text(text: str, what: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ToolProblem("bad_input", f"{what} has half a character in it") from None
    if "\0" in text:
        raise ToolProblem("bad_input", f"{what} has a NUL in it")


# ---- Waiting ----


def _time_limit(settings: ShellSettings, wanted: float | None) -> float:
    if wanted is None:
        return min(settings.timeout_seconds, settings.max_timeout_seconds)
    if not 0 < wanted:
        raise ToolProblem("bad_input", "timeout is a number of seconds over 0")
    return min(wanted, settings.max_timeout_seconds)


def _patience(settings: ShellSettings, background: bool, yield_ms: int | None) -> int | None:
    """Milliseconds to wait for a command; None: until it ends."""
    if not settings.background:
        return None
    if background:
        return 0
    return settings.yield_ms if yield_ms is None else max(yield_ms, 0)


async def _wait_for(command: Command, sessions: ShellSessions, patience: int | None) -> ToolResult:
    """Waits for a command, ends it if the wait is cancelled, leaves it running if it takes long."""
    seconds = None if patience is None else patience / 1000
    try:
        with anyio.move_on_after(seconds):
            await command.ended.wait()
    except BaseException:
        await sessions.kill(command)
        sessions.forget(command)
        raise
    if command.ended.is_set():
        sessions.forget(command)
    else:
        command.in_background = True
    text = command.output.text()
    command.told = command.output.size
    return _told(command, text)


def _told(command: Command, text: str) -> ToolResult:
    details: JsonObject = {
        "status": command.state,
        "output": text,
        "truncated": command.output.truncated,
        "durationMs": round(command.duration * 1000),
    }
    if command.in_background:
        details["sessionId"] = command.id
    if command.state == "running":
        note = f"[still running; its sessionId is {command.id}]"
        return ToolResult("\n".join(filter(None, (text, note))), details)
    details |= _ending(command)
    return ToolResult("\n".join(filter(None, (text.rstrip("\n"), _note(command)))), details)


def _ending(command: Command) -> JsonObject:
    code = command.exit_code
    ending: JsonObject = {"exitCode": code if code is not None and code >= 0 else None}
    if code is not None and code < 0:
        ending["signal"] = _signal_name(-code)
    if command.timed_out:
        ending["timedOut"] = True
    return ending


def _note(command: Command) -> str:
    code = command.exit_code
    if command.timed_out:
        return f"[ended after {command.seconds:.0f} s: its time limit]"
    if code is None:
        return "[it does not end]"
    return f"[ended by {_signal_name(-code)}]" if code < 0 else f"[exit code {code}]"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


# ---- In the background ----


def _list(commands: list[Command]) -> ToolResult:
    listed: list[JsonValue] = [
        {
            "sessionId": each.id,
            "status": each.state,
            "command": each.text[:500],
            "durationMs": round(each.duration * 1000),
        }
        for each in commands
    ]
    lines = [f"{each.id} {each.state}: {each.text[:200]}" for each in commands]
    return ToolResult("\n".join(lines) or "[no commands]", {"sessions": listed})


async def _poll(command: Command, patience_ms: int) -> ToolResult:
    with anyio.move_on_after(patience_ms / 1000):
        while command.output.size <= command.told and not command.ended.is_set():
            await command.news.wait()
    return _news(command)


def _news(command: Command) -> ToolResult:
    """What nobody was told yet of its output."""
    text = command.output.text(command.told)
    command.told = command.output.size
    return _told(command, text)


def _log(command: Command, offset: int, limit: int) -> ToolResult:
    lines = command.output.text().splitlines()
    first = max(offset, 1) - 1
    part = lines[first : first + limit]
    result = _told(command, "\n".join(part))
    assert isinstance(result.details, dict)
    result.details["totalLines"] = len(lines)
    return result


async def _write(command: Command, data: str, eof: bool) -> ToolResult:
    stdin = command.process.stdin
    if stdin is None or command.ended.is_set():
        raise ToolProblem(
            "closed", "nothing can be written to it: only to a command started with `background`"
        )
    if len(data) > MAX_WRITE:
        raise ToolProblem("too_large", f"at most {MAX_WRITE} characters can be written at once")
    _check_text(data.replace("\0", ""), "the data")
    try:
        with anyio.fail_after(WRITE_SECONDS):
            await stdin.send(data.encode())
            if eof:
                await stdin.aclose()
    except TimeoutError:
        raise ToolProblem("failed", "it does not read its stdin") from None
    except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
        raise ToolProblem("closed", "its stdin is closed") from None
    return _told(command, "")
