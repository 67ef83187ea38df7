"""MCP clients of other people, each in an environment of its own: list, call, and wait.

Runs in the environment of a client, without clawmode: `foreign_clients.py KIND JSON`. The JSON has
`command` and `environment`, or `url` and `token`. The output is JSON: the names of the tools, and
the texts of the results of `exec` and `wait`.
"""

import asyncio
import json
import re
import sys
from typing import Any

PROGRAM = """
const stock = await MCP.warehouse.stock({product: "tea"});
await yield_control();
return stock.structuredContent;
"""


def run_id(text: str) -> str:
    """The id in a result that waits."""
    found = re.search(r'"runId": ?"([^"]+)"', text)
    assert found, text
    return found[1]


def text_of(result: Any) -> str:
    return "\n".join(block.text for block in result.content if block.type == "text")


async def sdk(given: dict[str, Any]) -> dict[str, Any]:
    """The official SDK, from 1.9 on: one session."""
    from mcp import ClientSession, StdioServerParameters
    from mcp.client import streamable_http
    from mcp.client.stdio import stdio_client

    if "url" in given:
        headers = {"Authorization": f"Bearer {given['token']}"}
        if hasattr(streamable_http, "streamablehttp_client"):  # until 1.x
            transport = streamable_http.streamablehttp_client(given["url"], headers=headers)
        else:
            import httpx2

            client = httpx2.AsyncClient(headers=headers, timeout=60)
            transport = streamable_http.streamable_http_client(given["url"], http_client=client)
    else:
        command, *args = given["command"]
        transport = stdio_client(
            StdioServerParameters(command=command, args=args, env=given["environment"])
        )
    async with transport as (read, write, *_), ClientSession(read, write) as session:
        await session.initialize()
        tools = await session.list_tools()
        first = text_of(await session.call_tool("exec", {"code": PROGRAM}))
        second = text_of(await session.call_tool("wait", {"runId": run_id(first)}))
    return {"tools": [tool.name for tool in tools.tools], "exec": first, "wait": second}


async def fastmcp(given: dict[str, Any]) -> dict[str, Any]:
    """FastMCP's client: one session, structured results."""
    from fastmcp import Client
    from fastmcp.client.transports import StdioTransport, StreamableHttpTransport

    if "url" in given:
        headers = {"Authorization": f"Bearer {given['token']}"}
        transport: Any = StreamableHttpTransport(given["url"], headers=headers)
    else:
        command, *args = given["command"]
        transport = StdioTransport(command, args, env=given["environment"])
    async with Client(transport) as client:
        tools = await client.list_tools()
        first = text_of(await client.call_tool("exec", {"code": PROGRAM}))
        second = text_of(await client.call_tool("wait", {"runId": run_id(first)}))
    return {"tools": [tool.name for tool in tools], "exec": first, "wait": second}


async def langchain(given: dict[str, Any]) -> dict[str, Any]:
    """LangChain's adapter as its documentation uses it: a new session for every call."""
    from langchain_mcp_adapters.client import MultiServerMCPClient

    if "url" in given:
        entry = {
            "transport": "streamable_http",
            "url": given["url"],
            "headers": {"Authorization": f"Bearer {given['token']}"},
        }
    else:
        command, *args = given["command"]
        entry = {
            "transport": "stdio",
            "command": command,
            "args": args,
            "env": given["environment"],
        }
    tools = {tool.name: tool for tool in await MultiServerMCPClient({"it": entry}).get_tools()}

    async def call(name: str, arguments: dict[str, Any]) -> str:
        result = await tools[name].ainvoke(arguments)
        return result if isinstance(result, str) else json.dumps(result).replace('\\"', '"')

    first = await call("exec", {"code": PROGRAM})
    second = await call("wait", {"runId": run_id(first)})
    return {"tools": [*tools], "exec": first, "wait": second}


async def openai_agents(given: dict[str, Any]) -> dict[str, Any]:
    """The MCP servers of the OpenAI Agents SDK."""
    from agents.mcp import MCPServerStdio, MCPServerStreamableHttp

    if "url" in given:
        headers = {"Authorization": f"Bearer {given['token']}"}
        params: Any = {"url": given["url"], "headers": headers}
        server: Any = MCPServerStreamableHttp(params=params, client_session_timeout_seconds=60)
    else:
        command, *args = given["command"]
        params = {"command": command, "args": args, "env": given["environment"]}
        server = MCPServerStdio(params=params, client_session_timeout_seconds=60)
    async with server:
        tools = await server.list_tools()
        first = text_of(await server.call_tool("exec", {"code": PROGRAM}))
        second = text_of(await server.call_tool("wait", {"runId": run_id(first)}))
    return {"tools": [tool.name for tool in tools], "exec": first, "wait": second}


async def litellm(given: dict[str, Any]) -> dict[str, Any]:
    """The client of LiteLLM's proxy: a new session for every call."""
    from litellm.experimental_mcp_client.client import MCPClient
    from mcp.types import CallToolRequestParams

    if "url" in given:
        client = MCPClient(
            server_url=given["url"],
            transport_type="http",
            auth_type="bearer_token",
            auth_value=given["token"],
        )
    else:
        command, *args = given["command"]
        stdio: Any = {"command": command, "args": args, "env": given["environment"]}
        client = MCPClient(transport_type="stdio", stdio_config=stdio)

    async def call(name: str, arguments: dict[str, Any]) -> str:
        return text_of(
            await client.call_tool(CallToolRequestParams(name=name, arguments=arguments))
        )

    tools = await client.list_tools()
    first = await call("exec", {"code": PROGRAM})
    second = await call("wait", {"runId": run_id(first)})
    return {"tools": [tool.name for tool in tools], "exec": first, "wait": second}


CLIENTS = {client.__name__: client for client in (sdk, fastmcp, langchain, openai_agents, litellm)}

if __name__ == "__main__":
    json.dump(asyncio.run(CLIENTS[sys.argv[1]](json.loads(sys.argv[2]))), sys.stdout)
