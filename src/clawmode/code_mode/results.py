"""The result of `exec` and `wait`: as the JSON of the spec, and as a model reads it."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Literal, TypeAlias, TypeVar, get_args

from clawmode.exceptions import ProgramFailed, ProgramWaiting
from clawmode.text import shorten
from clawmode.types import ErrorCode, JsonValue, dataclass

Status: TypeAlias = Literal["completed", "waiting", "failed"]
WaitingReason: TypeAlias = Literal["pending_tools", "yield"]

PREFIX_CHARS = 2_000
"""What a model reads of an output over the limit."""
EMIT_LESS = (
    "Filter or slice in the program; `store(key, value)` keeps data for the next program, which "
    "can `load(key)` a part of it."
)
NOTHING = "Null or nothing was returned: `return` what you want to read."
MAX_ESCAPES = 8
"""How many characters JSON may add to a text value, two of them the quotes."""


T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeModeResult:
    """The result of `exec` or `wait`; `to_json` returns the form that the spec defines.

    Attributes:
        mcp_servers: MCP servers that are `unreachable`, `connecting`, or `connected` again, if that
            has changed since the last result.
        attachments: Images of the program, as `{mimeType, data}` with base64. The spec has none.
        notes: Remarks of ours, such as that a search found nothing good. The spec has none.
    """

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
    mcp_servers: dict[str, str] = field(default_factory=dict)
    attachments: list[dict[str, JsonValue]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
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

    def to_json(self, *, with_images: bool = False) -> dict[str, JsonValue]:
        """Returns the camelCase object of the spec, with the keys that the status has.

        Args:
            with_images: Whether `attachments` have the images themselves, not only type and size.
        """
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
        if self.attachments:
            made["attachments"] = [
                each if with_images else {"mimeType": each["mimeType"], "bytes": _size(each)}
                for each in self.attachments
            ]
        if self.notes:
            made["notes"] = list[JsonValue](self.notes)
        if self.output:
            made["output"] = self.output
        if self.mcp_servers:
            made["mcpServers"] = dict[str, JsonValue](self.mcp_servers)
        return made | {"telemetry": self.telemetry}

    def after(self, earlier: "CodeModeResult") -> "CodeModeResult":
        """Returns the result with what an earlier one has, which nobody received."""
        return replace(
            self,
            output=earlier.output + self.output,
            attachments=earlier.attachments + self.attachments,
            notes=earlier.notes + self.notes,
        )

    def to_text(self) -> str:
        """Returns the text that a model reads; see `compact`."""
        return compact(self)


def join(earlier: dict[str, JsonValue], later: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Does for the JSON of results what `CodeModeResult.after` does."""
    made = dict(later)
    for key in ("output", "attachments", "notes"):
        before, after = earlier.get(key), later.get(key)
        if isinstance(before, list):
            made[key] = [*before, *(after if isinstance(after, list) else [])]
    return made


def take_images(result: dict[str, JsonValue]) -> tuple[dict[str, JsonValue], list[tuple[str, str]]]:
    """Separates the images of `to_json(with_images=True)`: the rest, and base64 with its type."""
    found = result.get("attachments")
    given = [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
    if not given:
        return result, []
    rows: list[JsonValue] = [{"mimeType": each["mimeType"], "bytes": _size(each)} for each in given]
    images = [(str(each["data"]), str(each["mimeType"])) for each in given]
    return result | {"attachments": rows}, images


def _size(attachment: Mapping[str, JsonValue]) -> int:
    data = str(attachment["data"])
    return len(data) * 3 // 4 - data[-2:].count("=")


# ---- For a model ----

# JSON may contain these characters, and many readers end a line at them.
_BREAKS = {ord(each): f"\\u{ord(each):04x}" for each in "\x85\u2028\u2029"}


def compact(result: CodeModeResult | Mapping[str, JsonValue]) -> str:
    """Returns a result as a model should read it: a line of JSON, then the output as it is.

    The line is ours, so no text of a program or of a tool can imitate it. It has no telemetry. Of
    the calls it lists those that matter for the next step: calls that have not started and reads
    that are done are counted. Output over the limit is cut to its beginning. A text as value
    follows the output if JSON would have to escape it; `valueChars` is its length. A completed
    result without anything to read has a `hint`.

    Args:
        result: A result, or its JSON.
    """
    told = dict(result.to_json() if isinstance(result, CodeModeResult) else result)
    told.pop("telemetry", None)
    emitted, below = told.pop("output", None), list[str]()
    items = emitted if isinstance(emitted, list) else []
    output = "\n".join(
        str(item["text"]) if "text" in item else _dump(item.get("value"))
        for item in items
        if isinstance(item, dict)
    )
    _count_calls(told)
    if told.get("code") == "output_limit_exceeded" and len(output) > PREFIX_CHARS:
        told["output"] = f"{PREFIX_CHARS} of {len(output)} characters follow. {EMIT_LESS}"
        output = shorten(output, PREFIX_CHARS)
    value = told.get("value")
    if value is None and output:
        told.pop("value", None)
    elif "value" in told and value is None and "attachments" not in told:
        told["hint"] = NOTHING
    elif isinstance(value, str) and len(_dump(value)) > len(value) + MAX_ESCAPES:
        del told["value"]
        told["valueChars"] = len(value)
        below.append(value)
    return "\n".join([_dump(told).translate(_BREAKS), *([output] if output else []), *below])


def read_compact(text: str) -> dict[str, JsonValue]:
    """Returns what `compact` wrote as an object, with the output as one text.

    Raises:
        ValueError: The text does not start with the line of a result.
    """
    line, _, rest = text.partition("\n")
    try:
        told = json.loads(line)
    except RecursionError:
        raise ValueError("the first line is nested too deeply") from None
    if not isinstance(told, dict) or told.get("status") not in get_args(Status):
        raise ValueError("the first line is not that of a result")
    told.pop("hint", None)
    if isinstance(count := told.pop("valueChars", None), int):
        told["value"] = rest[len(rest) - count :]
        rest = rest[: max(len(rest) - count - 1, 0)]
    return told | ({"output": rest} if rest else {})


def _count_calls(told: dict[str, JsonValue]) -> None:
    """Counts the calls that need no attention, instead of listing each of them."""
    calls, pending = told.pop("calls", None), told.pop("pendingToolCalls", None)
    omitted = told.pop("callsOmitted", None)
    counts = Counter[str](omitted if isinstance(omitted, dict) else {})
    for key, rows in (("calls", calls), ("pendingToolCalls", pending)):
        kept: list[JsonValue] = []
        for row in rows if isinstance(rows, list) else []:
            about = row if isinstance(row, dict) else {}
            state = str(about.get("state"))
            if state in ("not_started", "queued"):
                counts[state] += 1
            elif (state, about.get("effect")) == ("completed", "read"):
                counts["completed_read"] += 1
            else:
                kept.append(row)
        if kept:
            told[key] = kept
    if counts:
        told["callsOmitted"] = dict[str, JsonValue](counts)


def _dump(value: JsonValue) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
