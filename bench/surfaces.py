"""What the model is sent before its first word: bytes of tool schemas and prompt, five ways.

    make bench-surfaces

Catalogs of the tools of public MCP servers (`bench/data/`), filled up with generated ones; every
other tool is a plugin's. What is measured is a preview of a real run: what an agent's first request
would hold. Writes the chart that docs/guide/tool-search.md shows.
"""

import json
import math
import tempfile
from collections.abc import Callable, Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple

import anyio
from rich.console import Console
from rich.table import Table

from clawmode.agent.models import ModelPool
from clawmode.agent.requests import AgentRequest
from clawmode.agent.resolver import ConfigResolver
from clawmode.agent.runtime import AgentRuntime
from clawmode.config.resolve import read
from clawmode.sessions.store import SessionStore
from clawmode.testing import ScriptedModel
from clawmode.tools.tool import Tool, ToolSource
from clawmode.types import JsonObject

ROOT = Path(__file__).parents[1]
DATA = ROOT / "bench/data/mcp_tools.json"
CHART = ROOT / "docs/images/surfaces.svg"

SIZES = (10, 100, 500, 2000)
MESSAGE = "Open an issue about the broken build, and tell the team."
SURFACES: dict[str, JsonObject] = {
    "direct": {"codeMode": False},
    "tools": {"codeMode": False, "toolSearch": {"mode": "tools"}},
    "directory": {"codeMode": False, "toolSearch": {"mode": "directory"}},
    "code": {"codeMode": False, "toolSearch": {"mode": "code"}},
    "code mode": {"codeMode": True},
}


class Seen(NamedTuple):
    """What one surface sends for one catalog, in bytes."""

    schemas: int
    tools: int
    prompt: int

    @property
    def total(self) -> int:
        return self.tools + self.prompt


# ---- Catalogs ----


def catalog(size: int) -> list[Tool]:
    return list(islice(_tools(), size))


def _tools() -> Iterator[Tool]:
    """Real ones as long as there are, in the order of their servers; then generated ones."""
    entries = json.loads(DATA.read_text("utf-8"))["tools"]
    for number, entry in enumerate(entries):
        yield _tool(
            number, entry["server"], entry["name"], entry["description"], entry["parameters"]
        )
    things = ("order", "invoice", "ticket", "sensor", "booking", "shipment", "contract", "lesson")
    for number in count(len(entries)):
        thing = things[number % len(things)]
        text = f"Change one {thing} of department {number}, and answer what it was before"
        parameters = [f"{thing}_id", "field", "value", "reason"]
        yield _tool(
            number, f"department{number // 40}", f"update_{thing}_{number}", text, parameters
        )


def _tool(number: int, owner: str, name: str, text: str, parameters: list[str]) -> Tool:
    source: ToolSource = "mcp" if number % 2 else "plugin"
    properties: JsonObject = {
        each: {"type": "string", "description": f"The {each.replace('_', ' ')}."}
        for each in parameters
    }
    schema: JsonObject = {"type": "object", "properties": properties}
    own = name if source == "mcp" else f"{owner.replace('-', '_')}_{name}"
    return Tool(own, text, schema, lambda given, context: None, source=source, owner=owner)


class _Servers:
    """MCP servers that nobody has to start."""

    def __init__(self, tools: list[Tool]) -> None:
        self._tools = tools
        self.views: tuple[Any, ...] = ()

    def tools(self) -> list[Tool]:
        return self._tools

    def watch(self, listener: Callable[[Any], None]) -> Callable[[], None]:
        return lambda: None


# ---- Looking ----


async def look(surface: str, tools: list[Tool], state: Path) -> Seen:
    data: Any = {
        "tools": SURFACES[surface],
        "agents": {"defaults": {"model": "scripted/a"}},
    }
    configuration = read(data).unwrap()
    servers: Any = _Servers([tool for tool in tools if tool.source == "mcp"])
    async with (
        ModelPool(configuration, {"scripted/*": ScriptedModel([])}) as models,
        AgentRuntime(
            resolver=ConfigResolver(configuration, models, state),
            sessions=SessionStore(state / "sessions"),
            state=state,
            plugin_tools=[tool for tool in tools if tool.source == "plugin"],
            servers=servers,
        ) as runtime,
    ):
        shown = await runtime.preview(AgentRequest(message=MESSAGE))
    definitions = [[each.name, each.description, each.parameters] for each in shown.tools]
    sent = json.dumps(definitions, separators=(",", ":")).encode()
    return Seen(len(shown.tools), len(sent), len(shown.prompt.text.encode()))


async def measure() -> dict[str, list[Seen]]:
    found: dict[str, list[Seen]] = {surface: [] for surface in SURFACES}
    with tempfile.TemporaryDirectory() as folder:
        for size in SIZES:
            tools = catalog(size)
            for surface, seen in found.items():
                seen.append(await look(surface, tools, Path(folder)))
    return found


# ---- Telling ----


def show(found: dict[str, list[Seen]]) -> None:
    table = Table(
        "tools", "surface", "schemas", "bytes of schemas", "of prompt", "all", "of direct"
    )
    for column in table.columns[2:]:
        column.justify = "right"
    for place, size in enumerate(SIZES):
        for surface, seen in found.items():
            it, direct = seen[place], found["direct"][place]
            numbers = (it.schemas, it.tools, it.prompt, it.total)
            share = f"{it.total / direct.total:.1%}"
            table.add_row(f"{size:,}", surface, *(f"{number:,}" for number in numbers), share)
        table.add_section()
    Console(width=100).print(table)


WIDTH, HEIGHT = 760, 400
LEFT, RIGHT, TOP, BOTTOM = 80, 130, 50, 60
COLORS = dict(zip(SURFACES, ("#c0392b", "#2471a3", "#b9770e", "#1e8449", "#7d3c98"), strict=True))
LOW, HIGH = 1e3, 1e6


def chart(found: dict[str, list[Seen]]) -> str:
    """Lines over a logarithmic axis: five ways, four sizes."""
    made = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="13" fill="#222">',
        "<title>Bytes of tool schemas and prompt, by size of the catalog</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT}" y="24" font-size="15">Bytes of schemas and prompt in the first '
        "request</text>",
    ]
    for power in range(3, 7):
        y = _y(10**power)
        made.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        made.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{10**power:,}</text>')
    for place, size in enumerate(SIZES):
        label = f'<text x="{_x(place):.1f}" y="{HEIGHT - BOTTOM + 22}" text-anchor="middle">'
        made.append(f"{label}{size:,} tools</text>")
    ends = _apart([_y(seen[-1].total) for seen in found.values()])
    for (surface, seen), end in zip(found.items(), ends, strict=True):
        color = COLORS[surface]
        points = [(_x(place), _y(it.total)) for place, it in enumerate(seen)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        made.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2.5"/>')
        made += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{color}"/>' for x, y in points]
        x = WIDTH - RIGHT + 14
        made.append(f'<text x="{x}" y="{end + 4:.1f}" fill="{color}">{surface}</text>')
    return "\n".join([*made, "</svg>"]) + "\n"


def _x(place: int) -> float:
    return LEFT + 40 + place * (WIDTH - LEFT - RIGHT - 50) / (len(SIZES) - 1)


def _y(value: float) -> float:
    share = math.log(value / LOW) / math.log(HIGH / LOW)
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def _apart(places: list[float], least: float = 16) -> list[float]:
    """Labels' places, moved down where two would overlap."""
    order = sorted(range(len(places)), key=lambda each: places[each])
    made, last = list(places), -math.inf
    for each in order:
        last = made[each] = max(places[each], last + least)
    return made


def main() -> None:
    found = anyio.run(measure)
    show(found)
    CHART.parent.mkdir(exist_ok=True)
    CHART.write_text(chart(found), "utf-8")


if __name__ == "__main__":
    main()
