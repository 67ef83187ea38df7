"""FastMCP: `ClawMode`, a transform of a server, and `ClawModeSandbox`, the sandbox behind it.

FastMCP's own code mode finds the tools, calls them and counts the calls; its programs run here, in
JavaScript or TypeScript.
"""

from clawmode.integrations import require

require("fastmcp", "fastmcp", "4.1", "5")

import base64
import functools
import inspect
import itertools
import json
import re
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Unpack

import anyio
from fastmcp.exceptions import FastMCPError, ToolError
from fastmcp.experimental.transforms.code_mode import CodeMode, DiscoveryToolFactory
from fastmcp.tools.base import Tool
from fastmcp.utilities.types import Image

from clawmode.code_mode.results import join
from clawmode.exceptions import ClawmodeError
from clawmode.integrations.records import Outcome
from clawmode.integrations.session import Session
from clawmode.integrations.sessions import Sessions, SessionSettings
from clawmode.tools.tool import ToolContext
from clawmode.types import JsonObject, JsonValue

DESCRIPTION = (
    "Run a JavaScript or TypeScript program: the body of an async function, without files, network "
    "and modules.\n"
    "- `await call_tool(name, params)` calls a tool of this server with one object of parameters, "
    "and returns its result: an object, or a text. Find the tools, and the parameters of each, "
    "first. No other functions call tools.\n"
    "- Start independent calls together: `await Promise.all([...])`.\n"
    "- `return` the final value; a trailing expression is not returned. You see only this value "
    "and what `console.log` writes: filter and sum up in the program.\n"
    "- A failed call throws an Error. Catch it if the program can go on."
)
CODE = "JavaScript or TypeScript: the body of an async function that calls `call_tool`."
ARGUMENTS: JsonObject = {"type": "object", "properties": {"args": {"type": "array"}}}
OUR_FRAME = re.compile(
    r" \(tool openclaw:core:\w+\) \(line \d+, column \d+\)\n\s+;function .*\n\s+\^"
    r"\n\s+at \w+ \(.*\)"
)
"""The place of our function in an error. The place of its call in the program follows."""

Functions = Mapping[str, Callable[..., Any]]


class ClawModeSandbox:
    """A `SandboxProvider` for FastMCP's `CodeMode` whose programs are JavaScript or TypeScript.

    `ClawMode` is `CodeMode` with this sandbox and the descriptions that fit. Each program has its
    own session, so that nothing is left for the next one.

    Args:
        max_seconds: How long a program may take in total, its tool calls included. The time that
            it may compute is limited by `config` (`timeoutMs`, 10 seconds).
        settings: See `SessionSettings`, such as `config={"memoryLimitBytes": …}`.
    """

    def __init__(self, *, max_seconds: float = 120, **settings: Unpack[SessionSettings]) -> None:
        self._max_seconds = max_seconds
        self._sessions = Sessions[Functions](**settings)

    async def run(
        self,
        code: str,
        *,
        inputs: dict[str, Any] | None = None,
        external_functions: dict[str, Callable[..., Any]] | None = None,
    ) -> Any:
        """Runs a program. Returns its value, with its output if there is any.

        Args:
            code: The program.
            inputs: JSON values that the program sees as constants.
            external_functions: Functions that the program can call, and await.

        Raises:
            ToolError: The program has failed, or has taken too long.
        """
        functions, given, name = external_functions or {}, inputs or {}, uuid.uuid4().hex
        if wrong := [each for each in (*functions, *given) if not each.isidentifier()]:
            raise ValueError(f"{wrong[0]!r} cannot be a name in a program: use letters and digits.")
        constants = "".join(f"const {key} = {json.dumps(each)}; " for key, each in given.items())
        # Functions are hoisted: at the end, they do not move the lines of the program.
        source = f"{constants}{code}\n;" + "".join(
            f"function {each}(...args) {{ return tools.call('openclaw:core:{each}', {{args}}) }}"
            for each in functions
        )
        session = await self._sessions.open(name)
        try:
            made = [
                session.tool(
                    each, f"The function {each}.", ARGUMENTS, functools.partial(_run, each)
                )
                for each in functions
            ]
            session.code_mode.offer([*made, *self._sessions.tools])
            with anyio.fail_after(self._max_seconds):
                outcome = await _finished(session, source, functions)
        except TimeoutError:
            raise ToolError(
                f"The program took longer than {self._max_seconds:g} seconds."
            ) from None
        finally:
            await self._sessions.end(name)
        return _value(outcome)

    async def aclose(self) -> None:
        """Ends the workers, which otherwise end with the event loop."""
        await self._sessions.aclose()


class ClawMode(CodeMode):
    """FastMCP's code mode with programs in JavaScript: `FastMCP("…", transforms=[ClawMode()])`.

    Args:
        sandbox: Runs the programs.
        discovery_tools: As for `CodeMode`: the tools by which a model finds those of the server.
        execute_tool_name: The name of the tool that runs programs.
        execute_description: Its description; by default one for JavaScript.
        max_tool_calls: How many tools a program may call; None for no limit.
    """

    def __init__(
        self,
        *,
        sandbox: ClawModeSandbox | None = None,
        discovery_tools: list[DiscoveryToolFactory] | None = None,
        execute_tool_name: str = "execute",
        execute_description: str = DESCRIPTION,
        max_tool_calls: int | None = 50,
    ) -> None:
        super().__init__(
            sandbox_provider=sandbox or ClawModeSandbox(),
            discovery_tools=discovery_tools,
            execute_tool_name=execute_tool_name,
            execute_description=execute_description,
            max_tool_calls=max_tool_calls,
        )

    def _make_execute_tool(self) -> Tool:
        made = super()._make_execute_tool()
        properties = made.parameters["properties"]
        code = {**properties["code"], "description": CODE}
        parameters = {**made.parameters, "properties": {**properties, "code": code}}
        return made.model_copy(update={"parameters": parameters})


async def _run(name: str, functions: Functions, params: JsonObject, _: ToolContext) -> object:
    given = params.get("args")
    arguments: list[Any] = [*given] if isinstance(given, list) else []
    if name == "call_tool" and len(arguments) == 1:  # a tool without parameters
        arguments.append({})
    try:
        answer = functions[name](*arguments)
        return await answer if inspect.isawaitable(answer) else answer
    except FastMCPError as error:  # an answer for the caller, and none for the log
        raise ClawmodeError(str(error)) from None


async def _finished(session: Session[Functions], source: str, functions: Functions) -> Outcome:
    """Runs a program to its end: the call of an MCP client cannot be continued later."""
    name, given = "exec", {"code": source}
    made: dict[str, JsonValue] = {}
    for number in itertools.count():
        outcome = await session.call(name, given, f"{name}-{number}", functions)
        made = join(made, outcome.result)
        if outcome.asked or not outcome.run_id:
            break
        name, given = "wait", {"runId": outcome.run_id}
    return Outcome(made, outcome.asked)


def _value(outcome: Outcome) -> Any:
    """Returns the value and the output of a program as FastMCP's tools return theirs."""
    result = outcome.result
    if outcome.asked:
        raise ToolError(f"{outcome.asked[0].tool} needs an approval, and nobody can be asked.")
    if result["status"] == "failed":
        raise ToolError(OUR_FRAME.sub("", str(result["error"])))
    value, output = result.get("value"), result.get("output")
    told = {"output": output, "value": value} if output else value
    images = [
        Image(data=base64.b64decode(data), format=kind.partition("/")[2])
        for data, kind in outcome.images
    ]
    return [told, *images] if images else told
