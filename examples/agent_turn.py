"""`AgentRuntime`, the layer below `Agent`, with a model that plays a script.

A run is accepted at once and executes in the background; events report what happens. A second
message in the same session continues the conversation, and the transcript keeps everything that
was said. `clawmode agent` does the same at a terminal.

For a real model, leave out `given`: `agents.defaults.model` then names the model, such as
`anthropic/claude-sonnet-5`, and the key comes from the environment.
"""

import tempfile
from pathlib import Path

import anyio

from clawmode import (
    AgentEvent,
    AgentRequest,
    AgentRuntime,
    ConfigResolver,
    ModelPool,
    RunResult,
    SessionStore,
    read_configuration,
    read_transcript,
    render_transcript,
    tool,
)
from clawmode.testing import ScriptedModel, Turn, call

STOCK = {"tea": 12, "coffee": 3, "cake": 0}


@tool(effect="read")
async def in_stock(product: str) -> int:
    """How many of a product there are."""
    await anyio.sleep(0.05)
    return STOCK[product]


# ---- The model: what it writes ----

LOOK = """\
const products = ["tea", "coffee", "cake"];
const counts = await Promise.all(products.map((product) => tools.in_stock({ product })));
return products.filter((product, at) => counts[at] < 5);
"""

SCRIPT = [
    Turn("Let me look.", call("exec", {"code": LOOK})),
    lambda request: Turn(f"Short of {' and '.join(request.last_result()['value'])}."),
    Turn("Then I would order coffee first."),
]


# ---- The agent ----


def show(event: AgentEvent) -> None:
    data = event.data
    if event.stream == "assistant" and "text" in data:
        print(f"model  {data['text']}")
    elif event.stream == "tool" and data["phase"] == "end":
        nested = "  " if "parentId" in data else ""
        print(f"call   {nested}{data['name']}, {data['ms']} ms")


async def ask(runtime: AgentRuntime, message: str) -> RunResult:
    print(f"user   {message}")
    run = await runtime.start(AgentRequest(message=message, session_key="stock"))
    return await runtime.result(run.id)


async def main(state: Path) -> None:
    configuration = read_configuration(
        {"agents": {"defaults": {"model": "scripted/demo"}}, "tools": {"codeMode": True}}
    ).unwrap()
    model = ScriptedModel(SCRIPT)
    async with (
        ModelPool(configuration, given={"scripted/*": model}) as models,
        AgentRuntime(
            resolver=ConfigResolver(configuration, models, state),
            sessions=SessionStore(state / "sessions"),
            state=state,
            tools=[in_stock],
        ) as runtime,
    ):
        runtime.subscribe(show)
        first = await ask(runtime, "What are we short of?")
        second = await ask(runtime, "And what is urgent?")
        session = await runtime.sessions.resolve("stock")

    assert (first.status, second.status) == ("ok", "ok"), (first, second)
    assert first.payloads[-1] == {"text": "Short of coffee and cake."}, first
    assert first.metadata["codeModeEngaged"] is True
    assert [tool.name for tool in model.requests[0].tools] == ["exec", "wait"]
    assert len(model.requests[2].messages) == 5  # the whole conversation
    print("\nAll of it, as `clawmode sessions show stock` draws it:")
    lines = render_transcript(read_transcript(session.transcript), width=100)
    print("\n".join(lines))
    assert sum("openclaw:core:in_stock" in line for line in lines) == 3, lines


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        anyio.run(main, Path(folder))
