"""A plugin with two tools, a hook, a namespace for programs, a skill and settings.

Programs write `await Notes.add("Buy coffee", "shop")` and `await Notes.find("coffee")`.
"""

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from clawmode import (
    BeforeToolCall,
    JsonValue,
    NamespaceContext,
    NamespaceRegistration,
    PluginApi,
    Tool,
    ToolCallDecision,
    namespace_tool,
    tool,
)

from .notebook import Notebook

SECRET = re.compile(r"\b(?:password|api[ _-]?key|token)\b\s*[:=]\s*\S", re.IGNORECASE)


def register(api: PluginApi) -> None:
    """Called when the plugin is loaded; what it raises undoes all that it registered."""
    file = api.config.get("file")
    notebook = Notebook(Path(str(file)).expanduser() if file else None)
    limit = api.config.get("maxChars")
    for each in make_tools(notebook, limit if isinstance(limit, int) else 2_000):
        api.tool(each)
    api.hook("before_tool_call", keep_secrets_out)
    api.namespace(NOTES)


def make_tools(notebook: Notebook, max_chars: int) -> list[Tool]:
    @tool(effect="write")
    async def add_note(text: str, tags: list[str] | None = None) -> dict[str, Any]:
        """Write a note down.

        Args:
            text: What it says.
            tags: Words to find it by.
        """
        if len(text) > max_chars:
            raise ValueError(f"a note has at most {max_chars} characters")
        return asdict(notebook.add(text, tags or []))

    @tool(effect="read")
    async def find_notes(words: str = "", tag: str = "") -> list[dict[str, Any]]:
        """Find notes that have all of these words, and the tag if one is given."""
        return [asdict(note) for note in notebook.find(words, tag)]

    return [add_note, find_notes]


def keep_secrets_out(call: BeforeToolCall) -> ToolCallDecision | None:
    """A guard: it sees every call of every tool, and looks at its own."""
    if call.tool_id == "plugin:notes:add_note" and SECRET.search(str(call.params.get("text"))):
        return ToolCallDecision(block=True, block_reason="a note is no place for secrets")
    return None


def note_of(args: list[JsonValue]) -> JsonValue:
    """`Notes.add(text, ...tags)`, as the input of the tool."""
    text, *tags = args
    return {"text": text, "tags": tags}


def make_scope(context: NamespaceContext) -> dict[str, Any]:
    return {
        "add": namespace_tool("add_note", note_of),
        "find": namespace_tool("find_notes", lambda args: {"words": args[0] if args else ""}),
        "tagged": namespace_tool("find_notes", lambda args: {"tag": args[0]}),
    }


NOTES = NamespaceRegistration(
    id="notes",
    global_name="Notes",
    description="A notebook.",
    required_tool_names=("add_note", "find_notes"),
    create_scope=make_scope,
    prompt="await Notes.add(text, ...tags), await Notes.find(words), await Notes.tagged(tag)",
)
