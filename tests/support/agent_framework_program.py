"""An agent of the Microsoft Agent Framework in its own process: asks, is killed, is answered.

Usage: python agent_framework_program.py <folder> ask|answer
"""

import json
import sys
from pathlib import Path
from typing import Any

import anyio
from agent_framework import (
    Agent,
    AgentSession,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionInvocationLayer,
    Message,
    tool,
)

from clawmode import SqliteStore
from clawmode.integrations.agent_framework import ClawMode

CODE = """
await tools.log({line: "before"});
const sent = await tools.send({to: "Ann"});
await tools.log({line: "after"});
return sent;
"""


class Script(FunctionInvocationLayer[Any], ChatMiddlewareLayer[Any], BaseChatClient[Any]):
    """A model that plays turns: contents, or texts. Notes what it was sent."""

    def __init__(self, *turns: Any) -> None:
        super().__init__()
        self.turns = list(turns)
        self.sent: list[tuple[list[Message], Any]] = []

    def _inner_get_response(self, *, messages: Any, stream: bool, options: Any, **_: Any) -> Any:
        self.sent.append((list(messages), options))
        contents = self.turns.pop(0)

        async def whole() -> ChatResponse[Any]:
            return ChatResponse(messages=[Message("assistant", contents)], response_id="r")

        async def parts() -> Any:
            texts = [
                Content.from_text(each) if isinstance(each, str) else each for each in contents
            ]
            yield ChatResponseUpdate(role="assistant", contents=texts)

        return self._build_response_stream(parts()) if stream else whole()

    def results(self) -> list[Any]:
        """Returns the results of the functions of the last request, as the model reads them."""
        contents = [each for message in self.sent[-1][0] for each in message.contents]
        return [each.result for each in contents if each.type == "function_result"]


def execs(*sources: str) -> list[Content]:
    return [
        Content.from_function_call(f"c{number}", "exec", arguments=json.dumps({"code": each}))
        for number, each in enumerate(sources)
    ]


async def main(folder: Path, step: str) -> None:
    def note(line: str) -> str:
        with (folder / "effects").open("a") as file:
            file.write(line + "\n")
        return line

    @tool
    def log(line: str) -> None:
        """Write a line that outlives the process."""
        note(line)

    @tool(approval_mode="always_require")
    def send(to: str) -> str:
        """Send a mail."""
        return note(f"sent to {to}")

    state, client = folder / "session.json", Script(execs(CODE) if step == "ask" else ["done"])
    clawmode = ClawMode([log, send], store=SqliteStore(folder / "state"))
    agent = Agent(client=client, context_providers=[clawmode])
    if step == "ask":
        session = agent.create_session()
        run = await agent.run("Write to Ann.", session=session)
        [request] = run.user_input_requests
        state.write_text(json.dumps([session.to_dict(), request.to_dict()]))
        print(request.additional_properties["questions"][0]["input"], flush=True)
        await anyio.sleep_forever()
    kept, asked = json.loads(state.read_text())
    answer = Content.from_dict(asked).to_function_approval_response(True)
    await agent.run(Message("user", [answer]), session=AgentSession.from_dict(kept))
    print(client.results()[0], flush=True)
    await clawmode.aclose()


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]), sys.argv[2])
