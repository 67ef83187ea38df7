"""TypeScript declarations of MCP servers: the identifiers of their tools, and the `API` files.

The input is the untrusted names, descriptions and schemas of a server, the output the text of
`mcp/<server>.d.ts`, `mcp/<server>/<tool>.d.ts` and `mcp/index.d.ts`; `schema_types` renders the
types. Whatever a server sends, a file is valid TypeScript, takes at most the given bytes of a
program's output, and a bounded time.
"""

import json
import re
import unicodedata
from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from itertools import chain, count
from textwrap import wrap

from clawmode.catalog.namespaces import RESERVED_WORDS
from clawmode.catalog.schema_types import Limits, RenderedType, render_line, render_type
from clawmode.catalog.typescript_text import (
    FULL,
    ONE_LINE_CHARS,
    clean_line,
    clean_lines,
    indent,
    quote,
    quote_key,
    render_comment,
)
from clawmode.tools.tool import Tool

MAX_KNOWN = 10_000
"""Names of a server that keep their identifiers; a server may change its list without end."""
MAX_IDENTIFIER_CHARS = 64
MAX_NAME_CHARS = 1_000
MAX_DESCRIPTION_CHARS = 2_000
MAX_BRIEF_CHARS = 80
MAX_FILE_BYTES = 32 << 10
"""Half of the default limit of a program's output, so that a program can return any file."""

SERVER_MEMBERS = frozenset({"$api", "$search", "resources", "prompts"})
"""Members that a server's namespace may have besides its tools."""
ROOT_MEMBERS = frozenset({"$api", "$search", "index"})
"""Members of `MCP`, and files in its folder, besides the servers."""

# With a `then`, `await` would treat the namespace as a promise; JSON calls `toJSON`. Reserved words
# cannot be declared, and every object has the other members already.
_FORBIDDEN = RESERVED_WORDS.union(
    "constructor prototype hasOwnProperty isPrototypeOf propertyIsEnumerable toLocaleString "
    "toString valueOf then toJSON eval undefined globalThis".split()
)

RESULT_TYPES = """\
type McpToolResult = {
  content?: unknown[];
  structuredContent?: unknown;
  isError?: boolean;
  [key: string]: unknown;
};

/** An item of `content`. Read `structuredContent` if there is one; `image(result)` shows images. */
type McpContent =
  | { type: "text"; text: string }
  | { type: "image" | "audio"; data: string; mimeType: string }
  | { type: "resource"; resource: { uri: string; mimeType?: string; text?: string; blob?: string } }
  | { type: "resource_link"; uri: string; name: string; description?: string; mimeType?: string };
"""

SHARED_TYPES = f"""\
{RESULT_TYPES}
type McpApiHeader = {{
  header: string;
  server?: string;
  servers?: string[];
  tools?: string[];
  schemas?: {{ [tool: string]: unknown }};
  [key: string]: unknown;
}};
"""
"""The start of every file. A compiler that gets several files must see it only once."""

_API = """\
/** Return this TypeScript-style API header. */
function $api(toolName?: string, options?: { schema?: boolean }): Promise<McpApiHeader>;"""

_RESOURCES = """\
namespace resources {
  function list(input?: { cursor?: string }): Promise<{
    resources: { uri: string; name: string; mimeType?: string; [key: string]: unknown }[];
    nextCursor?: string;
    [key: string]: unknown;
  }>;
  function read(input: { uri: string }): Promise<{
    contents: { uri: string; mimeType?: string; text?: string; blob?: string }[];
    [key: string]: unknown;
  }>;
}"""

_PROMPTS = """\
namespace prompts {
  function list(input?: { cursor?: string }): Promise<{
    prompts: { name: string; description?: string; arguments?: unknown[] }[];
    nextCursor?: string;
    [key: string]: unknown;
  }>;
  function get(input: { name: string; arguments?: { [name: string]: string } }): Promise<{
    description?: string;
    messages: { role: string; content: unknown }[];
    [key: string]: unknown;
  }>;
}"""

_INDEX_HEAD = """\
// Call `await MCP.<server>.<tool>(input)`. `await API.read("mcp/<server>/<tool>.d.ts")` declares
// one tool, `mcp/<server>.d.ts` all tools of a server; `await MCP.$search(query)` finds tools,
// resources and prompts, `await MCP.<server>.$search(query)` those of one server.

declare namespace MCP {
  function $api(serverName?: string): Promise<{ header: string; [key: string]: unknown }>;
  function $search(
    query: string,
    options?: { limit?: number },
  ): Promise<{ name: string; description: string; call: string; [key: string]: unknown }[]>;
}
"""

_BRIEF_HEAD = """\
// {count} tools, one line each, with the type of the input.
// `await API.read("mcp/{server}/<tool>.d.ts")` declares one tool in full,
// `await MCP.{server}.$search(query)` finds tools."""

_RESULT = "Promise<McpToolResult>"
_TAKEN_TYPES = frozenset({"McpToolResult", "McpContent", "McpApiHeader", "Promise"})

RESULT_STAGES = (
    Limits(3_000),
    Limits(3_000, objects=2, docs=False),
    Limits(3_000, objects=1, nesting=4, docs=False),
)
"""Results get less room than inputs, because a program can inspect a result at run time."""

_LEADING_CAPITALS = re.compile(r"^[A-Z]+(?![a-z])")


# ---- Names ----


def identifiers(
    names: Iterable[str],
    *,
    reserved: Collection[str] = SERVER_MEMBERS,
    empty: str = "tool",
    known: dict[str, str] | None = None,
) -> dict[str, str]:
    """Returns the identifiers of tools or servers in guest code: `create_issue` → `createIssue`.

    The result does not depend on the order of the names. An identifier that is forbidden or taken
    gets a number, starting with 2. If several names give one identifier, the name that equals the
    identifier gets it.

    Args:
        names: The names that the servers or the configuration use.
        reserved: Identifiers that are taken from the start: `ROOT_MEMBERS` for servers.
        empty: The identifier of a name without any usable character.
        known: Identifiers of earlier lists, which names keep; receives the new ones.
    """
    bases = {name: _to_camel_case(name) or empty for name in sorted(set(names))}
    earlier = known if known is not None and len(known) <= MAX_KNOWN else {}
    taken = {*_FORBIDDEN, *reserved, *earlier.values()}
    made: dict[str, str] = {name: earlier[name] for name in bases if name in earlier}
    for name in sorted(bases, key=lambda name: bases[name] != name):
        if name not in made and bases[name] not in taken:
            made[name] = bases[name]
            taken.add(bases[name])
    numbers: dict[str, int] = {}
    for name, base in bases.items():
        if name in made:
            continue
        number = numbers.get(base, 2)
        while f"{base}{number}" in taken:
            number += 1
        numbers[base] = number
        made[name] = f"{base}{number}"
        taken.add(made[name])
    if known is not None:
        if len(known) > MAX_KNOWN:
            known.clear()
        known.update(made)
    return {name: made[name] for name in bases}


def _to_camel_case(name: str) -> str:
    start = unicodedata.normalize("NFC", name[:MAX_NAME_CHARS])
    # An identifier may have letters, digits and `$`; `_` only separates words. Python knows letters
    # that are too new for the guest's engine.
    usable = [
        char.isalnum() or char == "$"
        if char.isascii()
        else f"_{char}".isidentifier() and unicodedata.ucd_3_2_0.category(char) != "Cn"
        for char in start
    ]
    words = "".join(c if good else " " for c, good in zip(start, usable, strict=True)).split()
    if not words:
        return ""
    if not any(char.islower() for char in start):
        words = [word.lower() for word in words]
    head = _LEADING_CAPITALS.sub(lambda found: found[0].lower(), words[0])
    head = head[0].lower() + head[1:]
    made = head + "".join(word[0].upper() + word[1:] for word in words[1:])
    is_identifier = made.replace("$", "_").isidentifier()
    return (made if is_identifier else f"_{made}")[:MAX_IDENTIFIER_CHARS]


# ---- Files ----


def render_server(
    server: str,
    tools: Mapping[str, Tool],
    *,
    resources: bool = False,
    prompts: bool = False,
    max_bytes: int = MAX_FILE_BYTES,
) -> str:
    """Returns the text of `mcp/<server>.d.ts`.

    Args:
        server: The server's identifier.
        tools: The tools by identifier, in the order of their declarations.
        resources: True if the server has resources.
        prompts: True if the server has prompts.
        max_bytes: Above this size, as JSON, each tool has one line with the type of its input; if
            that is too long too, the names of the tools are listed, as many as fit.
    """
    extras = [_RESOURCES] * resources + [_PROMPTS] * prompts
    namespace = _Namespace(tools, max_bytes)
    if all(map(namespace.declare, tools)):
        blocks = [_API, *namespace.blocks, *extras]
        text = _render_namespace(SHARED_TYPES, f"MCP.{server}", blocks)
        if size_of(text) <= max_bytes:
            return text
    head = _BRIEF_HEAD.format(count=len(tools), server=server)
    for most in (MAX_BRIEF_CHARS, 0):
        if lines := _render_lines(tools, most, max_bytes):
            blocks = [_API, head, lines, *extras]
            text = _render_namespace(SHARED_TYPES, f"MCP.{server}", blocks)
            if size_of(text) <= max_bytes:
                return text
    names = _fit_names(f"MCP.{server}", tools, max_bytes - size_of(head))
    return f"{head}\n{names}" if size_of(head + names) <= max_bytes else names


def render_tool(server: str, identifier: str, tool: Tool, max_bytes: int = MAX_FILE_BYTES) -> str:
    """Returns the text of `mcp/<server>/<tool>.d.ts`."""
    namespace = _Namespace({identifier: tool}, max_bytes)
    namespace.declare(identifier)
    text = _render_namespace(RESULT_TYPES, f"MCP.{server}", namespace.blocks)
    if namespace.blocks and size_of(text) <= max_bytes:
        return text
    schema = f"$api({quote(identifier)}, {{ schema: true }})"
    lines = [*_describe(tool, MAX_BRIEF_CHARS)[:1], f"Its schema is too long for here: {schema}."]
    function = f"{identifier}(input?: {FULL.any_object.text}): {_RESULT};"
    return _render_namespace(
        RESULT_TYPES, f"MCP.{server}", [f"{render_comment(lines)}function {function}"]
    )


def render_index(servers: Mapping[str, Collection[str]], *, max_bytes: int = MAX_FILE_BYTES) -> str:
    """Returns the text of `mcp/index.d.ts`: the servers, and the names of their tools.

    Args:
        servers: The identifiers of the servers, and those of the tools of each.
        max_bytes: The size of the text, as JSON.
    """
    room = (max_bytes - size_of(_INDEX_HEAD)) // max(len(servers), 1)
    notes = [_fit_names(f"MCP.{server}", tools, room) for server, tools in servers.items()]
    text = "\n".join([_INDEX_HEAD, *notes])
    if size_of(text) <= max_bytes:
        return text
    return f"// {len(servers)} servers: `Object.keys(MCP)` has their names.\n"


def size_of(text: str) -> int:
    """Returns the bytes that a text takes of a program's output."""
    return len(json.dumps(text, ensure_ascii=False).encode("utf-8", "replace"))


def _fit_names(place: str, tools: Collection[str], room: int) -> str:
    """Returns a comment with the names of tools, as many as fit into `room` bytes."""
    head = f"{place}, {len(tools)} tool{'s' * (len(tools) != 1)}"
    left, listed = room - len(head) - 24, list[str]()
    for tool in tools:
        left -= 3 * len(tool.encode()) // 2 + 2  # with its share of line breaks and margins
        if left < 0:
            break
        listed.append(tool)
    if listed and len(listed) < len(tools):
        listed.append(f"and {len(tools) - len(listed)} more")
    text = f"{head}: {', '.join(listed)}" if listed else head
    lines = wrap(text, 96, subsequent_indent="  ", break_long_words=False)
    return "".join(f"// {line}\n" for line in lines)


def _render_lines(tools: Mapping[str, Tool], most: int, room: int) -> str:
    """Returns a declaration of one line for each tool; empty if they do not fit into `room`."""
    lines: list[str] = []
    for identifier, tool in tools.items():
        about = (_describe(tool, most) or [""])[0] if most else ""
        note = clean_line(f"{render_line(tool.parameters)} {about}".strip(), 1_000)
        lines.append(f"function {identifier}(input?: any): {_RESULT}; // {note}")
        room -= len(lines[-1])
        if room < 0:
            return ""
    return "\n".join(lines)


def _render_namespace(types: str, name: str, blocks: list[str]) -> str:
    body = indent("\n" + "\n\n".join(blocks))
    return f"{types}\ndeclare namespace {name} {{{body}\n}}\n"


class _Namespace:
    """The declarations of one server's tools, within `room` characters.

    Attributes:
        blocks: The declarations, each after the aliases that it is the first to use.
    """

    def __init__(self, tools: Mapping[str, Tool], room: int) -> None:
        self._tools = tools
        self._room = room
        # Rendered characters, those discarded included: a short type can come of a long schema.
        self._work = 2 * room
        self._aliases: dict[str, str] = {}
        self._results: dict[str, str] = {}  # the names of long results, by their types
        self.blocks: list[str] = []

    def declare(self, identifier: str) -> bool:
        """Declares a tool. Returns False if there is no room for it."""
        if self._work <= 0 or self._room <= 0:
            return False
        block, aliases = self._render(identifier, self._tools[identifier])
        self._room -= len(indent(f"\n\n{block}"))
        if self._room < 0:
            return False
        self._aliases |= aliases
        self.blocks.append(block)
        return True

    def _render(self, identifier: str, tool: Tool) -> tuple[str, dict[str, str]]:
        prefix = identifier[0].upper() + identifier[1:]
        aliases: dict[str, str] = {}
        render = partial(render_type, tool.parameters, is_input=True)
        made = self._render_type(render, prefix, aliases)
        result = self._render_result(tool, f"{prefix}Result", aliases)
        lines = _describe(tool, MAX_DESCRIPTION_CHARS)
        lines += [f"@param {clean_line(quote_key(key))} {doc}" for key, doc in made.docs.items()]
        head = f"{identifier}(input{'?' if made.optional else ''}: {made.text})"
        function = f"{render_comment(lines)}function {head}: Promise<{result}>;"
        return "\n\n".join([*aliases.values(), function]), aliases

    def _render_result(self, tool: Tool, prefix: str, aliases: dict[str, str]) -> str:
        if tool.output_schema is None:
            return "McpToolResult"
        render = partial(render_type, tool.output_schema, stages=RESULT_STAGES)
        text = self._render_type(render, prefix, aliases).text
        if "\n" in text or len(text) > ONE_LINE_CHARS:
            if text not in self._results:  # tools with equal results share one name
                known = ChainMap(aliases, self._aliases)
                names = chain([prefix], (f"{prefix}{number}" for number in count(2)))
                name = self._results[text] = next(name for name in names if name not in known)
                aliases[name] = f"type {name} = {text};"
            text = self._results[text]
        return f"McpToolResult & {{ structuredContent?: {text} }}"

    def _render_type(
        self, render: Callable[..., RenderedType], prefix: str, aliases: dict[str, str]
    ) -> RenderedType:
        """Renders a type and adds its aliases, renamed if another alias has the same name.

        Tools of one server often share definitions, and equal definitions are declared once.
        """
        known = ChainMap(aliases, self._aliases)
        made = render(taken=_TAKEN_TYPES)
        self._work -= made.cost
        if any(known.get(name, text) != text for name, text in made.aliases.items()):
            made = render(prefix=prefix, taken=_TAKEN_TYPES.union(known))
            self._work -= made.cost
        aliases |= {name: text for name, text in made.aliases.items() if name not in known}
        return made


def _describe(tool: Tool, most: int) -> list[str]:
    return clean_lines(tool.description, most) or clean_lines(tool.label, most)
