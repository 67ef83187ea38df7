"""An agent of Google ADK in a process of its own, which asks, is killed, and is answered.

Usage: python google_adk_program.py <folder> ask|answer
"""

import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import anyio
from google.adk.agents.llm_agent import Agent
from google.adk.apps.app import App, ResumabilityConfig
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.adk.tools.function_tool import FunctionTool
from google.genai import types

from clawmode import SqliteStore
from clawmode.integrations.google_adk import ClawMode

FOLDER = Path(sys.argv[1])
CODE = """
await tools.log({line: "before"});
const sent = await tools.send({to: "Ann"});
await tools.log({line: "after"});
return sent;
"""


class Script(BaseLlm):
    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        last = (llm_request.contents[-1].parts or [types.Part()])[-1]
        part = types.Part(function_call=types.FunctionCall(name="exec", args={"code": CODE}))
        if last.function_response is not None:
            part = types.Part(text=str((last.function_response.response or {})["result"]))
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


def log(line: str) -> None:
    """Write a line that outlives the process."""
    with (FOLDER / "effects").open("a") as file:
        file.write(line + "\n")


def send(to: str) -> str:
    """Send a mail."""
    log(f"sent to {to}")
    return f"sent to {to}"


async def main() -> None:
    tools = ClawMode(
        [log, FunctionTool(send, require_confirmation=True)], store=SqliteStore(FOLDER / "state")
    )
    app = App(
        name="mail",
        root_agent=Agent(name="writer", model=Script(model="script"), tools=[tools]),
        resumability_config=ResumabilityConfig(is_resumable=True),
    )
    service = SqliteSessionService(str(FOLDER / "sessions.db"))
    runner = Runner(app=app, session_service=service, auto_create_session=True)
    message, invocation = types.UserContent("Write to Ann."), None
    if sys.argv[2] == "answer":
        call_id, invocation = (FOLDER / "asked").read_text().split()
        answer = types.FunctionResponse(
            id=call_id, name="adk_request_confirmation", response={"confirmed": True}
        )
        message = types.Content(role="user", parts=[types.Part(function_response=answer)])
    said = ""
    async for event in runner.run_async(
        user_id="ann", session_id="s", new_message=message, invocation_id=invocation
    ):
        for call in event.get_function_calls():
            if call.name == "adk_request_confirmation":
                (FOLDER / "asked").write_text(f"{call.id} {event.invocation_id}")
                said = str((call.args or {})["toolConfirmation"]["payload"]["questions"][0])
        parts = event.content.parts if event.content else None
        said = next((part.text for part in parts or [] if part.text), said)
    print(said, flush=True)
    if sys.argv[2] == "ask":
        await anyio.sleep_forever()
    await runner.close()


anyio.run(main)
