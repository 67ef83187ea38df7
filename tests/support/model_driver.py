"""What the tests of models share: a request, and how an answer is read."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from tests.support.waiting import until

# They take seconds, and here no clock of a test runs.
import clawmode.models.anthropic_sdk
import clawmode.models.openai_sdk  # noqa: F401
from clawmode.messages import AssistantMessage, Message, Text, ToolMessage, UserMessage
from clawmode.models.base import MessageEnd, Model, ModelEvent, ModelRequest, ToolDefinition
from clawmode.models.providers import Api, ModelSettings, make_model
from clawmode.testing import ScriptServer, Turn

EXEC = ToolDefinition(
    "exec", "Runs code.", {"type": "object", "properties": {"code": {"type": "string"}}}
)
WAIT = ToolDefinition("wait", "Waits for a run.", {"type": "object"})
BOTH = frozenset({"exec", "wait"})


def request(*messages: Message, **options: Any) -> ModelRequest:
    """A request with the two tools of code mode."""
    given: dict[str, Any] = {"system": "Be brief.", "tools": (EXEC, WAIT), **options}
    return ModelRequest(messages=messages or (UserMessage.of("Hello"),), **given)


async def events_of(model: Model, asked: ModelRequest) -> list[ModelEvent]:
    async with model.stream(asked) as events:
        return [event async for event in events]


async def answer_of(model: Model, asked: ModelRequest | None = None) -> AssistantMessage:
    """The message that the stream ends with."""
    last = (await events_of(model, asked or request()))[-1]
    assert isinstance(last, MessageEnd)
    return last.message


async def arrival(server: ScriptServer) -> None:
    """Waits for a request to come in."""
    await until(lambda: server.requests)


def results(answer: AssistantMessage, *texts: str) -> list[ToolMessage]:
    """What became of the calls of an answer."""
    return [
        ToolMessage(call_id=call.id, name=call.name, content=(Text(text),))
        for call, text in zip(answer.calls, texts, strict=True)
    ]


@asynccontextmanager
async def played(
    api: Api, turns: Sequence[Turn], **options: Any
) -> AsyncIterator[tuple[ScriptServer, Any]]:
    """A server that plays the turns, and a model of it."""
    options.setdefault("model", ModelSettings(reasoning=True))
    async with ScriptServer(turns) as server:
        async with make_model(server.settings(api, **options), "scripted") as model:
            yield server, model
