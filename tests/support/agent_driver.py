"""What the tests of the agent have in common: a runtime over a scripted model."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from clawmode.agent.events import AgentEvent
from clawmode.agent.models import ModelPool
from clawmode.agent.requests import AgentRequest, RunResult
from clawmode.agent.resolver import ConfigResolver
from clawmode.agent.runtime import AgentRuntime
from clawmode.config.resolve import Configuration, read
from clawmode.models.base import Model
from clawmode.sessions.history import History, read_transcript
from clawmode.sessions.store import SessionStore
from clawmode.testing import ScriptedModel
from clawmode.tools.tool import Tool


def configured(**sections: Any) -> Configuration:
    """A configuration; its model is the scripted one, and code mode is on."""
    data: dict[str, Any] = {"tools": {"codeMode": True}, **sections}
    data.setdefault("agents", {}).setdefault("defaults", {}).setdefault("model", "scripted/a")
    found = read(data)
    assert found.errors == []
    return found.section


@dataclass
class Agent:
    """A runtime, and all that it told."""

    runtime: AgentRuntime
    events: list[AgentEvent] = field(default_factory=list)

    async def ask(self, message: str = "go", **request: Any) -> RunResult:
        """Runs a turn to its end."""
        run = await self.runtime.start(AgentRequest(message=message, **request))
        with anyio.fail_after(15):
            return await self.runtime.result(run.id)

    async def history(self, key: str | None = None) -> History:
        session = await self.runtime.sessions.resolve(key)
        return read_transcript(session.transcript)

    def of(self, stream: str) -> list[dict[str, Any]]:
        """The data of all events of a stream."""
        return [dict(event.data) for event in self.events if event.stream == stream]


@asynccontextmanager
async def opened(
    state: Path,
    model: Model | list[Any],
    *,
    configuration: Configuration | None = None,
    tools: Iterable[Tool] = (),
    models: dict[str, Model] | None = None,
    **options: Any,
) -> AsyncIterator[Agent]:
    """An agent whose model plays a script."""
    scripted = ScriptedModel(model) if isinstance(model, list) else model
    configuration = configuration or configured()
    async with ModelPool(configuration, {"scripted/*": scripted, **(models or {})}) as found:
        runtime = AgentRuntime(
            resolver=ConfigResolver(configuration, found, state),
            sessions=SessionStore(state / "sessions"),
            state=state,
            tools=tools,
            **options,
        )
        async with runtime:
            agent = Agent(runtime)
            runtime.subscribe(agent.events.append)
            yield agent
