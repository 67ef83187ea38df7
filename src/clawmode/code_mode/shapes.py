"""The shapes of results that tools have answered, as programs see them, unless they are declared.

A shape has the names and types of members, and no values. Names are data of strangers: they are
shown in results of programs, never in a prompt. Names that look like data (ids, addresses, numbers)
are shown as `[key: string]`. Everything is bounded: what is looked at, kept and shown.
"""

import json
import logging
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field
from itertools import islice
from typing import TYPE_CHECKING, Any

import anyio

from clawmode.code_mode.shelves import ShelfLimits
from clawmode.code_mode.state import SealedShelf
from clawmode.exceptions import SnapshotError
from clawmode.types import JsonValue, dataclass

if TYPE_CHECKING:
    from clawmode.code_mode.stores import SnapshotStore
    from clawmode.context import RunContext
    from clawmode.tools.tool import Tool, ToolResult

logger = logging.getLogger("clawmode.shapes")

MAX_DEPTH = 5
MAX_MEMBERS = 24
"""Members of an object; one that has more is a map."""

MAX_ITEMS = 20
"""Elements of a list, or values of a map, that are looked at."""

MAX_LOOKS = 400
"""Values that are looked at in one result."""

MAX_NODES = 200
"""Places of a shape. Further members are not remembered."""

MAX_NAME = 40
MAX_TEXT = 600
"""The length of a shape as text; deeper parts are left out until it fits."""

MAX_ROW = 16 << 10
MAX_TOOLS = 200

# In this order, because Python counts booleans as integers.
_KINDS: tuple[tuple[type, str], ...] = (
    *((str, "string"), (bool, "boolean"), (int, "number"), (float, "number")),
    *((type(None), "null"), (object, "unknown")),
)
PLAIN = dict(_KINDS[:-1])
_ORDER = ("string", "number", "boolean", "null", "unknown")

# Words, perhaps with a few digits (`line2`, `sha256`). Four digits or hex digits look like an id.
_NAME = re.compile(r"[@$]?[^\W\d]([\w$-]| (?=\w)){0,39}")
_DATA = re.compile(r"\d{4}|\d.*\d.*\d.*\d|(?=\w*\d)[0-9a-fA-F-]{8,}")
_DIGITS = re.compile(r"\d+")
_IDENTIFIER = re.compile(r"[A-Za-z_$][\w$]*", re.ASCII)


@dataclass(slots=True)
class Budget:
    """What one result may add to a shape.

    Attributes:
        looks: The number of values that may still be looked at.
        nodes: The number of places that may still be added.
        changed: True if the result has added something.
    """

    nodes: int
    looks: int = MAX_LOOKS
    changed: bool = False

    def node(self, place: "Shape | None") -> "Shape | None":
        """Returns `place`, or a new one if there is room for it."""
        if place is None and self.nodes > 0:
            self.nodes, self.changed = self.nodes - 1, True
            return Shape()
        return place


@dataclass(slots=True)
class Shape:
    """What was seen at one place of a result; several kinds of values make a union.

    Attributes:
        kinds: The primitive types.
        members: The members of objects, by name.
        optional: Members that some objects did not have.
        values: The values of members whose names are data.
        items: The elements of lists.
    """

    kinds: set[str] = field(default_factory=set[str])
    members: "dict[str, Shape] | None" = None
    optional: set[str] = field(default_factory=set[str])
    values: "Shape | None" = None
    items: "Shape | None" = None

    def see(self, value: JsonValue, budget: Budget, depth: int = 0) -> None:
        """Adds a value, as far as the budget allows."""
        budget.looks -= 1
        if budget.looks < 0:
            return
        if type(value) in PLAIN:  # most values, for which the next lines would take longer
            self._add(PLAIN[type(value)], budget)
        elif isinstance(value, dict) and depth < MAX_DEPTH:
            self._see_object(value, budget, depth)
        elif isinstance(value, Sequence) and not isinstance(value, str) and depth < MAX_DEPTH:
            self.items = items = budget.node(self.items)
            if items is not None:
                for item in islice(value, MAX_ITEMS):
                    items.see(item, budget, depth + 1)
        else:
            self._add(next(kind for each, kind in _KINDS if isinstance(value, each)), budget)

    def _add(self, kind: str, budget: Budget) -> None:
        budget.changed |= kind not in self.kinds
        self.kinds.add(kind)

    def _see_object(self, value: dict[str, JsonValue], budget: Budget, depth: int) -> None:
        names = _names(value)
        first = self.members is None
        known = dict[str, Shape]() if self.members is None else self.members
        self.members, before = known, len(self.optional)
        if not first and not known and self.values is not None:
            names = set()  # a map stays a map
        elif len(known.keys() | names) > MAX_MEMBERS or self._differs(value, names):
            self._become_map()
            known, names, budget.changed = self.members, set(), True
        self.optional |= known.keys() - names
        for name in islice(value, MAX_MEMBERS if names else MAX_ITEMS):
            if name not in names:
                self.values = place = budget.node(self.values)
            elif (place := known.get(name)) is None and (place := budget.node(None)) is not None:
                known[name] = place
                if not first:
                    self.optional.add(name)
            if place is not None:
                place.see(value[name], budget, depth + 1)
        budget.changed |= first or len(self.optional) != before

    def _differs(self, value: dict[str, JsonValue], names: set[str]) -> bool:
        """True if an object has no name in common with earlier ones, but the same type of values.

        These are maps from something that no name reveals, such as people.
        """
        known = self.members or {}
        if not known or not names or known.keys() & names:
            return False
        seen = Shape()
        for name in names:
            seen.see(value[name], Budget(0), MAX_DEPTH)
        earlier = set[str]().union(*(shape.kinds or {"unknown"} for shape in known.values()))
        return len(earlier | seen.kinds) == 1

    def _become_map(self) -> None:
        self.values = self.values or Shape()
        for shape in (self.members or {}).values():
            self.values.merge(shape)
        self.members, self.optional = dict[str, Shape](), set()

    def merge(self, other: "Shape") -> None:
        """Adds what another shape has seen."""
        self.kinds |= other.kinds
        if other.items is not None:
            self.items = self.items or Shape()
            self.items.merge(other.items)
        if other.values is not None:
            self.values = self.values or Shape()
            self.values.merge(other.values)
        if other.members is None:
            return
        if self.members is None:
            self.members, self.optional = dict[str, Shape](), set(other.optional)
        else:
            self.optional |= other.optional | (self.members.keys() ^ other.members.keys())
        for name, shape in other.members.items():
            self.members.setdefault(name, Shape()).merge(shape)
        if len(self.members) > MAX_MEMBERS or (not other.members and other.values is not None):
            self._become_map()

    # ---- As text and as JSON ----

    def text(self, depth: int) -> str:
        """Returns the shape as one line of TypeScript, up to a depth."""
        parts = [kind for kind in _ORDER if kind in self.kinds]
        if self.members is not None or self.values is not None:
            parts.append(self._object_text(depth))
        if self.items is not None:
            item = self.items.text(depth - 1) if depth > 0 else "unknown"
            parts.append(f"({item})[]" if " | " in item else f"{item}[]")
        return " | ".join(parts) or "unknown"

    def _object_text(self, depth: int) -> str:
        if depth <= 0:
            return "object"
        rows = [
            f"{_shown(name)}{'?' if name in self.optional else ''}: {shape.text(depth - 1)}"
            for name, shape in (self.members or {}).items()
        ]
        if self.values is not None:
            rows.append(f"[key: string]: {self.values.text(depth - 1)}")
        return "{" + ", ".join(rows) + "}"

    def size(self) -> int:
        """Returns the number of places."""
        inner = [*(self.members or {}).values(), self.values, self.items]
        return 1 + sum(shape.size() for shape in inner if shape is not None)

    def to_json(self) -> Any:
        """Returns the shape as JSON, for the store."""
        return {
            "k": sorted(self.kinds),
            "m": self.members and {name: each.to_json() for name, each in self.members.items()},
            "e": self.members is not None,
            "o": sorted(self.optional),
            "v": self.values and self.values.to_json(),
            "i": self.items and self.items.to_json(),
        }

    @classmethod
    def from_json(cls, data: Any) -> "Shape":
        """Returns the shape that `to_json` wrote."""
        members = {name: cls.from_json(each) for name, each in (data["m"] or {}).items()}
        return cls(
            set(data["k"]),
            members if data["e"] else None,
            set(data["o"]),
            data["v"] and cls.from_json(data["v"]),
            data["i"] and cls.from_json(data["i"]),
        )


def _names(value: dict[str, JsonValue]) -> set[str]:
    """Returns the members of an object whose names are names, and not data."""
    if len(value) > MAX_MEMBERS:
        return set()
    names = [name for name in value if isinstance(name, str) and _is_name(name)]
    # `emp_1`, `emp_2`, `emp_3` are ids, although each could be a name.
    alike = Counter(_DIGITS.sub("#", name) for name in names if _DIGITS.search(name))
    return {name for name in names if alike[_DIGITS.sub("#", name)] < 3}


def _is_name(name: str) -> bool:
    short = len(name) <= MAX_NAME
    return short and _NAME.fullmatch(name) is not None and _DATA.search(name) is None


def _shown(name: str) -> str:
    return name if _IDENTIFIER.fullmatch(name) else json.dumps(name)


class SeenShapes:
    """The shapes of results that the tools of a session have answered; of a run without a session.

    Attributes:
        changed: The ids of tools whose shapes the store does not have.
    """

    def __init__(self, store: "SnapshotStore", context: "RunContext") -> None:
        most = ShelfLimits(MAX_TOOLS, MAX_TOOLS * MAX_ROW // 4)
        self._shelf = SealedShelf(store, context, "shapes", most, session=True)
        self._shapes: dict[str, Shape] = {}
        self._texts: dict[str, str] = {}
        self._room: dict[str, int] = {}
        self.changed: set[str] = set()
        self._loaded = False
        self._lock = anyio.Lock(fast_acquire=True)

    def see(self, tool: "Tool", result: "ToolResult") -> None:
        """Notes the shape of a result, unless the tool declares one."""
        if tool.output_schema is not None and not _is_open(tool.output_schema):
            return
        value = result.value
        if tool.source == "mcp":
            # A result of MCP has the same members always; what differs is inside.
            value = value.get("structuredContent") if isinstance(value, dict) else None
            if value is None:
                return
        shape = self._shapes.get(tool.id)
        if shape is not None and PLAIN.get(type(value)) in shape.kinds:
            return  # nothing new, as most often
        if shape is None:
            if len(self._shapes) >= MAX_TOOLS:
                return
            shape = self._shapes[tool.id] = Shape()
        budget = Budget(self._room.get(tool.id, MAX_NODES))
        shape.see(value, budget)
        self._room[tool.id] = budget.nodes
        if budget.changed:
            self._texts[tool.id] = _fit(shape)
            self.changed.add(tool.id)

    def text(self, tool_id: str) -> str:
        """Returns what a tool has answered, as one line of TypeScript; empty if it is unknown."""
        return self._texts.get(tool_id, "")

    async def load(self) -> None:
        """Reads, once, what other runs of the session have seen. Failures are logged only."""
        async with self._lock:
            if self._loaded:
                return
            self._loaded = True
            try:
                rows = await self._shelf.read()
                kept = {tool_id: Shape.from_json(json.loads(row)) for tool_id, row in rows.items()}
            except (SnapshotError, LookupError, TypeError, ValueError) as error:
                logger.warning("the shapes of results cannot be read: %s", error)
                return
            for tool_id, shape in kept.items():
                before = _fit(shape)
                if (seen := self._shapes.get(tool_id)) is not None:
                    shape.merge(seen)
                self._shapes[tool_id] = shape
                self._room[tool_id] = MAX_NODES - shape.size()
                self._texts[tool_id] = text = _fit(shape)
                if text == before:
                    self.changed.discard(tool_id)

    async def save(self) -> None:
        """Writes what is new. Failures are logged only."""
        await self.load()
        async with self._lock:
            changed, self.changed = self.changed, set()
            rows: dict[str, bytes | None] = {}
            for tool_id in changed:
                row = json.dumps(self._shapes[tool_id].to_json()).encode()
                if len(row) <= MAX_ROW:
                    rows[tool_id] = row
            try:
                if rows and not await self._shelf.write(rows):
                    logger.info("the session has no room for more shapes of results")
            except SnapshotError as error:
                logger.warning("the shapes of results cannot be written: %s", error)


def _is_open(schema: Mapping[str, JsonValue]) -> bool:
    """True for the schemas of `dict[str, Any]` and `list[dict[str, Any]]`, which name no member."""
    inner = schema.get("items") if schema.get("type") == "array" else schema
    # Any other member may refer to a type.
    known = {"type", "additionalProperties", "title", "description"}
    return (
        isinstance(inner, Mapping)
        and inner.get("additionalProperties") is True
        and inner.get("type") == "object"
        and inner.keys() <= known
    )


def _fit(shape: Shape) -> str:
    """Returns the text of a shape, without its deepest parts if it would be too long."""
    for depth in range(MAX_DEPTH, 0, -1):
        text = shape.text(depth)
        if len(text) <= MAX_TEXT:
            return text
    return shape.text(0)
