"""Tools of the Claude Agent SDK in their own process, which asks, is killed, and is answered.

Usage: python claude_agent_program.py <folder> ask|answer
"""

import json
import sys
from pathlib import Path
from typing import Any

import anyio
from claude_agent_sdk import ClaudeAgentOptions, create_sdk_mcp_server, tool
from tests.support.claude_driver import Claude, ending, results

from clawmode import SqliteStore
from clawmode.integrations.claude_agent import ClawMode
from clawmode.integrations.records import Answer

FOLDER = Path(sys.argv[1])
STATE = FOLDER / "asked.json"
CODE = """
await tools.log({line: "before"});
const sent = await tools.send({to: "Ann"});
await tools.log({line: "after"});
return sent;
"""


def note(line: str) -> dict[str, Any]:
    with (FOLDER / "effects").open("a") as file:
        file.write(line + "\n")
    return {"content": [{"type": "text", "text": line}]}


@tool("log", "Write a line that outlives the process.", {"line": str})
async def log(args: dict[str, Any]) -> dict[str, Any]:
    return note(args["line"])


@tool("send", "Send a mail.", {"to": str})
async def send(args: dict[str, Any]) -> dict[str, Any]:
    return note(f"sent to {args['to']}")


async def main() -> None:
    claude = Claude(FOLDER)
    servers: dict[str, Any] = {"desk": create_sdk_mcp_server("desk", tools=[log, send])}
    given = ClaudeAgentOptions(mcp_servers=servers, allowed_tools=["mcp__desk__log"])
    clawmode = ClawMode(given, store=SqliteStore(FOLDER / "state"))
    if sys.argv[2] == "ask":
        first = [("mcp__clawmode__exec", {"code": CODE})]

        def wait(last: str) -> Any:
            return [("mcp__clawmode__wait", {"runId": json.loads(last)["runId"]})]

        end = ending(await claude.run(clawmode.options(), first, wait))
        assert end.deferred_tool_use is not None
        [asked] = await clawmode.asked(end.deferred_tool_use)
        STATE.write_text(json.dumps([end.session_id, asked.id]))
        print(asked.tool, asked.input, flush=True)
        await anyio.sleep_forever()
    session, asked_id = json.loads(STATE.read_text())
    options = clawmode.options(resume=session, answers={asked_id: Answer(True)})
    print(results(await claude.run(options, "done", prompt="Go on."))[0][0], flush=True)
    await clawmode.aclose()


anyio.run(main)
