"""What `exec` and `wait` answer, as the page writes it."""

import json
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, TypeVar

from clawmode.exceptions import ProgramFailed, ProgramWaiting
from clawmode.types import ErrorCode, JsonValue

Status: TypeAlias = Literal["completed", "waiting", "failed"]
WaitingReason: TypeAlias = Literal["pending_tools", "yield"]


T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeModeResult:
    """One answer of code mode; `to_json` is the page's object."""

    status: Status
    value: JsonValue = None
    output: list[JsonValue] = field(default_factory=list)
    run_id: str = ""
    reason: WaitingReason | None = None
    pending_tool_calls: list[JsonValue] = field(default_factory=list)
    error: str | None = None
    code: ErrorCode | None = None
    calls: list[JsonValue] = field(default_factory=list)
    calls_omitted: dict[str, int] = field(default_factory=dict)
    telemetry: dict[str, JsonValue] = field(default_factory=dict)

    def unwrap(self) -> JsonValue:
        """The program's value.

        Raises:
            ProgramFailed: The program failed: has `code`, `error` and `calls`.
            ProgramWaiting: The program is not done: call `wait`.
        """
        if self.status == "waiting":
            raise ProgramWaiting(self.run_id, self.pending_tool_calls)
        if self.status == "failed":
            code = self.code or "internal_error"
            raise ProgramFailed(code, self.error or "", self.calls, self.output)
        return self.value

    def value_as(self, kind: type[T]) -> T:
        """The program's value as a type: a dataclass, a TypedDict, `list[Product]`, ...

        Raises:
            UnexpectedValue: The value does not fit the type; the message says where.
            ProgramFailed: As `unwrap`.
            ProgramWaiting: As `unwrap`.
        """
        value = self.unwrap()
        from clawmode.tools.function import read_value  # takes a while, and few need it

        return read_value(kind, value)

    def to_json(self) -> dict[str, JsonValue]:
        """The page's camelCase object, with the keys that the status has."""
        made: dict[str, JsonValue] = {"status": self.status}
        match self.status:
            case "completed":
                made["value"] = self.value
            case "waiting":
                made |= {"runId": self.run_id, "reason": self.reason}
                if self.pending_tool_calls:
                    made["pendingToolCalls"] = self.pending_tool_calls
            case "failed":
                made |= {"error": self.error, "code": self.code}
                if self.calls:
                    made["calls"] = self.calls
                if self.calls_omitted:
                    made["callsOmitted"] = dict[str, JsonValue](self.calls_omitted)
        if self.output:
            made["output"] = self.output
        return made | {"telemetry": self.telemetry}

    def to_text(self) -> str:
        """What a model reads: the object as JSON, without a space too many."""
        return compact(self.to_json())


def compact(result: dict[str, JsonValue]) -> str:
    """A result as a model reads it."""
    return json.dumps(result, separators=(",", ":"), ensure_ascii=False)
