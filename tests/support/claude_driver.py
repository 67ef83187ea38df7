"""Claude Code for tests: one that plays turns in this process, and the real one with a local model.

Both speak the SDK's protocol: they list and call its MCP servers, and ask its hooks and callbacks.
"""

import asyncio
import json
import re
import sys
import zipfile
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import claude_agent_sdk
from claude_agent_sdk import (
    ClaudeAgentOptions,
    Message,
    ResultMessage,
    Transport,
    UserMessage,
    query,
)
from claude_agent_sdk.types import ToolResultBlock
from tests.support.packages import fetched, run

from clawmode.testing import ScriptRequest, ScriptServer, Turn, call

Turns = list[Any]
"""What the model says: a text, or the calls of a turn as (name, input), or a function that returns
them for the last result."""


class ScriptedCli(Transport):
    """Plays turns as Claude Code does.

    Attributes:
        listed: The tools of all servers, by the names that the model would use.
        home: Where a call that a hook has deferred is kept.
    """

    def __init__(self, turns: Turns, options: ClaudeAgentOptions, home: Path) -> None:
        self.listed: dict[str, Any] = {}
        self._turns, self._options = list(turns), options
        self._out: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._answers: dict[str, asyncio.Future[Any]] = {}
        self._hooks: dict[str, Any] = {}
        self._requests = 0
        self._file = home / "deferred.json"
        self._session = options.resume or f"session-{id(self)}"
        self._playing: asyncio.Task[None] | None = None

    async def connect(self) -> None: ...

    def is_ready(self) -> bool:
        return True

    async def end_input(self) -> None:
        self._out.put_nowait(None)

    async def close(self) -> None:
        self._out.put_nowait(None)
        if self._playing is not None:
            self._playing.cancel()
            await asyncio.wait([self._playing])

    async def read_messages(self) -> AsyncIterator[dict[str, Any]]:
        while (message := await self._out.get()) is not None:
            yield message
        if self._playing is not None and self._playing.done():
            self._playing.result()  # raises what was wrong

    async def write(self, data: str) -> None:
        given = json.loads(data)
        if given["type"] == "control_request":
            self._hooks = given["request"].get("hooks") or {}
            response: Any = {
                "subtype": "success",
                "request_id": given["request_id"],
                "response": {},
            }
            self._out.put_nowait({"type": "control_response", "response": response})
        elif given["type"] == "control_response":
            answered = given["response"]
            self._answers.pop(answered["request_id"]).set_result(answered)
        elif given["type"] == "user":
            self._playing = asyncio.create_task(self._play())
            self._playing.add_done_callback(lambda task: self._out.put_nowait(None))

    async def _ask(self, subtype: str, **given: Any) -> Any:
        key = f"r{len(self._answers)}-{id(given)}"
        answer = self._answers[key] = asyncio.get_running_loop().create_future()
        request = {"subtype": subtype, **given}
        self._out.put_nowait({"type": "control_request", "request_id": key, "request": request})
        try:
            answered = await answer
        except asyncio.CancelledError:
            self._out.put_nowait({"type": "control_cancel_request", "request_id": key})
            raise
        assert answered["subtype"] == "success", answered
        return answered["response"]

    async def _rpc(self, server: str, method: str, params: Any) -> Any:
        self._requests += 1
        message = {"jsonrpc": "2.0", "id": self._requests, "method": method, "params": params}
        made = (await self._ask("mcp_message", server_name=server, message=message))["mcp_response"]
        assert "result" in made, made
        return made["result"]

    async def _play(self) -> None:
        assert isinstance(self._options.mcp_servers, dict)
        info: dict[str, Any] = {"protocolVersion": "2025-06-18", "capabilities": {}}
        for server in self._options.mcp_servers:
            client = {"clientInfo": {"name": "scripted", "version": "1"}}
            await self._rpc(server, "initialize", {**info, **client})
            for tool in (await self._rpc(server, "tools/list", {}))["tools"]:
                self.listed[f"mcp__{server}__{tool['name']}"] = tool
        if self._options.resume is not None and self._file.exists():
            self._turns.insert(0, [json.loads(self._file.read_text())])
            self._file.unlink()
        last = ""
        for number, made_or_text in enumerate(self._turns):
            turn = made_or_text(last) if callable(made_or_text) else made_or_text
            if isinstance(turn, str):
                return self._end(turn, None)
            calls = [(*each, f"{self._session}-{number}-{i}")[:3] for i, each in enumerate(turn)]
            results = await asyncio.gather(*(self._call(*each) for each in calls))
            for made, each in zip(results, calls, strict=True):
                if made is None:
                    self._file.write_text(json.dumps(each))
                    return self._end("", each)
            content = [
                {"type": "tool_result", "tool_use_id": each["id"], **each} for each in results
            ]
            self._out.put_nowait({"type": "user", "message": {"role": "user", "content": content}})
            last = _text_of(results[-1]["content"])
        return None

    async def _call(self, name: str, given: Any, call_id: str) -> Any:
        event = {"hook_event_name": "PreToolUse", "tool_name": name, "tool_input": given}
        for matcher in self._hooks.get("PreToolUse", []):
            if matcher["matcher"] is None or re.fullmatch(matcher["matcher"], name):
                for callback in matcher["hookCallbackIds"]:
                    asked = {"callback_id": callback, "input": event, "tool_use_id": call_id}
                    told = (await self._ask("hook_callback", **asked)).get("hookSpecificOutput", {})
                    if told.get("permissionDecision") == "defer":
                        return None
        if name not in self._options.allowed_tools:
            asked = {"tool_name": name, "input": given, "tool_use_id": call_id}
            assert (await self._ask("can_use_tool", **asked))["behavior"] == "allow"
        _, server, tool = name.split("__")
        params = {"name": tool, "arguments": given, "_meta": {"claudecode/toolUseId": call_id}}
        made = await self._rpc(server, "tools/call", params)
        return {"id": call_id, "content": made["content"], "is_error": made.get("isError", False)}

    def _end(self, text: str, deferred: Any) -> None:
        end: dict[str, Any] = {"type": "result", "subtype": "success", "session_id": self._session}
        end |= {"duration_ms": 1, "duration_api_ms": 1, "is_error": False, "num_turns": 1}
        end |= {"result": text, "stop_reason": "tool_deferred" if deferred else "end_turn"}
        if deferred:
            name, given, call_id = deferred
            end["deferred_tool_use"] = {"id": call_id, "name": name, "input": given}
        self._out.put_nowait(end)


class Claude:
    """Runs the turns of a model in Claude Code.

    Args:
        real: The command of the real Claude Code; without it, `ScriptedCli` takes its place.
        home: Its home folder.
    """

    def __init__(self, home: Path, real: str | None = None) -> None:
        self._home, self._real = home, real
        self.listed: dict[str, Any] = {}

    async def run(
        self, options: ClaudeAgentOptions, *turns: Any, prompt: str = "Do it."
    ) -> list[Message]:
        if self._real is None:
            cli = ScriptedCli(list(turns), options, self._home)
            found = [each async for each in query(prompt=prompt, options=options, transport=cli)]
            self.listed = cli.listed
            return found
        left = list(turns)

        def play(request: ScriptRequest) -> Turn:
            turn = left.pop(0) if left else "done"
            turn = turn(json.dumps(request.last_result())) if callable(turn) else turn
            return Turn(*([turn] if isinstance(turn, str) else [call(*each) for each in turn]))

        async with ScriptServer(play) as server:
            environment = {"ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_API_KEY": "none"}
            environment |= {
                "HOME": str(self._home),
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            }
            options = replace(
                options,
                cli_path=self._real,
                env=environment,
                cwd=self._home,
                tools=[],
                setting_sources=[],
                model="claude-sonnet-5",
            )
            found = [each async for each in query(prompt=prompt, options=options)]
            self.listed = {each["name"]: each for each in server.requests[0].body["tools"]}
            return found


def real_claude() -> str:
    """Returns the command of the real Claude Code, which the wheel of the SDK contains."""
    inside = "claude_agent_sdk/_bundled/claude"
    bundled = Path(claude_agent_sdk.__file__).parents[1] / inside

    def fetch(folder: Path) -> None:
        wheel = f"claude-agent-sdk=={claude_agent_sdk.__version__}"
        options = ["--quiet", "--no-deps", "--only-binary", ":all:", "--dest", "."]
        run([sys.executable, "-m", "pip", "download", *options, wheel], folder)
        (file,) = folder.glob("*.whl")
        with zipfile.ZipFile(file) as packed:
            packed.extract(inside, folder)
        file.unlink()
        (folder / inside).chmod(0o755)

    if bundled.exists():
        return str(bundled)
    return str(fetched(f"claude {claude_agent_sdk.__version__}".encode(), fetch) / inside)


def results(messages: list[Message]) -> list[tuple[str, bool]]:
    """Returns what the model has read of its calls: the text, and whether the call failed."""
    blocks = [
        block
        for message in messages
        if isinstance(message, UserMessage) and isinstance(message.content, list)
        for block in message.content
        if isinstance(block, ToolResultBlock)
    ]
    return [(_text_of(block.content), bool(block.is_error)) for block in blocks]


def _text_of(content: Any) -> str:
    return (
        content if isinstance(content, str) else "".join(each.get("text", "") for each in content)
    )


def ending(messages: list[Message]) -> ResultMessage:
    last = messages[-1]
    assert isinstance(last, ResultMessage)
    return last
