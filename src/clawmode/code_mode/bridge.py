"""Requests of the guest: replies to lookups, and the tool and input of calls; replies as data.

Everything in a request was written by a guest. A bad request becomes an error that the program can
catch, and never an exception of the host.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clawmode.catalog.catalog import Catalog
from clawmode.catalog.mcp_namespace import McpNamespace
from clawmode.catalog.namespace_runtime import NamespaceRuntime
from clawmode.catalog.namespaces import NamespaceCallRefused
from clawmode.exceptions import ClawmodeError, ProtocolError, ToolLookupError
from clawmode.sandbox.frames import read_json
from clawmode.sandbox.protocol import MAX_REPLY, MAX_REQUEST, Request, Settlement
from clawmode.tools.executor import ToolFailure
from clawmode.tools.tool import Tool, ToolResult
from clawmode.types import JsonObject, JsonValue

if TYPE_CHECKING:
    from clawmode.code_mode.config import CodeModeConfig


class BadRequest(ClawmodeError):
    """A request of the guest names no tool, or has unusable arguments."""

    def __init__(self, code: str, message: str, tool_id: str | None = None) -> None:
        super().__init__(message)
        self.code, self.tool_id = code, tool_id


@dataclass(frozen=True, slots=True)
class Bridge:
    """Resolves the requests of one run's cells.

    Attributes:
        on_miss: Called when a search finds nothing, with its words that no entry has.
    """

    catalog: Catalog
    namespaces: NamespaceRuntime
    mcp: McpNamespace
    config: "CodeModeConfig"
    on_miss: Callable[[list[str]], None] = lambda words: None

    def look_up(self, request: Request) -> Settlement:
        """Returns the reply to a `search`, a `describe` or an `$api`."""
        try:
            args = _arguments(request)
            if request.method == "search":
                return _reply(request, list[JsonValue](self._search(args)))
            if request.method == "api":
                return _reply(request, self.mcp.describe(*(*args, None, None, None)[:3]))
            return _reply(request, self.catalog.describe(_reference(args, "tools.describe")))
        except (BadRequest, ToolLookupError) as error:
            return refuse(request, error.code, str(error))
        except NamespaceCallRefused as error:
            return refuse(request, error.code, str(error))

    def _search(self, args: list[JsonValue]) -> list[JsonObject]:
        query = args[0] if args else None
        if not isinstance(query, str):
            raise BadRequest("invalid_input", "tools.search takes a string: what you look for.")
        options = args[1] if len(args) > 1 else None
        limit = options.get("limit") if isinstance(options, dict) else None
        # Python counts booleans as integers.
        usable = isinstance(limit, int) and not isinstance(limit, bool) and limit > 0
        wanted = limit if usable and isinstance(limit, int) else self.config.search_default_limit
        found = self.catalog.search(query, min(wanted, self.config.max_search_limit))
        if not found:
            self.on_miss(self.catalog.unmatched(query))
        return found

    def absent_server(self, request: Request) -> str | None:
        """Returns the MCP server that a request needs if its tools are not known; else None."""
        if not self.mcp.absent or request.method not in ("namespace", "api"):
            return None
        try:
            first, second = (*_arguments(request), None, None)[:2]
        except BadRequest:
            return None
        if request.method == "api":
            return self.mcp.absent_server(second if first is None else first)
        if first != "MCP" or not isinstance(second, list) or not second:
            return None
        return self.mcp.absent_server(second[0])

    def call_of(self, request: Request) -> tuple[Tool, JsonObject]:
        """Returns the tool that a request calls, and its input.

        Raises:
            BadRequest: The request names no tool, or its input is not an object.
        """
        args = _arguments(request)
        try:
            if request.method == "namespace":
                namespace, path, given = (*args, None, None, None)[:3]
                if namespace == "MCP":
                    return self.mcp.resolve(path, given)
                return self.namespaces.resolve(namespace, path, given)
            tool = self.catalog.resolve(_reference(args, "tools.call"))
        except ToolLookupError as error:
            raise BadRequest(error.code, str(error)) from None
        except NamespaceCallRefused as error:
            raise BadRequest(error.code, str(error)) from None
        given = args[1] if len(args) > 1 else {}
        if not isinstance(given, dict):
            raise BadRequest("invalid_input", f"{tool.id} takes one object.", tool.id)
        return tool, given


def _arguments(request: Request) -> list[JsonValue]:
    if len(request.args) > MAX_REQUEST:
        raise BadRequest("invalid_input", "The arguments are over 1 MiB: send less at a time.")
    try:
        args = read_json(request.args)
    except ProtocolError:
        raise BadRequest("invalid_input", "The arguments cannot be read.") from None
    if not isinstance(args, list):
        raise BadRequest("invalid_input", "The arguments cannot be read.")
    return args


def _reference(args: list[JsonValue], function: str) -> str:
    reference = args[0] if args else None
    if not isinstance(reference, str):
        raise BadRequest("invalid_input", f"{function} takes a tool's id first, a string.")
    return reference


# ---- Replies ----


def _reply(request: Request, value: JsonValue) -> Settlement:
    # ASCII, because descriptions are untrusted and may have lone surrogates.
    return _fit(request, json.dumps(value).encode(), None)


def settle(request: Request, result: ToolResult, tool_id: str) -> Settlement:
    """Returns the reply to a call that succeeded."""
    return _fit(request, result.encoded, tool_id)


def _fit(request: Request, encoded: bytes, tool_id: str | None) -> Settlement:
    if len(encoded) > MAX_REPLY:
        text = f"The answer is {len(encoded)} bytes, over {MAX_REPLY}: ask for less, page by page."
        return refuse(request, "reply_too_large", text, tool_id)
    return Settlement(request.id, True, encoded)


def fail(request: Request, error: ToolFailure, tool_id: str) -> Settlement:
    """Returns the reply to a call that failed."""
    return refuse(request, error.code, error.message, tool_id, error.name)


def refuse(
    request: Request, code: str, message: str, tool_id: str | None = None, name: str = "ToolError"
) -> Settlement:
    """Returns an error that the program can catch. It reveals nothing of the host."""
    body = {"name": name[:100], "message": message[:16384], "code": code, "toolId": tool_id}
    return Settlement(request.id, False, json.dumps(body).encode())


def refusal_text(refusal: Settlement) -> str:
    """Returns the message of an error that `refuse` encoded."""
    return str(json.loads(refusal.value)["message"])
