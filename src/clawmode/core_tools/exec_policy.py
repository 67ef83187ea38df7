"""Decides whether a command may run: the stricter of the configuration and the host's rules.

`ExecGuard.hook` is a `before_tool_call` hook: it blocks a call, requires approval, or allows it.
Before the tool runs the command, it calls `ExecGuard.redeem`, which only accepts exactly the call
that was allowed. A command that another hook has changed since, a call of another session, or a
call without a decision is rejected.
"""

import logging
import os
import re
import shutil
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Literal, TypeAlias

import anyio.to_thread

from clawmode.context import RunContext
from clawmode.core_tools.command_line import NotUnderstood, Segment, parse, pinned
from clawmode.core_tools.exec_approvals import AllowlistEntry, ExecRules, HostFile, HostRules
from clawmode.exceptions import ToolProblem
from clawmode.tools.hooks import BeforeToolCall, Hooks, RequireApproval, ToolCallDecision
from clawmode.types import JsonObject, JsonValue, dataclass

logger = logging.getLogger("clawmode.exec")

EXEC_ID = "openclaw:core:exec"
PROCESS_ID = "openclaw:core:process"

PRIORITY = -1_000_000
"""Lowest, so that the hook runs last and sees the command that will run."""

MAX_PASSES = 1_000


@dataclass(frozen=True, slots=True)
class StdinOnly:
    """The arguments with which a program reads stdin and opens no file.

    Attributes:
        flags: Options without a value; they may be written together, as in `-lw`.
        values: Options with a value, and the pattern of valid values.
        short: Whether `-5` means `-n 5`.
        operands: The maximum number of operands, which are not names of files.
    """

    flags: str
    values: Mapping[str, re.Pattern[str]] = field(default_factory=dict[str, re.Pattern[str]])
    short: bool = False
    operands: int = 0

    def allows(self, arguments: Sequence[str]) -> bool:
        """True if all arguments are of this form. Any other argument may be the name of a file."""
        left = iter(arguments)
        operands = 0
        for text in left:
            option, value = text[1:2], text[2:]
            if not text.startswith("-"):
                operands += 1
            elif option in self.values:
                # A cluster such as `-99c` is rejected: programs disagree about where a value ends.
                if not self.values[option].fullmatch(value or next(left, "")):
                    return False
            else:
                letters = text[1:]
                flags = bool(letters) and all(letter in self.flags for letter in letters)
                if not flags and not (self.short and _DIGITS.fullmatch(letters)):
                    return False
        return operands <= self.operands


_DIGITS = re.compile(r"[0-9]{1,18}")
_SIGNED = re.compile(r"[+-]?[0-9]{1,18}")
_RANGES = re.compile(r"[0-9]{1,18}[0-9,-]{0,200}|-[0-9,-]{1,200}")
_CHARACTER = re.compile(r"[^\x00]")

SAFE_BINS: Mapping[str, StdinOnly] = {
    "cut": StdinOnly("sz", {"b": _RANGES, "c": _RANGES, "f": _RANGES, "d": _CHARACTER}),
    "uniq": StdinOnly("cdDiuz", dict.fromkeys("fsw", _DIGITS)),
    "head": StdinOnly("qvz", dict.fromkeys("cn", _SIGNED), short=True),
    "tail": StdinOnly("qvz", dict.fromkeys("cn", _SIGNED), short=True),
    "tr": StdinOnly("cCdst", operands=2),
    "wc": StdinOnly("clmLw"),
}
"""Programs that need no allowlist entry as long as they only read stdin."""

SYSTEM_FOLDERS = ("/bin", "/usr/bin", "/usr/local/bin", "/opt/homebrew/bin")

Outcome: TypeAlias = Literal["allow", "ask", "block"]
Resolution: TypeAlias = Literal["allow-once", "allow-always", "deny", "timeout", "cancelled"]
Plan: TypeAlias = tuple[str, ...]
"""The parts of a call that a decision applies to; see `plan_of`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecApproval(RequireApproval):
    """A request that a person approves a command.

    Attributes:
        on_resolution: Must be called with the answer. Until then, the command does not run.
        always: What `allow-always` adds to the allowlist. It never allows the tool itself, because
            that would allow every command.
    """

    on_resolution: Callable[[Resolution], None]
    always: str = ""


@dataclass(frozen=True, slots=True)
class Analysis:
    """The result of comparing a command with the allowlist.

    Attributes:
        missed: Full paths of the programs without an entry.
        used: Ids of the entries that matched, with the program that each matched.
        pinned: The command with full paths, if all programs matched.
        reason: Why the command did not match.
    """

    missed: tuple[str, ...] = ()
    used: Mapping[str, str] = field(default_factory=dict[str, str])
    pinned: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision about a call, and the reason for it."""

    outcome: Outcome
    reason: str = ""
    analysis: Analysis = field(default_factory=Analysis)


@dataclass(slots=True)
class _Pass:
    plan: Plan
    granted: bool


class ExecGuard:
    """Decides about commands, and stores each decision until the command runs.

    Args:
        rules: The rules of the configuration, or a function that returns the rules for a run.
        host: The rules of the host.
        search_path: The `PATH` of commands, in which programs are searched.
        can_ask: Returns True if a person can be asked; else `ask_fallback` applies.
    """

    def __init__(
        self,
        rules: ExecRules | Callable[[RunContext], ExecRules] = ExecRules(),  # noqa: B008 - frozen
        *,
        host: HostFile | None = None,
        search_path: str = os.defpath,
        can_ask: Callable[[], bool] = lambda: True,
    ) -> None:
        self._rules = rules
        self._host = host
        self._search_path = search_path
        self._can_ask = can_ask
        self._passes: OrderedDict[tuple[str, str], _Pass] = OrderedDict()

    def install(self, hooks: Hooks) -> None:
        """Registers the hook to run after all others."""
        hooks.before_tool_call(self.hook, priority=PRIORITY, name="exec policy")

    # ---- Deciding ----

    async def hook(self, call: BeforeToolCall) -> ToolCallDecision | None:
        """Decides about a call of `exec`, or of `process` that writes to a command."""
        # Compared by id, because the tool of code mode is also called `exec`.
        if call.tool_kind is not None or call.tool_id not in (EXEC_ID, PROCESS_ID):
            return None
        if call.tool_id == PROCESS_ID and call.params.get("action") != "write":
            return None
        host = HostRules(ExecRules())
        if self._host is not None:
            host = await anyio.to_thread.run_sync(self._host.for_agent, call.run.agent_id)
        decided = self._decide(call, host)
        if decided.outcome == "block":
            return ToolCallDecision(block=True, block_reason=decided.reason)
        params = call.params
        if decided.analysis.pinned is not None:
            params = {**params, "command": decided.analysis.pinned}
        here = _Pass(plan_of(call.tool_id, params), granted=decided.outcome == "allow")
        self._passes[call.run.run_id, call.tool_call_id] = here
        while len(self._passes) > MAX_PASSES:
            self._passes.popitem(last=False)
        if decided.outcome == "allow" and decided.analysis.used:
            await anyio.to_thread.run_sync(self._touch, call, decided.analysis)
        if decided.outcome == "allow":
            return ToolCallDecision(params=params)
        return ToolCallDecision(params=params, require_approval=self._approval(call, decided, here))

    def rules_for(self, run: RunContext) -> ExecRules:
        """Returns the rules of the configuration for a run."""
        return self._rules(run) if callable(self._rules) else self._rules

    def _decide(self, call: BeforeToolCall, host: HostRules) -> Decision:
        rules = self.rules_for(call.run).stricter(host.rules)
        if rules.security == "deny":
            return Decision("block", host.problem or "commands are not allowed")
        if rules.allows_all:
            return Decision("allow")
        found = Analysis()
        if call.tool_id == EXEC_ID:
            found = analyse(call.params, host.allowlist, self._search_path)
        # Input of a command that was allowed to run is data, and needs no allowlist entry.
        satisfied = found.pinned is not None or call.tool_id == PROCESS_ID
        listed = rules.security == "allowlist"
        if rules.ask == "always" or (rules.ask == "on-miss" and listed and not satisfied):
            if self._can_ask():
                return Decision(
                    "ask", found.reason, found if listed else replace(found, pinned=None)
                )
            if rules.ask_fallback == "deny":
                return Decision("block", "nobody can be asked for approval")
            listed = listed or rules.ask_fallback == "allowlist"
        if not listed:
            return Decision("allow")  # without pinned paths
        if not satisfied:
            return Decision("block", f"the command is not on the allowlist: {found.reason}")
        return Decision("allow", "", found)

    def _approval(self, call: BeforeToolCall, decided: Decision, here: _Pass) -> ExecApproval:
        analysis = decided.analysis

        def resolved(resolution: Resolution) -> None:
            here.granted = resolution in ("allow-once", "allow-always")
            if resolution == "allow-always" and self._host is not None and analysis.missed:
                command = str(call.params.get("command", ""))
                try:
                    self._host.remember(call.run.agent_id, list(analysis.missed), command)
                except (OSError, ValueError) as error:
                    logger.error("cannot write the allowlist: %s", error)

        title = "Run a command?" if call.tool_id == EXEC_ID else "Write to a command?"
        can_remember = self._host is not None and analysis.missed
        always = ", ".join(analysis.missed) if can_remember else "nothing beyond this command"
        return ExecApproval(
            title=title, description=decided.reason, on_resolution=resolved, always=always
        )

    def _touch(self, call: BeforeToolCall, analysis: Analysis) -> None:
        assert self._host is not None
        command = str(call.params.get("command", ""))
        try:
            self._host.touch(call.run.agent_id, dict(analysis.used), command)
        except (OSError, ValueError) as error:
            logger.warning("cannot record the use of the allowlist: %s", error)

    # ---- Redeeming a decision ----

    def redeem(self, tool_id: str, params: JsonObject, run: RunContext, call_id: str) -> None:
        """Accepts a call that was allowed, once, and only if it is unchanged.

        Raises:
            ToolProblem: The call was not allowed, or was changed since.
        """
        here = self._passes.pop((run.run_id, call_id), None)
        if here is None and self._host is None and self.rules_for(run).allows_all:
            return
        if here is None:
            raise ToolProblem(
                "not_decided", "no decision about this command: the exec policy is not installed"
            )
        if not here.granted or here.plan != plan_of(tool_id, params):
            raise ToolProblem("not_decided", "the call was changed after it was approved")


def plan_of(tool_id: str, params: JsonObject) -> Plan:
    """Returns the parts of a call that determine its effect."""
    if tool_id == PROCESS_ID:
        return tool_id, _text(params.get("sessionId")), _text(params.get("data"))
    env = params.get("env")
    pairs = sorted(env.items()) if isinstance(env, dict) else []
    return (
        tool_id,
        _text(params.get("command")),
        _text(params.get("workdir")) or ".",
        *(f"{key}={_text(value)}" for key, value in pairs),
    )


def _text(value: JsonValue) -> str:
    return value if isinstance(value, str) else ""


# ---- The allowlist ----


def analyse(params: JsonObject, allowlist: Iterable[AllowlistEntry], search_path: str) -> Analysis:
    """Compares a command with an allowlist, which must match every program of a chain."""
    command = _text(params.get("command"))
    if params.get("env"):
        # Environment variables can make a program do anything.
        return Analysis(reason="the call sets environment variables")
    try:
        segments = parse(command)
        programs = [find_program(segment.name, search_path) for segment in segments]
    except NotUnderstood as error:
        return Analysis(reason=str(error))
    entries = tuple(allowlist)
    missed: list[str] = []
    used: dict[str, str] = {}
    for segment, program in zip(segments, programs, strict=True):
        entry = next((entry for entry in entries if entry.matches(program)), None)
        if entry is not None:
            used[entry.id] = program
        elif not is_safe(segment, program):
            missed.append(program)
    if missed:
        return Analysis(tuple(missed), reason=", ".join(dict.fromkeys(missed)))
    return Analysis((), used, pinned(command, segments, programs))


def find_program(name: str, search_path: str) -> str:
    """Returns the full path of a program.

    Raises:
        NotUnderstood: The program does not exist, or the path is relative.
    """
    if "/" in name and not name.startswith("/"):
        raise NotUnderstood(f"{name[:100]!r} is a relative path")
    folders = [folder for folder in search_path.split(":") if folder.startswith("/")]
    found = shutil.which(name, path=":".join(folders) or "/nonexistent")
    if found is None:
        raise NotUnderstood(f"the program {name[:100]!r} does not exist")
    return os.path.normpath(found)


def is_safe(segment: Segment, program: str) -> bool:
    """True if the program only reads stdin and writes stdout, and opens no file."""
    folder, _, name = program.rpartition("/")
    if folder not in SYSTEM_FOLDERS or name not in SAFE_BINS:
        return False
    words = segment.arguments
    # A shell could expand the words to names of files.
    return all(word.bare for word in words) and SAFE_BINS[name].allows([w.text for w in words])
