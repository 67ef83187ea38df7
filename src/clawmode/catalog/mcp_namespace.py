"""MCP servers as programs see them: `MCP.<server>.<tool>(input)`, `$api`, and the files of `API`.

The host side of the guest's `MCP` and `API`. A call arrives as a path and is resolved to a tool of
the run and its input; nothing is called here. Tools that the policy removed do not appear, because
only the run's own tools are used.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from clawmode.catalog.declarations import (
    MAX_FILE_CHARS,
    ROOT_MEMBERS,
    identifiers,
    render_index,
    render_server,
)
from clawmode.catalog.namespaces import NamespaceCallRefused
from clawmode.tools.near_names import NearNames
from clawmode.tools.tool import Tool
from clawmode.types import JsonObject, JsonValue

MAX_ALL_FILES_CHARS = 2 << 20
MIN_FILE_CHARS = 8 << 10
"""All files share the first limit, and each one may have at least the second."""

MAX_SHOWN = 80
MAX_LISTED = 10

GROUPS = {"resources": ("list", "read"), "prompts": ("list", "get")}
"""The calls of MCP that are not tools; `resources.list` calls the tool `resources/list`."""


@dataclass(frozen=True, slots=True)
class _Server:
    """The tools of one server, by their identifiers in guest code.

    Attributes:
        own_names: The identifiers by the names that the server itself uses.
    """

    name: str
    functions: dict[str, Tool]
    groups: dict[str, dict[str, Tool]]
    own_names: dict[str, str]

    def find(self, path: list[str]) -> Tool | None:
        match path:
            case [function]:
                return self.functions.get(self.identifier(function))
            case [group, function]:
                return self.groups.get(group, {}).get(function)
        return None

    def identifier(self, wanted: str) -> str:
        """Returns the identifier of a tool that may be given by the server's own name."""
        return wanted if wanted in self.functions else self.own_names.get(wanted, wanted)


_CONNECTING = "// MCP.{0} is still connecting: `await MCP.{0}.$api()` waits for it.\n"


class McpNamespace:
    """The MCP servers of one run.

    Args:
        tools: The run's tools; tools of other sources are ignored.
        absent: Servers whose tools are not known, with the reason; empty while they connect.
    """

    def __init__(
        self, tools: Iterable[Tool], absent: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        by_server: defaultdict[str, list[Tool]] = defaultdict(list)
        for tool in tools:
            if tool.source == "mcp":
                by_server[tool.owner].append(tool)
        self.absent = {name: why for name, why in absent.items() if name not in by_server}
        everything = {*by_server, *self.absent}
        names = identifiers(everything, reserved=ROOT_MEMBERS, empty="server")
        self._servers = {names[name]: _server(name, by_server[name]) for name in sorted(by_server)}
        self._identifiers = names
        self._near: dict[str, tuple[list[str], NearNames]] = {}

    def __bool__(self) -> bool:
        return bool(self._servers)

    def server_names(self) -> list[str]:
        """Returns the identifiers of the servers in guest code."""
        return list(self._servers)

    def connecting(self) -> list[str]:
        """Returns the identifiers of the servers that are still connecting."""
        return [self._identifiers[name] for name, why in sorted(self.absent.items()) if not why]

    @cached_property
    def files(self) -> dict[str, str]:
        """The virtual files, by path."""
        index = {name: server.functions for name, server in self._servers.items()}
        made = {"mcp/index.d.ts": render_index(index)}
        # The heap of every program has these files, and must stay small enough to be frozen.
        share = max(MAX_ALL_FILES_CHARS // max(len(self._servers), 1), MIN_FILE_CHARS)
        for name, server in self._servers.items():
            made[f"mcp/{name}.d.ts"] = render_server(
                name,
                server.functions,
                resources="resources" in server.groups,
                prompts="prompts" in server.groups,
                max_chars=min(share, MAX_FILE_CHARS),
            )
        for name in self.connecting():
            made[f"mcp/{name}.d.ts"] = _CONNECTING.format(name)
        return made

    def setup(self) -> JsonObject | None:
        """Returns what a program has from the start; None if there is no server."""
        if not self and not self.connecting():
            return None
        servers: JsonObject = {
            name: {
                "functions": list[JsonValue](server.functions),
                "groups": {key: list[JsonValue](calls) for key, calls in server.groups.items()},
            }
            for name, server in self._servers.items()
        }
        files: list[JsonValue] = []
        for path, text in self.files.items():
            name = path.removeprefix("mcp/").removesuffix(".d.ts")
            if path == "mcp/index.d.ts":
                about = f"The MCP servers ({len(self._servers)}) and the names of their tools."
            elif name in self._servers:
                count = len(self._servers[name].functions)
                about = f"Declarations of the tools of MCP.{name}, {count} in all."
            else:
                about = f"MCP.{name} is still connecting."
            size = len(text.encode("utf-8", "replace"))
            files.append({"path": path, "description": about, "bytes": size, "text": text})
        own_names: JsonObject = {
            name: identifier
            for name, identifier in self._identifiers.items()
            if name not in self._servers and identifier in self._servers
        }
        return {"servers": servers, "names": own_names, "files": files}

    # ---- Requests of a program ----

    def resolve(self, path: JsonValue, args: JsonValue) -> tuple[Tool, JsonObject]:
        """Returns the tool that a call names, and its input.

        Raises:
            NamespaceCallRefused: No tool has this path, or the input is not an object.
        """
        parts = [part for part in path if isinstance(part, str)] if isinstance(path, list) else []
        if not isinstance(path, list) or len(parts) != len(path) or not parts:
            raise NamespaceCallRefused("MCP functions are called by their path.")
        name, server = self._server(parts[0])
        tool = server.find(parts[1:])
        if tool is None:
            raise self._no_tool(name, server, ".".join(parts[1:]))
        given, *others = args if isinstance(args, list) and args else [{}]
        if not isinstance(given, dict):
            raise NamespaceCallRefused(f"{tool.id} takes one object.")
        if any(other is not None for other in others):  # `undefined` arrives as None, and is fine
            text = f"{tool.id} takes one object, not {1 + len(others)} arguments: merge them."
            raise NamespaceCallRefused(text)
        return tool, given

    def describe(self, server: JsonValue, wanted: JsonValue, options: JsonValue) -> JsonObject:
        """Returns the answer of `$api`: declarations of all servers, of one, or of one tool.

        Raises:
            NamespaceCallRefused: There is no such server or tool.
        """
        schema = isinstance(options, dict) and options.get("schema") is True
        if server is None:
            if wanted is None:
                names = list[JsonValue](self._servers)
                return {"header": self.files["mcp/index.d.ts"], "servers": names}
            server, wanted = wanted, None
        name, found = self._server(server if isinstance(server, str) else "")
        if wanted is None:
            tools = list[JsonValue](found.functions)
            return {"header": self.files[f"mcp/{name}.d.ts"], "server": name, "tools": tools}
        identifier = found.identifier(wanted) if isinstance(wanted, str) else ""
        tool = found.functions.get(identifier)
        if tool is None:
            raise self._no_tool(name, found, str(wanted)[:MAX_SHOWN])
        header = render_server(name, {identifier: tool})
        answer: JsonObject = {"header": header, "server": name, "tools": [identifier]}
        if schema:
            schemas: JsonObject = {"parameters": dict(tool.parameters)}
            if tool.output_schema is not None:
                schemas["outputSchema"] = dict(tool.output_schema)
            answer["schemas"] = {identifier: schemas}
        return answer

    # ---- Names ----

    def call_of(self, tool: Tool) -> str:
        """Returns how a program calls a tool of these servers: `MCP.time.convertTime`."""
        name = self._identifiers[tool.owner]
        server = self._servers[name]
        if tool.name in server.own_names:
            return f"MCP.{name}.{server.own_names[tool.name]}"
        return f"MCP.{name}.{tool.name.replace('/', '.')}"

    def absent_server(self, wanted: JsonValue) -> str | None:
        """Returns the name of a server whose tools are not known; None for other servers."""
        if not isinstance(wanted, str) or wanted in self._servers:
            return None
        if wanted in self.absent:
            return wanted
        return next((name for name in self.absent if self._identifiers[name] == wanted), None)

    def _server(self, wanted: str) -> tuple[str, _Server]:
        name = wanted if wanted in self._servers else self._identifiers.get(wanted, wanted)
        server = self._servers.get(name)
        if (absent := self.absent_server(wanted)) is not None:
            why = self.absent[absent] or "is still connecting"
            problem = why if why.startswith("cannot be ") else f"cannot be reached: it {why}"
            raise NamespaceCallRefused(f"The MCP server {absent!r} {problem}", "tool_failed")
        if server is None:
            text = f"There is no MCP server {wanted[:MAX_SHOWN]!r}"
            others = self._nearest("", wanted, {each: each for each in self._servers})
            raise NamespaceCallRefused(f"{text}{others or ': none is connected.'}", "unknown_tool")
        return name, server

    def _no_tool(self, name: str, server: _Server, wanted: str) -> NamespaceCallRefused:
        known = {each: each for each in server.functions} | server.own_names
        others = self._nearest(name, wanted, known) or "."
        text = f"MCP.{name} has no tool {wanted[:MAX_SHOWN]!r}{others}"
        return NamespaceCallRefused(f"{text} `await MCP.{name}.$api()` has all.", "unknown_tool")

    def _nearest(self, place: str, wanted: str, known: Mapping[str, str]) -> str:
        """Returns the end of an error message: a similar name, or a list of the known names."""
        if place not in self._near:
            spellings = list(known)
            self._near[place] = spellings, NearNames(spellings)
        spellings, names = self._near[place]
        if found := names.find(wanted, 1):
            return f": did you mean {known[spellings[found[0]]]}?"
        some = list(dict.fromkeys(known.values()))
        more = f" and {len(some) - MAX_LISTED} more" if len(some) > MAX_LISTED else ""
        return f": there are {', '.join(some[:MAX_LISTED])}{more}." if some else ""


def _server(name: str, tools: list[Tool]) -> _Server:
    by_name = {tool.name: tool for tool in tools}
    groups: dict[str, dict[str, Tool]] = {}
    for group, members in GROUPS.items():
        found = {
            key: by_name.pop(f"{group}/{key}") for key in members if f"{group}/{key}" in by_name
        }
        if found:
            groups[group] = found
    names = identifiers(by_name)
    return _Server(name, {names[key]: by_name[key] for key in sorted(by_name)}, groups, names)
