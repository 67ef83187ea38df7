"""Tool Search's directory: names and descriptions for the prompt, and a few complete schemas.

The same tools give the same bytes, so that providers can cache the prompt. Texts of MCP servers
and clients never enter it; of a server only the name does, which the operator has chosen.
"""

import json
import logging
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import anyio

from clawmode.catalog.controls import CONTROL_NAMES, exposed_name
from clawmode.exceptions import DuplicateTool
from clawmode.text import plain_line
from clawmode.tools.rules import safe_server_name
from clawmode.tools.tool import Tool

if TYPE_CHECKING:
    from clawmode.agent.tool_search import ToolSearch

logger = logging.getLogger("clawmode.tool_search")

MAX_CHARS = 8000
"""Of the whole directory."""

MAX_MESSAGE_CHARS = 1000
"""The part of a message that schemas are chosen by."""

LENGTHS = (160, 100, 60, 30, 0)
"""Of descriptions: the longest with which all names fit is used."""

MAX_SERVER_CHARS = 1000

MAX_SCHEMAS = 5
"""The number of tools whose schema the model gets with the directory."""

LIKELY = 3
"""How many of them may come from a search with the message, without being named in it."""

MAX_SCHEMA_BYTES = 8 << 10

_HEAD = (
    "Tools that you can call by name. Their inputs are not shown here: ask tool_describe before "
    "you call one."
)
_MORE = "{} more tools are not listed: find them with tool_search."
_SERVERS = "Tools of these MCP servers are found with tool_search: {}."


# ---- The text ----


def directory_text(tools: Iterable[Tool]) -> str:
    """Returns the directory for the prompt; empty if there are no tools."""
    entries = list(tools)
    listed = {exposed_name(tool): tool for tool in entries if tool.trusted}
    servers = _servers(entries)
    room = MAX_CHARS - len(_HEAD) - len(servers) - len(_MORE) - 16
    lines = _fit(dict(sorted(listed.items())), room)
    if not lines and not listed:
        return servers
    left_out = len(listed) - len(lines)
    more = [_MORE.format(left_out)] if left_out else []
    return "\n".join([*([_HEAD] if lines else []), *lines, *more, *([servers] if servers else [])])


def _fit(listed: dict[str, Tool], room: int) -> list[str]:
    """Returns a line for each tool. Descriptions are shortened before a name is left out."""
    lines: list[str] = []
    for length in LENGTHS:
        texts = {name: plain_line(tool.description, length) for name, tool in listed.items()}
        lines = [f"- {name}: {text}" if text else f"- {name}" for name, text in texts.items()]
        if sum(len(line) + 1 for line in lines) <= room:
            return lines
    shown: list[str] = []
    for line in lines:
        if len(line) + 1 <= room:
            shown.append(line)
            room -= len(line) + 1
    return shown


def _servers(tools: Iterable[Tool]) -> str:
    names = sorted({safe_server_name(tool.owner) for tool in tools if tool.source == "mcp"})
    shown: list[str] = []
    for name in names:
        if sum(len(each) + 2 for each in shown) + len(name) <= MAX_SERVER_CHARS:
            shown.append(name)
    if len(shown) < len(names):
        shown.append(f"and {len(names) - len(shown)} more")
    return _SERVERS.format(", ".join(shown)) if shown else ""


# ---- Schemas ----


async def choose_schemas(search: "ToolSearch", message: str) -> tuple[Tool, ...]:
    """Returns a few trusted tools: those that a message names, then those a search finds for it."""
    message = message[:MAX_MESSAGE_CHARS]
    said = set(re.findall(r"[\w-]+", message))
    named = [tool for tool in search.catalog.entries if exposed_name(tool) in said]
    found = await anyio.to_thread.run_sync(search.catalog.search, message, LIKELY)
    likely = [search.resolve(str(entry["id"])) for entry in found]
    chosen: dict[str, Tool] = {}
    room = MAX_SCHEMA_BYTES
    for tool in (*named, *likely):
        size = len(tool.description) + len(json.dumps(dict(tool.parameters)))
        by_name = search.by_name.get(exposed_name(tool)) is tool
        if tool.trusted and by_name and tool.id not in chosen and size <= room:
            chosen[tool.id] = tool
            room -= size
    return tuple(chosen.values())[:MAX_SCHEMAS]


# ---- Names ----


def check_names(tools: Sequence[Tool]) -> None:
    """Checks that no client tool has the name of another tool: models call tools by these names.

    Raises:
        DuplicateTool: A client tool has the name of another tool.
    """
    taken = dict.fromkeys(CONTROL_NAMES, "a control of Tool Search")
    for tool in tools:
        if tool.source != "client":
            taken |= {exposed_name(tool): tool.id, tool.name: tool.id}
    for tool in tools:
        if tool.source == "client":
            name = exposed_name(tool)
            if name in taken:
                raise DuplicateTool(
                    f"{tool.id}: the client's tool has the name {name!r}, which is that of "
                    f"{taken[name]}. Rename it, or use another mode of tools.toolSearch."
                )
            taken[name] = tool.id


def without_collisions(tools: Sequence[Tool]) -> tuple[Tool, ...]:
    """Returns the tools without those that were added later and have a client tool's name."""
    clients = {exposed_name(tool) for tool in tools if tool.source == "client"}
    kept: list[Tool] = []
    for tool in tools:
        if tool.source != "client" and clients & {exposed_name(tool), tool.name}:
            logger.warning("%s is left out: a client's tool of the run has its name", tool.id)
        else:
            kept.append(tool)
    return tuple(kept)
