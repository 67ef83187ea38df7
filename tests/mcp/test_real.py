"""Servers that other people use: npm's everything and filesystem, PyPI's time."""

import json
import math
import os
import subprocess
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.mcp_driver import call, connected, free_port, view_of
from tests.support.waiting import until

from clawmode.mcp import requests
from clawmode.tools.tool import InputRequest
from clawmode.types import JsonObject, JsonValue

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(360)]  # the first test fetches them


def node(folder: Path, name: str, *args: str) -> dict[str, Any]:
    return {"command": "node", "args": [str(folder / name / "dist" / "index.js"), *args]}


@pytest.mark.covers("MC-4", "MC-5")
async def test_everything_of_server_everything_works(
    node_servers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "UPDATES_PER_SECOND", math.inf)  # two may be read at once
    asked: list[JsonValue] = []
    updates: list[JsonValue] = []

    async def ask(request: InputRequest) -> JsonObject:
        asked.append(request.message)
        return {"name": "Ann"}

    entries = {"every": node(node_servers, "server-everything")}
    async with connected(entries, asks=True) as servers:
        view = view_of(servers, "every")
        assert view.notes == ()
        assert (view.instructions or "").startswith("# Everything Server")
        echoed = await call(servers, "every:echo", {"message": "hi"})
        assert echoed == {"content": [{"type": "text", "text": "Echo: hi"}]}
        weather = await call(servers, "every:get-structured-content", {"location": "New York"})
        assert set(weather["structuredContent"]) == {"temperature", "conditions", "humidity"}
        for kind, shown in (("success", False), ("debug", True)):
            given: JsonObject = {"messageType": kind, "includeImage": True}
            annotated = (await call(servers, "every:get-annotated-message", given))["content"]
            assert [block["type"] for block in annotated] == (["text"] if shown else [])
        image = await call(servers, "every:get-tiny-image")
        assert "image" in {block["type"] for block in image["content"]}
        long = "every:trigger-long-running-operation"
        await call(servers, long, {"duration": 0.6, "steps": 3}, update=updates.append)
        assert updates == [{"progress": float(step), "total": 3.0} for step in (1, 2, 3)]
        greeted = await call(servers, "every:trigger-elicitation-request", ask=ask)
        assert "Ann" in json.dumps(greeted)
        assert len(asked) == 1
        listed = await call(servers, "every:resources/list")
        assert listed["resources"]
        assert listed["resourceTemplates"]
        uri = listed["resources"][0]["uri"]
        read = await call(servers, "every:resources/read", {"uri": uri})
        assert read["contents"][0]["uri"] == uri
        prompts = await call(servers, "every:prompts/list")
        assert "args-prompt" in [prompt["name"] for prompt in prompts["prompts"]]
        got = await call(
            servers, "every:prompts/get", {"name": "args-prompt", "arguments": {"city": "Rome"}}
        )
        assert "Rome" in json.dumps(got["messages"])


@pytest.mark.covers("MC-4")
async def test_the_filesystem_server_reads_and_refuses(node_servers: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("alpha", "utf-8")
    entries = {"files": node(node_servers, "server-filesystem", str(tmp_path))}
    async with connected(entries) as servers:
        read = await call(servers, "files:read_text_file", {"path": str(tmp_path / "a.txt")})
        assert read["content"][0]["text"] == "alpha"
        refused = await call(servers, "files:read_text_file", {"path": "/etc/hostname"})
        assert refused["isError"] is True


async def test_the_time_server_tells_the_time(time_server: str) -> None:
    async with connected({"time": {"command": time_server}}) as servers:
        told = await call(servers, "time:get_current_time", {"timezone": "Europe/Rome"})
        assert json.loads(told["content"][0]["text"])["timezone"] == "Europe/Rome"


@contextmanager
def behind_an_address(folder: Path, kind: str, port: int) -> Iterator[subprocess.Popen[str]]:
    """The same server with the sessions of the older protocol."""
    script = folder / "server-everything" / "dist" / "index.js"
    process = subprocess.Popen(
        ["node", str(script), kind],
        env={"PORT": str(port), "PATH": os.environ["PATH"]},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        while "port" not in (line := process.stderr.readline()):
            assert line, "it did not start"
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.covers("MC-9")
@pytest.mark.parametrize("kind", ["streamableHttp", "sse"])
async def test_the_older_protocol_works_and_a_restart_is_hardly_noticed(
    node_servers: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "UPDATES_PER_SECOND", math.inf)  # two may be read at once
    updates: list[JsonValue] = []
    states: list[str] = []
    port = free_port()
    address = f"http://127.0.0.1:{port}/{'mcp' if kind == 'streamableHttp' else 'sse'}"
    async with AsyncExitStack() as stack:
        with behind_an_address(node_servers, kind, port):
            servers = await stack.enter_async_context(
                connected(
                    {"every": {"url": address}}, on_change=lambda view: states.append(view.state)
                )
            )
            echoed = await call(servers, "every:echo", {"message": "hi"})
            assert echoed["content"][0]["text"] == "Echo: hi"
            long = "every:trigger-long-running-operation"
            await call(servers, long, {"duration": 0.4, "steps": 2}, update=updates.append)
            assert len(updates) == 2
            assert (await call(servers, "every:resources/list"))["resources"]
        states.clear()
        with behind_an_address(node_servers, kind, port):
            if kind == "sse":  # whose end is seen, and which comes back by itself
                await until(lambda: {*states} - {"ready"})
            echoed = await call(servers, "every:echo", {"message": "again"})
            assert echoed["content"][0]["text"] == "Echo: again"
