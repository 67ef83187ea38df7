"""The hooks of the outer `exec`: they decide whether a cell may start, and may rewrite it.

Policies are often written for a shell tool `exec`, which has a `command`. So hooks find the program
as `code` and as `command`, and may rewrite either.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from clawmode.catalog.controls import EXEC
from clawmode.context import RunContext
from clawmode.sandbox.protocol import LANGUAGES
from clawmode.tools.approvals import Question
from clawmode.tools.executor import Executor, ToolFailure
from clawmode.tools.hooks import AfterToolCall, BeforeToolCall
from clawmode.tools.tool import ToolResult
from clawmode.types import JsonObject, dataclass

if TYPE_CHECKING:
    from clawmode.code_mode.config import CodeModeConfig


@dataclass(frozen=True, slots=True)
class AdmittedProgram:
    """A program that the hooks allow, as they have rewritten it.

    Attributes:
        params: The arguments after the hooks, with the program under both names.
        question: The question to a person who must approve the program first.
    """

    code: str
    language: str
    params: JsonObject
    question: Question | None


@dataclass(frozen=True, slots=True)
class Gate:
    """Runs the hooks of one run for its cells."""

    executor: Executor
    context: RunContext
    config: "CodeModeConfig"

    def event(self, params: JsonObject, call_id: str) -> BeforeToolCall:
        """Returns the event that hooks receive for a cell."""
        language = params.get("language")
        return BeforeToolCall(
            tool_name=EXEC.name,
            tool_id=EXEC.id,
            params=dict(params),  # a copy, because hooks may change it
            run=self.context,
            tool_call_id=call_id,
            tool_kind="code_mode_exec",
            tool_input_kind=next((known for known in LANGUAGES if known == language), None),
        )

    async def admit(self, params: JsonObject, call_id: str) -> AdmittedProgram:
        """Returns the program that may start.

        Raises:
            ToolFailure: A hook blocked the program, or rewrote it to something that cannot run.
        """
        event, patience = self.event(params, call_id), self.config.patience
        admission = await self.executor.admit(event, EXEC, patience)
        code, language = _rewritten(params, admission.params)
        question = admission.question
        shown: JsonObject = {"code": code, "command": code, "language": language}
        shown = admission.params | shown
        if question is not None:
            # The person sees the program that would run, under both names.
            question = replace(question, input=shown)
        return AdmittedProgram(code, language, shown, question)

    async def tell(
        self, params: JsonObject, call_id: str, result: JsonObject, seconds: float
    ) -> None:
        """Runs the `after_tool_call` hooks with the result of a cell."""
        call = self.event(params, call_id)
        shown = ToolResult(details=result)
        await self.executor.hooks.tell(AfterToolCall(call=call, result=shown, seconds=seconds))


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
