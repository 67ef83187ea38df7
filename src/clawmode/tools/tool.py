"""What a tool is: its description for a model, its code, and what it answers.

Plain data. How a tool is called is `executor`'s business, how it is found is `catalog`'s, and how
one is made of a Python function is `tool_function`'s.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from clawmode.context import RunContext
from clawmode.exceptions import InvalidTool
from clawmode.types import JsonObject, JsonText, JsonValue

ToolSource: TypeAlias = Literal["openclaw", "plugin", "mcp", "client"]
Effect: TypeAlias = Literal["read", "write"]

DEFAULT_OWNERS: dict[ToolSource, str] = {"openclaw": "core", "client": "client"}


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRequest:
    """What a tool wants a person to tell it while it runs, or to do at an address.

    Attributes:
        message: In the tool's words, or those of the server behind it.
        schema: JSON Schema of the answer, a flat object; None if there is nothing to fill in.
        url: What the person is to open, instead of a form.
    """

    message: str
    schema: JsonObject | None = None
    url: str | None = None


Ask: TypeAlias = Callable[[InputRequest], Awaitable[JsonObject | None]]
"""Asks a person. None: they do not want to, or nobody can be asked."""


async def decline(request: InputRequest) -> None:
    """Nobody can be asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """What a tool learns about the call that it serves.

    Attributes:
        run: Who asks.
        call_id: Unique in the run.
        parent_id: The `exec` call that this one is nested in, if it is.
        update: Reports progress; whoever watches the run sees it. May be called from any thread.
        ask: Asks a person for what the tool has to know. From the event loop alone.
    """

    run: RunContext
    call_id: str
    parent_id: str | None = None
    update: Callable[[JsonValue], None] = lambda value: None
    ask: Ask = decline


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool answers: text for a reader, details for a program, or both.

    Attributes:
        encoded: JSON of the value, once the executor has checked that it is JSON.
    """

    text: str | None = None
    details: JsonValue = None
    encoded: JsonText = b"null"

    @property
    def value(self) -> JsonValue:
        """What a program gets: the details if there are any, else the text."""
        return self.text if self.details is None else self.details


Execute: TypeAlias = Callable[
    [JsonObject, ToolContext], "Awaitable[ToolResult | JsonValue] | ToolResult | JsonValue"
]
"""Runs a tool on input that fits its schema.

May raise: the program that called it gets the name and the message of the exception, and the log
`clawmode.executor` the traceback.
May be cancelled if it is async; one that is not runs in a thread and is left to itself.
"""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that a program can call.

    Attributes:
        name: What people and policies call it.
        description: What it does, for a model.
        parameters: JSON Schema of its input, an object.
        execute: Its code.
        label: A short name for people.
        output_schema: JSON Schema of the details that it answers.
        idempotent: Calling it again with the same input does no harm: an interrupted call may be
            repeated.
        effect: Whether it only reads, or changes something; None if nobody said.
        sequential: A model that calls it beside others has all of them made one after the other.
        source: Where it comes from.
        owner: The plugin, server or client that it belongs to.
        id: `<source>:<owner>:<name>`: exact, and unique in a run.

    Raises:
        InvalidTool: `effect` or `source` is none of the known ones.
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
        # Whoever misspells `effect="read"` has a tool that nobody knows to only read.
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
        """Whether its words were chosen by the operator, and may enter the model's prompt."""
        return self.source in ("openclaw", "plugin")
