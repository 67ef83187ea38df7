"""The tools `exec` and `process`: shell commands in the foreground and in the background.

`exec` is not a sandbox: an allowed command can do everything that the user can. `exec_policy`
decides which commands may run. This module owns their environment, time limits and results.
"""

import base64
import contextlib
import logging
import os
import re
import signal
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Literal, TypeAlias

import anyio

from clawmode.core_tools.confined import Workspace
from clawmode.core_tools.exec_approvals import ExecRules
from clawmode.core_tools.exec_policy import EXEC_ID, PROCESS_ID, ExecGuard
from clawmode.core_tools.processes import Command, ProcessLimits, ShellSessions
from clawmode.exceptions import ToolProblem
from clawmode.redaction import Redactor, secrecy_of
from clawmode.text import shorten
from clawmode.tools.function import tool
from clawmode.tools.tool import Tool, ToolContext, ToolResult
from clawmode.types import JsonObject, JsonValue, dataclass

logger = logging.getLogger("clawmode.core_tools")

MAX_COMMAND = 100_000
MAX_WRITE = 1 << 20
MAX_VARIABLES = 100
MAX_POLL_MS = 60_000
MAX_LOG_LINES = 2_000
WRITE_SECONDS = 10.0

Action: TypeAlias = Literal["list", "poll", "log", "write", "kill", "remove"]


@dataclass(frozen=True, slots=True)
class WithheldSecrets:
    """Known secrets. Commands do not inherit environment variables that contain one.

    Attributes:
        names: Environment variables that the configuration reads a secret from.
        values: The secrets themselves.
    """

    names: frozenset[str] = frozenset()
    values: tuple[str, ...] = field(default=(), repr=False)

    def __or__(self, other: "WithheldSecrets") -> "WithheldSecrets":
        values = dict.fromkeys((*self.values, *other.values))
        return WithheldSecrets(self.names | other.names, tuple(values))


NO_SECRETS = WithheldSecrets()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellSettings:
    """How commands run.

    Attributes:
        rules: Which commands may run, and when a person is asked.
        shell: The program and arguments that run a command; empty means bash, or sh without bash.
        timeout_seconds: The time limit of a command that sets none. `max_timeout_seconds` is the
            upper limit of all commands.
        yield_ms: The time after which a running command continues in the background.
        background: Whether commands may run in the background.
        env: Environment variables to add.
        keep_env: Environment variables to inherit although they look like secrets.
        withheld: Secrets that are never inherited.
        limits: Limits on commands and their output.
    """

    rules: ExecRules = field(default_factory=ExecRules)
    shell: tuple[str, ...] = ()
    timeout_seconds: float = 1_800.0
    max_timeout_seconds: float = 86_400.0
    yield_ms: int = 10_000
    background: bool = True
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    keep_env: tuple[str, ...] = ()
    withheld: WithheldSecrets = field(default_factory=WithheldSecrets)
    limits: ProcessLimits = field(default_factory=ProcessLimits)

    def environment(self) -> dict[str, str]:
        """Returns the environment of a command."""
        return reduced(os.environ, self.keep_env, self.withheld) | dict(self.env)


def shell_tools(
    workspace: Workspace, settings: ShellSettings, sessions: ShellSessions, guard: ExecGuard
) -> tuple[Tool, ...]:
    """Returns `exec` and, if commands may run in the background, `process`."""
    argv = settings.shell
    if not argv:
        bash = next((path for path in ("/bin/bash", "/usr/bin/bash") if os.path.exists(path)), "")
        argv = (bash or "/bin/sh", "-c")
    shell = _Shell(workspace, settings, sessions, guard, argv)
    exec_ = tool(name="exec", effect="write")(shell.exec_)
    process = tool(effect="write")(shell.process)
    return (exec_, process) if settings.background else (exec_,)


@dataclass(frozen=True, slots=True)
class _Shell:
    """The shell tools. Models read the names and docstrings of `exec_` and `process`."""

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
        timeout: float | None = None,  # noqa: ASYNC109 - the name that models know
        background: bool = False,
        yieldMs: int | None = None,
    ) -> ToolResult:
        """Run a shell command in the workspace, and get its output (stdout and stderr together).

        A command that still runs after `yieldMs` continues in the background: use `process` with
        its `sessionId`. Processes that it leaves running are killed: use `background`, not `&`.

        Args:
            command: The shell command.
            context: The tool call.
            workdir: The folder of the workspace to run it in.
            env: Environment variables to add.
            timeout: Time limit in seconds.
            background: Return at once; only then can `process` write to it.
            yieldMs: How long to wait for it, in milliseconds.
        """
        params: JsonObject = {"command": command, "workdir": workdir, "env": {**(env or {})}}
        self.guard.redeem(EXEC_ID, params, context.run, context.call_id)
        _check(command, env or {})
        if timeout is not None and not timeout > 0:  # also rejects NaN
            raise ToolProblem("bad_input", "timeout must be a positive number of seconds")
        folder = await anyio.to_thread.run_sync(self.workspace.open_folder, workdir or ".")
        try:
            running = await self.sessions.start(
                [*self.argv, command],
                text=command,
                folder=folder,
                env=self.settings.environment() | (env or {}),
                run=context.run,
                time_limit=min(
                    self.settings.timeout_seconds if timeout is None else timeout,
                    self.settings.max_timeout_seconds,
                ),
                takes_input=background and self.settings.background,
            )
        finally:
            os.close(folder)
        logger.info("session %s runs the command %s", context.run.session_key, _program(command))
        if not self.settings.background:
            return await _wait_for(running, self.sessions, None)
        wait_ms = self.settings.yield_ms if yieldMs is None else max(yieldMs, 0)
        return await _wait_for(running, self.sessions, 0 if background else wait_ms)

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
        """Manage the background commands of this session.

        `list` lists them; `poll` returns the new output of one; `log` returns lines of its kept
        output; `write` writes to its stdin; `kill` ends it; `remove` ends and removes it.

        Args:
            action: What to do.
            context: The tool call.
            sessionId: The command, as returned by `exec`.
            data: The text to write.
            eof: Close stdin after writing.
            timeoutMs: How long `poll` waits for new output, in milliseconds.
            offset: The first line of the log, from 1.
            limit: The number of lines of the log.
        """
        if action == "list":
            commands = self.sessions.listed(context.run)
            sessions: list[JsonValue] = [
                {
                    "sessionId": command.id,
                    "status": command.state,
                    "command": shorten(command.text, 500),
                    "durationMs": round(command.duration * 1000),
                }
                for command in commands
            ]
            lines = [
                f"{command.id} {command.state}: {shorten(command.text, 200)}"
                for command in commands
            ]
            return ToolResult("\n".join(lines) or "[no commands]", {"sessions": sessions})
        if not sessionId:
            raise ToolProblem("bad_input", f"{action} needs a sessionId; use `list` to find it")
        command = self.sessions.find(sessionId, context.run)
        if action == "poll":
            with anyio.move_on_after(min(max(timeoutMs, 0), MAX_POLL_MS) / 1000):
                while command.output.size <= command.reported and not command.ended.is_set():
                    await command.news.wait()
            return _new_output(command)
        if action == "log":
            log, first = command.output.text().splitlines(), max(offset, 1) - 1
            part = log[first : first + min(max(limit, 1), MAX_LOG_LINES)]
            result = _result(command, "\n".join(part))
            assert isinstance(result.details, dict)
            result.details["totalLines"] = len(log)
            return result
        if action == "write":
            params: JsonObject = {"sessionId": sessionId, "data": data}
            self.guard.redeem(PROCESS_ID, params, context.run, context.call_id)
            return await _write(command, data, eof)
        await self.sessions.kill(command)
        result = _new_output(command)
        if action == "remove":
            self.sessions.forget(command)
        return result


_VARIABLE = re.compile(r"\s*\w+=\S*\s+")
_PROGRAM = re.compile(r"\s*(?:[^\s=]*/)?([\w.+-]{1,60})(?=[\s;|&]|$)")


def _program(command: str) -> str:
    """Returns the first program of a command for the log. Its arguments may contain secrets."""
    command, start = command[:1_000], 0
    while (variable := _VARIABLE.match(command, start)) is not None:
        start = variable.end()
    found = _PROGRAM.match(command, start)
    return found[1] if found else "of the shell"


# ---- Environment ----

_FORBIDDEN = re.compile(r"LD_.*|DYLD_.*|BASH_FUNC_.*|BASH_ENV|ENV|SHELLOPTS|BASHOPTS|PS4|IFS|PATH")
"""Variables that can make the shell run another program than the one that was checked."""
_SHELL_STATE = frozenset({"PWD", "OLDPWD", "SHLVL", "_"})
"""Variables that describe the shell that started clawmode."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,200}")
_NEEDED = frozenset({"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TERM", "TMPDIR"})
"""Variables that programs need, inherited even if they contain a secret."""


def reduced(
    environment: Mapping[str, str],
    keep: Iterable[str] = (),
    withheld: WithheldSecrets = NO_SECRETS,
) -> dict[str, str]:
    """Removes variables that contain a known secret, or whose name or value looks like one."""
    kept = _NEEDED.union(keep)
    redactor = Redactor(withheld.values)
    return {
        name: value
        for name, value in environment.items()
        if name in kept
        or not (name in withheld.names or _looks_secret(name, value[:10_000], redactor))
    }


def _looks_secret(name: str, value: str, redactor: Redactor) -> bool:
    if name in _SHELL_STATE or _FORBIDDEN.fullmatch(name):
        return True
    last = name.upper().rpartition("_")[2]
    if secrecy_of(name) or last in ("KEY", "KEYS", "PAT", "DSN"):
        return True
    scheme, _, encoded = value.strip().partition(" ")
    with contextlib.suppress(ValueError):
        # A header of basic authentication, with name and password.
        if scheme.lower() == "basic" and b":" in base64.b64decode(encoded, validate=True):
            return True
    return redactor.text(value) != value


def _check(command: str, env: Mapping[str, str]) -> None:
    if not command.strip():
        raise ToolProblem("bad_input", "the command is empty")
    if len(command) > MAX_COMMAND:
        raise ToolProblem("bad_input", f"the command is longer than {MAX_COMMAND} characters")
    if len(env) > MAX_VARIABLES:
        raise ToolProblem("bad_input", f"env can set at most {MAX_VARIABLES} variables")
    for name, value in env.items():
        if not _NAME.fullmatch(name) or _FORBIDDEN.fullmatch(name):
            raise ToolProblem("bad_input", f"env cannot set the variable {name[:80]!r}")
        _check_text(value, f"the variable {name}")
    _check_text(command, "the command")


def _check_text(text: str, what: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ToolProblem("bad_input", f"{what} contains a lone surrogate") from None
    if "\0" in text:
        raise ToolProblem("bad_input", f"{what} contains a NUL character")


# ---- Results ----


async def _wait_for(command: Command, sessions: ShellSessions, wait_ms: int | None) -> ToolResult:
    """Waits for a command. Cancellation ends it; after `wait_ms` it stays in the background."""
    seconds = None if wait_ms is None else wait_ms / 1000
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
    return _new_output(command)


def _new_output(command: Command) -> ToolResult:
    """Returns the output that no earlier result contained."""
    text = command.output.text(command.reported)
    command.reported = command.output.size
    return _result(command, text)


def _result(command: Command, text: str) -> ToolResult:
    details: JsonObject = {
        "status": command.state,
        "output": text,
        "truncated": command.output.truncated,
        "durationMs": round(command.duration * 1000),
    }
    if command.in_background:
        details["sessionId"] = command.id
    if command.state == "running":
        note = f"[still running; the sessionId is {command.id}]"
        return ToolResult("\n".join(filter(None, (text, note))), details)
    code = command.exit_code
    details["exitCode"] = code if code is not None and code >= 0 else None
    note = "[the command cannot be ended]" if code is None else f"[exit code {code}]"
    if code is not None and code < 0:
        known = {it.value: it.name for it in signal.Signals}
        details["signal"] = name = known.get(-code, f"signal {-code}")
        note = f"[ended by {name}]"
    if command.timed_out:
        details["timedOut"] = True
        note = f"[timed out after {command.seconds:.0f} s]"
    return ToolResult("\n".join(filter(None, (text.rstrip("\n"), note))), details)


# ---- Background commands ----


async def _write(command: Command, data: str, eof: bool) -> ToolResult:
    stdin = command.process.stdin
    if stdin is None or command.ended.is_set():
        raise ToolProblem(
            "closed",
            "cannot write to the command: it has ended, or was not started with `background`",
        )
    if len(data) > MAX_WRITE:
        raise ToolProblem(
            "too_large", f"data is longer than {MAX_WRITE} characters; write it in parts"
        )
    _check_text(data.replace("\0", ""), "the data")
    try:
        with anyio.fail_after(WRITE_SECONDS):
            await stdin.send(data.encode())
            if eof:
                await stdin.aclose()
    except TimeoutError:
        raise ToolProblem("failed", "the command does not read its stdin") from None
    except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
        raise ToolProblem("closed", "the stdin of the command is closed") from None
    return _result(command, "")
