"""An agent with Google's SDK, without an event loop: `CodeMode.sync` and a plain loop.

The model is offered `exec` and `wait`. It asks for the weather in all cities in one program, books
a court in a second one, which yields while the club makes up its mind, and waits for it.

A script plays the model, behind a small server that speaks Google's API; everything between here
and there is real.
"""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

from google import genai
from google.genai import types

from clawmode import CodeMode, SyncCodeMode, compact, tool

FORECAST = {"Bergen": (11, 14.0), "Oslo": (19, 0.0), "Tromsø": (8, 0.2)}
QUESTION = "Where can I play tennis tomorrow?"
booked: list[str] = []


@tool
def forecast(city: str) -> dict[str, float]:
    """Tomorrow's weather forecast for a city: degrees, and rain in millimetres."""
    degrees, rain = FORECAST[city]
    return {"degrees": degrees, "rain": rain}


@tool(effect="write")
def book_court(city: str) -> str:
    """Book a tennis court. The club takes its time to confirm."""
    time.sleep(0.2)
    booked.append(city)
    return f"court 3 in {city}"


# ---- The model: what it writes ----

COMPARE = """\
const cities = ["Bergen", "Oslo", "Tromsø"];
const weather = await Promise.all(
  cities.map(async (city) => ({ city, ...(await tools.forecast({ city })) })),
);
return weather.filter(({ rain }) => rain < 1).toSorted((a, b) => b.degrees - a.degrees)[0].city;
"""

BOOK = """\
const booking = tools.book_court({ city: "Oslo" });
await yield_control();
return await booking;
"""


class Script(BaseHTTPRequestHandler):
    """Plays the model. What it writes depends on the results that it has got so far."""

    requests: ClassVar[list[Any]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.requests.append(body)
        results = [
            part["functionResponse"]["response"]["output"]
            for content in body["contents"]
            for part in content["parts"]
            if "functionResponse" in part
        ]
        part: dict[str, Any]
        match len(results):
            case 0:
                part = call("exec", {"code": COMPARE})
            case 1:
                part = call("exec", {"code": BOOK})
            case 2:
                run_id = json.loads(results[-1].splitlines()[0])["runId"]
                part = call("wait", {"runId": run_id})
            case _:
                part = {"text": "Oslo is dry. Court 3 is yours."}
        content = {"role": "model", "parts": [part]}
        answer = json.dumps({"candidates": [{"content": content, "finishReason": "STOP"}]})
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(answer.encode())

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing about requests."""


def call(name: str, arguments: dict[str, str]) -> dict[str, Any]:
    return {"functionCall": {"name": name, "args": arguments}}


# ---- The agent ----


def converse(client: genai.Client, code_mode: SyncCodeMode, question: str) -> list[str]:
    """Answers a question. Returns the status of every program on the way."""
    print(f"user   {question}")
    statuses: list[str] = []
    functions = [
        types.FunctionDeclaration.model_validate(definition)
        for definition in code_mode.definitions("google")
    ]
    config = types.GenerateContentConfig(
        tools=[types.Tool(function_declarations=functions)],
        automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
    )
    contents: list[types.Content] = [types.UserContent(question)]
    while True:
        reply = client.models.generate_content(model="scripted", contents=contents, config=config)
        calls = reply.function_calls or []
        if not calls:
            print(f"model  {reply.text}")
            return statuses
        assert reply.candidates
        assert reply.candidates[0].content
        contents.append(reply.candidates[0].content)
        parts: list[types.Part] = []
        for wanted in calls:
            name = wanted.name or ""
            result = code_mode.call(name, wanted.args, call_id=wanted.id or "exec")
            statuses.append(str(result["status"]))
            print(f"{name:6} {result['status']}")
            answer = {"output": compact(result)}
            parts.append(types.Part.from_function_response(name=name, response=answer))
        contents.append(types.Content(role="user", parts=parts))


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Script)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    options = types.HttpOptions(base_url=f"http://127.0.0.1:{server.server_port}")
    with (
        genai.Client(api_key="none", http_options=options) as client,
        CodeMode.sync(tools=[forecast, book_court]) as code_mode,
    ):
        statuses = converse(client, code_mode, QUESTION)
    server.shutdown()
    server.server_close()

    assert statuses == ["completed", "waiting", "completed"], statuses
    assert booked == ["Oslo"], booked
    offered = [request["tools"][0]["functionDeclarations"] for request in Script.requests]
    assert all([each["name"] for each in tools] == ["exec", "wait"] for tools in offered)
    print(f"{len(offered)} requests, each with the tools exec and wait, and no other")


if __name__ == "__main__":
    main()
