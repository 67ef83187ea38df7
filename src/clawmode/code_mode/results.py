"""The result of `exec` and `wait`, and its JSON form."""

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
    """The result of `exec` or `wait`; `to_json` returns the form that the spec defines."""

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
        """Returns the value of the program.

        Raises:
            ProgramFailed: The program failed; the exception has `code`, `error` and `calls`.
            ProgramWaiting: The program has not ended: call `wait`.
        """
        if self.status == "waiting":
            raise ProgramWaiting(self.run_id, self.pending_tool_calls)
        if self.status == "failed":
            code = self.code or "internal_error"
            raise ProgramFailed(code, self.error or "", self.calls, self.output)
        return self.value

    def value_as(self, kind: type[T]) -> T:
        """Returns the value of the program as a type: a dataclass, a TypedDict, `list[Product]`.

        Raises:
            UnexpectedValue: The value does not fit the type; the message says where.
            ProgramFailed: As `unwrap`.
            ProgramWaiting: As `unwrap`.
        """
        value = self.unwrap()
        from clawmode.tools.function import read_value  # slow to import, and rarely needed

        return read_value(kind, value)

    def to_json(self) -> dict[str, JsonValue]:
        """Returns the camelCase object of the spec, with the keys that the status has."""
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
        """Returns the compact JSON that a model reads."""
        return compact(self.to_json())


def compact(result: dict[str, JsonValue]) -> str:
    """Encodes a result as compact JSON for a model."""
    return json.dumps(result, separators=(",", ":"), ensure_ascii=False)
