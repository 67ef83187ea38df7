"""Turns the list of tools of an MCP server, which is untrusted, into `Tool` objects.

Plain data in and out; `server_tools` sends the calls. A list may be endless, name a tool twice, or
contain invalid entries: such entries are left out or cut, and `Problems` says so. The same list
always gives the same tools.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import field
from fnmatch import fnmatchcase
from typing import Any

from clawmode.text import shorten
from clawmode.tools.tool import Execute, Tool
from clawmode.types import JsonObject, JsonValue, children, dataclass

MAX_TOOLS = 1_000
MAX_LISTED = 5_000
"""Entries that are read. More than `MAX_TOOLS`, so that the choice does not depend on the order."""
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
    """The faults of a list, as sentences. Those over the limit are only counted."""

    _texts: list[str] = field(default_factory=list)
    _more: int = 0

    def add(self, text: str) -> None:
        if len(self._texts) < MAX_PROBLEMS:
            self._texts.append(text)
        else:
            self._more += 1

    def texts(self) -> tuple[str, ...]:
        """Returns all sentences, and how many more there were."""
        more = (f"and {self._more} more problems",) if self._more else ()
        return (*self._texts, *more)


def show(name: str) -> str:
    """Quotes, escapes and cuts an untrusted name."""
    return ascii(shorten(name, SHOWN, "..."))


def fits(name: str, patterns: Iterable[str]) -> bool:
    """True if one of the patterns is the name; a `*` in a pattern stands for any text."""
    return any(fnmatchcase(name, pattern.replace("[", "[[]")) for pattern in patterns)


def _dig(value: JsonValue, *keys: str) -> JsonValue:
    """Returns a member of nested objects; None if there is no such member."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


# ---- One entry ----


class _NoTool(ValueError):
    """An entry of a list is not a valid tool. The message says why."""


def sift(entries: JsonValue, problems: Problems) -> list[JsonObject]:
    """Returns the valid entries of a `tools/list`, each reduced to the members that are used.

    Invalid entries are added to `problems`. Without this, the SDK's validation would reject the
    whole list for one invalid entry.
    """
    if not isinstance(entries, list):
        problems.add("its list of tools is not a list")
        return []
    made: list[JsonObject] = []
    for index, entry in enumerate(entries):
        name = entry.get("name") if isinstance(entry, dict) else None
        who = show(name) if isinstance(name, str) else f"entry {index}"
        try:
            if not isinstance(entry, dict):
                raise _NoTool("it is not an object")
            made.append(_sift_entry(entry, name, who, problems))
        except _NoTool as error:
            problems.add(f"the tool {who} is left out: {error}")
    return made


def _sift_entry(entry: JsonObject, name: JsonValue, who: str, problems: Problems) -> JsonObject:
    if not isinstance(name, str) or not name:
        raise _NoTool("it has no name")
    if len(name) > MAX_NAME:
        raise _NoTool(f"its name has {len(name)} characters, more than {MAX_NAME}")
    if not name.isprintable() or name != name.strip():
        raise _NoTool("its name has invisible characters")
    visibility = _dig(entry, "_meta", "ui", "visibility")
    if isinstance(visibility, (list, str)) and "model" not in visibility:
        raise _NoTool("it is only for the app of the server, not for models")
    made: JsonObject = {"name": name, "inputSchema": dict(ANY_OBJECT)}
    if (given := entry.get("inputSchema")) is not None:
        made["inputSchema"] = _object_schema(given)
    output = entry.get("outputSchema")
    if output is not None:
        try:
            made["outputSchema"] = _object_schema(output)
        except _NoTool as error:
            problems.add(f"the output schema of the tool {who} is left out: {error}")
    for key, limit in (("description", MAX_DESCRIPTION), ("title", MAX_TITLE)):
        if isinstance(text := entry.get(key), str):
            made[key] = shorten(text, limit)
    if _dig(entry, "execution", "taskSupport") == "required":
        made["execution"] = {"taskSupport": "required"}
    hints = {key: _dig(entry, "annotations", key) for key in HINTS}
    kept: JsonObject = {key: hint for key, hint in hints.items() if type(hint) is bool}
    if isinstance(title := _dig(entry, "annotations", "title"), str):
        kept["title"] = shorten(title, MAX_TITLE)
    made["annotations"] = kept
    return made


def _object_schema(schema: JsonValue) -> JsonObject:
    """Checks that a schema is one of an object, as the protocol requires, and returns it."""
    if not isinstance(schema, dict):
        raise _NoTool("its schema is not an object")
    kinds = schema.get("type", "object")
    if "object" not in (kinds if isinstance(kinds, list) else [kinds]):
        raise _NoTool("its schema does not describe an object")
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


def for_models(blocks: JsonValue) -> list[JsonValue]:
    """Returns the blocks of a result without those that are not for the assistant."""

    def is_hidden(block: JsonValue) -> bool:
        audience = _dig(block, "annotations", "audience")
        # An empty list is as good as none: content for nobody would have no purpose.
        return isinstance(audience, list) and audience != [] and "assistant" not in audience

    return [block for block in blocks if not is_hidden(block)] if isinstance(blocks, list) else []


# ---- A list ----


@dataclass(frozen=True, slots=True)
class Offer:
    """The description of a tool by its server."""

    name: str
    description: str
    schema: JsonObject
    label: str | None = None
    output_schema: JsonObject | None = None
    hints: Mapping[str, bool] = field(default_factory=dict)
    needs_task: bool = False


class Listing:
    """Collects the tools of one server page by page."""

    def __init__(self) -> None:
        self.problems = Problems()
        self._offers: dict[str, Offer] = {}
        self._read = 0
        self._chars = 0

    @property
    def full(self) -> bool:
        """True if no further page is read."""
        return self._read >= MAX_LISTED or self._chars >= MAX_LISTED_CHARS

    def add(self, offer: Offer) -> None:
        """Adds a tool, in the order of the list. Of two with the same name the first is used."""
        self._read += 1
        self._chars += len(offer.description) + len(json.dumps(offer.schema))
        if offer.name in (*RESOURCES, *PROMPTS):
            self.problems.add(f"the tool {show(offer.name)} is left out: the name is reserved")
        elif offer.name in self._offers:
            self.problems.add(f"the tool {show(offer.name)} is listed twice; the first is used")
        else:
            self._offers[offer.name] = offer

    def finish(self, *, cut_short: bool = False) -> list[Offer]:
        """Returns the tools sorted by name.

        Args:
            cut_short: True if the server's list has more pages.
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
                    f"{show(reference)}, which is not fetched"
                )
        return kept


def _foreign_reference(schema: JsonValue) -> str | None:
    """Returns a reference to another document, if the schema has one."""
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            reference = part.get("$ref")
            if isinstance(reference, str) and not reference.startswith("#"):
                return reference
        waiting.extend(children(part))
    return None


# ---- Tools ----


def make_tool(offer: Offer, *, server: str, execute: Execute, trusting: bool) -> Tool:
    """Makes the tool for an offer.

    Args:
        offer: The server's description of the tool.
        server: The name of the server.
        execute: Sends a call to the server.
        trusting: True to believe the server's annotations about effects.
    """
    schema = offer.schema
    properties, required = schema.get("properties"), schema.get("required")
    if isinstance(required, list) and isinstance(properties, dict):
        # For callers, a property with a default is not required: the executor fills it in.
        defaults = {
            key for key, each in properties.items() if isinstance(each, dict) and "default" in each
        }
        schema = {**schema, "required": [name for name in required if name not in defaults]}
    reads = trusting and offer.hints.get("readOnlyHint", False)
    writes = trusting and offer.hints.get("readOnlyHint") is False
    return Tool(
        offer.name,
        offer.description,
        schema,
        execute,
        label=offer.label,
        output_schema=offer.output_schema,
        # The protocol defines `idempotentHint` only for tools that write.
        idempotent=reads or (trusting and offer.hints.get("idempotentHint", False)),
        effect="read" if reads else "write" if writes else None,
        source="mcp",
        owner=server,
    )


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
"""Tools for the protocol's own methods: our name, description and schema."""


def make_protocol_tools(
    names: Iterable[str], *, server: str, execute: Mapping[str, Execute]
) -> tuple[Tool, ...]:
    """Makes the tools for resources or prompts, which are read-only by definition."""
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
