"""TypeScript declarations of MCP servers: the identifiers of their tools, and the `API` files.

The input is the untrusted names, descriptions and schemas of a server, the output the text of
`mcp/<server>.d.ts` and `mcp/index.d.ts`; `schema_types` renders the types. Whatever a server sends,
a file is valid TypeScript, has at most about `MAX_FILE_CHARS`, and takes a bounded time.
"""

import re
import unicodedata
from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from itertools import accumulate
from textwrap import wrap

from clawmode.catalog.namespaces import RESERVED_WORDS
from clawmode.catalog.schema_types import Limits, RenderedType, render_type
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

MAX_IDENTIFIER_CHARS = 64
MAX_NAME_CHARS = 1_000
MAX_DESCRIPTION_CHARS = 2_000
MAX_BRIEF_CHARS = 120
MAX_FILE_CHARS = 512 * 1024
MAX_INDEX_CHARS = 64 * 1024

SERVER_MEMBERS = frozenset({"$api", "resources", "prompts"})
"""Members that a server's namespace may have besides its tools."""
ROOT_MEMBERS = frozenset({"$api", "index"})
"""Members of `MCP`, and files in its folder, besides the servers."""

# With a `then`, `await` would treat the namespace as a promise; JSON calls `toJSON`. Reserved words
# cannot be declared, and every object has the other members already.
_FORBIDDEN = RESERVED_WORDS.union(
    "constructor prototype hasOwnProperty isPrototypeOf propertyIsEnumerable toLocaleString "
    "toString valueOf then toJSON eval undefined globalThis".split()
)

SHARED_TYPES = """\
type McpToolResult = {
  content?: unknown[];
  structuredContent?: unknown;
  isError?: boolean;
  [key: string]: unknown;
};

type McpApiHeader = {
  header: string;
  server?: string;
  servers?: string[];
  tools?: string[];
  schemas?: { [tool: string]: unknown };
  [key: string]: unknown;
};
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

_RESULT = "Promise<McpToolResult>"
_LEFT_OUT = "// {} more tools: see what $api() answers."
_TAKEN_TYPES = frozenset({"McpToolResult", "McpApiHeader", "Promise"})

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
) -> dict[str, str]:
    """Returns the identifiers of tools or servers in guest code: `create_issue` → `createIssue`.

    The result does not depend on the order of the names. An identifier that is forbidden or taken
    gets a number, starting with 2. If several names give one identifier, the name that equals the
    identifier gets it.

    Args:
        names: The names that the servers or the configuration use.
        reserved: Identifiers that are taken from the start: `ROOT_MEMBERS` for servers.
        empty: The identifier of a name without any usable character.
    """
    bases = {name: _to_camel_case(name) or empty for name in sorted(set(names))}
    taken = {*_FORBIDDEN, *reserved}
    made: dict[str, str] = {}
    for name in sorted(bases, key=lambda name: bases[name] != name):
        if bases[name] not in taken:
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
    max_chars: int = MAX_FILE_CHARS,
) -> str:
    """Returns the text of `mcp/<server>.d.ts`.

    Args:
        server: The server's identifier.
        tools: The tools by identifier, in the order of their declarations.
        resources: True if the server has resources.
        prompts: True if the server has prompts.
        max_chars: Above this size, tools are declared without their schemas, and left out if that
            is not enough.
    """
    extras = [_RESOURCES] * resources + [_PROMPTS] * prompts
    frame = _render_namespace(f"MCP.{server}", [_API, _LEFT_OUT, *extras])
    namespace = _Namespace(tools, max_chars - len(frame))
    for identifier in tools:
        namespace.declare(identifier)
    return _render_namespace(f"MCP.{server}", [_API, *namespace.blocks, *extras])


def render_index(servers: Mapping[str, Collection[str]]) -> str:
    """Returns the text of `mcp/index.d.ts`: the servers, and the names of their tools.

    Args:
        servers: The identifiers of the servers, and those of the tools of each.
    """
    share = max(MAX_INDEX_CHARS // max(len(servers), 1), 100)
    notes: list[str] = []
    for server, tools in servers.items():
        count = "1 tool" if len(tools) == 1 else f"{len(tools)} tools"
        head = f"MCP.{server} has {count}, declared in mcp/{server}.d.ts"
        ends = accumulate(len(tool) + 2 for tool in tools)
        listed = [tool for tool, end in zip(tools, ends, strict=True) if end <= share]
        if len(listed) < len(tools):
            listed.append(f"{len(tools) - len(listed)} more")
        lines = wrap(f"{head}: {', '.join(listed)}" if listed else head, 96, subsequent_indent="  ")
        notes.append("".join(f"// {line}\n" for line in lines))
    return "\n".join([_render_namespace("MCP", [_API]), *notes])


def _render_namespace(name: str, blocks: list[str]) -> str:
    body = indent("\n" + "\n\n".join(blocks))
    return f"{SHARED_TYPES}\ndeclare namespace {name} {{{body}\n}}\n"


class _Namespace:
    """The declarations of one server's tools, within `room` characters."""

    def __init__(self, tools: Mapping[str, Tool], room: int) -> None:
        self._tools = tools
        self._room = room
        # Rendered characters, those discarded included: a short type can come of a long schema.
        self._work = 2 * room
        self._brief = {name: _render_brief(name, tool) for name, tool in tools.items()}
        # Room for the brief forms of later tools, so that one long schema displaces no other tool.
        self._reserved = sum(map(_size, self._brief.values()))
        self._left_out = 0
        self._aliases: dict[str, str] = {}
        self._blocks: list[str] = []

    @property
    def blocks(self) -> list[str]:
        """The declarations, each after the aliases that it is the first to use."""
        return self._blocks + [_LEFT_OUT.format(self._left_out)] * bool(self._left_out)

    def declare(self, identifier: str) -> None:
        brief = self._brief[identifier]
        self._reserved -= _size(brief)
        if self._work > 0 and self._room > self._reserved:
            block, aliases = self._render(identifier, self._tools[identifier])
            if _size(block) <= self._room - self._reserved:
                self._aliases |= aliases
                self._add(block)
                return
        if _size(brief) <= self._room:
            self._add(brief)
        else:
            self._left_out += 1

    def _add(self, block: str) -> None:
        self._room -= _size(block)
        self._blocks.append(block)

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
        content = f"structuredContent?: {self._render_type(render, prefix, aliases).text}"
        if "\n" in content or len(content) > ONE_LINE_CHARS:
            return "McpToolResult & {" + indent(f"\n{content};") + "\n}"
        return f"McpToolResult & {{ {content} }}"

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


def _render_brief(identifier: str, tool: Tool) -> str:
    lines = _describe(tool, MAX_BRIEF_CHARS)[:1]
    lines.append(f"Its schema is too long for here: $api({quote(identifier)}, {{ schema: true }}).")
    return (
        f"{render_comment(lines)}function {identifier}(input?: {FULL.any_object.text}): {_RESULT};"
    )


def _size(block: str) -> int:
    """Returns the number of characters of a block in its file."""
    return len(indent(f"\n\n{block}"))


def _describe(tool: Tool, most: int) -> list[str]:
    return clean_lines(tool.description, most) or clean_lines(tool.label, most)
