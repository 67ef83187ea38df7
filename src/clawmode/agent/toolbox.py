"""The tools of a run as its model sees and calls them: themselves, or `exec` and `wait`.

A call is prepared (the tool is found, its arguments are parsed), executed, and its result is
turned into the message that the model reads. An error in any of these steps is a result with
`is_error`, never an exception.
"""

import difflib
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from clawmode.catalog.controls import (
    EXEC,
    MAX_NAME,
    SEARCH_CODE,
    SEARCH_TOOLS,
    WAIT,
    exposed_name,
    is_control,
)
from clawmode.code_mode.results import compact, take_images
from clawmode.config.tools import SearchMode, ToolSettings
from clawmode.context import RunContext
from clawmode.exceptions import DuplicateTool
from clawmode.messages import Image, Text, ToolCall, ToolMessage
from clawmode.models.base import ToolDefinition
from clawmode.tools.executor import Call, Executor, ToolFailure
from clawmode.tools.policy import Policy
from clawmode.tools.tool import Tool
from clawmode.types import JsonObject, JsonValue, dataclass

if TYPE_CHECKING:
    from clawmode.code_mode.code_mode import CodeMode

MAX_RESULT_CHARS = 200_000
"""Of one result that the model reads. Code mode has its own, smaller limit."""

MAX_IMAGES = 8
MAX_IMAGE_CHARS = 8 << 20

ABORTED = "The run was stopped before this call was answered: whether it took effect is unknown."


# ---- Which tools the model sees ----


@dataclass(frozen=True, slots=True)
class ToolSurface:
    """The tools that the model of one run sees, and those that it can reach.

    Attributes:
        code_mode: Whether the model sees `exec` and `wait` instead of the tools.
        tools: The tools that the policy allows: visible themselves, or in the hidden catalog.
        search: The mode of Tool Search, if the model sees its controls instead of the tools.
    """

    code_mode: bool
    tools: tuple[Tool, ...]
    search: SearchMode | None = None

    @property
    def visible(self) -> tuple[Tool, ...]:
        """The tools that the model sees. With a directory it may see a few more."""
        if self.code_mode:
            return (EXEC, WAIT)
        match self.search:
            case None:
                return self.tools
            case "code":
                return (SEARCH_CODE,)
            case "tools":
                return tuple(SEARCH_TOOLS)
            case "directory":
                return (*SEARCH_TOOLS, *(tool for tool in self.tools if tool.source == "client"))


def activate(
    settings: ToolSettings, policy: Policy, tools: Iterable[Tool], *, without_tools: bool = False
) -> ToolSurface:
    """Applies the policy, and decides which tools the model sees.

    Args:
        settings: The section `tools` of the agent: code mode takes precedence over Tool Search.
        policy: The rules for agent, model, provider, sandbox, channel and sender.
        tools: All tools of the run.
        without_tools: The run has no tools.
    """
    if without_tools:
        return ToolSurface(False, ())
    allowed = tuple(tool for tool in policy.effective(tools) if not is_control(tool))
    # Without tools, a program would have nothing to call.
    if settings.code_mode.enabled and allowed:
        return ToolSurface(True, allowed)
    search = settings.tool_search
    return ToolSurface(False, allowed, search.mode if search.enabled and allowed else None)


# ---- Calls ----


class Toolbox(Protocol):
    """The tools of a run, as the loop uses them."""

    exact: frozenset[str] | None = None
    """The tool names that a request must have on the wire, and no others; None: any."""

    def definitions(self) -> tuple[ToolDefinition, ...]:
        """Returns the tools that the model sees. They may change from one request to the next."""
        ...

    def runs_alone(self, call: ToolCall) -> bool:
        """True if all calls of the call's message have to be made one after the other."""
        return False

    def may_repeat(self, call: ToolCall) -> bool:
        """True if it makes sense to make the same call over and over."""
        return False

    def gist(self, result: ToolMessage) -> str:
        """Returns the part of a result that is compared to detect repeated results."""
        return result.text

    async def call(self, call: ToolCall) -> ToolMessage:
        """Makes a call. Does not raise."""
        ...


def fail(call: ToolCall, text: str, details: JsonValue = None) -> ToolMessage:
    """Returns a result that reports an error to the model."""
    return ToolMessage(
        call_id=call.id, name=call.name, content=(Text(text),), is_error=True, details=details
    )


class CodeModeTools(Toolbox):
    """`exec` and `wait`; programs reach the catalog of the run through them."""

    exact: frozenset[str] | None = frozenset({"exec", "wait"})

    def __init__(self, code_mode: "CodeMode") -> None:
        self._code_mode = code_mode

    def definitions(self) -> tuple[ToolDefinition, ...]:
        made: list[ToolDefinition] = []
        for definition in self._code_mode.definitions("mcp"):
            schema = definition["inputSchema"]
            assert isinstance(schema, dict)
            name, description = str(definition["name"]), str(definition["description"])
            made.append(ToolDefinition(name, description, schema))
        return tuple(made)

    def may_repeat(self, call: ToolCall) -> bool:
        return call.name == "wait"

    def gist(self, result: ToolMessage) -> str:
        # Ids and counters differ in each result, also if the program did the same again.
        said = result.details
        if not isinstance(said, dict):
            return result.text
        return json.dumps([said.get(key) for key in ("status", "value", "output", "error")])

    async def call(self, call: ToolCall) -> ToolMessage:
        if call.name not in ("exec", "wait"):
            text = (
                f"There is no tool {call.name[:MAX_NAME]!r}: call it from a program, with `exec`."
            )
            return fail(call, text)
        made = await self._code_mode.call(
            call.name, call.arguments, call_id=call.id, with_images=True
        )
        result, images = take_images(made)
        return ToolMessage(
            call_id=call.id,
            name=call.name,
            content=(Text(compact(result)), *(Image(data, kind) for data, kind in images)),
            is_error=result["status"] == "failed",
            details=result,
        )

    def report(self) -> JsonObject:
        """Returns the metadata of the run about its tools."""
        counted = self._code_mode.telemetry
        calls: JsonObject = {
            "search": counted.searches,
            "describe": counted.describes,
            "call": counted.calls,
        }
        return {"codeModeEngaged": True, "visibleTools": 2, "bridgeCalls": calls}


class DirectTools(Toolbox):
    """Every tool of the run that the policy allows.

    Raises:
        DuplicateTool: Two tools have the same name for the model.
    """

    def __init__(self, tools: Iterable[Tool], executor: Executor, run: RunContext) -> None:
        self._executor = executor
        self._run = run
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            name = exposed_name(tool)
            if name in self._tools:
                raise DuplicateTool(
                    f"{tool.id} and {self._tools[name].id} would both be called {name!r}: deny one "
                    "of them, or enable code mode"
                )
            self._tools[name] = tool

    def definitions(self) -> tuple[ToolDefinition, ...]:
        return tuple(
            ToolDefinition(name, tool.description, dict(tool.parameters))
            for name, tool in self._tools.items()
        )

    def runs_alone(self, call: ToolCall) -> bool:
        tool = self._tools.get(call.name)
        return tool is not None and tool.sequential

    async def call(self, call: ToolCall) -> ToolMessage:
        tool = self._tools.get(call.name)
        if tool is None:
            names = sorted(self._tools)
            near = difflib.get_close_matches(call.name, names, n=3)
            hint = (
                f"did you mean {', '.join(near)}?" if near else f"there are {', '.join(names[:50])}"
            )
            return fail(call, f"There is no tool {call.name[:MAX_NAME]!r}: {hint}")
        given = call.arguments
        if isinstance(given, str):
            text = f"The arguments of {call.name} are not a JSON object: {given[:200]!r}"
            return fail(call, text)
        made = Call(id=call.id, tool=tool, input=given, run=self._run)
        return await execute(self._executor, call, made)


async def execute(executor: Executor, call: ToolCall, made: Call) -> ToolMessage:
    """Makes `made` by the executor, and answers the model's `call` with the result.

    The two calls differ if the model called a control, such as `tool_call`.
    """
    try:
        result = await executor.call(made)
    except ToolFailure as failure:
        return fail(call, str(failure), {"code": failure.code})
    is_error = False
    content: tuple[Text | Image, ...]
    if made.tool.source == "mcp" and isinstance(result.details, dict):
        content = _mcp_content(result.details)
        is_error = result.details.get("isError") is True
    elif result.text is not None:
        content = (Text(shorten(result.text)),)
    else:
        content = (Text(shorten(result.encoded.decode())),)
    return ToolMessage(
        call_id=call.id,
        name=call.name,
        content=content,
        is_error=is_error,
        details=result.details if result.text is not None else None,
    )


def _mcp_content(details: JsonObject) -> tuple[Text | Image, ...]:
    """Returns the texts and images of an MCP result, else its structured content."""
    blocks = details.get("content")
    found: list[Text | Image] = []
    room, images = MAX_RESULT_CHARS, 0
    for block in blocks if isinstance(blocks, list) else []:
        part = _mcp_block(block, room) if room > 0 else None
        if part is None or (isinstance(part, Image) and images >= MAX_IMAGES):
            continue
        if isinstance(part, Text):
            room -= len(part.text)
        else:
            images += 1
        found.append(part)
    if not found and (structured := details.get("structuredContent")) is not None:
        found.append(Text(shorten(json.dumps(structured, ensure_ascii=False))))
    return tuple(found) or (Text("(no content)"),)


def _mcp_block(block: JsonValue, room: int) -> Text | Image | None:
    if not isinstance(block, dict):
        return None
    text, data, kind = block.get("text"), block.get("data"), block.get("mimeType")
    if isinstance(text, str):
        return Text(shorten(text, room))
    is_image = block.get("type") == "image" and isinstance(data, str) and isinstance(kind, str)
    if is_image and len(str(data)) <= MAX_IMAGE_CHARS:
        return Image(str(data), str(kind))
    # Bytes that the model cannot read would only fill its context.
    rest = {key: it for key, it in block.items() if key not in ("data", "blob")}
    return Text(shorten(json.dumps(rest, ensure_ascii=False), room))


def shorten(text: str, limit: int = MAX_RESULT_CHARS) -> str:
    """Cuts a text that is too long for a model, and says how much is missing."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}…\n[{len(text) - limit} more characters were left out]"
