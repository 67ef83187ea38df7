"""`clawmode mcp`, driven by the official TypeScript SDK: both its lines, stdio and HTTP."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import pytest
from tests.support.forking import interpreter

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(360)]  # the first test fetches the SDK

SCRIPT = Path(__file__).with_name("ts_client.mjs")
SECONDS = 60  # of a few, if the machine has nothing else to do
OLD, NEW = "2025-11-25", "2026-07-28"
SDK, CLIENT = "@modelcontextprotocol/sdk", "@modelcontextprotocol/client"
WAYS = {
    "sdk-stdio": (SDK, "legacy", OLD),
    "sdk-http": (SDK, "legacy", OLD),
    "client-stdio": (CLIENT, "legacy", OLD),
    "client-auto-stdio": (CLIENT, "auto", NEW),
    "client-auto-http": (CLIENT, "auto", NEW),
}
TOOLS = '''
import anyio
from clawmode import tool

met = []
all_met, released, hang_cancelled = anyio.Event(), anyio.Event(), anyio.Event()

@tool(effect="read")
async def meet(name: str) -> list[str]:
    """Return when two are here."""
    met.append(name)
    if len(met) == 2:
        all_met.set()
    await all_met.wait()
    return sorted(met)

@tool(effect="read")
async def parked() -> str:
    """Return when released."""
    await released.wait()
    return "parked no more"

@tool(effect="read")
async def release() -> None:
    """Let `parked` return."""
    released.set()

@tool(effect="read")
async def hang() -> None:
    """Never return."""
    try:
        await anyio.sleep_forever()
    finally:
        hang_cancelled.set()

@tool(effect="read")
async def after_hang() -> str:
    """Return when `hang` was cancelled."""
    await hang_cancelled.wait()
    return "it was cancelled"

@tool(effect="write")
async def write(text: str) -> str:
    """Write a text."""
    return f"wrote {text}"

tools = [meet, parked, release, hang, after_hang, write]
'''

Drive: TypeAlias = Callable[..., Any]


@pytest.fixture
def folder(tmp_path: Path, node_servers: Path) -> Path:
    (tmp_path / "mine.py").write_text(TOOLS, "utf-8")
    (tmp_path / "node_modules").symlink_to(node_servers.parent)
    shutil.copy(SCRIPT, tmp_path)
    script = node_servers / "server-everything" / "dist" / "index.js"
    every = {"command": "node", "args": [str(script)]}
    (tmp_path / "servers.json").write_text(json.dumps({"mcpServers": {"every": every}}), "utf-8")
    return tmp_path


@pytest.fixture(params=WAYS)
def drive(request: pytest.FixtureRequest, folder: Path) -> Drive:
    """Plays a scene of the script before a server with these options; returns what it saw."""

    async def drive(scene: str, *options: str) -> dict[str, Any]:
        sdk, era, protocol = WAYS[request.param]
        settings: dict[str, Any] = {"sdk": sdk, "era": era, "scene": scene}
        argv = ["-m", "clawmode", "mcp", "--tools", "mine:tools", "--state", "state", *options]
        with anyio.fail_after(SECONDS):
            async with AsyncExitStack() as stack:
                if request.param.endswith("http"):
                    settings |= await stack.enter_async_context(served(folder, argv))
                else:
                    python, *flags = interpreter()
                    settings |= {"command": python, "args": [*flags, *argv]}
                node = ["node", SCRIPT.name, json.dumps(settings)]
                done = await anyio.run_process(node, cwd=folder, check=False)
        assert done.returncode == 0, done.stderr.decode()
        seen = json.loads(done.stdout)
        assert seen["protocol"] == protocol
        assert seen["tools"] == ["exec", "wait"]
        return seen

    return drive


@asynccontextmanager
async def served(folder: Path, argv: list[str]) -> AsyncIterator[dict[str, str]]:
    """A server behind an address; yields that and the token it made."""
    argv = [*interpreter(), *argv, "--http", "127.0.0.1:0"]
    env = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    async with await anyio.open_process(
        argv, cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        assert process.stderr is not None
        told = ""
        async for chunk in process.stderr:
            told += chunk.decode()
            if found := re.search(r"at (http://\S+/mcp), with the bearer token (\S+)\n", told):
                break
        else:
            pytest.fail(told)
        try:
            yield {"url": found[1], "token": found[2]}
        finally:
            process.terminate()


async def test_a_fan_out_over_tools_and_a_server_tells_its_progress(drive: Drive) -> None:
    seen = await drive("fanOut", "--mcp-config", "servers.json", "--approve", "always")
    assert seen["result"]["value"] == {
        "left": ["left", "right"],
        "right": ["left", "right"],
        "echo": "Echo: hi",
        "sum": "The sum of 2 and 3 is 5.",
    }
    assert seen["release"]["status"] == "completed"
    told = [each["message"] for each in seen["progress"]]
    called = ["mcp:every:echo", "mcp:every:get-sum", "openclaw:core:meet", "openclaw:core:meet"]
    for state in ("start", "completed"):
        states = [text for text in told if text.endswith(state) and "parked" not in text]
        assert sorted(states) == [f"{tool_id} {state}" for tool_id in called]
    amounts = [each["progress"] for each in seen["progress"]]
    assert amounts == sorted(set(amounts))


@pytest.mark.covers("N-2")
async def test_a_program_that_waits_is_continued(drive: Drive) -> None:
    seen = await drive("waiting", "--timeout-ms", "3000")
    assert seen["first"]["status"] == "waiting"
    assert seen["first"]["output"] == "begun"
    (pending,) = seen["first"]["pendingToolCalls"]
    assert (pending["toolId"], pending["state"]) == ("openclaw:core:parked", "running")
    assert seen["release"]["status"] == "completed"
    assert (seen["last"]["status"], seen["last"]["value"]) == ("completed", "parked no more")
    assert seen["unasked"]["status"] == "failed"
    assert "this client cannot ask a person" in seen["unasked"]["error"]


async def test_a_person_is_asked_through_the_client(drive: Drive) -> None:
    seen = await drive("asked")
    assert seen["result"]["value"] == ["wrote good", "not_approved"]
    good, bad = seen["questions"]
    assert 'openclaw:core:write with {"text": "good"}' in good
    assert 'openclaw:core:write with {"text": "bad"}' in bad


async def test_a_cancelled_call_ends_its_program_and_nothing_else(drive: Drive) -> None:
    seen = await drive("cancelled")
    assert "unwanted" in seen["call"]["error"]
    assert seen["next"]["value"] == "it was cancelled"
