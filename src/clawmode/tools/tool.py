"""Defines a tool as plain data: its description for a model, its code, and its result.

`executor` calls tools, `function` makes them of Python functions, and `catalog` finds them.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field
from typing import Literal, TypeAlias, get_args

from clawmode.context import RunContext
from clawmode.exceptions import InvalidTool
from clawmode.types import JsonObject, JsonText, JsonValue, dataclass

ToolSource: TypeAlias = Literal["openclaw", "plugin", "mcp", "client"]
Effect: TypeAlias = Literal["read", "write"]
Severity: TypeAlias = Literal["info", "warning", "critical"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
"""How much a question about a call matters."""

DEFAULT_OWNERS: dict[ToolSource, str] = {"openclaw": "core", "client": "client"}


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRequest:
    """A request of a running tool to a person: to fill in a form, or to open a URL.

    Attributes:
        message: The request in the words of the tool, or of the server behind it.
        schema: JSON Schema of the answer, a flat object; None if there is nothing to fill in.
        url: The URL that the person should open, instead of a form.
    """

    message: str
    schema: JsonObject | None = None
    url: str | None = None


Ask: TypeAlias = Callable[[InputRequest], Awaitable[JsonObject | None]]
"""Asks a person. Returns None if the person declines, or if nobody can be asked."""


async def decline(request: InputRequest) -> None:
    """Declines every request, for tools that run where nobody can be asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """The context of a call, for the tool that serves it.

    Attributes:
        run: The run that makes the call.
        call_id: Unique in the run.
        parent_id: The `exec` call that this call is nested in, if there is one.
        update: Reports progress to the watchers of the run. May be called in any thread.
        ask: Asks a person for input. May only be called in the event loop.
        approved: True if the tool has raised `ApprovalNeeded` for this call, and a person, or an
            earlier `allow-always`, has approved the call.
    """

    run: RunContext
    call_id: str
    parent_id: str | None = None
    update: Callable[[JsonValue], None] = lambda value: None
    ask: Ask = decline
    approved: bool = False


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a call: text for a reader, details for a program, or both.

    Attributes:
        encoded: JSON of the value. The executor sets it when it has checked the result.
    """

    text: str | None = None
    details: JsonValue = None
    encoded: JsonText = b"null"

    @property
    def value(self) -> JsonValue:
        """The value that a program gets: the details if there are any, else the text."""
        return self.text if self.details is None else self.details


Execute: TypeAlias = Callable[
    [JsonObject, ToolContext], "Awaitable[ToolResult | JsonValue] | ToolResult | JsonValue"
]
"""Runs a tool with input that fits its schema.

May raise: the calling program gets the name and the message of the exception, and the logger
`clawmode.executor` gets the traceback. A tool that finds out only from its input that a person has
to approve the call raises `ApprovalNeeded` before it changes anything; after the approval it is
called again, with `context.approved`.
May be cancelled if it is async. A plain function runs in a thread, which cannot be cancelled: it
runs to its end, and its result is dropped.
"""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that a program can call.

    Attributes:
        name: The name for people and policies.
        description: What the tool does, for a model.
        parameters: JSON Schema of the input, an object.
        execute: The code.
        label: A short name for people.
        output_schema: JSON Schema of the result's details.
        idempotent: True if calling the tool again with the same input does no harm, so that an
            interrupted call may be repeated.
        effect: Whether the tool only reads, or changes something; None if unknown.
        sequential: True if the calls of a turn with this tool are made one after the other.
        source: Where the tool comes from.
        owner: The plugin, server or client that the tool belongs to.
        id: `<source>:<owner>:<name>`: exact, and unique in a run.

    Raises:
        InvalidTool: `effect` or `source` is not one of the known values.
    """

    name: str
    description: str
    parameters: Mapping[str, JsonValue]
    execute: Execute = field(repr=False, compare=False)
    label: str | None = field(default=None, kw_only=True)
    output_schema: Mapping[str, JsonValue] | None = field(default=None, kw_only=True)
    idempotent: bool = field(default=False, kw_only=True)
    effect: Effect | None = field(default=None, kw_only=True)
    sequential: bool = field(default=False, kw_only=True)
    source: ToolSource = field(default="openclaw", kw_only=True)
    owner: str = field(default="", kw_only=True)
    id: str = field(init=False, compare=False)

    def __post_init__(self) -> None:
        # A misspelt `effect="read"` would silently make the tool one with unknown effects.
        if self.effect not in (None, *get_args(Effect)):
            known = f"effect must be 'read' or 'write', not {self.effect!r}"
            raise InvalidTool(f"tool {self.name!r}: {known}")
        if self.source not in get_args(ToolSource):
            known = f"source must be one of {get_args(ToolSource)}, not {self.source!r}"
            raise InvalidTool(f"tool {self.name!r}: {known}")
        owner = self.owner or DEFAULT_OWNERS.get(self.source, "")
        object.__setattr__(self, "id", f"{self.source}:{owner}:{self.name}")

    @property
    def trusted(self) -> bool:
        """True if the operator chose the tool's texts, so that they may enter the prompt."""
        return self.source in ("openclaw", "plugin")
