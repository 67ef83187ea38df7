"""Whether a command may run: the configuration and the host decide, the stricter of them.

`ExecGuard.hook` is a `before_tool_call` hook: it blocks, has a person asked, or says nothing. Then
the tool shows its call to the guard, which lets pass what was decided and nothing else: a command
that another hook has changed since, a call of another session, or one that nobody asked about is
refused.
"""

import logging
import os
import re
import shutil
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import anyio.to_thread

from clawmode.context import RunContext
from clawmode.core_tools.command_line import NotUnderstood, Segment, parse, pinned
from clawmode.core_tools.exec_approvals import (
    Allowed,
    ExecRules,
    HostFile,
    HostRules,
)
from clawmode.exceptions import ToolProblem
from clawmode.tools.hooks import BeforeToolCall, Hooks, RequireApproval, ToolCallDecision
from clawmode.types import JsonObject, JsonValue

logger = logging.getLogger("clawmode.exec")

EXEC_ID = "openclaw:core:exec"
PROCESS_ID = "openclaw:core:process"

PRIORITY = -1_000_000
"""After every other hook: what it sees is what runs."""

MAX_PASSES = 1_000


@dataclass(frozen=True, slots=True)
class StdinOnly:
    """The arguments with which a program reads stdin and opens no file.

    Attributes:
        flags: Options without a value; they may be written together, as in `-lw`.
        values: Options with a value, and what the value may look like.
        short: Whether `-5` means `-n 5`.
        operands: How many operands there may be that are not names of files.
    """

    flags: str
    values: Mapping[str, re.Pattern[str]] = field(default_factory=dict[str, re.Pattern[str]])
    short: bool = False
    operands: int = 0

    def allows(self, arguments: Sequence[str]) -> bool:
        """Whether every argument is one of these. Anything else may be the name of a file."""
        left = iter(arguments)
        operands = 0
        for text in left:
            option, value = text[1:2], text[2:]
            if not text.startswith("-"):
                operands += 1
            elif option in self.values:
                # A cluster such as `-99c` is refused: programs disagree about where a value ends.
                if not self.values[option].fullmatch(value or next(left, "")):
                    return False
            elif not (self._is_flags(text[1:]) or (self.short and _DIGITS.fullmatch(text[1:]))):
                return False
        return operands <= self.operands

    def _is_flags(self, letters: str) -> bool:
        return bool(letters) and all(letter in self.flags for letter in letters)


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
"""Programs that need no entry on the allowlist as long as they only read stdin."""

SYSTEM_FOLDERS = ("/bin", "/usr/bin", "/usr/local/bin", "/opt/homebrew/bin")

Outcome: TypeAlias = Literal["allow", "ask", "block"]
Resolution: TypeAlias = Literal["allow-once", "allow-always", "deny", "timeout", "cancelled"]
Plan: TypeAlias = tuple[str, ...]
"""What a decision is bound to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecApproval(RequireApproval):
    """A wish that a person decides about a command.

    Attributes:
        on_resolution: Has to be told the answer: until then, the command does not run.
        always: What `allow-always` would put on the allowlist. The tool itself is not allowed by
            it: that would be every command.
    """

    on_resolution: Callable[[Resolution], None]
    always: str = ""


@dataclass(frozen=True, slots=True)
class Analysis:
    """What the allowlist says about a command.

    Attributes:
        missed: Programs without an entry, by their full paths.
        used: Entries that matched, and which program each did.
        pinned: The command with full paths, if all of it matched.
        reason: Why it did not.
    """

    missed: tuple[str, ...] = ()
    used: Mapping[str, str] = field(default_factory=dict[str, str])
    pinned: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Decided:
    """What comes of a call."""

    outcome: Outcome
    reason: str = ""
    analysis: Analysis = field(default_factory=Analysis)


@dataclass(slots=True)
class _Pass:
    plan: Plan
    granted: bool


class ExecGuard:
    """Decides about commands, and remembers what it decided until the command runs.

    Args:
        rules: What the configuration says, or how to find that for a run.
        host: What the host says.
        search_path: Where programs are looked for: the `PATH` that commands get.
        can_ask: Whether there is anybody to ask; else `ask_fallback` holds.
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
        """Registers the hook, behind all others."""
        hooks.before_tool_call(self.hook, priority=PRIORITY, name="exec policy")

    # ---- Deciding ----

    async def hook(self, call: BeforeToolCall) -> ToolCallDecision | None:
        """Decides about a call of `exec`, or of `process` that writes to a command."""
        # By id: programs of code mode are started by an `exec` too, and it is another.
        if call.tool_kind is not None or call.tool_id not in (EXEC_ID, PROCESS_ID):
            return None
        if call.tool_id == PROCESS_ID and call.params.get("action") != "write":
            return None
        host = await self._host_rules(call.run)
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

    async def _host_rules(self, run: RunContext) -> HostRules:
        if self._host is None:
            return HostRules(ExecRules())
        return await anyio.to_thread.run_sync(self._host.for_agent, run.agent_id)

    def rules_for(self, run: RunContext) -> ExecRules:
        """What the configuration says for a run."""
        return self._rules(run) if callable(self._rules) else self._rules

    def _decide(self, call: BeforeToolCall, host: HostRules) -> Decided:
        rules = self.rules_for(call.run).stricter(host.rules)
        if rules.security == "deny":
            return Decided("block", host.problem or "commands are not allowed here")
        if rules.lets_all_pass:
            return Decided("allow")
        found = Analysis()
        if call.tool_id == EXEC_ID:
            found = analyse(call.params, host.allowlist, self._search_path)
        # What a command is told that may run is data.
        satisfied = found.pinned is not None or call.tool_id == PROCESS_ID
        listed = rules.security == "allowlist"
        if rules.ask == "always" or (rules.ask == "on-miss" and listed and not satisfied):
            if self._can_ask():
                return Decided(
                    "ask", found.reason, found if listed else replace(found, pinned=None)
                )
            if rules.ask_fallback == "deny":
                return Decided("block", "nobody can be asked for approval")
            listed = listed or rules.ask_fallback == "allowlist"
        if not listed:
            return Decided("allow")  # as it was written
        if not satisfied:
            return Decided("block", f"the command is not on the allowlist: {found.reason}")
        return Decided("allow", "", found)

    def _approval(self, call: BeforeToolCall, decided: Decided, here: _Pass) -> ExecApproval:
        analysis = decided.analysis

        def resolved(resolution: Resolution) -> None:
            here.granted = resolution in ("allow-once", "allow-always")
            if resolution == "allow-always" and self._host is not None and analysis.missed:
                command = str(call.params.get("command", ""))
                try:
                    self._host.remember(call.run.agent_id, list(analysis.missed), command)
                except (OSError, ValueError) as error:
                    logger.error("the allowlist could not be written: %s", error)

        what = "Run a command?" if call.tool_id == EXEC_ID else "Write to a command?"
        kept = self._host is not None and analysis.missed
        always = ", ".join(analysis.missed) if kept else "nothing beyond this command"
        return ExecApproval(
            title=what, description=decided.reason, on_resolution=resolved, always=always
        )

    def _touch(self, call: BeforeToolCall, analysis: Analysis) -> None:
        assert self._host is not None
        command = str(call.params.get("command", ""))
        try:
            self._host.touch(call.run.agent_id, dict(analysis.used), command)
        except (OSError, ValueError) as error:
            logger.warning("the use of the allowlist could not be written down: %s", error)

    # ---- Redeeming ----

    def redeem(self, tool_id: str, params: JsonObject, run: RunContext, call_id: str) -> None:
        """Lets a call pass that was decided about: once, and as it was then.

        Raises:
            ToolProblem: Nobody decided about it, or about something else.
        """
        here = self._passes.pop((run.run_id, call_id), None)
        if here is None and self._host is None and self.rules_for(run).lets_all_pass:
            return
        if here is None:
            raise ToolProblem(
                "not_decided",
                "nobody decided whether this command may run: the exec policy is not installed",
            )
        if not here.granted or here.plan != plan_of(tool_id, params):
            raise ToolProblem(
                "not_decided", "this is not what was approved: the call was changed meanwhile"
            )


def plan_of(tool_id: str, params: JsonObject) -> Plan:
    """What of a call decides what it does."""
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


def analyse(params: JsonObject, allowlist: Iterable[Allowed], search_path: str) -> Analysis:
    """Compares a command with an allowlist: every program of a chain has to be on it."""
    command = _text(params.get("command"))
    if params.get("env"):
        # By a variable, a program can be made to do anything.
        return Analysis(reason="it sets variables of the environment")
    try:
        segments = parse(command)
        programs = [find_program(segment.name, search_path) for segment in segments]
    except NotUnderstood as error:
        return Analysis(reason=str(error))
    entries = tuple(allowlist)
    missed: list[str] = []
    used: dict[str, str] = {}
    for segment, program in zip(segments, programs, strict=True):
        entry = next((each for each in entries if each.matches(program)), None)
        if entry is not None:
            used[entry.id] = program
        elif not is_safe(segment, program):
            missed.append(program)
    if missed:
        return Analysis(tuple(missed), reason=", ".join(dict.fromkeys(missed)))
    return Analysis((), used, pinned(command, segments, programs))


def find_program(name: str, search_path: str) -> str:
    """The full path of a program.

    Raises:
        NotUnderstood: There is none, or where it is depends on the folder.
    """
    if "/" in name and not name.startswith("/"):
        raise NotUnderstood(f"{name[:100]!r} is a path that depends on the folder")
    folders = [folder for folder in search_path.split(":") if folder.startswith("/")]
    found = shutil.which(name, path=":".join(folders) or "/nonexistent")
    if found is None:
        raise NotUnderstood(f"there is no program {name[:100]!r}")
    return os.path.normpath(found)


def is_safe(segment: Segment, program: str) -> bool:
    """Whether it reads stdin and writes stdout, and no file."""
    folder, _, name = program.rpartition("/")
    if folder not in SYSTEM_FOLDERS or name not in SAFE_BINS:
        return False
    words = segment.arguments
    # What a shell would expand may become the names of files.
    return all(word.bare for word in words) and SAFE_BINS[name].allows([w.text for w in words])
