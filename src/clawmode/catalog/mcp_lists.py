"""What MCP servers listed besides tools: resources and prompts, as `$search` finds them.

The entries are untrusted; texts and lists are cut. Nothing here is ever called.
"""

import json
from typing import TypeAlias

from clawmode.tools.tool import Tool, ToolContext
from clawmode.types import JsonObject, JsonValue, dataclass

MAX_REMEMBERED = 1_000
MAX_REMEMBERED_CHARS = 1_000
"""Of one list of resources or prompts, for searches: entries, and characters of a text."""
MAX_ARGUMENTS = 10


@dataclass(frozen=True, slots=True)
class ListedItem:
    """A resource or a prompt that a server listed.

    Attributes:
        tool: What a search reads of it.
        kind: `resource` or `prompt`.
        call: How a program reads or gets it, after `MCP.<server>.`.
    """

    tool: Tool
    kind: str
    call: str


Lists: TypeAlias = dict[tuple[str, str], list[ListedItem]]
"""What servers listed, by the name of the server and the group."""


def read_list(group: str, details: JsonValue, server: str) -> list[ListedItem]:
    """Returns the entries of a server's answer to `resources/list` or `prompts/list`."""
    entries = details.get(group) if isinstance(details, dict) else None
    read = _read_resource if group == "resources" else _read_prompt
    given = entries[:MAX_REMEMBERED] if isinstance(entries, list) else []
    return [read(entry, server) for entry in given if isinstance(entry, dict)]


def _read_resource(entry: JsonObject, server: str) -> ListedItem:
    uri = _text(entry.get("uri"))
    about = f"{_text(entry.get('description'))} {uri}".strip()
    call = f"resources.read({{uri: {json.dumps(uri, ensure_ascii=False)}}})"
    return ListedItem(_searched(entry, about, f"resource {uri}", server), "resource", call)


def _read_prompt(entry: JsonObject, server: str) -> ListedItem:
    name, arguments = _text(entry.get("name")), entry.get("arguments")
    keys = [
        json.dumps(_text(each.get("name")), ensure_ascii=False)
        + ("" if each.get("required") is True else "?")
        for each in (arguments if isinstance(arguments, list) else [])[:MAX_ARGUMENTS]
        if isinstance(each, dict)
    ]
    given = f", arguments: {{{': string, '.join([*keys, ''])[:-2]}}}" if keys else ""
    call = f"prompts.get({{name: {json.dumps(name, ensure_ascii=False)}{given}}})"
    about = _text(entry.get("description"))
    return ListedItem(_searched(entry, about, f"prompt {name}", server), "prompt", call)


def _searched(entry: JsonObject, about: str, name: str, server: str) -> Tool:
    label = _text(entry.get("title")) or _text(entry.get("name"))
    return Tool(name, about, {}, _not_called, label=label, source="mcp", owner=server)


def _not_called(given: JsonObject, context: ToolContext) -> None:
    raise AssertionError("what a server listed is searched, and never called")


def _text(value: JsonValue) -> str:
    return value[:MAX_REMEMBERED_CHARS] if isinstance(value, str) else ""
