"""The path of a turn: which modules run between `AgentRuntime.start` and the first byte."""

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import anyio
import pytest
from tests.support.agent_driver import Agent

import clawmode
from clawmode import tool
from clawmode.agent.models import ModelPool
from clawmode.agent.resolver import ConfigResolver
from clawmode.agent.runtime import AgentRuntime
from clawmode.config.resolve import read
from clawmode.models import wire
from clawmode.sessions.store import SessionStore
from clawmode.testing import ScriptServer, Turn
from clawmode.types import JsonObject

pytestmark = pytest.mark.anyio

SOURCE = str(Path(clawmode.__file__).parent)
LAYERS = ("config", "agent", "models")
"""The layers of a turn. Tools, catalog, code mode and sessions have paths of their own."""

PATH = {
    "agent/runtime",
    "agent/run",
    "agent/lanes",
    "agent/resolver",
    "agent/models",
    "agent/skills",
    "agent/prompt",
    "agent/turn",
    "agent/recorder",
    "agent/toolbox",
    "agent/loop",
    "agent/compaction",
    "agent/answers",
    "models/direct",
    "models/conversion",
    "models/auth",
    "models/wire",
    "models/debug",
}


class Watch:
    """Collects the modules whose functions are called while `on` is true."""

    def __init__(self) -> None:
        self.on = False
        self.modules: set[str] = set()

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        file = frame.f_code.co_filename
        if self.on and event == "call" and file.startswith(SOURCE):
            self.modules.add(Path(file).relative_to(SOURCE).with_suffix("").as_posix())


@pytest.fixture
def watch() -> Iterator[Watch]:
    yield Watch()
    sys.setprofile(None)
    threading.setprofile(None)


@tool(effect="read")
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def test_a_turn_passes_18_modules_of_its_layers_before_the_first_byte(
    tmp_path: Path, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = wire._RequestGuard.check

    async def stop_watching(guard: Any, request: Any) -> None:
        await check(guard, request)
        watch.on = False  # the next step of the client sends the request

    monkeypatch.setattr(wire._RequestGuard, "check", stop_watching)
    async with ScriptServer([Turn("One."), Turn("Two.")]) as server:
        provider: JsonObject = {
            "baseUrl": f"{server.url}/v1",
            "api": "openai-completions",
            "apiKey": "x",
        }
        found = read(
            {
                "agents": {"defaults": {"model": "lab/a"}},
                "models": {"providers": {"lab": provider}},
                "tools": {"codeMode": True},
            }
        )
        async with ModelPool(found.unwrap()) as models:
            models.find("lab/a")  # imports a large library, which a profiler would slow down
            threading.setprofile(watch)  # files are read in threads
            sys.setprofile(watch)
            runtime = AgentRuntime(
                resolver=ConfigResolver(found.unwrap(), models, tmp_path),
                sessions=SessionStore(tmp_path / "sessions"),
                state=tmp_path,
                tools=[add],
            )
            with anyio.fail_after(60):
                async with runtime:
                    await Agent(runtime).ask("one")  # settings are resolved once
                    watch.on = True
                    result = await Agent(runtime).ask("two")
    assert (result.output, watch.on) == ("Two.", False)
    passed = {name for name in watch.modules if name.partition("/")[0] in LAYERS}
    assert passed == PATH
    assert len(PATH) <= 18
