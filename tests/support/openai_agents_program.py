"""An agent of the OpenAI Agents SDK in its own process, which asks, is killed, and is answered.

Usage: python openai_agents_program.py <folder> ask|answer
"""

import sys
from pathlib import Path

import anyio
from agents import Agent, Runner, RunState, function_tool, set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message, function_call

from clawmode import SqliteStore
from clawmode.integrations.openai_agents import ClawMode

FOLDER = Path(sys.argv[1])
STATE = FOLDER / "run.json"
CODE = """
await tools.log({line: "before"});
const sent = await tools.send({to: "Ann"});
await tools.log({line: "after"});
return sent;
"""


@function_tool
def log(line: str) -> None:
    """Write a line that outlives the process."""
    note(line)


@function_tool(needs_approval=True)
def send(to: str) -> str:
    """Send a mail."""
    note(f"sent to {to}")
    return f"sent to {to}"


def note(line: str) -> None:
    with (FOLDER / "effects").open("a") as file:
        file.write(line + "\n")


async def main() -> None:
    set_tracing_disabled(True)
    asks = sys.argv[2] == "ask"
    turn = function_call("exec", {"code": CODE}, call_id="call-1")
    model = ScriptedModel([{"output": [turn if asks else assistant_message("done")]}])
    clawmode = ClawMode(store=SqliteStore(FOLDER / "state"))
    agent = clawmode.wrap(Agent(name="Mail", tools=[log, send], model=model))
    if asks:
        run = await Runner.run(agent, "Write to Ann.")
        STATE.write_text(run.to_state().to_string())
        print(run.interruptions[0].name, run.interruptions[0].arguments, flush=True)
        await anyio.sleep_forever()
    state = await RunState.from_string(agent, STATE.read_text())
    for interruption in state.get_interruptions():
        state.approve(interruption)
    run = await Runner.run(agent, state)
    print(model.calls[-1].input[-1]["output"], flush=True)
    await clawmode.aclose()


anyio.run(main)
