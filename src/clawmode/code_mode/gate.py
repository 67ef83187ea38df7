"""The hooks of the outer `exec`: whether a cell may start, and with what.

A shell's `exec` takes a `command`, and policies were written for that: so a hook finds the code
under both names, and may rewrite either.
"""

from dataclasses import dataclass, replace

from clawmode.catalog.catalog import EXEC
from clawmode.code_mode.config import CodeModeConfig
from clawmode.context import RunContext
from clawmode.sandbox.protocol import LANGUAGES, Start
from clawmode.tools.approvals import Question
from clawmode.tools.executor import Executor, ToolFailure
from clawmode.tools.hooks import AfterToolCall, BeforeToolCall
from clawmode.tools.tool import ToolResult
from clawmode.types import JsonObject


@dataclass(frozen=True, slots=True)
class AdmittedProgram:
    """A cell as the hooks left it, and whom to ask about it.

    Attributes:
        params: What the hooks made of the arguments; the program is in it under both names.
    """

    code: str
    language: str
    params: JsonObject
    question: Question | None


@dataclass(frozen=True, slots=True)
class Gate:
    """Asks the hooks of one run about its cells."""

    executor: Executor
    context: RunContext
    config: CodeModeConfig

    @property
    def has_hooks(self) -> bool:
        return not self.executor.hooks.empty

    def event(self, params: JsonObject, call_id: str) -> BeforeToolCall:
        """A cell as hooks see it."""
        language = params.get("language")
        return BeforeToolCall(
            tool_name=EXEC.name,
            tool_id=EXEC.id,
            params=dict(params),  # hooks may change it
            run=self.context,
            tool_call_id=call_id,
            tool_kind="code_mode_exec",
            tool_input_kind=next((known for known in LANGUAGES if known == language), None),
        )

    async def admit(self, params: JsonObject, call_id: str) -> AdmittedProgram:
        """What may start.

        Raises:
            ToolFailure: A hook blocked it, or made something of it that cannot run.
        """
        patience = self.config.snapshot_ttl_seconds
        admission = await self.executor.admit(self.event(params, call_id), EXEC, patience)
        code, language = _rewritten(params, admission.params)
        question = admission.question
        shown: JsonObject = {"code": code, "command": code, "language": language}
        shown = admission.params | shown
        if question is not None:
            # The person sees what would run, under both names.
            question = replace(question, input=shown)
        return AdmittedProgram(code, language, shown, question)

    async def tell(
        self, params: JsonObject, call_id: str, result: JsonObject, seconds: float
    ) -> None:
        """Shows the hooks what became of a cell."""
        call = self.event(params, call_id)
        shown = ToolResult(details=result)
        await self.executor.hooks.tell(AfterToolCall(call=call, result=shown, seconds=seconds))


def gate_input(start: Start) -> JsonObject:
    """What the hooks see of a cell."""
    return {"code": start.source, "command": start.source, "language": start.language}


def _rewritten(before: JsonObject, after: JsonObject) -> tuple[str, str]:
    changed = {
        text
        for key in ("code", "command")
        if isinstance(text := after.get(key), str) and text != before[key]
    }
    if not changed and not any(after.get(key) == before[key] for key in ("code", "command")):
        raise ToolFailure("blocked", "a hook left no program to run")
    if len(changed) > 1:
        raise ToolFailure("blocked", "hooks rewrote `code` and `command` to different programs")
    code, language = changed.pop() if changed else before["code"], after.get("language")
    if not isinstance(code, str) or not code.strip():
        raise ToolFailure("blocked", "a hook left no program to run")
    return code, language if isinstance(language, str) else str(before["language"])
