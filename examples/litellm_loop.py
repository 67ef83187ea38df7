"""An agent with LiteLLM, which reaches the models of many providers: `pip install litellm`.

LiteLLM takes the definitions in OpenAI's format for every provider. It uses the package `mcp`, so
install `clawmode[mcp]`; `clawmode[agent]` needs a newer `openai` than LiteLLM allows. A script
plays the model, over the real wire (`clawmode.testing.ScriptServer`).
"""

import os
from typing import Any

import anyio

from clawmode import CodeMode, compact, tool
from clawmode.testing import ScriptServer, Turn, call

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # otherwise its import asks the internet

PRICES = {"tea": 3.2, "coffee": 4.5, "water": 1.0}
QUESTION = "What is the cheapest drink?"

CHEAPEST = """\
const names = ["tea", "coffee", "water"];
const prices = await Promise.all(names.map((product) => tools.price({ product })));
await yield_control();
return names[prices.indexOf(Math.min(...prices))];
"""

SCRIPT = [
    Turn(call("exec", {"code": CHEAPEST})),
    lambda request: Turn(call("wait", {"runId": request.last_result()["runId"]})),
    lambda request: Turn(f"It is {request.last_result()['value']}."),
]


@tool(effect="read")
async def price(product: str) -> float:
    """Look up the price of a drink."""
    return PRICES[product]


async def converse(code_mode: CodeMode, url: str) -> str:
    """Answers the question, and returns the answer."""
    import litellm  # after the variable above is set

    ask: Any = litellm.acompletion
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    while True:
        reply = await ask(
            model="openai/scripted",  # or "anthropic/…", "gemini/…", "bedrock/…"
            api_base=f"{url}/v1",
            api_key="none",
            messages=messages,
            tools=code_mode.definitions("openai"),
        )
        message = reply.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return str(message.content)
        for wanted in message.tool_calls:
            name, arguments = wanted.function.name, wanted.function.arguments
            result = await code_mode.call(name, arguments, call_id=wanted.id)
            print(f"{name:6} {result['status']}")
            messages.append({"role": "tool", "tool_call_id": wanted.id, "content": compact(result)})


async def main() -> None:
    async with ScriptServer(SCRIPT) as server, CodeMode(tools=[price]) as code_mode:
        answer = await converse(code_mode, server.url)
    print(answer)
    assert answer == "It is water.", answer
    assert all(request.asked.tool_names == ("exec", "wait") for request in server.requests)
    print(f"{len(server.requests)} requests, each with the tools exec and wait, and no other")


if __name__ == "__main__":
    anyio.run(main)
