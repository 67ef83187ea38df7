"""Conversations that grow too long, in real runs and on the real wires."""

from pathlib import Path
from typing import Any

import pytest
from tests.agent.test_e2e import WIRES, agent_on, program
from tests.support.agent_driver import configured, opened

from clawmode.agent.compaction import SYSTEM
from clawmode.messages import Text, UserMessage
from clawmode.sessions.history import SUMMARIZED
from clawmode.testing import ScriptedModel, ScriptServer, Turn
from clawmode.tools.hooks import Hooks

pytestmark = pytest.mark.anyio

SMALL: dict[str, Any] = {
    "defaults": {
        "contextTokens": 4_000,
        "compaction": {"reserveTokens": 1_000, "keepRecentTokens": 600},
    }
}
LONG = "many words " * 300


def summing(request: Any) -> Turn:
    """Sums up when asked to, and else says how much it was told."""
    return Turn("In short: words.") if request.system == SYSTEM else Turn(f"answer {LONG}")


def first_words(request: Any) -> str:
    first = request.messages[0]
    assert isinstance(first, UserMessage)
    return "".join(part.text for part in first.content if isinstance(part, Text))


@pytest.mark.covers("AL-30", "AL-39", "AL-58", "AL-59")
async def test_a_long_conversation_is_summed_up_before_it_is_too_long(tmp_path: Path) -> None:
    hooks, model = Hooks(), ScriptedModel(summing)
    told: list[Any] = []
    hooks.on("before_compaction", lambda event: told.append(("before", event.summary)))
    hooks.on("after_compaction", lambda event: told.append(("after", event.summary)))
    async with opened(
        tmp_path, model, configuration=configured(agents=SMALL), hooks=hooks
    ) as agent:
        for number in range(5):
            result = await agent.ask(f"question {number}")
            assert result.status == "ok"
            assert len(result.payloads) == 1
    asked = [request for request in model.requests if request.system != SYSTEM]
    assert first_words(asked[-1]) == f"{SUMMARIZED}In short: words."
    assert told[:2] == [("before", ""), ("after", "In short: words.")]
    phases = [data["phase"] for data in agent.of("compaction")]
    assert phases[:2] == ["start", "end"]
    sizes = [sum(len(str(it)) for it in request.messages) for request in asked]
    assert max(sizes) < 20_000


async def test_a_model_that_says_it_is_too_long_gets_less(tmp_path: Path) -> None:
    over: list[bool] = []

    def react(request: Any) -> Turn:
        if request.system == SYSTEM:
            return Turn("In short.")
        if request.said == "again" and not over:
            over.append(True)
            return Turn(error="context_overflow")
        return Turn("fine")

    model = ScriptedModel(react)
    async with opened(tmp_path, model) as agent:
        await agent.ask("first")
        result = await agent.ask("again")
    assert (result.status, result.payloads) == ("ok", ({"text": "fine"},))
    assert first_words(model.requests[-1]).endswith("In short.")


async def test_where_nothing_can_be_left_out_the_error_stays(tmp_path: Path) -> None:
    model = ScriptedModel(lambda request: Turn(error="context_overflow"))
    async with opened(tmp_path, model) as agent:
        result = await agent.ask("only this")
    assert (result.status, result.problem) == ("error", "context_overflow")


async def test_a_summary_that_fails_leaves_the_conversation(tmp_path: Path) -> None:
    def react(request: Any) -> Turn:
        return Turn(error="server") if request.system == SYSTEM else Turn(LONG)

    model = ScriptedModel(react)
    async with opened(tmp_path, model, configuration=configured(agents=SMALL)) as agent:
        for number in range(6):
            assert (await agent.ask(f"question {number}")).status == "ok"
    assert "error" in [data["phase"] for data in agent.of("compaction")]


@pytest.mark.parametrize("api", WIRES)
async def test_after_it_the_next_request_is_valid_on_every_wire(tmp_path: Path, api: str) -> None:
    def react(request: Any) -> Turn:
        if request.system.startswith(SYSTEM[:40]):
            return Turn("In short: files were read.")
        if request.said.startswith("read") and not request.said.endswith(str(len(done))):
            done.append(request.said)
            return program('return "' + "x" * 3_000 + '"')
        return Turn("done")

    done: list[str] = []
    async with ScriptServer(react) as server:
        base = server.url if api == "anthropic-messages" else f"{server.url}/v1"
        provider = {"baseUrl": base, "api": api, "apiKey": "sk-test-1234567", "local": False}
        agents = {"defaults": {**SMALL["defaults"], "model": "wire/small"}}
        config = configured(agents=agents, models={"providers": {"wire": provider}})
        async with agent_on(tmp_path, config) as agent:
            for number in range(8):
                result = await agent.ask(f"read {number}")
                assert result.status == "ok", result.error
    assert "In short: files were read." in server.requests[-1].raw.decode()
    assert agent.of("compaction")[-1]["phase"] == "end"
