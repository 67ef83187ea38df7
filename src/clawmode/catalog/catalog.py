"""The tools that one run can call: ids, safe names, entries, lookup, search, and the prompt index.

A `Catalog` is built from the tools that the policy allows, and never changes. Runs share nothing
here. Lookups skip MCP tools unless the caller includes them: code mode calls MCP tools through the
`MCP` namespace, and Tool Search treats them like all other tools.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property
from typing import get_args

from clawmode.catalog.controls import MAX_NAME, is_control
from clawmode.catalog.prompt_index import PromptIndex
from clawmode.catalog.schema_types import render_line, render_result
from clawmode.catalog.search import (
    WEAK_STRENGTH,
    Document,
    Ranker,
    RankerMaker,
    SearchIndex,
    go_by_words,
)
from clawmode.catalog.tables import load_related
from clawmode.exceptions import AmbiguousTool, DuplicateTool, UnknownTool
from clawmode.text import quote
from clawmode.tools.near_names import NearNames
from clawmode.tools.tool import DEFAULT_OWNERS, Tool, ToolSource
from clawmode.types import JsonObject, JsonText

# `search`, `describe` and `call` are the helpers themselves. The others have a special meaning in
# JavaScript: assigning `__proto__` replaces the prototype, `await` calls `then`, and JSON calls
# `toJSON`, so passing `tools` around would call a tool. Such tools can still be called by id.
UNSAFE_NAMES = frozenset({"search", "describe", "call", "__proto__", "then", "toJSON"})

MAX_LISTED = 10
MAX_NEAR = 3
MANY = 1_000
"""With this many tools, indexing their names takes noticeable time."""


_NOT_IN_IDENTIFIER = re.compile(r"[^A-Za-z0-9_$]")
_LOOKS_LIKE_ID = re.compile(rf"(?:{'|'.join(get_args(ToolSource))}):[^:]*:", re.IGNORECASE)


# ---- The catalog ----


class Catalog:
    """What the programs of one run can find and call.

    Args:
        tools: The tools that the policy allows, in any order. Control tools are ignored.
        ranker: Makes the ranker at the first search; see `vectors.choose_ranker`.
        mcp: True if lookups include MCP tools even without `include_mcp`.

    Attributes:
        entries: All tools, MCP tools included, sorted by id.

    Raises:
        DuplicateTool: Two tools have the same id.
    """

    def __init__(
        self, tools: Iterable[Tool], *, ranker: RankerMaker = go_by_words, mcp: bool = False
    ) -> None:
        found: dict[str, Tool] = {}
        for tool in tools:
            if is_control(tool):
                continue
            if tool.id in found:
                raise DuplicateTool(
                    f"two tools of this run have the id {quote(tool.id)}: "
                    f"{_identify(found[tool.id])} and {_identify(tool)}. "
                    "Rename or leave out one of them."
                )
            found[tool.id] = tool
        by_id = dict(sorted(found.items()))
        self.entries = tuple(by_id.values())
        visible = {id_: tool for id_, tool in by_id.items() if mcp or tool.source != "mcp"}
        self._visible = _View(visible, ranker, hidden=len(by_id) - len(visible))
        self._all = _View(by_id, ranker) if len(visible) < len(by_id) else self._visible
        self._index_texts: dict[object, str] = {}

    def __len__(self) -> int:
        return len(self.entries)

    def breakdown(self) -> dict[str, int]:
        """Returns the number of entries of each source."""
        return dict(sorted(Counter(tool.source for tool in self.entries).items()))

    # What a program has from the start

    def convenience(self) -> dict[str, str]:
        """Returns the names of the convenience functions, and the tool id that each one calls."""
        return dict(self._convenience)

    @cached_property
    def all_tools_json(self) -> JsonText:
        """`ALL_TOOLS`: entries without schemas and without MCP tools, as compact JSON.

        In ASCII, because descriptions may have lone surrogates.
        """
        return _to_json(self._visible.compact)

    @cached_property
    def _convenience(self) -> dict[str, str]:
        owners: defaultdict[str, list[str]] = defaultdict(list)
        for id_, tool in self._visible.tools.items():
            owners[safe_name(tool.name)].append(id_)
        return {
            name: ids[0]
            for name, ids in sorted(owners.items())
            # Python's identifiers are JavaScript's except for the dollar sign and reserved words,
            # and reserved words are allowed after a dot.
            if len(ids) == 1 and name not in UNSAFE_NAMES and name.replace("$", "_").isidentifier()
        }

    # Lookup and search

    def search(self, query: str, limit: int, *, include_mcp: bool = False) -> list[JsonObject]:
        """Returns entries without schemas: exact ids and names first, then by relevance.

        Hits that are likely to be wrong have `weak: true`.
        """
        return self._view(include_mcp).search(query, limit)

    def unmatched(self, query: str, *, include_mcp: bool = False) -> list[str]:
        """Returns the words of a query that occur in no entry, to explain a poor result."""
        return self._view(include_mcp).index.unmatched(query)

    def describe(self, reference: str, *, include_mcp: bool = False) -> JsonObject:
        """Returns the entry of a tool, with its schemas.

        Raises:
            UnknownTool, AmbiguousTool: As `resolve`.
        """
        tool = self.resolve(reference, include_mcp=include_mcp)
        entry = _to_entry(tool.id, tool) | {"parameters": dict(tool.parameters)}
        if tool.output_schema is not None:
            entry["outputSchema"] = dict(tool.output_schema)
        return entry

    def resolve(self, reference: str, *, include_mcp: bool = False) -> Tool:
        """Returns the tool with this id, or else the only tool with this name.

        Raises:
            UnknownTool: No tool has the id or name; the error suggests similar ids.
            AmbiguousTool: Several tools have the name; the error lists their ids.
        """
        return self._view(include_mcp).resolve(reference)

    def suggest(self, name: str) -> tuple[list[Tool], bool]:
        """Returns the tools that a wrong name may mean, MCP tools included.

        True comes with the tools that have the name, written in any case and with any separator,
        or the id; False with those whose names are similar.
        """
        tools = list(self._all.tools.values())
        if name in self._all.tools:
            return [self._all.tools[name]], True
        spelled = _letters(name)
        if same := [tool for tool in tools if _letters(tool.name) == spelled]:
            return same, True
        return [tools[position] for position in self._all.near.find(name, MAX_NEAR)], False

    def call_of(self, tool: Tool) -> str:
        """Returns how a program calls a tool that is not of MCP, up to the input."""
        name = safe_name(tool.name)
        if self._convenience.get(name) == tool.id:
            return f"tools.{name}("
        return f"tools.call({json.dumps(tool.id)}, "

    @property
    def names_indexed(self) -> bool:
        """False if an unknown name would block: call `index_names` in a thread first."""
        return len(self._visible.tools) < MANY or "near" in vars(self._visible)

    def index_names(self) -> None:
        """Builds the index that finds similar names for an unknown one."""
        _ = self._visible.near

    def _view(self, include_mcp: bool) -> "_View":
        return self._all if include_mcp else self._visible

    # For the prompt

    def index_text(
        self,
        max_chars: int,
        *,
        used: Collection[str] = (),
        asks: Callable[[Tool], bool] = lambda tool: False,
    ) -> str:
        """Returns the names of all callable tools for the prompt, most of them with signatures.

        Only trusted tools are listed, because names and schemas of others may carry instructions
        to the model. Equal arguments give equal text. Where not all signatures fit, tools that were
        used come first, then the run's own ones before those of plugins, then short ones. Where
        not even all names fit, the last line counts the rest.

        Args:
            max_chars: The most characters of the text.
            used: Ids of tools that the session has used.
            asks: True for tools whose calls need approval.
        """
        tools = {id_: tool for id_, tool in self._visible.tools.items() if tool.trusted}
        asked = frozenset(id_ for id_, tool in tools.items() if asks(tool))
        # The prompt is made for every request, but its parts rarely change.
        key = (max_chars, frozenset(used), asked)
        if key not in self._index_texts:
            heads = {id_: self.call_of(tool).rstrip("(, ") for id_, tool in tools.items()}
            names = {id_: f"{it})" if '"' in it else it for id_, it in heads.items()}
            self._index_texts[key] = PromptIndex(
                tools, names, self.signature_of, max_chars=max_chars, used=used, asked=asked
            ).text()
        return self._index_texts[key]

    def signature_of(self, tool: Tool) -> str:
        """Returns how a program calls a tool, with the types of input and result, on one line."""
        head, given = self.call_of(tool), render_line(tool.parameters)
        result = render_result(tool.output_schema)
        given = "" if given == "{}" and head.endswith("(") else given
        return f"{head}{given})" + (f": {result}" if result else "")


class _View:
    """The tools that one kind of caller sees, by id; `hidden` counts the others."""

    def __init__(self, tools: dict[str, Tool], ranker: RankerMaker, hidden: int = 0) -> None:
        self.tools = tools
        self._make_ranker = ranker
        self._hidden = hidden

    @cached_property
    def compact(self) -> list[JsonObject]:
        return [_to_entry(id_, tool) for id_, tool in self.tools.items()]

    @cached_property
    def index(self) -> SearchIndex:
        return SearchIndex(self._documents, load_related())

    @cached_property
    def _ranker(self) -> Ranker:
        return self._make_ranker(self._documents, self.index)

    @property
    def _documents(self) -> list[Document]:
        return [_to_document(tool) for tool in self.tools.values()]

    @cached_property
    def _exact(self) -> dict[str, list[int]]:
        """Positions by case-folded id and name; matches of an id come first."""
        positions: defaultdict[str, list[int]] = defaultdict(list)
        for position, id_ in enumerate(self.tools):
            positions[id_.casefold()].append(position)
        for position, tool in enumerate(self.tools.values()):
            positions[tool.name.casefold()].append(position)
        return dict(positions)

    @cached_property
    def _named(self) -> dict[str, list[str]]:
        ids: defaultdict[str, list[str]] = defaultdict(list)
        for id_, tool in self.tools.items():
            ids[tool.name].append(id_)
        return dict(ids)

    @cached_property
    def near(self) -> NearNames:
        return NearNames([tool.name for tool in self.tools.values()])

    def search(self, query: str, limit: int) -> list[JsonObject]:
        exact = self._exact.get(query.strip().casefold(), [])
        ranked = [position for position, _ in self._ranker.search(query, limit)]
        found = list(dict.fromkeys(exact + ranked))[: max(limit, 0)]
        weak = bool(found) and self.index.strength(query) < WEAK_STRENGTH
        return [
            self.compact[position] | ({"weak": True} if weak and position not in exact else {})
            for position in found
        ]

    def resolve(self, reference: str) -> Tool:
        if reference in self.tools:
            return self.tools[reference]
        # A reference that looks like an id is never looked up as a name. Otherwise a tool named
        # like another tool's id would get its calls once the policy removes the other tool.
        named = () if _LOOKS_LIKE_ID.match(reference) else self._named.get(reference, ())
        if not named:
            ids = list(self.tools)
            name = _LOOKS_LIKE_ID.sub("", reference, count=1)
            near = tuple(ids[position] for position in self.near.find(name, MAX_NEAR))
            raise UnknownTool(
                f"no tool has the id or name {quote(reference)}."
                + (f" The nearest: {_list(near)}." if near else "")
                + " Find one with tools.search(query) and call it by its id."
                + (" MCP tools are called as MCP.<server>.<tool>(input)." if self._hidden else ""),
                near,
            )
        if len(named) > 1:
            raise AmbiguousTool(
                f"{len(named)} tools are named {quote(reference)}: {_list(named)}."
                " Call one by its id.",
                tuple(named),
            )
        return self.tools[named[0]]


def safe_name(name: str) -> str:
    """Replaces every character of a tool's name that an identifier cannot have by `_`."""
    if name.isascii():
        return _NOT_IN_IDENTIFIER.sub("_", name)
    return "".join(char if char == "$" or f"_{char}".isidentifier() else "_" for char in name)


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name[: 4 * MAX_NAME].casefold()))


def _identify(tool: Tool) -> str:
    return f"{quote(tool.name)} of {quote(_owner(tool))} ({quote(tool.description)})"


def _owner(tool: Tool) -> str:
    return tool.owner or DEFAULT_OWNERS.get(tool.source, "")


def _to_entry(id_: str, tool: Tool) -> JsonObject:
    entry: JsonObject = {"id": id_, "name": tool.name}
    if tool.label:
        entry["label"] = tool.label
    entry |= {"description": tool.description, "source": tool.source}
    if tool.source != "openclaw" and (owner := _owner(tool)):
        entry["sourceName"] = owner
    return entry


def _to_document(tool: Tool) -> Document:
    # The texts of parameters only if the tool is trusted; an owner only if it is a server's name,
    # which the operator chose.
    found = tool.parameters.get("properties") if tool.trusted else None
    properties = found if isinstance(found, dict) else {}
    texts = (each.get("description") for each in properties.values() if isinstance(each, dict))
    return Document(
        name=tool.name,
        label=tool.label or "",
        description=tool.description,
        parameters=" ".join(map(str, properties)),
        server=tool.owner if tool.source == "mcp" else "",
        details=" ".join(text for text in texts if isinstance(text, str)),
    )


def _to_json(value: object) -> JsonText:
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def _list(ids: Sequence[str]) -> str:
    more = f" and {len(ids) - MAX_LISTED} more" if len(ids) > MAX_LISTED else ""
    return ", ".join(map(quote, ids[:MAX_LISTED])) + more
