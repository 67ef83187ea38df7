"""What the model of a run can call: its tools themselves, or what stands for all of them.

A call goes through three stages: it is prepared (found, its arguments read), executed, and
finalized into what the model reads. Trouble in any of them is a result with an error, never an
exception.
"""

import difflib
import json
from collections.abc import Iterable
from typing import Protocol

from clawmode.agent.tool_search import MAX_NAME
from clawmode.agent.tool_search import exposed_name as exposed_name
from clawmode.code_mode.code_mode import CodeMode
from clawmode.code_mode.results import compact
from clawmode.context import RunContext
from clawmode.exceptions import DuplicateTool
from clawmode.messages import Image, Text, ToolCall, ToolMessage
from clawmode.models.base import ToolDefinition
from clawmode.tools.executor import Call, Executor, ToolFailure
from clawmode.tools.tool import Tool, ToolResult
from clawmode.types import JsonObject, JsonValue

MAX_RESULT_CHARS = 200_000
"""Of one result that the model reads. Code mode has its own, smaller limit."""

MAX_IMAGES = 8
MAX_IMAGE_CHARS = 8 << 20

ABORTED = "The run was stopped before this call was answered: whether it took effect is unknown."


class Toolbox(Protocol):
    """What the loop knows of the tools of a run."""

    exact: frozenset[str] | None
    """The names that requests must have on the wire, and no others; None: whatever is defined."""

    def definitions(self) -> tuple[ToolDefinition, ...]:
        """The tools as the model sees them, from now on."""
        ...

    def runs_alone(self, call: ToolCall) -> bool:
        """Whether the calls of its message have to be made one after the other."""
        ...

    def may_repeat(self, call: ToolCall) -> bool:
        """Whether a model that makes the same call over and over may mean it."""
        ...

    def gist(self, result: ToolMessage) -> str:
        """What counts of a result when it is held against another one."""
        ...

    async def call(self, call: ToolCall) -> ToolMessage:
        """Makes a call; does not raise."""
        ...


def fail(call: ToolCall, text: str, details: JsonValue = None) -> ToolMessage:
    """A result that says why there is none."""
    return ToolMessage(
        call_id=call.id, name=call.name, content=(Text(text),), is_error=True, details=details
    )


def _unknown(call: ToolCall, known: Iterable[str]) -> ToolMessage:
    names = sorted(known)
    near = difflib.get_close_matches(call.name, names, n=3)
    hint = f"did you mean {', '.join(near)}?" if near else f"there are {', '.join(names[:50])}"
    return fail(call, f"There is no tool {call.name[:MAX_NAME]!r}: {hint}")


# ---- Code mode ----


class CodeModeTools:
    """`exec` and `wait`; behind them is the catalog of the run."""

    exact: frozenset[str] | None = frozenset({"exec", "wait"})

    def __init__(self, code_mode: CodeMode) -> None:
        self._code_mode = code_mode

    def definitions(self) -> tuple[ToolDefinition, ...]:
        """The two."""
        made: list[ToolDefinition] = []
        for each in self._code_mode.definitions("mcp"):
            schema = each["inputSchema"]
            assert isinstance(schema, dict)
            made.append(ToolDefinition(str(each["name"]), str(each["description"]), schema))
        return tuple(made)

    def runs_alone(self, call: ToolCall) -> bool:
        """Programs do not mind each other."""
        return False

    def may_repeat(self, call: ToolCall) -> bool:
        """To wait again for the same program is what waiting is."""
        return call.name == "wait"

    def gist(self, result: ToolMessage) -> str:
        """What the program came to: ids and counters are new each time."""
        try:
            said = json.loads(result.text)
        except ValueError:
            return result.text
        return json.dumps([said.get(key) for key in ("status", "value", "output", "error")])

    async def call(self, call: ToolCall) -> ToolMessage:
        """Starts or continues a program."""
        if call.name not in ("exec", "wait"):
            text = (
                f"There is no tool {call.name[:MAX_NAME]!r}: call it from a program, with `exec`."
            )
            return fail(call, text)
        result = await self._code_mode.call(call.name, call.arguments, call_id=call.id)
        return ToolMessage(
            call_id=call.id,
            name=call.name,
            content=(Text(compact(result)),),
            is_error=result["status"] == "failed",
        )


# ---- The tools themselves ----


class DirectTools:
    """Every tool of the run, as the policy leaves them.

    Raises:
        DuplicateTool: The model could not tell two of them apart.
    """

    exact: frozenset[str] | None = None

    def __init__(self, tools: Iterable[Tool], executor: Executor, run: RunContext) -> None:
        self._executor = executor
        self._run = run
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            name = exposed_name(tool)
            if name in self._tools:
                raise DuplicateTool(f"{tool.id} and {self._tools[name].id} are both {name!r}")
            self._tools[name] = tool

    def definitions(self) -> tuple[ToolDefinition, ...]:
        """All of them."""
        return tuple(
            ToolDefinition(name, tool.description, dict(tool.parameters))
            for name, tool in self._tools.items()
        )

    def runs_alone(self, call: ToolCall) -> bool:
        """As the tool says."""
        tool = self._tools.get(call.name)
        return tool is not None and tool.sequential

    def may_repeat(self, call: ToolCall) -> bool:
        """Not for ever."""
        return False

    def gist(self, result: ToolMessage) -> str:
        """Its words."""
        return result.text

    async def call(self, call: ToolCall) -> ToolMessage:
        """Makes a call, on the one path that every call takes."""
        tool = self._tools.get(call.name)
        if tool is None:
            return _unknown(call, self._tools)
        given = call.arguments
        if isinstance(given, str):
            text = f"The arguments of {call.name} are not a JSON object: {given[:200]!r}"
            return fail(call, text)
        made = Call(id=call.id, tool=tool, input=given, run=self._run)
        return await execute(self._executor, call, made)


async def execute(executor: Executor, call: ToolCall, made: Call) -> ToolMessage:
    """Answers a model's call with what comes of another, or of the same."""
    try:
        return _finalize(call, made.tool, await executor.call(made))
    except ToolFailure as failure:
        return fail(call, str(failure), {"code": failure.code})


def _finalize(call: ToolCall, tool: Tool, result: ToolResult) -> ToolMessage:
    """What the model reads of a result, and what people can look at."""
    is_error = False
    content: tuple[Text | Image, ...]
    if tool.source == "mcp" and isinstance(result.details, dict):
        content = _blocks(result.details)
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


def _blocks(details: JsonObject) -> tuple[Text | Image, ...]:
    """An MCP result: its texts and pictures, and the structure where that is all there is."""
    blocks = details.get("content")
    found: list[Text | Image] = []
    room = MAX_RESULT_CHARS
    for block in blocks if isinstance(blocks, list) else []:
        part = _block(block, room) if room > 0 else None
        if part is None or (isinstance(part, Image) and _pictures(found) >= MAX_IMAGES):
            continue
        room -= len(part.text) if isinstance(part, Text) else 0
        found.append(part)
    if not found and (structured := details.get("structuredContent")) is not None:
        found.append(Text(shorten(json.dumps(structured, ensure_ascii=False))))
    return tuple(found) or (Text("(no content)"),)


def _pictures(parts: list[Text | Image]) -> int:
    return sum(isinstance(part, Image) for part in parts)


def _block(block: JsonValue, room: int) -> Text | Image | None:
    if not isinstance(block, dict):
        return None
    text, data, kind = block.get("text"), block.get("data"), block.get("mimeType")
    if isinstance(text, str):
        return Text(shorten(text, room))
    picture = block.get("type") == "image" and isinstance(data, str) and isinstance(kind, str)
    if picture and len(str(data)) <= MAX_IMAGE_CHARS:
        return Image(str(data), str(kind))
    rest = {key: it for key, it in block.items() if key not in ("data", "blob")}
    return Text(shorten(json.dumps(rest, ensure_ascii=False), room))


def shorten(text: str, limit: int = MAX_RESULT_CHARS) -> str:
    """A text, cut where it is too long for a model, and said so."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n[{len(text) - limit} more characters were left out]"
