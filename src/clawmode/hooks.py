"""The hooks around a tool call, and their runner.

    before_tool_call(BeforeToolCall) -> ToolCallDecision | None   may rewrite, block, ask a person
    after_tool_call(AfterToolCall) -> None                        watches

Hooks run one after the other, highest priority first, ties in the order of registration. A block is
terminal. A hook that raises, hangs or answers nonsense is logged by name; before a call that blocks
it, because a guard that broke down has not said yes.
"""

import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import anyio

from clawmode.context import RunContext
from clawmode.exceptions import ErrorCode
from clawmode.foreign import is_ours, told
from clawmode.tools import JsonObject, ToolResult
from clawmode.types import JsonValue

logger = logging.getLogger("clawmode.hooks")

HOOK_SECONDS = 30.0

Severity: TypeAlias = Literal["info", "warning", "critical"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BeforeToolCall:
    """A call that is about to be made.

    Attributes:
        tool_kind: `code_mode_exec` for a cell of code mode, whose name is shared with the shell's.
        tool_input_kind: The cell's language.
    """

    tool_name: str
    tool_id: str
    params: JsonObject
    run: RunContext
    tool_call_id: str
    parent_id: str | None = None
    tool_kind: Literal["code_mode_exec"] | None = None
    tool_input_kind: Literal["javascript", "typescript"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequireApproval:
    """A hook's wish that a person decides about a call."""

    title: str
    description: str = ""
    severity: Severity = "warning"
    timeout_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallDecision:
    """What a hook decides. What it leaves out stays as it was; `block=False` decides nothing."""

    params: JsonObject | None = None
    block: bool = False
    block_reason: str = ""
    require_approval: RequireApproval | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AfterToolCall:
    """A call that has ended."""

    call: BeforeToolCall
    result: ToolResult | None = None
    error: str | None = None
    code: ErrorCode | str | None = None
    seconds: float = 0.0


BeforeHook: TypeAlias = Callable[
    [BeforeToolCall], "Awaitable[ToolCallDecision | None] | ToolCallDecision | None"
]
AfterHook: TypeAlias = Callable[[AfterToolCall], "Awaitable[None] | None"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What all hooks together decided."""

    params: JsonObject
    blocked: str | None = None
    approvals: tuple[RequireApproval, ...] = ()


@dataclass(frozen=True, slots=True)
class _Registered:
    hook: Callable[[Any], Any]
    priority: int
    name: str


@dataclass(slots=True)
class Hooks:
    """The hooks that one run goes through."""

    _before: list[_Registered] = field(default_factory=list[_Registered])
    _after: list[_Registered] = field(default_factory=list[_Registered])

    def before_tool_call(
        self, hook: BeforeHook, *, priority: int = 0, name: str | None = None
    ) -> BeforeHook:
        """Registers a hook; returns it, so it can be used as a decorator."""
        _insert(self._before, hook, priority, name)
        return hook

    def after_tool_call(
        self, hook: AfterHook, *, priority: int = 0, name: str | None = None
    ) -> AfterHook:
        """Registers a hook; returns it, so it can be used as a decorator."""
        _insert(self._after, hook, priority, name)
        return hook

    @property
    def empty(self) -> bool:
        """Whether there are none."""
        return not self._before and not self._after

    async def decide(self, call: BeforeToolCall) -> Verdict:
        """Asks every hook about a call, until one blocks it."""
        approvals: list[RequireApproval] = []
        for registered in self._before:
            try:
                decision = _decision(await _run(registered, call))
            except BaseException as error:
                if is_ours(error):
                    raise
                logger.error("hook %s: %s: %s", registered.name, type(error).__name__, told(error))
                return Verdict(call.params, f"the hook {registered.name!r} failed")
            if decision is None:
                continue
            if decision.params is not None:
                call = replace(call, params=decision.params)
            if decision.require_approval is not None:
                approvals.append(decision.require_approval)
            if decision.block:
                reason = decision.block_reason or f"blocked by the hook {registered.name!r}"
                return Verdict(call.params, reason)
        return Verdict(call.params, None, tuple(approvals))

    async def tell(self, ended: AfterToolCall) -> None:
        """Tells every hook that a call has ended."""
        for registered in self._after:
            try:
                await _run(registered, ended)
            except BaseException as error:
                if is_ours(error):
                    raise
                logger.error("hook %s: %s: %s", registered.name, type(error).__name__, told(error))


def _insert(
    hooks: list[_Registered], hook: Callable[[Any], Any], priority: int, name: str | None
) -> None:
    label = name or getattr(hook, "__qualname__", None) or repr(hook)
    hooks.append(_Registered(hook, priority, label))
    hooks.sort(key=lambda registered: -registered.priority)


async def _run(registered: _Registered, event: object) -> object:
    with anyio.fail_after(HOOK_SECONDS):
        answer = registered.hook(event)
        return await answer if inspect.isawaitable(answer) else answer


def _decision(answer: object) -> ToolCallDecision | None:
    if answer is None or isinstance(answer, ToolCallDecision):
        return answer
    if isinstance(answer, dict):
        return _from_json(answer)
    raise TypeError(f"a hook answers a ToolCallDecision or None, not {type(answer).__name__}")


def _from_json(answer: dict[str, JsonValue]) -> ToolCallDecision:
    """The shape that people know from the page: `{block, blockReason, params, requireApproval}`."""
    unknown = set(answer) - {"block", "blockReason", "params", "requireApproval"}
    params, block = answer.get("params"), answer.get("block", False)
    approval = answer.get("requireApproval")
    shaped = params is None or isinstance(params, dict)
    if unknown or not shaped or not isinstance(block, bool):
        raise TypeError(f"not a decision: {sorted(answer)}")
    return ToolCallDecision(
        params=params if isinstance(params, dict) else None,
        block=block,
        block_reason=str(answer.get("blockReason") or ""),
        require_approval=_approval(approval) if isinstance(approval, dict) else None,
    )


def _approval(answer: dict[str, JsonValue]) -> RequireApproval:
    timeout = answer.get("timeoutMs")
    severity = answer.get("severity")
    return RequireApproval(
        title=str(answer.get("title") or "Approval needed"),
        description=str(answer.get("description") or ""),
        severity=severity if severity in ("info", "warning", "critical") else "warning",
        timeout_seconds=timeout / 1000 if isinstance(timeout, int | float) else None,
    )
