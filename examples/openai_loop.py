"""An agent with OpenAI's SDK, over Chat Completions and over the Responses API.

Two loops for the two APIs, and one function that answers a tool call for both. The model is offered
`exec` and `wait`, and reaches everything else by writing programs:

1. it searches for tools,
2. asks for the weather in all cities at once, and keeps one line of the answers,
3. asks for a court and yields: the program is frozen while the club makes up its mind,
4. waits for it, and says what came of it.

A script plays the model, over the real wire (`clawmode.testing.ScriptServer`); everything between
here and there is real.
"""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
from openai import AsyncOpenAI
from openai.types.chat.chat_completion_chunk import ChoiceDeltaToolCall

from clawmode import CodeMode, compact, tool
from clawmode.testing import ScriptRequest, ScriptServer, Turn, call

FORECAST = {"Bergen": (11, 14.0), "Oslo": (19, 0.0), "Tromsø": (8, 0.2), "Trondheim": (14, 3.5)}
QUESTION = "Where can I play tennis tomorrow?"
booked: list[str] = []
statuses: list[str] = []


@tool
async def list_cities(country: str) -> list[str]:
    """The cities of a country that have a weather station."""
    return list(FORECAST) if country == "Norway" else []


@tool
async def forecast(city: str) -> dict[str, float]:
    """Tomorrow's weather forecast for a city: degrees, and rain in millimetres."""
    degrees, rain = FORECAST[city]
    return {"degrees": degrees, "rain": rain}


@tool(effect="write")
async def book_court(city: str, hour: int) -> str:
    """Book a tennis court. The club takes its time to confirm."""
    await anyio.sleep(0.2)
    booked.append(city)
    return f"court 3 in {city} at {hour}:00"


# ---- The model: what it writes ----

SEARCH = """\
const hits = await tools.search("weather forecast");
return hits.map(({ name, description }) => `${name}: ${description}`);
"""

COMPARE = """\
const cities = await tools.list_cities({ country: "Norway" });
const weather = await Promise.all(
  cities.map(async (city) => ({ city, ...(await tools.forecast({ city })) })),
);
return weather.filter(({ rain }) => rain < 1).toSorted((a, b) => b.degrees - a.degrees)[0];
"""

BOOK = """\
const booking = tools.book_court({ city: "CITY", hour: 18 });
text("Asked the club.");
await yield_control();
return await booking;
"""


SCRIPT = [
    Turn("Let me see what I have.", call("exec", {"code": SEARCH})),
    Turn("Which city stays dry?", call("exec", {"code": COMPARE})),
    lambda request: Turn("I ask for a court there.", call("exec", {"code": book(request)})),
    lambda request: Turn(
        "The club has not answered yet.", call("wait", {"runId": request.last_result()["runId"]})
    ),
    Turn("Oslo: 19 degrees and dry. Court 3 is yours at 18:00."),
]


def book(request: ScriptRequest) -> str:
    return BOOK.replace("CITY", request.last_result()["value"]["city"])


# ---- The agent ----


async def chat(client: AsyncOpenAI, code_mode: CodeMode) -> None:
    """The loop over Chat Completions."""
    tools: Any = code_mode.definitions("openai")
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    while True:
        text, calls = "", dict[int, Any]()
        print("model  ", end="")
        async with await client.chat.completions.create(
            model="scripted", messages=messages, tools=tools, stream=True
        ) as stream:
            async for chunk in stream:
                delta = chunk.choices[0].delta
                text += delta.content or ""
                print(delta.content or "", end="", flush=True)
                for piece in delta.tool_calls or []:
                    join(calls, piece)
        print()
        message: dict[str, Any] = {"role": "assistant", "content": text}
        messages.append(message)
        if not calls:
            return
        message["tool_calls"] = list(calls.values())
        for wanted in calls.values():
            name, arguments = wanted["function"]["name"], wanted["function"]["arguments"]
            content = await answer(code_mode, name, arguments, wanted["id"])
            messages.append({"role": "tool", "tool_call_id": wanted["id"], "content": content})


def join(calls: dict[int, Any], piece: ChoiceDeltaToolCall) -> None:
    """Adds a piece of a call: the first has id and name, the others more of the arguments."""
    assert piece.function is not None
    function = {"name": piece.function.name, "arguments": ""}
    whole = {"id": piece.id, "type": "function", "function": function}
    calls.setdefault(piece.index, whole)["function"]["arguments"] += piece.function.arguments or ""


async def responses(client: AsyncOpenAI, code_mode: CodeMode) -> None:
    """The loop over the Responses API."""
    tools: Any = code_mode.definitions("openai-responses")
    items: list[Any] = [{"role": "user", "content": QUESTION}]
    while True:
        made: list[Any] = []
        print("model  ", end="")
        async with await client.responses.create(
            model="scripted", input=items, tools=tools, store=False, stream=True
        ) as stream:
            async for event in stream:
                if event.type == "response.output_text.delta":
                    print(event.delta, end="", flush=True)
                elif event.type == "response.completed":
                    made = event.response.output
        print()
        items += made
        calls = [item for item in made if item.type == "function_call"]
        if not calls:
            return
        for wanted in calls:
            output = await answer(code_mode, wanted.name, wanted.arguments, wanted.call_id)
            items.append(
                {"type": "function_call_output", "call_id": wanted.call_id, "output": output}
            )


async def answer(code_mode: CodeMode, name: str, arguments: str, call_id: str) -> str:
    """Makes the model's call. What the model reads is compact: every space is a token."""
    result = await code_mode.call(name, arguments, call_id=call_id)
    statuses.append(str(result["status"]))
    told = {key: result[key] for key in ("value", "output", "reason", "error") if key in result}
    print(f"{name:6} {result['status']} {json.dumps(told, ensure_ascii=False)}")
    return compact(result)


async def converse(loop: Callable[[AsyncOpenAI, CodeMode], Awaitable[None]]) -> None:
    statuses.clear()
    booked.clear()
    print(f"---- {loop.__name__} ----\nuser   {QUESTION}")
    async with (
        ScriptServer(SCRIPT) as server,
        AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
        CodeMode(tools=[list_cities, forecast, book_court]) as code_mode,
    ):
        await loop(client, code_mode)

    assert statuses == ["completed", "completed", "waiting", "completed"], statuses
    assert booked == ["Oslo"], booked
    assert all(request.asked.tool_names == ("exec", "wait") for request in server.requests)
    print(f"{len(server.requests)} requests, each with the tools exec and wait, and no other\n")


async def main() -> None:
    await converse(chat)
    await converse(responses)


if __name__ == "__main__":
    anyio.run(main)
