"""What MCP servers offer, made into tools: strangers' lists in, bounded and checked ones out.

Plain data in and out; who sends the calls is `client`. A list may be endless, name a tool
twice, or hold what is no tool at all: each such entry is left out or cut, and a sentence says so.
The same list always gives the same tools.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from clawmode.catalog.mcp_namespace import defaults_of
from clawmode.text import shorten
from clawmode.tools.tool import Execute, Tool
from clawmode.types import JsonObject, JsonValue

MAX_TOOLS = 1_000
MAX_LISTED = 5_000
"""How many are read at most, so that which of them are kept does not depend on their order."""
MAX_PAGES = 100
MAX_ENTRIES = 10_000
"""Entries of one list in an answer: the SDK's validation takes 5 µs for each."""
MAX_NAME = 128
MAX_TITLE = 200
MAX_DESCRIPTION = 8_192
MAX_SCHEMA = 128 << 10
MAX_LISTED_CHARS = 16 << 20
MAX_PROBLEMS = 20
SHOWN = 40

HINTS = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
ANY_OBJECT: JsonObject = {"type": "object"}
RESOURCES = ("resources/list", "resources/read")
PROMPTS = ("prompts/list", "prompts/get")


@dataclass(slots=True)
class Problems:
    """What is wrong with a list, in sentences; those over the limit are counted."""

    _texts: list[str] = field(default_factory=list)
    _more: int = 0

    def add(self, text: str) -> None:
        """Notes one."""
        if len(self._texts) < MAX_PROBLEMS:
            self._texts.append(text)
        else:
            self._more += 1

    def told(self) -> tuple[str, ...]:
        """All of them."""
        more = (f"and {self._more} more problems",) if self._more else ()
        return (*self._texts, *more)


def show(name: str) -> str:
    """A name that a stranger chose, quoted, escaped and cut."""
    return ascii(shorten(name, SHOWN, "..."))


# ---- One entry ----


class _NoTool(ValueError):
    """An entry of a list is no tool, for the reason in the message."""


def sift(entries: JsonValue, problems: Problems) -> list[JsonObject]:
    """The entries of a `tools/list` that are tools, each reduced to the fields that are used.

    What is left out is noted. The rest passes the protocol's own checks, which would refuse the
    whole list for one bad entry.
    """
    if not isinstance(entries, list):
        problems.add("its list of tools is not a list")
        return []
    made: list[JsonObject] = []
    for index, entry in enumerate(entries):
        name = entry.get("name") if isinstance(entry, dict) else None
        who = show(name) if isinstance(name, str) else f"entry {index}"
        try:
            made.append(_sift_entry(entry, name, who, problems))
        except _NoTool as error:
            problems.add(f"the tool {who} is left out: {error}")
    return made


def _sift_entry(entry: JsonValue, name: JsonValue, who: str, problems: Problems) -> JsonObject:
    if not isinstance(entry, dict):
        raise _NoTool("it is not an object")
    if not isinstance(name, str) or not name:
        raise _NoTool("it has no name")
    if len(name) > MAX_NAME:
        raise _NoTool(f"its name has {len(name)} characters, more than {MAX_NAME}")
    if not name.isprintable() or name != name.strip():
        raise _NoTool("its name has characters that cannot be seen")
    made: JsonObject = {"name": name, "inputSchema": _input_schema(entry.get("inputSchema"))}
    output = entry.get("outputSchema")
    if output is not None:
        try:
            made["outputSchema"] = _object_schema(output)
        except _NoTool as error:
            problems.add(f"the output schema of the tool {who} is left out: {error}")
    description = entry.get("description")
    if isinstance(description, str):
        made["description"] = shorten(description, MAX_DESCRIPTION)
    if isinstance(title := entry.get("title"), str):
        made["title"] = shorten(title, MAX_TITLE)
    made["annotations"] = _annotations(entry.get("annotations"))
    return made


def _input_schema(schema: JsonValue) -> JsonObject:
    return dict(ANY_OBJECT) if schema is None else _object_schema(schema)


def _object_schema(schema: JsonValue) -> JsonObject:
    """A schema as the protocol has it: of an object, with properties and required names."""
    if not isinstance(schema, dict):
        raise _NoTool("its schema is not an object")
    kinds = schema.get("type", "object")
    if "object" not in (kinds if isinstance(kinds, list) else [kinds]):
        raise _NoTool("its schema is not that of an object")
    properties = schema.get("properties", {})
    if not isinstance(properties, dict) or not all(
        isinstance(each, dict) or isinstance(each, bool) for each in properties.values()
    ):
        raise _NoTool("the properties of its schema are not schemas")
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(each, str) for each in required):
        raise _NoTool("`required` in its schema is not a list of names")
    if not isinstance(schema.get("$schema", ""), str):
        raise _NoTool("`$schema` in its schema is not an address")
    if len(json.dumps(schema, ensure_ascii=False)) > MAX_SCHEMA:
        raise _NoTool(f"its schema has more than {MAX_SCHEMA} characters")
    return {**schema, "type": "object"}


def _annotations(said: JsonValue) -> JsonObject:
    if not isinstance(said, dict):
        return {}
    made: JsonObject = {key: said[key] for key in HINTS if isinstance(said.get(key), bool)}
    if isinstance(title := said.get("title"), str):
        made["title"] = shorten(title, MAX_TITLE)
    return made


# ---- A list ----


@dataclass(frozen=True, slots=True)
class Offer:
    """A tool as its server describes it."""

    name: str
    description: str
    schema: JsonObject
    label: str | None = None
    output_schema: JsonObject | None = None
    hints: Mapping[str, bool] = field(default_factory=dict)


class Listing:
    """The tools of one server, gathered page by page."""

    def __init__(self) -> None:
        self.problems = Problems()
        self._offers: dict[str, Offer] = {}
        self._read = 0
        self._chars = 0

    @property
    def full(self) -> bool:
        """Whether no further page is to be read."""
        return self._read >= MAX_LISTED or self._chars >= MAX_LISTED_CHARS

    def add(self, offer: Offer) -> None:
        """Takes one more, in the order of the list. Of two with one name the first counts."""
        self._read += 1
        self._chars += len(offer.description) + len(json.dumps(offer.schema))
        if offer.name in (*RESOURCES, *PROMPTS):
            self.problems.add(f"the tool {show(offer.name)} is left out: the name is taken")
        elif offer.name in self._offers:
            self.problems.add(f"the tool {show(offer.name)} is listed twice; the first is used")
        else:
            self._offers[offer.name] = offer

    def finish(self, *, cut_short: bool = False) -> list[Offer]:
        """The tools by name.

        Args:
            cut_short: The list went on.
        """
        offers = [self._offers[name] for name in sorted(self._offers)]
        if cut_short or len(offers) > MAX_TOOLS:
            count = f"{self._read} or more" if cut_short else f"{len(offers)}"
            self.problems.add(f"it has {count} tools; the first {MAX_TOOLS} by name are used")
        kept = offers[:MAX_TOOLS]
        for offer in kept:
            if (reference := _foreign_reference(offer.schema)) is not None:
                self.problems.add(
                    f"the tool {show(offer.name)} cannot be called: its schema refers to "
                    f"{show(reference)}, and nothing is fetched"
                )
        return kept


def _foreign_reference(schema: JsonValue) -> str | None:
    """A reference to something outside of the schema, if there is one."""
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            reference = part.get("$ref")
            if isinstance(reference, str) and not reference.startswith("#"):
                return reference
            waiting.extend(part.values())
        elif isinstance(part, list):
            waiting.extend(part)
    return None


# ---- Tools ----


def make_tool(offer: Offer, *, server: str, execute: Execute, trusting: bool) -> Tool:
    """The tool for an offer.

    Args:
        offer: What the server says about it.
        server: The server's name.
        execute: What sends a call.
        trusting: Believe what the server says about effects.
    """
    reads = trusting and offer.hints.get("readOnlyHint", False)
    writes = trusting and offer.hints.get("readOnlyHint") is False
    return Tool(
        offer.name,
        offer.description,
        _with_optional_defaults(offer.schema),
        execute,
        label=offer.label,
        output_schema=offer.output_schema,
        # The protocol gives `idempotentHint` a meaning only for tools that write.
        idempotent=reads or (trusting and offer.hints.get("idempotentHint", False)),
        effect="read" if reads else "write" if writes else None,
        source="mcp",
        owner=server,
    )


def _with_optional_defaults(schema: JsonObject) -> JsonObject:
    """The schema that a caller has to meet: what has a default need not be given."""
    required = schema.get("required")
    defaults = defaults_of(schema)
    if not isinstance(required, list) or not defaults:
        return schema
    return {**schema, "required": [name for name in required if name not in defaults]}


_CURSOR: dict[str, Any] = {
    "type": "object",
    "properties": {"cursor": {"type": "string", "description": "Where an earlier list ended."}},
    "additionalProperties": False,
}

PROTOCOL_TOOLS: dict[str, tuple[str, dict[str, Any]]] = {
    "resources/list": ("List the resources and resource templates of this server.", _CURSOR),
    "resources/read": (
        "Read a resource of this server.",
        {
            "type": "object",
            "properties": {"uri": {"type": "string", "description": "The address from the list."}},
            "required": ["uri"],
            "additionalProperties": False,
        },
    ),
    "prompts/list": ("List the prompts of this server.", _CURSOR),
    "prompts/get": (
        "Get a prompt of this server, with its arguments filled in.",
        {
            "type": "object",
            "properties": {
                "name": {"type": "string", "description": "The name from the list."},
                "arguments": {"type": "object", "additionalProperties": {"type": "string"}},
            },
            "required": ["name"],
            "additionalProperties": False,
        },
    ),
}
"""What the protocol itself lets a client ask for, by name: our words and our schemas."""


def make_protocol_tools(
    names: Iterable[str], *, server: str, execute: Mapping[str, Execute]
) -> tuple[Tool, ...]:
    """The tools for resources or prompts. That they only read is the protocol's own word."""
    return tuple(
        Tool(
            name,
            PROTOCOL_TOOLS[name][0],
            PROTOCOL_TOOLS[name][1],
            execute[name],
            idempotent=True,
            effect="read",
            source="mcp",
            owner=server,
        )
        for name in names
    )
