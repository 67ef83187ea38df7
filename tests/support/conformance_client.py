"""The client that the official conformance suite drives: our own MCP client, with a willing user.

The suite starts this program with the address of a server. The program connects, logs in if the
server demands it, and calls every tool once with an input that fits its schema.
"""

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import anyio
import httpx2

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.support.mcp_driver import context  # noqa: E402

from clawmode.config.mcp import read_servers  # noqa: E402
from clawmode.mcp.servers import McpServers  # noqa: E402
from clawmode.tools.tool import InputRequest  # noqa: E402
from clawmode.types import JsonObject  # noqa: E402

SCENARIO = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
GIVEN: dict[str, Any] = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))


def entry(url: str) -> dict[str, Any]:
    """The server's entry in a configuration, with the credentials of the scenario."""
    made: dict[str, Any] = {"url": url, "connectTimeoutMs": 15_000, "timeoutMs": 15_000}
    if not SCENARIO.startswith("auth/"):
        return made
    auth: dict[str, Any] = {"type": "oauth"}
    names = {"client_id": "clientId", "client_secret": "clientSecret"}
    auth |= {names[key]: GIVEN[key] for key in names if key in GIVEN}
    if "client-credentials" in SCENARIO:
        auth["grant"] = "client_credentials"
    if "private_key_pem" in GIVEN:
        auth["privateKey"] = GIVEN["private_key_pem"]
    if SCENARIO == "auth/basic-cimd":
        auth["clientMetadataUrl"] = "https://conformance-test.local/client-metadata.json"
    return made | {"auth": auth}


def sample(schema: Any) -> Any:
    """A value that fits a simple schema."""
    if not isinstance(schema, dict):
        return "x"
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    if schema.get("enum"):
        return schema["enum"][0]
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        properties = schema.get("properties", {})
        return {key: sample(properties.get(key)) for key in properties}
    simple = {"string": "x", "number": 5, "integer": 5, "boolean": True, "null": None}
    return list[Any]() if kind == "array" else simple.get(str(kind), "x")


async def log_in(server: str, url: str) -> bool:
    """Plays the browser, which works while the client waits for the redirect."""
    threading.Thread(target=httpx2.get, args=(url,), kwargs={"follow_redirects": True}).start()
    return True


async def answer(request: InputRequest) -> JsonObject:
    """Answers a question of the server with the form as it came, every field left alone."""
    return {}


async def main(url: str) -> int:
    settings = read_servers({"suite": entry(url)}).unwrap()
    async with McpServers(settings, asks=True, on_login=log_in) as servers:
        (view,) = await servers.connect()
        if view.problem:
            print(f"not connected: {view.problem}", file=sys.stderr)
            return 1
        tools = {tool.name: tool for tool in servers.tools() if "/" not in tool.name}
        calls = {name: sample(dict(tool.parameters)) for name, tool in tools.items()}
        calls |= {call["name"]: call["arguments"] for call in GIVEN.get("toolCalls", [])}
        for name, given in calls.items():
            try:
                with anyio.fail_after(20):
                    result = await tools[name].execute(given, context(ask=answer))  # pyrefly: ignore
                print(name, result)
            except Exception as error:
                print(f"{name}: {error!r}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(anyio.run(main, sys.argv[-1]))
