"""`Meter` measures a model, and `Oracle` plays one: it knows the ideal solutions."""

import json
import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio

from bench.model_tasks.tasks import Solution, Task
from bench.model_tasks.world import CARRIER_SECONDS
from clawmode.code_mode.results import read_compact
from clawmode.messages import AssistantMessage, Message, Text, ToolCall, ToolMessage, Usage
from clawmode.models.base import MessageEnd, Model, ModelEvent, ModelLimits, ModelRequest

BATCH = 16
"""The most calls that the oracle makes in one message, as models do."""


def size_of_definitions(request: ModelRequest) -> int:
    """Returns the bytes of the system prompt and the tool definitions."""
    tools = [[it.name, it.description, it.parameters] for it in request.tools]
    return len(request.system.encode()) + len(json.dumps(tools, ensure_ascii=False).encode())


def size_of(message: Message) -> int:
    """Returns the bytes of a message as far as the model reads or writes them."""
    size = 0
    for part in message.content:
        if isinstance(part, ToolCall):
            size += len(part.name) + len(json.dumps(part.arguments, ensure_ascii=False).encode())
        elif isinstance(part, Text):
            size += len(part.text.encode())
    return size


@dataclass
class Figures:
    """The measurements of one run.

    Attributes:
        definitions: Bytes of the system prompt and the tools, which the model reads first.
        results: Bytes of tool results.
        written: Bytes of the model's messages, with the arguments of calls.
        sent: Bytes of all requests together: each repeats the conversation.
        tokens_read: Tokens of all requests, if the provider counts them.
        tokens_written: Tokens of all replies, if the provider counts them.
        mistakes: Failed calls and programs, by their code.
    """

    requests: int = 0
    definitions: int = 0
    results: int = 0
    written: int = 0
    sent: int = 0
    tokens_read: int = 0
    tokens_written: int = 0
    mistakes: Counter[str] = field(default_factory=Counter[str])

    @property
    def read(self) -> int:
        """Bytes that the model reads, each once."""
        return self.definitions + self.results


class Meter:
    """A model that measures the requests to another model and its replies."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.provider, self.name, self.limits = model.provider, model.name, model.limits
        self.figures = Figures()
        self._known = 0

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[ModelEvent]]:
        """Passes a request on, and counts what goes in and out."""
        figures = self.figures
        figures.requests += 1
        definitions = size_of_definitions(request)
        figures.definitions = max(figures.definitions, definitions)
        for message in request.messages[self._known :]:
            if isinstance(message, ToolMessage):
                figures.results += size_of(message)
                figures.mistakes.update(mistakes_of(message))
        self._known = len(request.messages)
        figures.sent += definitions + sum(map(size_of, request.messages))
        async with self._model.stream(request) as events:
            yield self._count(events)

    async def _count(self, events: AsyncIterator[ModelEvent]) -> AsyncIterator[ModelEvent]:
        async for event in events:
            if isinstance(event, MessageEnd):
                self.figures.written += size_of(event.message)
                usage = event.message.usage
                self.figures.tokens_read += usage.input + usage.cache_read + usage.cache_write
                self.figures.tokens_written += usage.output
            yield event


def mistakes_of(message: ToolMessage) -> list[str]:
    """Returns the code of a failed program or call; empty if nothing failed."""
    details = message.details if isinstance(message.details, dict) else {}
    return [str(details.get("code", "tool_error"))] if message.is_error else []


# ---- A model that is asked for its next message ----


class Player:
    """A model whose messages come from a function.

    Args:
        name: The model's name.
        reply: Returns the content of the next message: an answer, or calls.
    """

    provider = "bench"
    limits = ModelLimits(context_window=10_000_000, timeout_seconds=math.inf)  # people think

    def __init__(
        self, name: str, reply: Callable[[ModelRequest], Awaitable[str | list[ToolCall]]]
    ) -> None:
        self.name = name
        self._reply = reply

    def stream(
        self, request: ModelRequest
    ) -> AbstractAsyncContextManager[AsyncIterator[ModelEvent]]:
        """Asks the function for the reply to a request."""

        @asynccontextmanager
        async def open_stream() -> AsyncIterator[AsyncIterator[ModelEvent]]:
            async def events() -> AsyncIterator[ModelEvent]:
                said = await self._reply(request)
                calls: list[ToolCall] = [] if isinstance(said, str) else said
                yield MessageEnd(
                    AssistantMessage(
                        content=(Text(said),) if isinstance(said, str) else tuple(calls),
                        provider=self.provider,
                        model=self.name,
                        usage=Usage(),
                        stop="tool_calls" if calls else "stop",
                    )
                )

            yield events()

        return open_stream()


# ---- The oracle ----


class Oracle:
    """Plays the ideal solution of a task on one surface, and answers with its result."""

    def __init__(self, task: Task, surface: str) -> None:
        self._task = task
        self._plays = self._code() if surface == "code mode" else self._calls(surface)
        self._number = 0
        self._begun = False

    async def reply(self, request: ModelRequest) -> str | list[ToolCall]:
        """Returns the next calls, or the answer."""
        results: list[ToolMessage] = []
        for message in reversed(request.messages):
            if not isinstance(message, ToolMessage):
                break
            results.insert(0, message)
        if any("429" in message.text for message in results):
            await anyio.sleep(CARRIER_SECONDS)  # a real model takes longer for its next message
        try:
            if not self._begun:
                self._begun = True
                return self._make(request, next(self._plays))
            return self._make(request, self._plays.send(results))
        except StopIteration as end:
            return end.value

    def _make(self, request: ModelRequest, calls: list[tuple[str, Any]]) -> list[ToolCall]:
        names = {it.name for it in request.tools}
        made: list[ToolCall] = []
        for name, given in calls:
            self._number += 1
            made.append(ToolCall(f"call_{self._number}", exposed(name, names), given))
        return made

    def _code(self) -> Solution:
        (result,) = yield [("exec", {"code": self._task.program})]
        while (seen := read(result.text)).get("status") == "waiting":
            (result,) = yield [("wait", {"runId": seen["runId"]})]
        value = seen.get("value", result.text)
        return value if isinstance(value, str) else json.dumps(value)

    def _calls(self, surface: str) -> Solution:
        solution = self._task.calls()
        batch = next(solution)
        known: dict[str, str] = {}
        while True:
            if surface == "Tool Search":
                yield from self._learn(known, batch)
            results: list[Any] = []
            for start in range(0, len(batch), BATCH):
                part = batch[start : start + BATCH]
                if surface == "Tool Search":
                    part = [("tool_call", {"id": known[name], "args": args}) for name, args in part]
                done = yield part
                results += [None if it.is_error else value_of(it.text) for it in done]
            try:
                batch = solution.send(results)
            except StopIteration as end:
                return end.value

    def _learn(self, known: dict[str, str], batch: list[tuple[str, Any]]) -> Any:
        """Searches the tools of a batch that are not known, and reads their descriptions."""
        names = list(dict.fromkeys(name for name, _ in batch if name not in known))
        if not names:
            return
        words = [name.replace("_", " ").replace(".", " ") for name in names]
        (message,) = yield [("tool_search", {"queries": words, "limit": 5})]
        found = find_ids(json.loads(message.text))
        for name in names:
            wanted = name.rpartition(".")[2]
            known[name] = next(it for it in found if it.endswith((f":{wanted}", f"_{wanted}")))
        yield [("tool_describe", {"id": known[name]}) for name in names]


def exposed(name: str, names: set[str]) -> str:
    """Returns the name by which a surface offers a tool; `server.tool` for tools of MCP servers."""
    server, _, plain = name.rpartition(".")
    found = [it for it in names if it == name or (server and server in it and it.endswith(plain))]
    if len(found) != 1:
        raise LookupError(f"{name} is offered as {found}")
    return found[0]


def read(text: str) -> dict[str, Any]:
    """Parses a result object; an empty object stands for other texts."""
    try:
        return read_compact(text)
    except ValueError:
        return {}


def value_of(text: str) -> Any:
    """Returns the data in the text of a direct call's result, also of an MCP server's."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    if isinstance(value, dict) and value.get("structuredContent") is not None:
        return value["structuredContent"]
    if isinstance(value, dict) and isinstance(value.get("content"), list):
        return value_of(value["content"][0]["text"])
    if isinstance(value, dict) and {"tool", "result"} <= value.keys():
        return value_of(json.dumps(value["result"]))
    return value


def find_ids(value: Any) -> list[str]:
    """Returns all tool ids in a search result."""
    if isinstance(value, list):
        return [it for each in value for it in find_ids(each)]
    if isinstance(value, dict):
        own = [value["id"]] if isinstance(value.get("id"), str) else []
        return own + [it for each in value.values() for it in find_ids(each)]
    return []
