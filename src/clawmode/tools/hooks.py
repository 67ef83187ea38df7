"""The hooks of tool calls, and the registry and runner of all hooks.

    before_tool_call(BeforeToolCall) -> ToolCallDecision | None   may rewrite, block, ask people
    after_tool_call(AfterToolCall) -> None                        observes

The hooks of runs and messages are defined in `agent/hooks`, and registered here too. Hooks run one
after the other, highest priority first, ties in the order of registration. A hook that raises,
hangs or returns an invalid answer is logged by name, and its answer is ignored. Where the hook
guards something, that counts as a denial, because a failed guard has not allowed anything.
"""

import difflib
import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import anyio

from clawmode.context import RunContext
from clawmode.exceptions import ClawmodeError, UnknownHook, message_of
from clawmode.tasks import must_propagate
from clawmode.tools.tool import Severity, ToolResult
from clawmode.types import ErrorCode, JsonObject, dataclass

logger = logging.getLogger("clawmode.hooks")

HOOK_SECONDS = 30.0


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
    """A hook's requirement that a person approves a call.

    Attributes:
        on_resolution: Called with the `Resolution`, or `cancelled`. A hook that sets it remembers
            `allow-always` itself; the tool as a whole is not allowed by the answer.
        always: What the hook would remember, for people.
    """

    title: str
    description: str = ""
    severity: Severity = "warning"
    timeout_seconds: float | None = None
    on_resolution: Callable[[Any], None] | None = None
    always: str = ""


class ApprovalNeeded(ClawmodeError):
    """Raised by a tool that must not run with this input before a person has approved the call.

    The tool must raise it before it changes anything: after the approval it is called again.

    Attributes:
        wish: What the person is asked.
    """

    def __init__(self, title: str, description: str = "", severity: Severity = "warning") -> None:
        super().__init__(title)
        self.wish = RequireApproval(title=title, description=description, severity=severity)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallDecision:
    """A hook's decision. Fields that are not set change nothing; nor does `block=False`."""

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
    """The combined decision of all hooks; `blocked` is the reason, if one blocked the call."""

    params: JsonObject
    blocked: str | None = None
    approvals: tuple[RequireApproval, ...] = ()


@dataclass(frozen=True, slots=True)
class HookAnswer:
    """The answer of one hook; `failed` if the hook raised or timed out."""

    name: str
    answer: Any = None
    failed: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class RegisteredHook:
    """A hook with its event, priority and name."""

    event: str
    hook: Callable[[Any], Any]
    priority: int
    name: str

    async def ask(self, about: object, seconds: float | None = None) -> HookAnswer:
        """Calls the hook with an event, and waits for the answer at most `HOOK_SECONDS`."""
        try:
            with anyio.fail_after(HOOK_SECONDS if seconds is None else seconds):
                answer = self.hook(about)
                found = await answer if inspect.isawaitable(answer) else answer
        except BaseException as error:
            if must_propagate(error):
                raise
            return self._failed(error)
        return HookAnswer(self.name, found)

    def ask_now(self, about: object) -> HookAnswer:
        """Calls the hook where nothing can be awaited: an async hook counts as failed."""
        try:
            answer = self.hook(about)
            if inspect.isawaitable(answer):
                if inspect.iscoroutine(answer):
                    answer.close()  # else Python warns that it was never awaited
                raise TypeError("this hook must be a plain function, not async")
        except Exception as error:
            return self._failed(error)
        return HookAnswer(self.name, answer)

    def _failed(self, error: BaseException) -> HookAnswer:
        kind = type(error).__name__
        logger.error("hook %s of %s: %s: %s", self.name, self.event, kind, message_of(error))
        return HookAnswer(self.name, failed=True)


NAMES = frozenset(
    {
        "before_model_resolve",
        "before_prompt_build",
        "before_agent_start",
        "before_agent_reply",
        "agent_end",
        "before_compaction",
        "after_compaction",
        "before_tool_call",
        "after_tool_call",
        "before_install",
        "tool_result_persist",
        "message_received",
        "message_sending",
        "message_sent",
        "session_start",
        "session_end",
        "gateway_start",
        "gateway_stop",
    }
)


class Hooks:
    """The registered hooks of one process, or of one run."""

    def __init__(self) -> None:
        self._registered: dict[str, list[RegisteredHook]] = {}

    def on(
        self,
        event: str,
        hook: Callable[[Any], Any],
        *,
        priority: int = 0,
        name: str | None = None,
    ) -> Callable[[], None]:
        """Registers a hook. Returns a function that removes it.

        Raises:
            UnknownHook: No event has that name.
        """
        if event not in NAMES:
            near = difflib.get_close_matches(event, sorted(NAMES), n=1)
            hint = f"did you mean {near[0]}?" if near else "one of " + ", ".join(sorted(NAMES))
            raise UnknownHook(f"there is no hook {event[:80]!r}: {hint}")
        label = name or getattr(hook, "__qualname__", None) or repr(hook)
        registered = RegisteredHook(event, hook, priority, label)
        hooks = self._registered.setdefault(event, [])
        hooks.append(registered)
        hooks.sort(key=lambda each: -each.priority)  # stable: ties keep their order

        def remove() -> None:
            if registered in hooks:
                hooks.remove(registered)

        return remove

    def before_tool_call(
        self, hook: BeforeHook, *, priority: int = 0, name: str | None = None
    ) -> BeforeHook:
        """Registers a hook; returns it, so it can be used as a decorator."""
        self.on("before_tool_call", hook, priority=priority, name=name)
        return hook

    def after_tool_call(
        self, hook: AfterHook, *, priority: int = 0, name: str | None = None
    ) -> AfterHook:
        """Registers a hook; returns it, so it can be used as a decorator."""
        self.on("after_tool_call", hook, priority=priority, name=name)
        return hook

    def has(self, *events: str) -> bool:
        """True if any of the events has a hook."""
        return any(self._registered.get(event) for event in events)

    @property
    def empty(self) -> bool:
        """True if there are no hooks of tool calls."""
        found = self._registered  # twice for each call: without a generator
        return not (found.get("before_tool_call") or found.get("after_tool_call"))

    # ---- Running ----

    def of(self, event: str) -> tuple[RegisteredHook, ...]:
        """Returns the hooks of an event, in the order in which they run."""
        # A copy, because a hook may register or remove hooks while they run.
        return tuple(self._registered.get(event, ()))

    async def notify(self, event: str, about: object, seconds: float | None = None) -> None:
        """Calls hooks that only observe; their answers are ignored."""
        for registered in self.of(event):
            await registered.ask(about, seconds)

    # ---- Tool calls ----

    async def decide(self, call: BeforeToolCall) -> Verdict:
        """Asks every hook about a call, until one blocks it. A failed hook blocks it too."""
        approvals: list[RequireApproval] = []
        for registered in self.of("before_tool_call"):
            answered = await registered.ask(call)
            try:
                decision = _decision(answered.answer)
            except TypeError as error:
                logger.error("hook %s of before_tool_call: %s", answered.name, error)
                answered = HookAnswer(answered.name, failed=True)
                decision = None
            if answered.failed:
                return Verdict(call.params, f"the hook {answered.name!r} failed")
            if decision is None:
                continue
            if decision.params is not None:
                # The next hooks judge the rewritten input.
                call = replace(call, params=decision.params)
            if decision.require_approval is not None:
                approvals.append(decision.require_approval)
            if decision.block:
                reason = decision.block_reason or f"blocked by the hook {answered.name!r}"
                return Verdict(call.params, reason)
        return Verdict(call.params, None, tuple(approvals))

    async def tell(self, ended: AfterToolCall) -> None:
        """Calls the `after_tool_call` hooks, one after the other."""
        await self.notify("after_tool_call", ended)


def _decision(answer: Any) -> ToolCallDecision | None:
    """Reads a decision, which may be an object `{block, blockReason, params, requireApproval}`."""
    if answer is None or isinstance(answer, ToolCallDecision):
        return answer
    if not isinstance(answer, dict):
        kind = type(answer).__name__
        raise TypeError(f"a hook must return a ToolCallDecision or None, not {kind}")
    unknown = set(answer) - {"block", "blockReason", "params", "requireApproval"}
    params, block = answer.get("params"), answer.get("block", False)
    approval = answer.get("requireApproval")
    shaped = params is None or isinstance(params, dict)
    if unknown or not shaped or not isinstance(block, bool):
        expected = "block (a boolean), blockReason, params (an object) and requireApproval"
        raise TypeError(f"invalid decision with {sorted(answer)}; expected {expected}")
    required = None
    if isinstance(approval, dict):
        timeout, severity = approval.get("timeoutMs"), approval.get("severity")
        required = RequireApproval(
            title=str(approval.get("title") or "Approval needed"),
            description=str(approval.get("description") or ""),
            severity=severity if severity in ("info", "warning", "critical") else "warning",
            timeout_seconds=timeout / 1000 if isinstance(timeout, int | float) else None,
        )
    return ToolCallDecision(
        params=params if isinstance(params, dict) else None,
        block=block,
        block_reason=str(answer.get("blockReason") or ""),
        require_approval=required,
    )
