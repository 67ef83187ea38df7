"""Requests of the guest: replies to lookups, and the tool and input of calls; replies as data.

Everything in a request was written by a guest. A bad request becomes an error that the program can
catch, and never an exception of the host.
"""

import json
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from clawmode.catalog.namespace_runtime import NamespaceRuntime
from clawmode.catalog.namespaces import NamespaceCallRefused
from clawmode.catalog.schema_types import render_line, render_result
from clawmode.exceptions import ClawmodeError, ProtocolError, ToolLookupError
from clawmode.sandbox.frames import read_json
from clawmode.sandbox.protocol import MAX_REPLY, MAX_REQUEST, Request, Settlement
from clawmode.text import shorten
from clawmode.tools.tool import Tool, ToolResult
from clawmode.types import JsonObject, JsonValue, dataclass

if TYPE_CHECKING:
    from clawmode.catalog.catalog import Catalog
    from clawmode.catalog.mcp_namespace import McpNamespace
    from clawmode.code_mode.config import CodeModeConfig
    from clawmode.tools.executor import ToolFailure


MAX_NAMED = 4
MAX_ANSWERS_SHOWN = 2
MAX_NOTES = 4
MAX_QUERY_SHOWN = 80
MAX_WORDS_SHOWN = 60  # characters
MAX_NOTICE = 1_000

# The last line of an error, which `sandbox.source` wrote.
_NO_MEMBER = re.compile(
    r"\n(?:There is no (?:tools|MCP)\.(.*)"
    r"|The program also looked for (?:tools|MCP)\.(.*), which does not exist)\.$"
)
_NO_GLOBAL = re.compile(r"ReferenceError: '?([\w$]+)'? is not defined\n")
_NO_SUCH_GLOBALS = (
    dict.fromkeys(
        ("fetch", "XMLHttpRequest", "WebSocket", "axios"),
        "Programs have no network: call a tool.",
    )
    | dict.fromkeys(
        ("process", "Buffer", "fs", "path", "os", "require", "module", "global", "window", "Deno"),
        "Programs run in no browser and not in Node: they have the language, timers, `URL`, "
        "`TextEncoder`, `atob` and `btoa`, and reach everything else through tools.",
    )
    | dict.fromkeys(("print", "echo", "puts"), "Output is written with text(value) or json(value).")
)
# Tools may have these names, so they are looked for first.
_HABITS = (
    dict.fromkeys(
        ("sleep", "delay"), "Write `await new Promise((resolve) => setTimeout(resolve, ms))`."
    )
    | dict.fromkeys(
        ("exec", "wait"),
        "`exec` and `wait` run programs, and are not functions of a program.",
    )
    | dict.fromkeys(
        ("state", "storage", "localStorage"),
        "`store(key, value)` keeps a JSON value for later programs, `load(key)` returns it.",
    )
)
UNAWAITED = "Calls of this program were not awaited: without `await`, a call is only a promise."


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
        seen: Returns the shape of what a tool has answered; empty if it is unknown.
        shows_calls: False for bodies of Tool Search, whose globals have other names.
    """

    catalog: "Catalog"
    namespaces: NamespaceRuntime
    mcp: "McpNamespace"
    config: "CodeModeConfig"
    on_miss: Callable[[list[str]], None] = lambda words: None
    seen: Callable[[str], str] = lambda tool_id: ""
    shows_calls: bool = True

    def look_up(self, request: Request, notes: list[str] | None = None) -> Settlement:
        """Returns the reply to a `search`, a `describe` or an `$api`.

        Args:
            request: The request.
            notes: Where to note that a search found nothing good, for whoever reads the result.
        """
        args: list[JsonValue] = []
        try:
            args = _arguments(request)
            if request.method == "search":
                hits = self._search(args, notes)
                return _reply(request, [self._with_seen(hit) for hit in hits])
            if request.method == "api":
                answer = self.mcp.describe(*(*args, None, None, None)[:3])
                return _reply(request, self._with_seen(answer, str(answer.pop("id", ""))))
            entry = self.catalog.describe(_reference(args, "tools.describe"))
            return _reply(request, self._with_seen(entry))
        except ToolLookupError as error:
            return refuse(request, error.code, self._explain(error, args))
        except (BadRequest, NamespaceCallRefused) as error:
            return refuse(request, error.code, str(error))

    def _with_seen(self, entry: JsonObject, tool_id: str = "") -> JsonObject:
        """Adds the shape of what a tool has answered, if it declares none."""
        seen = self.seen(tool_id or str(entry.get("id")))
        return {**entry, "seen": seen} if seen else entry

    def _search(self, args: list[JsonValue], notes: list[str] | None) -> list[JsonObject]:
        query, options, server = (*args, None, None, None)[:3]
        is_mcp = isinstance(server, str)
        place = f"MCP{'.' * bool(server)}{server}.$search" if is_mcp else "tools.search"
        if not isinstance(query, str):
            raise BadRequest("invalid_input", f"{place} takes a string: what you look for.")
        limit = options.get("limit") if isinstance(options, dict) else None
        # Python counts booleans as integers.
        usable = isinstance(limit, int) and not isinstance(limit, bool) and limit > 0
        wanted = limit if usable and isinstance(limit, int) else self.config.search_default_limit
        wanted = min(wanted, self.config.max_search_limit)
        if isinstance(server, str):
            found = self.mcp.search(query, wanted, server)
            unsearched = self.mcp.unsearched(server)
            elsewhere = f"Not searched: {unsearched}." if unsearched else ""
        else:
            found = self.catalog.search(query, wanted)
            for hit in found if self.shows_calls else ():
                hit["call"] = self.catalog.signature_of(self.catalog.resolve(str(hit["id"])))
            elsewhere = "MCP servers are not searched here: MCP.$search(query)." * bool(self.mcp)
            if not found:
                words = self.catalog.unmatched(query)
                self.on_miss(words)
                listed = ", ".join(words)[:MAX_WORDS_SHOWN]
                elsewhere = f"{f'In no tool: {listed}. ' * bool(words)}{elsewhere}"
        good = [hit for hit in found if not hit.get("weak")]
        if not good and notes is not None and len(notes) < MAX_NOTES:
            poor = "only poor matches" if found else "nothing matches"
            text = f"{place}({json.dumps(query[:MAX_QUERY_SHOWN], ensure_ascii=False)}): {poor}."
            notes.append(f"{text} {elsewhere}".strip())
        return found

    # ---- Names that do not exist ----

    def _explain(self, error: ToolLookupError, args: list[JsonValue]) -> str:
        """Returns the text of an error, with the exact call if an MCP tool was meant."""
        try:
            tool = self.catalog.resolve(str(args[0]), include_mcp=True)
        except ToolLookupError:
            return str(error)
        return f"{str(args[0])[:200]!r} is a tool of an MCP server. Write {self.call(tool)}."

    def advise(
        self, error: str, requests: Sequence[Request] = (), answered: Sequence[str] = ()
    ) -> str:
        """Returns what to write instead of a name that a failed program used; empty if unknown.

        The message was written by a guest. Only names of this run's tools, and the shapes of their
        answers, are added to it.

        Args:
            error: The message.
            requests: What the program asked for in its last step, which was not done.
            answered: The ids of the tools that have answered, the latest last.
        """
        if wrong := _NO_MEMBER.search(error):
            return f" {self._instead(wrong[1] or wrong[2])}"
        wrong = _NO_GLOBAL.match(error)
        if wrong is None:
            asked = any(request.method not in ("notify", "yield") for request in requests)
            if asked and error.startswith("TypeError: "):
                return f"\n{UNAWAITED}"
            misread = error.startswith(("TypeError: ", "SyntaxError: "))
            return self._answers(answered) if misread else ""
        if wrong[1] in _NO_SUCH_GLOBALS:
            return f"\n{_NO_SUCH_GLOBALS[wrong[1]]}"
        found = self.catalog.suggest(wrong[1])[1] or wrong[1] in self.mcp.server_names()
        if found or wrong[1] in _HABITS:
            return f"\n{self._instead(wrong[1]) if found else _HABITS[wrong[1]]}"
        return ""

    def _answers(self, tool_ids: Sequence[str]) -> str:
        """Returns the shapes of what tools have answered, for a program that read it wrongly."""
        lines: list[str] = []
        for tool_id in list(dict.fromkeys(reversed(tool_ids)))[:MAX_ANSWERS_SHOWN]:
            try:
                tool = self.catalog.resolve(tool_id, include_mcp=True)
            except ToolLookupError:
                continue
            if shape := render_result(tool.output_schema) or self.seen(tool_id):
                shape = self.mcp.result_with(shape) if tool.source == "mcp" else shape
                lines.append(f"\n{tool_id} answers {shape}.")
        return "".join(reversed(lines))

    def _instead(self, name: str) -> str:
        if name in self.mcp.server_names():
            return f"MCP servers are members of `MCP`: MCP.{name}.<tool>(input)."
        found, same = self.catalog.suggest(name)
        calls = [self.call(tool) for tool in found[:MAX_NAMED]]
        if same and len(found) > 1:
            more = f" and {len(found) - MAX_NAMED} more" if len(found) > MAX_NAMED else ""
            return f"{len(found)} tools have this name: {' or '.join(calls)}{more}."
        if calls:
            return f"{'Write' if same else 'The nearest:'} {' or '.join(calls)}."
        mcp = " or MCP.$search(query)" if self.mcp else ""
        return f"Find a tool with tools.search(query){mcp}."

    def call(self, tool: Tool) -> str:
        """Returns the call of a tool as a program writes it, with the type of its input."""
        if tool.source == "mcp":
            return f"{self.mcp.call_of(tool)}({render_line(tool.parameters)})"
        return f"{self.catalog.call_of(tool)}{render_line(tool.parameters)})"

    def absent_server(self, request: Request) -> str | None:
        """Returns the MCP server that a request needs if its tools are not known; else None."""
        if not self.mcp.absent or request.method not in ("namespace", "api", "search"):
            return None
        try:
            first, second, third = (*_arguments(request), None, None, None)[:3]
        except BadRequest:
            return None
        if request.method == "search":
            return self.mcp.absent_server(third)
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
            raise BadRequest(error.code, self._explain(error, args)) from None
        except NamespaceCallRefused as error:
            raise BadRequest(error.code, str(error)) from None
        given = args[1] if len(args) > 1 else {}
        if not isinstance(given, dict):
            example = f" Write {self.call(tool)}." if self.shows_calls else ""
            raise BadRequest("invalid_input", f"{tool.id} takes one object.{example}", tool.id)
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


def notice_of(request: Request) -> str:
    """Returns the text of a `notify`; empty if there is none."""
    try:
        text = (*_arguments(request), None)[0]
    except BadRequest:
        return ""
    return shorten(text, MAX_NOTICE) if isinstance(text, str) else ""


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


def fail(request: Request, error: "ToolFailure", tool_id: str) -> Settlement:
    """Returns the reply to a call that failed."""
    more: JsonObject = {}
    if error.retry_after_ms is not None:
        more["retryAfterMs"] = error.retry_after_ms
    return refuse(request, error.code, error.message, tool_id, error.name, more)


def refuse(
    request: Request,
    code: str,
    message: str,
    tool_id: str | None = None,
    name: str = "ToolError",
    more: JsonObject | None = None,
) -> Settlement:
    """Returns an error that the program can catch. It reveals nothing of the host."""
    body: JsonObject = {"name": name[:100], "message": shorten(message, 16_384)}
    body |= {"code": code, "toolId": tool_id, **(more or {})}
    return Settlement(request.id, False, json.dumps(body).encode())


def leave_unknown(request: Request, tool_id: str, refused: str = "") -> Settlement:
    """Returns the reply to a call of a process that died.

    Args:
        request: The call.
        tool_id: The tool.
        refused: The error code of the second attempt, if there was one that called no tool.
    """
    text = "The process that made this call died before it was answered"
    if refused:
        text += f", and the call could not be made again ({refused})"
    text += ": whether it took effect is unknown. Look before you repeat it."
    return refuse(request, "outcome_unknown", text, tool_id)


def too_large(call_id: int, tool_id: str | None) -> Settlement:
    """Returns the reply to a call whose own reply does not fit into the inbox."""
    text = "The answers that wait for the program are too large: ask for less, page by page."
    return refuse(Request(call_id, "call", b"[]"), "reply_too_large", text, tool_id)


def refusal_text(refusal: Settlement) -> str:
    """Returns the message of an error that `refuse` encoded."""
    return str(json.loads(refusal.value)["message"])
