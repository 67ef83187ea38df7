"""What the model of a run can call by Tool Search, for each of its modes.

Every call of a tool is made by the run's executor, whichever control led to it.
"""

import difflib
from collections.abc import Iterable
from dataclasses import replace

from clawmode.agent.tool_search import (
    CONTROLS,
    MAX_NAME,
    Control,
    ControlRefused,
    ToolSearch,
    exposed_name,
)
from clawmode.agent.tool_search_code import NAME, SearchCode
from clawmode.agent.toolbox import execute, fail, shorten
from clawmode.code_mode.results import compact
from clawmode.context import RunContext
from clawmode.messages import Text, ToolCall, ToolMessage
from clawmode.models.base import ToolDefinition
from clawmode.text import without_surrogates
from clawmode.tools.executor import Call, Executor
from clawmode.tools.tool import Tool
from clawmode.types import JsonObject


class SearchTools:
    """`tool_search`, `tool_describe` and `tool_call`; behind them is the catalog of the run."""

    def __init__(self, search: ToolSearch, executor: Executor, run: RunContext) -> None:
        self.search = search
        self._executor = executor
        self._run = run
        self.exact: frozenset[str] | None = frozenset(each.name for each in CONTROLS)

    def definitions(self) -> tuple[ToolDefinition, ...]:
        """The three."""
        return tuple(map(_define, CONTROLS))

    def runs_alone(self, call: ToolCall) -> bool:
        """As the tool says that is called."""
        if call.name != "tool_call":
            return False
        try:
            return self.search.read_call(call.arguments)[0].sequential
        except ControlRefused:
            return False

    def may_repeat(self, call: ToolCall) -> bool:
        """Not for ever."""
        return False

    def gist(self, result: ToolMessage) -> str:
        """Its words."""
        return result.text

    async def call(self, call: ToolCall) -> ToolMessage:
        """Looks something up, or makes a call on the one path that every call takes."""
        try:
            match call.name:
                case "tool_search":
                    return _answer(call, await self.search.search(call.arguments))
                case "tool_describe":
                    return _answer(call, self.search.describe(call.arguments))
                case "tool_call":
                    tool, given = self.search.read_call(call.arguments)
                    return await self._nested(call, tool, given)
            return await self._other(call)
        except ControlRefused as refused:
            return fail(call, str(refused), {"code": refused.code})

    async def _nested(self, call: ToolCall, tool: Tool, given: JsonObject) -> ToolMessage:
        self.search.telemetry.call(tool.id)
        made = Call(id=f"{call.id}:1", tool=tool, input=given, run=self._run, parent_id=call.id)
        return await execute(self._executor, call, made)

    async def _other(self, call: ToolCall) -> ToolMessage:
        text = (
            f"There is no tool {call.name[:MAX_NAME]!r}: find it with tool_search, then tool_call."
        )
        return fail(call, text)


class DirectoryTools(SearchTools):
    """The three, the client's tools, and a few more; all others can be called by their names.

    Args:
        shown: Tools of the catalog that the model sees whole.
    """

    def __init__(
        self, search: ToolSearch, executor: Executor, run: RunContext, shown: Iterable[Tool]
    ) -> None:
        super().__init__(search, executor, run)
        self._shown = frozenset(tool.id for tool in shown)

    def definitions(self) -> tuple[ToolDefinition, ...]:
        """The controls, and what is shown of what is still there."""
        made = [
            ToolDefinition(name, tool.description, dict(tool.parameters))
            for name, tool in self.search.by_name.items()
            if tool.source == "client" or tool.id in self._shown
        ]
        defined = (*super().definitions(), *made)
        self.exact = frozenset(each.name for each in defined)
        return defined

    def runs_alone(self, call: ToolCall) -> bool:
        """As the tool says that is called."""
        tool = self.search.by_name.get(call.name)
        return tool.sequential if tool is not None else super().runs_alone(call)

    async def _other(self, call: ToolCall) -> ToolMessage:
        """A tool by its name, whether the model was shown it or not."""
        tool, given = self.search.by_name.get(call.name), call.arguments
        if tool is None:
            return fail(call, self._missing(call.name))
        if isinstance(given, str):
            text = f"The arguments of {call.name} are not a JSON object: {given[:200]!r}"
            return fail(call, text)
        self.search.telemetry.call(tool.id)
        made = Call(id=call.id, tool=tool, input=given, run=self._run)
        return await execute(self._executor, call, made)

    def _missing(self, name: str) -> str:
        entries = self.search.catalog.entries
        if shared := [tool.id for tool in entries if exposed_name(tool) == name][:10]:
            return f"Several tools are called {name!r}: tool_call one of {', '.join(shared)}."
        near = difflib.get_close_matches(name[:MAX_NAME], self.search.by_name, n=3)
        hint = f"did you mean {', '.join(near)}?" if near else "find one with tool_search."
        return f"There is no tool {name[:MAX_NAME]!r}: {hint}"


class SearchCodeTools:
    """`tool_search_code`; behind it is the catalog of the run."""

    exact: frozenset[str] | None = frozenset({NAME})

    def __init__(self, code: SearchCode) -> None:
        self._code = code

    def definitions(self) -> tuple[ToolDefinition, ...]:
        """The one."""
        return (_define(self._code.control()),)

    def runs_alone(self, call: ToolCall) -> bool:
        """Bodies do not mind each other."""
        return False

    def may_repeat(self, call: ToolCall) -> bool:
        """Not for ever."""
        return False

    def gist(self, result: ToolMessage) -> str:
        """Its words."""
        return result.text

    async def call(self, call: ToolCall) -> ToolMessage:
        """Runs a body."""
        if call.name != NAME:
            text = f"There is no tool {call.name[:MAX_NAME]!r}: call it from {NAME}."
            return fail(call, text)
        try:
            result = await self._code.run(call.arguments, call.id)
        except ControlRefused as refused:
            return fail(call, str(refused), {"code": refused.code})
        return replace(_answer(call, result), is_error=result["status"] == "failed")


def _define(control: Control) -> ToolDefinition:
    return ToolDefinition(control.name, control.description, control.parameters)


def _answer(call: ToolCall, value: JsonObject) -> ToolMessage:
    # Descriptions come from anywhere, and may hold half of a surrogate pair.
    text = without_surrogates(compact(value))
    return ToolMessage(call_id=call.id, name=call.name, content=(Text(shorten(text)),))
