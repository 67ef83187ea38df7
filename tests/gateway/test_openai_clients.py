"""Other clients of the gateway's OpenAI API: LangChain's, and curl as the page shows it."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from anyio import to_thread
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import SecretStr
from tests.support.gateway_driver import TOKEN, Wired, wired

from clawmode.testing import Turn, call

pytestmark = [pytest.mark.anyio, pytest.mark.covers("HT-1")]

LOOK = "return await tools.weather({town: 'Rome'})"


@tool
def weather(town: str) -> str:
    """Return the weather of a town."""
    return f"fine in {town}"


def model_of(it: Wired, *, responses: bool) -> ChatOpenAI:
    return ChatOpenAI(
        model="main",
        base_url=f"http://127.0.0.1:{it.port}/v1",
        api_key=SecretStr(TOKEN),
        use_responses_api=responses,
        max_retries=0,
    )


@pytest.mark.parametrize("responses", [False, True], ids=["chat", "responses"])
async def test_langchain_talks_streams_and_brings_tools(tmp_path: Path, responses: bool) -> None:
    script: list[Any] = [
        Turn("Hello, Ann."),
        Turn("One word ", "after ", "the other."),
        Turn("I look.", call("exec", {"code": LOOK})),
        lambda request: Turn(f"It is {request.last_result()['value']}."),
    ]
    async with wired(tmp_path, script, rules={"codeMode": True}) as it:
        model = model_of(it, responses=responses)
        answer = await model.ainvoke("I am Ann.")
        assert (answer.text, isinstance(answer, AIMessage)) == ("Hello, Ann.", True)
        assert answer.usage_metadata is not None
        assert answer.usage_metadata["total_tokens"] > 0
        pieces = [chunk.text async for chunk in model.astream("Slowly.")]
        assert "".join(pieces) == "One word after the other."
        assert len([piece for piece in pieces if piece]) > 1
        with_tools = model.bind_tools([weather])
        said: list[Any] = [HumanMessage("The weather?")]
        asks = await with_tools.ainvoke(said)
        (asked,) = asks.tool_calls
        assert (asked["name"], asked["args"]) == ("weather", {"town": "Rome"})
        result = ToolMessage(weather.invoke(asked["args"]), tool_call_id=asked["id"])
        last = await with_tools.ainvoke([*said, asks, result])
        assert last.text == "It is fine in Rome."


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
async def test_curl_asks_and_streams(tmp_path: Path) -> None:
    async with wired(tmp_path, [Turn("Hello."), Turn("Streamed.")]) as it:

        def curl(path: str, body: Any) -> str:
            done = subprocess.run(
                [
                    *("curl", "--silent", "--show-error", "--fail-with-body", "--no-buffer"),
                    *("--header", f"Authorization: Bearer {TOKEN}", "--json", json.dumps(body)),
                    f"http://127.0.0.1:{it.port}{path}",
                ],
                capture_output=True,
                text=True,
                timeout=30,
                check=True,
            )
            return done.stdout

        asked = {"model": "main", "messages": [{"role": "user", "content": "Hi"}]}
        whole = json.loads(await to_thread.run_sync(curl, "/v1/chat/completions", asked))
        assert whole["choices"][0]["message"]["content"] == "Hello."
        lines = await to_thread.run_sync(
            curl, "/v1/responses", {"model": "main", "input": "Hi", "stream": True}
        )
        events = [json.loads(line[6:]) for line in lines.splitlines() if line.startswith("data: {")]
        assert events[-1]["type"] == "response.completed"
        deltas = [e["delta"] for e in events if e["type"] == "response.output_text.delta"]
        assert "".join(deltas) == "Streamed."
