"""What the tests of Tool Search have in common: tools of every source, bodies, runs."""

import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.agent_driver import Agent, configured, opened

from clawmode import Policy, tool
from clawmode.agent.tool_search import ToolSearch
from clawmode.agent.tool_search_code import SearchCode
from clawmode.config.tools import ToolSearchConfig
from clawmode.context import RunContext
from clawmode.sandbox.pool import Pool
from clawmode.testing import Turn, call
from clawmode.tools.approvals import Approvals
from clawmode.tools.executor import CallEvent, Executor
from clawmode.tools.hooks import Hooks
from clawmode.tools.tool import Tool, ToolContext, ToolSource
from clawmode.types import JsonObject

CONTROLS = ["tool_search", "tool_describe", "tool_call"]


@tool(effect="read")
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(effect="write")
async def forbidden() -> str:
    """Do what must not be done."""
    return "done"


@tool(effect="read", source="plugin", owner="garden")
async def water(plant: str) -> str:
    """Water a plant of the garden."""
    return f"{plant} watered"


def fake(
    name: str, source: ToolSource = "openclaw", owner: str = "", text: str = "", **more: Any
) -> Tool:
    """A tool that answers what it is given."""

    async def run(given: JsonObject, context: ToolContext) -> JsonObject:
        answer: JsonObject = {"tool": name, "given": given, "session": context.run.session_key}
        text: JsonObject = {"type": "text", "text": json.dumps(answer)}
        return {"content": [text], **answer} if source == "mcp" else answer

    schema: JsonObject = more.pop("parameters", {"type": "object"})
    return Tool(name, text, schema, run, source=source, owner=owner, **more)


ISSUE = fake("create_issue", "mcp", "github", "Open an issue in a repository.")
RING = fake("ring", "client", "", "Ring the bell of the client.")


@dataclass
class Bodies:
    """Bodies of `tool_search_code`, run one by one."""

    code: SearchCode
    search: ToolSearch
    pool: Pool
    events: list[CallEvent] = field(default_factory=list)

    async def run(self, source: str) -> Any:
        return await self.code.run({"code": source}, "outer")

    async def value(self, source: str) -> Any:
        made = await self.run(source)
        assert made["status"] == "completed", made
        return made["value"]

    async def code_of(self, source: str) -> str:
        return (await self.run(source))["code"]


@asynccontextmanager
async def bodies(
    tools: Iterable[Tool] = (add, water, ISSUE, RING),
    *,
    policy: Policy | None = None,
    hooks: Hooks | None = None,
    approvals: Approvals | None = None,
    **config: Any,
) -> AsyncIterator[Bodies]:
    """Tool Search in mode `code`, without an agent."""
    policy = policy or Policy()
    search = ToolSearch(ToolSearchConfig(**config))
    search.offer(policy.effective(tools))
    executor = Executor(policy, hooks or Hooks(), approvals or Approvals())
    async with Pool(size=1) as pool:
        async with SearchCode(search, executor, RunContext(), pool) as code:
            assert await code.unavailable() is None
            made = Bodies(code, search, pool)
            executor.watchers.append(made.events.append)
            yield made


class FakeServers:
    """MCP servers whose tools come and go."""

    def __init__(self, *tools: Tool) -> None:
        self._tools = list(tools)
        self._listeners: list[Callable[[Any], None]] = []

    def tools(self) -> list[Tool]:
        return list(self._tools)

    def watch(self, listener: Callable[[Any], None]) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def change(self, *tools: Tool) -> None:
        self._tools = list(tools)
        for listener in tuple(self._listeners):
            listener(None)


@asynccontextmanager
async def searching(
    state: Path,
    model: Any,
    setting: Any = True,
    *,
    rules: dict[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[Agent]:
    """An agent with Tool Search, and tools of every source but the client's."""
    tools = {"codeMode": False, "toolSearch": setting, "deny": ["forbidden"], **(rules or {})}
    options.setdefault("tools", [add, forbidden])
    options.setdefault("plugin_tools", [water])
    options.setdefault("servers", FakeServers(ISSUE))
    async with opened(state, model, configuration=configured(tools=tools), **options) as agent:
        yield agent


def body(source: str) -> Turn:
    return Turn(call("tool_search_code", {"code": source}))
