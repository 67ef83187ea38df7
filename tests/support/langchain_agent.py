"""An agent of LangChain with a scripted model; as a program, for a test that kills it.

`python -m tests.support.langchain_agent FOLDER DECISION` starts the agent in a process that is
killed when the agent asks, answers the question with a decision in a second process, and prints
what each has seen as a line of JSON, and their exit codes.
"""

import asyncio
import json
import operator
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, NotRequired

from langchain.agents import AgentState, create_agent
from langchain.agents.middleware import AgentMiddleware, HumanInTheLoopMiddleware
from langchain.tools import InjectedToolCallId, tool
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolCall, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.types import Command
from pydantic import Field

from clawmode import SqliteStore
from clawmode.integrations.langchain import ClawMode

PROGRAM = """
const seen = await Promise.all([...Array(10).keys()].map(n => tools.look({n})))
await tools.note({text: 'before'})
const sent = await tools.send({to: 'Ann'})
await tools.note({text: 'after'})
return [seen.length, sent]
"""


class Scripted(BaseChatModel):
    """A model that plays turns: a text, or the calls of `exec` and `wait`, or of other tools."""

    turns: list[Any]
    offered: list[list[Any]] = Field(default_factory=list[list[Any]])

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        self.offered.append(list(tools))
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        turn = self.turns[sum(isinstance(each, AIMessage) for each in messages)]
        if callable(turn):
            turn = turn(messages)
        made = AIMessage(turn) if isinstance(turn, str) else AIMessage("", tool_calls=turn)
        return ChatResult(generations=[ChatGeneration(message=made)])


def calls(*sources: str) -> list[ToolCall]:
    """A turn of the model that runs programs."""
    return [
        ToolCall(name="exec", args={"code": each}, id=f"call-{number}", type="tool_call")
        for number, each in enumerate(sources)
    ]


class Notes(AgentState[Any]):
    notes: NotRequired[Annotated[list[str], operator.add]]
    last: NotRequired[str]


class NotesMiddleware(AgentMiddleware[Notes, Any, Any]):
    """Adds the state that `note` updates."""

    state_schema = Notes


@tool
def note(text: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
    """Note a text in the state."""
    message = ToolMessage(f"noted {text}", tool_call_id=tool_call_id)
    return Command(update={"notes": [text], "last": text, "messages": [message]})


async def main(folder: Path, decision: str | None) -> None:
    def log(text: str) -> None:
        with (folder / "log").open("a") as file:
            file.write(text + "\n")

    @tool
    def look(n: int) -> int:
        """Look at a number."""
        log(f"look {n}")
        return n

    @tool
    async def send(to: str) -> str:
        """Send a mail."""
        log(f"send {to}")
        return "ok"

    async with AsyncSqliteSaver.from_conn_string(str(folder / "checkpoints")) as checkpointer:
        agent = create_agent(
            Scripted(turns=[calls(PROGRAM), "done"]),
            [look, send, note],
            middleware=[
                ClawMode(store=SqliteStore(folder / "state")),
                NotesMiddleware(),
                HumanInTheLoopMiddleware(interrupt_on={"send": True}),
            ],
            checkpointer=checkpointer,
        )
        given: Any = {"messages": [{"role": "user", "content": "Write to Ann"}]}
        if decision is not None:
            given = Command(resume={"decisions": [json.loads(decision)]})
        made = await agent.ainvoke(given, {"configurable": {"thread_id": "t"}})
        asked = [each.value for each in made.get("__interrupt__", [])]
        last = [str(each.content) for each in made["messages"][-2:]]
        print(json.dumps({"asked": asked, "last": last, "notes": made.get("notes")}), flush=True)
        if asked:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    for given in (None, sys.argv[2]):
        # Forked, because the imports take most of the time; nothing has run before.
        if not (child := os.fork()):
            asyncio.run(main(Path(sys.argv[1]), given))
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
