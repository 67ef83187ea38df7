"""A server made with the SDK, of today's protocol: `python sdk_server.py stdio|http|sse [PORT]`.

With `later` as the last argument, it listens when it reads a line.
"""

import sys
from typing import Annotated, Any

import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.resolve import Elicit, Resolve
from mcp_types import TextContent
from pydantic import BaseModel

server = MCPServer("sdk", instructions="Add with care.")
cancelled: list[str] = []


class Name(BaseModel):
    name: str


@server.tool()
def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def fail() -> str:
    raise ValueError("out of cheese")


@server.tool()
async def count(context: Context[Any, Any], steps: int = 3) -> str:
    for step in range(1, steps + 1):
        await context.report_progress(step, steps, f"step {step}")
        await anyio.sleep(0.1)
    return "counted"


@server.tool()
async def never(context: Context[Any, Any]) -> str:
    await context.report_progress(0, 1, "begun")
    try:
        await anyio.sleep_forever()
    finally:
        cancelled.append("never")
    return ""


@server.tool()
def what_was_cancelled() -> list[str]:
    return cancelled


@server.tool()
def big(size: int) -> list[TextContent]:
    return [TextContent(type="text", text="x" * size)]


@server.tool()
async def change(context: Context[Any, Any], name: str) -> str:
    server.add_tool(fail, name=name)
    await context.notify_tools_changed()
    return "changed"


async def _ask() -> Elicit[Name]:
    return Elicit("Your name?", Name)


@server.tool()
async def greet(person: Annotated[Name, Resolve(_ask)]) -> str:
    return f"hello {person.name}"


@server.resource("memo://one")
def memo() -> str:
    return "first"


@server.resource("memo://{number}/of/{total}")
def numbered(number: str, total: str) -> str:
    return f"{number} of {total}"


@server.prompt()
def brief(topic: str) -> str:
    return f"Write about {topic}."


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if arguments[-1] == "later":
        arguments.pop()
        if not sys.stdin.readline():  # the test has ended
            sys.exit()
    match arguments:
        case ["stdio"]:
            server.run("stdio")
        case ["http", port]:
            server.run("streamable-http", port=int(port))
        case ["json", port]:
            server.run("streamable-http", port=int(port), json_response=True)
        case ["sse", port]:
            server.run("sse", port=int(port))
