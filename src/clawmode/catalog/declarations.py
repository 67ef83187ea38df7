"""MCP servers as TypeScript declarations: what guest code calls their tools, and the `API` files.

Pure text: names, descriptions and schemas of strangers in, `mcp/<server>.d.ts` and `mcp/index.d.ts`
out. The types themselves are `schema_types`'s business. Whatever a server sends, a file is valid
TypeScript by itself, has at most about `MAX_FILE_CHARS`, and takes a bounded time to make.
"""

import re
import unicodedata
from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from textwrap import wrap

from clawmode.catalog.namespaces import RESERVED_WORDS
from clawmode.catalog.schema_types import Limits, RenderedType, render_type
from clawmode.catalog.typescript_text import (
    ONE_LINE_CHARS,
    OPEN_OBJECT,
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
"""What every server's namespace may have besides its tools."""
ROOT_MEMBERS = frozenset({"$api", "index"})
"""What `MCP` and the folder of its files have besides the servers."""

# `then` would make a promise of the object, `toJSON` would be called when it is passed around, the
# language's words cannot be declared, and the rest is there already in every object.
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
"""What every file begins with; of files that are checked together, all but one have to lose it."""

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
"""A result that a program can look at takes fewer words than an input that it has to write."""

_LEADING_CAPITALS = re.compile(r"^[A-Z]+(?![a-z])")


# ---- Names ----


def identifiers(
    names: Iterable[str],
    *,
    reserved: Collection[str] = SERVER_MEMBERS,
    empty: str = "tool",
) -> dict[str, str]:
    """What guest code calls the tools of a server, or the servers: `create_issue` → `createIssue`.

    The same names get the same identifiers in whatever order they come. An identifier that is
    forbidden or taken gets a number from 2. Of several names for one identifier, the one that is
    spelled like it has it.

    Args:
        names: As the servers or the configuration have them.
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
    words = "".join(char if _is_usable(char) else " " for char in start).split()
    if not words:
        return ""
    if not any(char.islower() for char in start):
        words = [word.lower() for word in words]
    head = _LEADING_CAPITALS.sub(lambda found: found[0].lower(), words[0])
    head = head[0].lower() + head[1:]
    made = head + "".join(word[0].upper() + word[1:] for word in words[1:])
    is_identifier = made.replace("$", "_").isidentifier()
    return (made if is_identifier else f"_{made}")[:MAX_IDENTIFIER_CHARS]


def _is_usable(char: str) -> bool:
    """Whether an identifier may have the character; `_` only parts words."""
    if char.isascii():
        return char.isalnum() or char == "$"
    # Python knows newer letters than a guest or a reader may.
    return f"_{char}".isidentifier() and unicodedata.ucd_3_2_0.category(char) != "Cn"


# ---- Files ----


def render_server(
    server: str,
    tools: Mapping[str, Tool],
    *,
    resources: bool = False,
    prompts: bool = False,
    max_chars: int = MAX_FILE_CHARS,
) -> str:
    """The text of `mcp/<server>.d.ts`.

    Args:
        server: The server's identifier.
        tools: Its tools by their identifiers, in the order in which they are declared.
        resources: It has resources.
        prompts: It has prompts.
        max_chars: When the file has so many, tools are declared without their schemas, and when
            that does not help, left out.
    """
    extras = [_RESOURCES] * resources + [_PROMPTS] * prompts
    frame = _render_namespace(f"MCP.{server}", [_API, _LEFT_OUT, *extras])
    namespace = _Namespace(tools, max_chars - len(frame))
    for identifier in tools:
        namespace.declare(identifier)
    return _render_namespace(f"MCP.{server}", [_API, *namespace.blocks, *extras])


def render_index(servers: Mapping[str, Collection[str]]) -> str:
    """The text of `mcp/index.d.ts`: what `MCP` itself has, and where to read on.

    Args:
        servers: The identifiers of the servers, and of the tools of each.
    """
    share = max(MAX_INDEX_CHARS // max(len(servers), 1), 100)
    notes = [_render_entry(server, list(tools), share) for server, tools in servers.items()]
    return "\n".join([_render_namespace("MCP", [_API]), *notes])


def _render_namespace(name: str, blocks: list[str]) -> str:
    body = indent("\n" + "\n\n".join(blocks))
    return f"{SHARED_TYPES}\ndeclare namespace {name} {{{body}\n}}\n"


def _render_entry(server: str, tools: list[str], most: int) -> str:
    count = "1 tool" if len(tools) == 1 else f"{len(tools)} tools"
    head = f"MCP.{server} has {count}, declared in mcp/{server}.d.ts"
    listed: list[str] = []
    for tool in tools:
        most -= len(tool) + 2
        if most < 0:
            break
        listed.append(tool)
    if len(listed) < len(tools):
        listed.append(f"{len(tools) - len(listed)} more")
    lines = wrap(f"{head}: {', '.join(listed)}" if listed else head, 96, subsequent_indent="  ")
    return "".join(f"// {line}\n" for line in lines)


class _Namespace:
    """The declarations of one server's tools, as long as there is room."""

    def __init__(self, tools: Mapping[str, Tool], room: int) -> None:
        self._tools = tools
        self._room = room
        self._work = 2 * room  # in characters made, because a schema can cost more than it shows
        self._brief = {name: _render_brief(name, tool) for name, tool in tools.items()}
        # Room for those that follow is kept free, so that a long schema takes no tool's place.
        self._kept_free = sum(map(_size, self._brief.values()))
        self._left_out = 0
        self._aliases: dict[str, str] = {}
        self._blocks: list[str] = []

    @property
    def blocks(self) -> list[str]:
        """What was declared, each with the aliases that it needs and no one had before."""
        return self._blocks + [_LEFT_OUT.format(self._left_out)] * bool(self._left_out)

    def declare(self, identifier: str) -> None:
        brief = self._brief[identifier]
        self._kept_free -= _size(brief)
        if self._work > 0 and self._room > self._kept_free:
            block, aliases = self._render(identifier, self._tools[identifier])
            if _size(block) <= self._room - self._kept_free:
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
        made = self._settle(partial(render_type, tool.parameters, is_input=True), prefix, aliases)
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
        content = f"structuredContent?: {self._settle(render, prefix, aliases).text}"
        if "\n" in content or len(content) > ONE_LINE_CHARS:
            return "McpToolResult & {" + indent(f"\n{content};") + "\n}"
        return f"McpToolResult & {{ {content} }}"

    def _settle(
        self, render: Callable[..., RenderedType], prefix: str, aliases: dict[str, str]
    ) -> RenderedType:
        """Makes a type and adds its aliases, under other names if theirs mean something else here.

        Tools of one server often share definitions; those that are the same are declared once.
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
    return f"{render_comment(lines)}function {identifier}(input?: {OPEN_OBJECT.text}): {_RESULT};"


def _size(block: str) -> int:
    """How many characters a block has in its file."""
    return len(indent(f"\n\n{block}"))


def _describe(tool: Tool, most: int) -> list[str]:
    return clean_lines(tool.description, most) or clean_lines(tool.label, most)
