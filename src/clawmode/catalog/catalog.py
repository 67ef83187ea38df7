"""The tools of one run: their ids, safe names, entries, and how they are found and looked up.

A catalog is made of tools that policy has let through, and never changes. Nothing here is shared
between runs. Programs do not see MCP entries unless the caller says so: code mode reaches them
through the `MCP` namespace only, Tool Search like any other.
"""

import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import get_args

from clawmode.catalog.control import is_control
from clawmode.catalog.search import Document, Ranker, RankerMaker, SearchIndex, go_by_words
from clawmode.catalog.signatures import render_input
from clawmode.exceptions import AmbiguousTool, DuplicateTool, UnknownTool
from clawmode.text import quote
from clawmode.tools.near_names import NearNames
from clawmode.tools.tool import DEFAULT_OWNERS, Tool, ToolSource
from clawmode.types import JsonObject, JsonText

# `search`, `describe` and `call` are the helpers themselves. The language gives the others a
# meaning of its own: assigning `__proto__` changes the object instead of adding to it, `await`
# calls `then`, and JSON calls `toJSON`, so that passing `tools` around would call a tool. All of
# them can be called by id.
UNSAFE_NAMES = frozenset({"search", "describe", "call", "__proto__", "then", "toJSON"})

MAX_LISTED = 10
MAX_NEAR = 3
MANY = 1_000
"""Tools from which indexing their names takes long enough to be noticed."""


_NOT_IN_IDENTIFIER = re.compile(r"[^A-Za-z0-9_$]")
_LOOKS_LIKE_ID = re.compile(rf"(?:{'|'.join(get_args(ToolSource))}):[^:]*:", re.IGNORECASE)
_MORE = "... and {} more, found by tools.search(query)"


class Catalog:
    """What the programs of one run can find and call.

    Args:
        tools: The effective tools, in any order. Control tools are left out.
        ranker: How searches rank, once there is one: by words, or as `vectors.choose_ranker` says.
        mcp: Whether MCP entries are found and called like all others, without being asked for.

    Attributes:
        entries: The tools, MCP included, sorted by id.

    Raises:
        DuplicateTool: Two tools have the same id.
    """

    def __init__(
        self, tools: Iterable[Tool], *, ranker: RankerMaker = go_by_words, mcp: bool = False
    ) -> None:
        by_id = _sort_by_id(tools)
        self.entries = tuple(by_id.values())
        visible = {id_: tool for id_, tool in by_id.items() if mcp or tool.source != "mcp"}
        self._visible = _View(visible, ranker, hidden=len(by_id) - len(visible))
        self._all = _View(by_id, ranker) if len(visible) < len(by_id) else self._visible

    def __len__(self) -> int:
        return len(self.entries)

    def breakdown(self) -> dict[str, int]:
        """How many entries come from which source."""
        return dict(sorted(Counter(tool.source for tool in self.entries).items()))

    # What a program is given from the start

    def all_tools(self) -> list[JsonObject]:
        """The compact entries that programs see as `ALL_TOOLS`: without schemas, without MCP."""
        return [dict(entry) for entry in self._visible.compact]

    def convenience(self) -> dict[str, str]:
        """Safe names of convenience functions, and the id that each one calls."""
        return dict(self._convenience)

    @cached_property
    def all_tools_json(self) -> JsonText:
        """`all_tools` as compact JSON, in ASCII: it can carry what UTF-8 cannot."""
        return _to_json(self._visible.compact)

    @cached_property
    def digest(self) -> str:
        """Names what a program is given: two catalogs with one digest look the same to it."""
        return hashlib.sha256(self.all_tools_json + b"\n" + _to_json(self._convenience)).hexdigest()

    @cached_property
    def _convenience(self) -> dict[str, str]:
        owners: defaultdict[str, list[str]] = defaultdict(list)
        for id_, tool in self._visible.tools.items():
            owners[safe_name(tool.name)].append(id_)
        return {
            name: ids[0]
            for name, ids in sorted(owners.items())
            if len(ids) == 1 and name not in UNSAFE_NAMES and _is_identifier(name)
        }

    # What a program asks for

    def search(self, query: str, limit: int, *, include_mcp: bool = False) -> list[JsonObject]:
        """Compact entries, the best first: an exact id or name, then by relevance."""
        return self._view(include_mcp).search(query, limit)

    def unmatched(self, query: str, *, include_mcp: bool = False) -> list[str]:
        """The words of a query that no entry has: why a search found little, for people."""
        return self._view(include_mcp).index.unmatched(query)

    def describe(self, reference: str, *, include_mcp: bool = False) -> JsonObject:
        """The entry of a tool, with its schemas.

        Raises:
            UnknownTool, AmbiguousTool: As for `resolve`.
        """
        tool = self.resolve(reference, include_mcp=include_mcp)
        made = _to_entry(tool.id, tool) | {"parameters": dict(tool.parameters)}
        if tool.output_schema is not None:
            made["outputSchema"] = dict(tool.output_schema)
        return made

    def resolve(self, reference: str, *, include_mcp: bool = False) -> Tool:
        """The tool with this id, else the only one with this name.

        Raises:
            UnknownTool: There is none; the error has the nearest ids.
            AmbiguousTool: Several have the name; the error has their ids.
        """
        return self._view(include_mcp).resolve(reference)

    @property
    def names_indexed(self) -> bool:
        """False if the first unknown name would take long: `index_names` first, in a thread."""
        return len(self._visible.tools) < MANY or "near" in vars(self._visible)

    def index_names(self) -> None:
        """Prepares the answers to unknown names."""
        _ = self._visible.near

    def _view(self, include_mcp: bool) -> "_View":
        return self._all if include_mcp else self._visible

    # What the model reads

    def index_text(self, max_chars: int) -> str:
        """Callable names with their input types, one per line, for the prompt.

        Only of tools whose words the operator chose. The same catalog gives the same bytes. A line
        that does not fit is left out alone, and the last line says how many were.
        """
        lines = _Lines(self._visible.tools, self._convenience)
        shown = lines.fit(max_chars)
        if len(shown) < len(lines):
            shown = lines.fit(max_chars - len(_MORE.format(len(lines))) - 1)
            shown.append(_MORE.format(len(lines) - len(shown)))
        text = "\n".join(shown)
        return text if len(text) <= max_chars else ""


class _View:
    """Tools by id, as one kind of caller sees them; `hidden` is how many it does not see."""

    def __init__(self, tools: dict[str, Tool], ranker: RankerMaker, hidden: int = 0) -> None:
        self.tools = tools
        self._make_ranker = ranker
        self._hidden = hidden

    @cached_property
    def compact(self) -> list[JsonObject]:
        return [_to_entry(id_, tool) for id_, tool in self.tools.items()]

    @cached_property
    def index(self) -> SearchIndex:
        return SearchIndex(self._documents)

    @cached_property
    def _ranker(self) -> Ranker:
        return self._make_ranker(self._documents, self.index)

    @property
    def _documents(self) -> list[Document]:
        return [_to_document(tool) for tool in self.tools.values()]

    @cached_property
    def _exact(self) -> dict[str, list[int]]:
        """Positions by id and by name, in any case; those by id come first."""
        made: defaultdict[str, list[int]] = defaultdict(list)
        for position, id_ in enumerate(self.tools):
            made[id_.casefold()].append(position)
        for position, tool in enumerate(self.tools.values()):
            made[tool.name.casefold()].append(position)
        return dict(made)

    @cached_property
    def _named(self) -> dict[str, list[str]]:
        made: defaultdict[str, list[str]] = defaultdict(list)
        for id_, tool in self.tools.items():
            made[tool.name].append(id_)
        return dict(made)

    @cached_property
    def near(self) -> NearNames:
        return NearNames([tool.name for tool in self.tools.values()])

    def search(self, query: str, limit: int) -> list[JsonObject]:
        exact = self._exact.get(query.strip().casefold(), [])
        ranked = [position for position, _ in self._ranker.search(query, limit)]
        found = list(dict.fromkeys(exact + ranked))[: max(limit, 0)]
        return [dict(self.compact[position]) for position in found]

    def resolve(self, reference: str) -> Tool:
        if reference in self.tools:
            return self.tools[reference]
        # What looks like an id is nothing else: else a tool named like another's id would catch
        # its calls as soon as policy takes the other away.
        named = () if _LOOKS_LIKE_ID.match(reference) else self._named.get(reference, ())
        if len(named) != 1:
            raise _ambiguous(reference, named) if named else self._unknown(reference)
        return self.tools[named[0]]

    def _unknown(self, reference: str) -> UnknownTool:
        ids = list(self.tools)
        name = _LOOKS_LIKE_ID.sub("", reference, count=1)
        near = tuple(ids[position] for position in self.near.find(name, MAX_NEAR))
        return UnknownTool(
            f"no tool has the id or name {quote(reference)}."
            + (f" The nearest: {_list(near)}." if near else "")
            + " Find one with tools.search(query) and call it by its id."
            + (" MCP tools are called as MCP.<server>.<tool>(input)." if self._hidden else ""),
            near,
        )


class _Lines:
    """The lines of the index, rendered only when they may fit."""

    def __init__(self, tools: Mapping[str, Tool], convenience: Mapping[str, str]) -> None:
        names = {id_: name for name, id_ in convenience.items()}
        self._heads = sorted(
            (f"{names[id_]}(" if id_ in names else f"tools.call({json.dumps(id_)}, ", id_)
            for id_, tool in tools.items()
            if tool.trusted
        )
        self._tools = tools
        self._rendered: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._heads)

    def fit(self, room: int) -> list[str]:
        """The lines that fit into so many characters; a shorter one may follow one that did not."""
        shown: list[str] = []
        for head, id_ in self._heads:
            if len(head) + len("{})") > room:
                continue
            line = self._render(head, id_)
            if len(line) <= room:
                shown.append(line)
                room -= len(line) + 1
        return shown

    def _render(self, head: str, id_: str) -> str:
        if head not in self._rendered:
            self._rendered[head] = f"{head}{render_input(self._tools[id_].parameters)})"
        return self._rendered[head]


def safe_name(name: str) -> str:
    """A tool's name with every character that an identifier cannot have as `_`."""
    if name.isascii():
        return _NOT_IN_IDENTIFIER.sub("_", name)
    return "".join(char if char == "$" or f"_{char}".isidentifier() else "_" for char in name)


def _is_identifier(name: str) -> bool:
    # Python's identifiers are JavaScript's without the dollar, but for reserved words, and those
    # may be used after a dot.
    return name.replace("$", "_").isidentifier()


def _sort_by_id(tools: Iterable[Tool]) -> dict[str, Tool]:
    made: dict[str, Tool] = {}
    for tool in tools:
        if is_control(tool):
            continue
        id_ = tool.id
        if id_ in made:
            raise DuplicateTool(
                f"two tools of this run have the id {quote(id_)}: {_identify(made[id_])} and "
                f"{_identify(tool)}. Rename or leave out one of them."
            )
        made[id_] = tool
    return dict(sorted(made.items()))


def _identify(tool: Tool) -> str:
    return f"{quote(tool.name)} of {quote(_owner(tool))} ({quote(tool.description)})"


def _owner(tool: Tool) -> str:
    return tool.owner or DEFAULT_OWNERS.get(tool.source, "")


def _to_entry(id_: str, tool: Tool) -> JsonObject:
    made: JsonObject = {"id": id_, "name": tool.name}
    if tool.label:
        made["label"] = tool.label
    made |= {"description": tool.description, "source": tool.source}
    if tool.source != "openclaw" and (owner := _owner(tool)):
        made["sourceName"] = owner
    return made


def _to_document(tool: Tool) -> Document:
    """What may be searched: parameter names of a stranger's tool are not indexed."""
    properties = tool.parameters.get("properties") if tool.trusted else None
    keys = " ".join(map(str, properties)) if isinstance(properties, dict) else ""
    return Document(tool.name, tool.label or "", tool.description, keys)


def _to_json(value: object) -> JsonText:
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def _ambiguous(reference: str, ids: Sequence[str]) -> AmbiguousTool:
    return AmbiguousTool(
        f"{len(ids)} tools are named {quote(reference)}: {_list(ids)}. Call one by its id.",
        tuple(ids),
    )


def _list(ids: Sequence[str]) -> str:
    more = f" and {len(ids) - MAX_LISTED} more" if len(ids) > MAX_LISTED else ""
    return ", ".join(map(quote, ids[:MAX_LISTED])) + more
