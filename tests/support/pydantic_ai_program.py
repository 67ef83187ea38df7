"""An agent of pydantic-ai in a process of its own, which asks, is killed, and is answered.

Usage: python pydantic_ai_program.py <folder> ask|answer
"""

import sys
from pathlib import Path

import anyio
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

from clawmode import SqliteStore
from clawmode.integrations.pydantic_ai import ClawMode

FOLDER = Path(sys.argv[1])
HISTORY = FOLDER / "history.json"
CODE = """
await tools.log({line: "before"});
const sent = await tools.send({to: "Ann"});
await tools.log({line: "after"});
return sent;
"""


def play(history: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    last = history[-1].parts[-1]
    if isinstance(last, ToolReturnPart):
        return ModelResponse([TextPart(str(last.content))])
    return ModelResponse([ToolCallPart("exec", {"code": CODE}, "call-1")])


clawmode = ClawMode(store=SqliteStore(FOLDER / "state"))
agent = Agent(FunctionModel(play), output_type=[str, DeferredToolRequests], capabilities=[clawmode])


@agent.tool_plain
def log(line: str) -> None:
    """Write a line that outlives the process."""
    with (FOLDER / "effects").open("a") as file:
        file.write(line + "\n")


@agent.tool_plain(requires_approval=True)
def send(to: str) -> str:
    """Send a mail."""
    log(f"sent to {to}")
    return f"sent to {to}"


async def main() -> None:
    if sys.argv[2] == "ask":
        run = await agent.run("Write to Ann.")
        assert isinstance(run.output, DeferredToolRequests)
        HISTORY.write_bytes(run.all_messages_json())
        print(run.output.metadata["call-1"]["questions"][0]["input"], flush=True)
        await anyio.sleep_forever()
    history = ModelMessagesTypeAdapter.validate_json(HISTORY.read_bytes())
    answers = DeferredToolResults(approvals={"call-1": True})
    run = await agent.run(message_history=history, deferred_tool_results=answers)
    print(run.output, flush=True)
    await clawmode.aclose()


anyio.run(main)
