"""An agent with Anthropic's SDK: many tools, of which the model sees two.

The loop is the usual one: stream a message, answer its tool calls, repeat. The model is offered
`exec` and `wait`, and reaches everything else by writing programs:

1. it searches for tools,
2. asks for the weather in all cities at once, and keeps one line of the answers,
3. asks for a court and yields: the program is frozen while the club makes up its mind,
4. waits for it, and says what came of it.

A script plays the model, over the real wire (`clawmode.testing.ScriptServer`); everything between
here and there is real.
"""

import json
from typing import Any

import anyio
from anthropic import AsyncAnthropic

from clawmode import CodeMode, compact, tool
from clawmode.testing import ScriptRequest, ScriptServer, Turn, call

FORECAST = {"Bergen": (11, 14.0), "Oslo": (19, 0.0), "Tromsø": (8, 0.2), "Trondheim": (14, 3.5)}
booked: list[str] = []


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


async def converse(client: AsyncAnthropic, code_mode: CodeMode, question: str) -> list[str]:
    """Answers a question. Returns the status of every program on the way."""
    print(f"user   {question}")
    statuses: list[str] = []
    tools: Any = code_mode.definitions("anthropic")
    messages: list[Any] = [{"role": "user", "content": question}]
    while True:
        print("model  ", end="")
        async with client.messages.stream(
            model="scripted", max_tokens=4096, tools=tools, messages=messages
        ) as stream:
            async for piece in stream.text_stream:
                print(piece, end="", flush=True)
            reply = await stream.get_final_message()
        print()
        messages.append({"role": "assistant", "content": reply.content})
        if reply.stop_reason != "tool_use":
            return statuses
        results: list[Any] = []
        for block in reply.content:
            if block.type == "tool_use":
                result = await code_mode.call(block.name, block.input, call_id=block.id)
                statuses.append(show(block.name, result))
                results.append(
                    {
                        "type": "tool_result",
                        "tool_use_id": block.id,
                        "content": compact(result),
                        "is_error": result["status"] == "failed",
                    }
                )
        messages.append({"role": "user", "content": results})


def show(name: str, result: dict[str, Any]) -> str:
    told = {key: result[key] for key in ("value", "output", "reason", "error") if key in result}
    print(f"{name:6} {result['status']} {json.dumps(told, ensure_ascii=False)}")
    return result["status"]


async def main() -> None:
    async with (
        ScriptServer(SCRIPT) as server,
        AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0) as client,
        CodeMode(tools=[list_cities, forecast, book_court]) as code_mode,
    ):
        statuses = await converse(client, code_mode, "Where can I play tennis tomorrow?")

    assert statuses == ["completed", "completed", "waiting", "completed"], statuses
    assert booked == ["Oslo"], booked
    assert all(request.asked.tool_names == ("exec", "wait") for request in server.requests)
    print(f"{len(server.requests)} requests, each with the tools exec and wait, and no other")


if __name__ == "__main__":
    anyio.run(main)
