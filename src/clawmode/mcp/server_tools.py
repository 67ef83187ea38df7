"""`ServerTools`: the tools of an MCP server, whose calls become requests to the server."""

import contextlib
import json
import math
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

import mcp_types as types

from clawmode.mcp.listing import (
    MAX_ENTRIES,
    MAX_PAGES,
    Offer,
    Problems,
    fits,
    for_models,
    make_protocol_tools,
    make_tool,
    show,
)
from clawmode.mcp.requests import McpError
from clawmode.mcp.settings import ServerSettings
from clawmode.tools.rate_limits import rate_limit_in
from clawmode.tools.tool import Execute, Tool, ToolContext, ToolResult
from clawmode.tools.validation import measure
from clawmode.types import JsonObject, JsonValue

MAX_JSON_CHARS = 1 << 20
MAX_JSON_DEPTH = 32
"""Of a text that is also read as JSON."""


class Requester(Protocol):
    """Makes requests to a server: a connection, or the supervisor, which reconnects if needed."""

    async def request(
        self, request: types.ClientRequest, context: ToolContext | None = None
    ) -> JsonObject:
        """Makes a request and returns its result.

        Raises:
            McpError: The request has no result.
        """
        ...


class ServerTools:
    """Makes the tools of one server, and executes their calls.

    Args:
        settings: The settings of the server.
        server: Makes the requests, over any connection.
        connect: Returns the current connection, for a list whose pages must come from one
            connection; raises `McpError` if there is none.
    """

    def __init__(
        self,
        settings: ServerSettings,
        server: Requester,
        connect: Callable[[], Awaitable[Requester]],
    ) -> None:
        self._settings = settings
        self._server = server
        self._connect = connect
        self._offers: dict[str, Offer] = {}
        self._tools: dict[str, Tool] = {}
        self._protocol: dict[str, Tool] = {}

    def tools(self, offers: Iterable[Offer], problems: Problems) -> tuple[Tool, ...]:
        """Returns the tools of a new list. A tool that has not changed stays the same object.

        Args:
            offers: The tools that the server lists.
            problems: Receives the names in the settings that match no tool.
        """
        fresh = {offer.name: offer for offer in offers}
        enabled, disabled = self._settings.enabled_tools, self._settings.disabled_tools
        for key, patterns in (("enabledTools", enabled or ()), ("disabledTools", disabled)):
            for pattern in patterns:
                if pattern != "*" and not any(fits(name, [pattern]) for name in fresh):
                    problems.add(f"{key} has {show(pattern)}, and the server has no such tool")
        fresh = {
            name: offer
            for name, offer in fresh.items()
            if (enabled is None or fits(name, enabled)) and not fits(name, disabled)
        }
        self._tools = {
            name: self._tools[name] if self._offers.get(name) == offer else self._tool(offer)
            for name, offer in fresh.items()
        }
        self._offers = fresh
        return tuple(self._tools.values())

    def protocol_tools(self, names: Iterable[str]) -> tuple[Tool, ...]:
        """Returns the tools that list and read resources or prompts."""
        if not self._protocol:
            executes: dict[str, Execute] = {
                "resources/list": self._list_resources,
                "resources/read": self._read_resource,
                "prompts/list": self._list_prompts,
                "prompts/get": self._get_prompt,
            }
            made = make_protocol_tools(executes, server=self._settings.name, execute=executes)
            self._protocol = {tool.name: tool for tool in made}
        return tuple(self._protocol[name] for name in names)

    def _tool(self, offer: Offer) -> Tool:
        async def execute(given: JsonObject, context: ToolContext) -> ToolResult:
            if offer.name not in self._offers:
                text = f"does not offer the tool {offer.name!r} any more"
                raise McpError(self._settings.name, "gone", text)
            task = types.TaskMetadata() if offer.needs_task else None
            params = types.CallToolRequestParams(name=offer.name, arguments=given, task=task)
            result = await self._server.request(types.CallToolRequest(params=params), context)
            details: JsonObject = {"content": for_models(result.get("content"))}
            structured = result.get("structuredContent")
            if structured is None:
                structured = read_json_text(details["content"])
            if structured is not None:
                details["structuredContent"] = structured
            if result.get("isError") is True:
                details["isError"] = True
                if (limit := rate_limit_in([*details.values()])) is not None:
                    details["code"] = "rate_limited"
                    if limit.retry_after_ms is not None:
                        details["retryAfterMs"] = limit.retry_after_ms
            return ToolResult(details=details)

        return make_tool(
            offer,
            server=self._settings.name,
            execute=execute,
            trusting=self._settings.trust_annotations,
        )

    # ---- Resources and prompts ----

    async def _list_resources(self, given: JsonObject, context: ToolContext) -> ToolResult:
        connection = await self._connect()
        cursor = _cursor(given)
        found = await _list_all(
            connection, lambda at: types.ListResourcesRequest(params=_page(at)), "resources", cursor
        )
        if cursor is None:
            # Some servers with resources do not support templates.
            with contextlib.suppress(McpError):
                templates = await _list_all(
                    connection,
                    lambda at: types.ListResourceTemplatesRequest(params=_page(at)),
                    "resourceTemplates",
                    None,
                )
                found["resourceTemplates"] = templates["resourceTemplates"]
        return ToolResult(details=found)

    async def _read_resource(self, given: JsonObject, context: ToolContext) -> ToolResult:
        params = types.ReadResourceRequestParams(uri=str(given["uri"]))
        request = types.ReadResourceRequest(params=params)
        return ToolResult(details=await self._server.request(request, context))

    async def _list_prompts(self, given: JsonObject, context: ToolContext) -> ToolResult:
        connection = await self._connect()
        found = await _list_all(
            connection,
            lambda at: types.ListPromptsRequest(params=_page(at)),
            "prompts",
            _cursor(given),
        )
        return ToolResult(details=found)

    async def _get_prompt(self, given: JsonObject, context: ToolContext) -> ToolResult:
        arguments = given.get("arguments")
        texts = arguments.items() if isinstance(arguments, dict) else ()
        params = types.GetPromptRequestParams(
            name=str(given["name"]), arguments={key: str(value) for key, value in texts}
        )
        request = types.GetPromptRequest(params=params)
        details = await self._server.request(request, context)
        messages = details.get("messages")
        return ToolResult(
            details={
                **details,
                "messages": [
                    each
                    for each in (messages if isinstance(messages, list) else [])
                    if for_models([each.get("content") if isinstance(each, dict) else None])
                ],
            }
        )


def read_json_text(content: JsonValue) -> JsonValue:
    """Returns the object or array that is the only text of a result; None if there is none.

    Many servers send JSON only as text. A text that is too long or too deep, that has more than
    the JSON in it, or numbers that JSON does not have, stays a text.
    """
    blocks = content if isinstance(content, list) else []
    texts = [block["text"] for block in blocks if isinstance(block, dict) and "text" in block]
    if len(texts) != 1 or not isinstance(text := texts[0], str) or len(text) > MAX_JSON_CHARS:
        return None
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        value = json.loads(text, parse_constant=_finite, parse_float=_finite)
        return value if measure(value).depth <= MAX_JSON_DEPTH else None
    except (ValueError, RecursionError):
        return None


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is not a number of JSON")
    return number


def _cursor(given: JsonObject) -> str | None:
    cursor = given.get("cursor")
    return cursor if isinstance(cursor, str) else None


def _page(cursor: str | None) -> types.PaginatedRequestParams:
    return types.PaginatedRequestParams(cursor=cursor)


async def _list_all(
    connection: Requester,
    request: Callable[[str | None], types.ClientRequest],
    key: str,
    cursor: str | None,
) -> JsonObject:
    """Returns all entries of a list, or one page if a cursor is given.

    A `nextCursor` in the result means that the list has more entries.

    Raises:
        McpError: The server rejects the request, or the connection is lost.
    """
    entries: list[JsonValue] = []
    seen: set[str | None] = set()
    one_page = cursor is not None
    while cursor not in seen and len(seen) < MAX_PAGES and len(entries) < MAX_ENTRIES:
        seen.add(cursor)
        page = await connection.request(request(cursor))
        found = page.get(key)
        entries += for_models(found)
        following = page.get("nextCursor")
        cursor = following if isinstance(following, str) and following else None
        if cursor is None or one_page:
            break
    result: JsonObject = {key: entries}
    return result if cursor is None else {**result, "nextCursor": cursor}
