"""A gateway and a client of it: a plugin, core tools, a tool of the client, and an approval.

The gateway runs as a user starts it. A script plays the model, over the real wire of a provider;
the client watches, brings a tool along, and decides about a command. Offline.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import anyio

from clawmode import GatewayClient, tool
from clawmode.testing import ScriptServer, Turn, call

HERE = Path(__file__).parent

PROGRAM = """\
const [note, town] = await Promise.all([Notes.add("Tea for the meeting", "shop"), tools.where()]);
await tools.write({ path: "list.txt", content: note.text });
const counted = await tools.call("openclaw:core:exec", { command: "wc -w < list.txt" });
return { note: note.text, town, words: parseInt(counted.output ?? counted) };
"""


def model(request: Any) -> Turn:
    """Writes the program, waits for it as long as it waits for somebody, and says what it gave."""
    if not request.results:
        return Turn("I write it down.", call("exec", {"code": PROGRAM}))
    found = request.last_result()
    if found["status"] == "waiting":
        return Turn(call("wait", {"runId": found["runId"]}))
    return Turn(f"Done: {json.dumps(found['value'])}")


@tool(effect="read")
def where() -> str:
    """Where whoever asks is."""
    return "Ulm"


def configure(folder: Path, url: str) -> None:
    whole = {
        "agents": {"defaults": {"model": "scripted/demo"}},
        "models": {
            "providers": {
                "scripted": {"baseUrl": url, "api": "anthropic-messages", "apiKey": "of no use"}
            }
        },
        "plugins": {"load": {"paths": [str(HERE / "plugins")]}},
        "tools": {"codeMode": True},
    }
    (folder / "clawmode.json5").write_text(json.dumps(whole, indent=2))


async def decide(client: GatewayClient) -> None:
    """Shows what happens, and says yes to every question: the calls may change something."""
    async for event in client.events():
        about: Any = event.payload
        if event.name.endswith(".approval.requested"):
            print(f"  approval: {about['toolId']} {json.dumps(about['input'])} … yes")
            given = {"id": about["id"], "decision": "allow-once"}
            await client.call("exec.approval.resolve", given)
        elif event.name == "session.tool" and about["phase"] == "end":
            print(f"  {about['name']}: {about.get('state', 'completed')}, {about['ms']} ms")
        elif event.name == "chat" and about["state"] != "delta":
            print(f"  chat {about['state']}: {about['text']}")


async def turn(state: Path) -> str:
    async with GatewayClient.local(state, client_id="example") as client:
        await client.follow("*")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(decide, client)
            result = await client.agent("Note: tea for the meeting.", tools=[where], timeout=60)
            status: Any = await client.call("status")
            tasks.cancel_scope.cancel()
    assert result.status == "ok", result
    print(f"plugins: {', '.join(it['id'] for it in status['plugins'])}; {result.text}")
    return result.text


async def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, state = Path(name), Path(name) / "state"
        async with ScriptServer(model) as server:
            configure(folder, server.url)
            command = [sys.executable, "-m", "clawmode", "gateway", "--port", "0", "--json"]
            process = await anyio.open_process(
                [*command, "--state", str(state), "--config", "clawmode.json5"],
                cwd=folder,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "NO_PROXY": "127.0.0.1"},
            )
            try:
                assert process.stdout is not None
                print(f"$ clawmode gateway\n  {(await process.stdout.receive()).decode().strip()}")
                text = await turn(state)
            finally:
                process.terminate()
                await process.aclose()
    assert '"town": "Ulm"' in text, text
    assert '"words": 4' in text, text
    print(f"the gateway has stopped, with status {process.returncode}")
    assert process.returncode == 0


if __name__ == "__main__":
    anyio.run(main)
