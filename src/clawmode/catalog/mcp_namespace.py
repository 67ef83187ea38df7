"""MCP servers as programs see them: `MCP.<server>.<tool>(input)`, `$api`, and the files of `API`.

The host side of the guest's `MCP` and `API`. A call arrives as a path and is resolved to a tool of
the run and its input; nothing is called here. Tools that the policy removed do not appear, because
only the run's own tools are used.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING

from clawmode.catalog.declarations import (
    MAX_FILE_BYTES,
    ROOT_MEMBERS,
    identifiers,
    render_index,
    render_server,
    render_tool,
)
from clawmode.catalog.mcp_lists import Lists, read_list
from clawmode.catalog.namespaces import NamespaceCallRefused
from clawmode.catalog.schema_types import render_line, render_result
from clawmode.tools.near_names import NearNames
from clawmode.tools.tool import Tool
from clawmode.types import JsonObject, JsonValue, dataclass

if TYPE_CHECKING:
    from clawmode.catalog.catalog import Catalog

MAX_ALL_FILES_BYTES = 2 << 20
MIN_FILE_BYTES = 8 << 10
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
        max_file_bytes: The size of a file, as JSON: half of what a program may return.
        make_finder: Makes the catalog that `$search` searches.
        lists: Where to remember the resources and prompts that servers listed, by server and group.
        known: Where to remember identifiers, so that they stay the same when a list changes.
    """

    def __init__(
        self,
        tools: Iterable[Tool],
        absent: Mapping[str, str] = MappingProxyType({}),
        *,
        max_file_bytes: int = MAX_FILE_BYTES,
        make_finder: "Callable[[Iterable[Tool]], Catalog] | None" = None,
        lists: Lists | None = None,
        known: dict[str, dict[str, str]] | None = None,
    ) -> None:
        self._max_file_bytes = max_file_bytes
        self._make_finder = make_finder
        self._lists = {} if lists is None else lists
        self._finders: dict[str, Catalog] = {}
        by_server: defaultdict[str, list[Tool]] = defaultdict(list)
        for tool in tools:
            if tool.source == "mcp":
                by_server[tool.owner].append(tool)
        self.absent = {name: why for name, why in absent.items() if name not in by_server}
        everything = {*by_server, *self.absent}
        names = identifiers(everything, reserved=ROOT_MEMBERS, empty="server")
        known = {} if known is None else known
        self._servers = {
            names[name]: _server(name, by_server[name], known.setdefault(name, {}))
            for name in sorted(by_server)
        }
        self._identifiers = names
        self._near: dict[str, tuple[list[str], NearNames]] = {}

    def __bool__(self) -> bool:
        return bool(self._servers)

    def server_names(self) -> list[str]:
        """Returns the identifiers of the servers in guest code."""
        return list(self._servers)

    def all_names(self) -> list[str]:
        """Returns the identifiers of all servers, also of those that are not connected."""
        return sorted(self._identifiers.values())

    def connecting(self) -> list[str]:
        """Returns the identifiers of the servers that are still connecting."""
        return [self._identifiers[name] for name, why in sorted(self.absent.items()) if not why]

    @cached_property
    def files(self) -> dict[str, str]:
        """The virtual files, by path."""
        index = {name: server.functions for name, server in self._servers.items()}
        made = {"mcp/index.d.ts": render_index(index, max_bytes=self._max_file_bytes)}
        # The heap of every program has these files, and must stay small enough to be frozen.
        share = max(MAX_ALL_FILES_BYTES // max(len(self._servers), 1), MIN_FILE_BYTES)
        for name, server in self._servers.items():
            made[f"mcp/{name}.d.ts"] = render_server(
                name,
                server.functions,
                resources="resources" in server.groups,
                prompts="prompts" in server.groups,
                max_bytes=min(share, self._max_file_bytes),
            )
        for name in self.connecting():
            made[f"mcp/{name}.d.ts"] = _CONNECTING.format(name)
        return made

    @cached_property
    def _aliases(self) -> dict[str, list[str]]:
        """The paths of tools by their names in the dialect of Codex, as far as these are unique."""
        found: defaultdict[str, list[list[str]]] = defaultdict(list)
        for name, server in self._servers.items():
            for identifier, tool in server.functions.items():
                alias = f"mcp__{_plain(server.name)}__{_plain(tool.name)}"
                found[alias].append([name, identifier])
        return {alias: paths[0] for alias, paths in found.items() if len(paths) == 1}

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
        if len(parts) == 1 and (alias := parts[0]).startswith("mcp__"):
            wanted, _, tool_name = alias.removeprefix("mcp__").partition("__")
            own = (key for key, each in self._servers.items() if _plain(each.name) == wanted)
            parts = self._aliases.get(alias) or [next(own, wanted), tool_name]
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

        Of one tool, it has the `id` too, which is not for the program.

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
        header = render_tool(name, identifier, tool, self._max_file_bytes)
        answer: JsonObject = {"header": header, "server": name, "tools": [identifier]}
        answer["id"] = tool.id
        if schema:
            schemas: JsonObject = {"parameters": dict(tool.parameters)}
            if tool.output_schema is not None:
                schemas["outputSchema"] = dict(tool.output_schema)
            answer["schemas"] = {identifier: schemas}
        return answer

    # ---- Search ----

    def search(self, query: str, limit: int, wanted: str) -> list[JsonObject]:
        """Returns tools, resources and prompts for `$search`, each with the call that uses it.

        Args:
            query: The words that a program looks for.
            limit: The most answers.
            wanted: The server; empty for all servers.

        Raises:
            NamespaceCallRefused: There is no such server.
        """
        name = self._server(wanted)[0] if wanted else ""
        servers = self._chosen(name)
        entries = {
            entry.tool.id: entry
            for server in servers
            for group in server.groups
            for entry in self._lists.get((server.name, group), ())
        }
        if name not in self._finders:
            tools = {tool.id: tool for server in servers for tool in server.functions.values()}
            listed = {id_: entry.tool for id_, entry in entries.items()}
            if self._make_finder is None:
                return []  # Tool Search has no servers
            self._finders[name] = self._make_finder((listed | tools).values())
        finder = self._finders[name]
        found: list[JsonObject] = []
        for hit in finder.search(query, limit):
            tool = finder.resolve(str(hit["id"]))
            del hit["id"], hit["source"], hit["sourceName"]  # programs use `call`
            entry = entries.get(tool.id)
            if entry is not None and entry.tool is tool:
                call = f"MCP.{self._identifiers[tool.owner]}.{entry.call}"
                found.append(hit | {"kind": entry.kind, "call": call})
            else:
                found.append(hit | {"kind": "tool", "call": self.signature_of(tool)})
        return found

    def remember(self, tool: Tool, details: JsonValue) -> None:
        """Keeps the list of resources or prompts that a call returned, for later searches."""
        group, _, method = tool.name.partition("/")
        if method == "list" and group in GROUPS:
            self._lists[tool.owner, group] = read_list(group, details, tool.owner)
            self._finders.clear()

    def unsearched(self, wanted: str) -> str:
        """Returns what a search leaves out because the host does not know it; empty if nothing."""
        left = [f"MCP.{self._identifiers[name]} (not connected)" for name in sorted(self.absent)]
        for server in self._chosen(self._identifiers.get(wanted, wanted)):
            left += [
                f"the {group} of MCP.{self._identifiers[server.name]}"
                for group in server.groups
                if (server.name, group) not in self._lists
            ]
        more = f" and {len(left) - MAX_LISTED} more" if len(left) > MAX_LISTED else ""
        return ", ".join(left[:MAX_LISTED]) + more

    def _chosen(self, name: str) -> list[_Server]:
        return [server for key, server in self._servers.items() if name in ("", key)]

    # ---- Names ----

    def call_of(self, tool: Tool) -> str:
        """Returns how a program calls a tool of these servers: `MCP.time.convertTime`."""
        name = self._identifiers[tool.owner]
        server = self._servers[name]
        if tool.name in server.own_names:
            return f"MCP.{name}.{server.own_names[tool.name]}"
        return f"MCP.{name}.{tool.name.replace('/', '.')}"

    def signature_of(self, tool: Tool) -> str:
        """Returns the call of a tool, with the types of its input and of its declared result."""
        call = f"{self.call_of(tool)}({render_line(tool.parameters)})"
        result = render_result(tool.output_schema)
        return f"{call}: {self.result_with(result)}" if result else call

    @staticmethod
    def result_with(data: str) -> str:
        """Returns the type of a result whose data has this type."""
        return f"{{structuredContent: {data}}}"

    def absent_server(self, wanted: JsonValue) -> str | None:
        """Returns the name of a server whose tools are not known; None for other servers."""
        if not isinstance(wanted, str) or wanted in self._servers:
            return None
        if wanted.startswith("mcp__"):
            prefixes = {f"mcp__{_plain(name)}__": name for name in self.absent}
            return next((prefixes[each] for each in prefixes if wanted.startswith(each)), None)
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
            right = known[spellings[found[0]]]
            if not place:
                return f": did you mean {right}? Write MCP.{right}.<tool>(input)."
            given = render_line(self._servers[place].functions[right].parameters)
            text = f": did you mean {right}? Write MCP.{place}.{right}(input). Its input: {given}."
            # The nearest name may belong to a tool that does something else.
            others = _list(each for each in known.values() if each != right)
            return text + f" Others: {others}." * bool(others)
        some = _list(known.values())
        verb = "are" if len({*known.values()}) > 1 else "is only"
        return f": there {verb} {some}." if some else ""


def _list(names: Iterable[str]) -> str:
    some = list(dict.fromkeys(names))
    more = f" and {len(some) - MAX_LISTED} more" if len(some) > MAX_LISTED else ""
    return ", ".join(some[:MAX_LISTED]) + more


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]", "_", name)


def _server(name: str, tools: list[Tool], known: dict[str, str]) -> _Server:
    by_name = {tool.name: tool for tool in tools}
    groups: dict[str, dict[str, Tool]] = {}
    for group, members in GROUPS.items():
        found = {
            key: by_name.pop(f"{group}/{key}") for key in members if f"{group}/{key}" in by_name
        }
        if found:
            groups[group] = found
    names = identifiers(by_name, known=known)
    return _Server(name, {names[key]: by_name[key] for key in sorted(by_name)}, groups, names)
