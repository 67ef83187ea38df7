"""Computes the worst-case cost of checking a value against a JSON Schema, before checking it.

This runs in the caller's process, on schemas of strangers. The library that checks has no deadline
and no depth limit: thirty definitions that each refer twice to the next keep it busy for minutes,
and a long chain of references overflows the stack, which ends the process. So the schema is read as
a graph first, and the schema or the value is rejected if the worst case is too expensive.

This module owns the graph and its arithmetic; `validation` owns the limits for values.
"""

from collections.abc import Iterable
from dataclasses import field
from urllib.parse import unquote

from clawmode.types import JsonValue, children, dataclass

Schema = dict[str, JsonValue]

MAX_VALUES = 50_000
MAX_NESTING = 200
MAX_NODES = 3_000
MAX_HEIGHT = 400
"""Nested subschemas. A thread with 512 KiB of stack can check 1,000."""
MAX_WORK = 50_000
"""Nodes times depth: a bound for this arithmetic itself, about a second."""
COUNTLESS = 10**9

ONE_HERE = ("not", "if", "then", "else")
LIST_HERE = ("allOf", "anyOf", "oneOf")
MAP_HERE = ("dependentSchemas", "dependencies")
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
ANCHORS = ("$anchor", "$dynamicAnchor", "$id", "id")
UNEVALUATED = ("unevaluatedProperties", "unevaluatedItems")
AGAIN = 3
"""`unevaluated*` checks again what its neighbouring keywords have checked."""


class UnusableSchema(ValueError):
    """The schema cannot be used, for the reason in the message."""


@dataclass(frozen=True, slots=True)
class Burden:
    """The worst-case cost of one path through a value.

    Attributes:
        checks: Subschemas that are applied.
        patterns: Regular expressions that are matched.
        height: Subschemas that are entered at the same time: frames on the stack.
    """

    checks: int = 0
    patterns: int = 0
    height: int = 0

    def then(self, other: "Burden", times: int = 1) -> "Burden":
        """Returns the cost of both, one after the other."""
        return Burden(
            min(self.checks + times * other.checks, COUNTLESS),
            min(self.patterns + times * other.patterns, COUNTLESS),
            max(self.height, other.height),
        )

    def either(self, other: "Burden") -> "Burden":
        """Returns the worst cost of two alternatives."""
        return Burden(
            max(self.checks, other.checks),
            max(self.patterns, other.patterns),
            max(self.height, other.height),
        )


NOTHING = Burden()
HOPELESS = Burden(COUNTLESS, COUNTLESS, COUNTLESS)


@dataclass(slots=True)
class Below:
    """The subschemas for a member or an element: one of `either`, and all of `always`."""

    either: list[int] = field(default_factory=list)
    always: list[int] = field(default_factory=list)

    def burden(self, level: list[Burden]) -> Burden:
        """Returns their worst cost, given the costs of all nodes."""
        worst = NOTHING
        for index in self.either:
            worst = worst.either(level[index])
        for index in self.always:
            worst = worst.then(level[index])
        return worst


@dataclass(slots=True)
class Node:
    """One subschema, with the subschemas it applies to the same value, to members and elements."""

    patterns: int
    times: int
    here: list[int] = field(default_factory=list)
    members: Below = field(default_factory=Below)
    elements: Below = field(default_factory=Below)


class SchemaGraph:
    """A schema as a graph of subschemas.

    Raises:
        UnusableSchema: The schema is too large, refers to another one, or recurses without end.
    """

    def __init__(self, schema: Schema) -> None:
        self._root = schema
        self._anchors: dict[str, list[Schema]] = {}
        self._survey()
        self._nodes: list[Node] = []
        self._indices: dict[int, int] = {}
        self._open: list[Schema] = []
        self._index(schema)
        while self._open:
            self._read(self._open.pop())
        self.patterns = sum(node.patterns for node in self._nodes)
        self._order = self._innermost_first()
        self._level = [NOTHING] * len(self._nodes)
        self._settled = False
        self._by_depth: list[Burden] = []

    def burden(self, depth: int) -> Burden:
        """Returns the worst-case cost for a value of this depth. A scalar has depth 0."""
        while len(self._by_depth) <= depth and not self._settled:
            if len(self._by_depth) * len(self._nodes) > MAX_WORK:
                return HOPELESS
            # Once a level repeats, deeper values cost no more: no subschema reaches them.
            level = self._next_level()
            self._settled = level == self._level or level[0].height > MAX_HEIGHT
            self._level = level
            self._by_depth.append(level[0])
        return self._by_depth[min(depth, len(self._by_depth) - 1)]

    def _survey(self) -> None:
        """Counts all values, even unreachable ones, because the library reads all of them."""
        # Layer by layer: a recursive walk would itself overflow on a hostile schema.
        left = MAX_VALUES
        address = "id" if "draft-04" in str(self._root.get("$schema")) else "$id"
        layer: list[JsonValue] = [self._root]
        for _ in range(MAX_NESTING):
            left -= len(layer)
            if left < 0:
                raise UnusableSchema(f"it holds more than {MAX_VALUES} values")
            for value in layer:
                if not isinstance(value, dict):
                    continue
                for keyword in ANCHORS:
                    if isinstance(name := value.get(keyword), str):
                        self._anchors.setdefault(name.removeprefix("#"), []).append(value)
                moved = value.get(address)
                moves = isinstance(moved, str) and not moved.startswith("#")
                if (moves or isinstance(value.get("$schema"), str)) and value is not self._root:
                    # References and keywords in that part would have another meaning. No tool
                    # needs that.
                    raise UnusableSchema("a part of it has another `$id` or `$schema`")
            layer = [child for value in layer for child in children(value)]
            if not layer:
                return
        raise UnusableSchema(f"it is nested more than {MAX_NESTING} deep")

    def _index(self, schema: Schema) -> int:
        # By identity: a subschema that several references lead to is one node.
        if id(schema) not in self._indices:
            if len(self._nodes) == MAX_NODES:
                raise UnusableSchema(f"it has more than {MAX_NODES} subschemas")
            self._indices[id(schema)] = len(self._nodes)
            patterned = "pattern" in schema, *as_map(schema.get("patternProperties"))
            again = any(keyword in schema for keyword in UNEVALUATED)
            self._nodes.append(Node(sum(map(bool, patterned)), AGAIN if again else 1))
            self._open.append(schema)
        return self._indices[id(schema)]

    def _read(self, schema: Schema) -> None:
        node = self._nodes[self._indices[id(schema)]]
        node.here = [
            *self._all(schema.get(keyword) for keyword in ONE_HERE),
            *self._all(part for keyword in LIST_HERE for part in as_list(schema.get(keyword))),
            *self._all(part for key in MAP_HERE for part in as_map(schema.get(key)).values()),
            *(
                self._index(target)
                for keyword in REFERENCES
                if isinstance(reference := schema.get(keyword), str)
                for target in self._resolve(reference)
            ),
        ]
        node.members = Below(
            self._all(
                [*as_map(schema.get("properties")).values(), schema.get("additionalProperties")]
            ),
            self._all(
                [
                    *as_map(schema.get("patternProperties")).values(),
                    schema.get("unevaluatedProperties"),
                    schema.get("propertyNames"),
                ]
            ),
        )
        items = schema.get("items")
        node.elements = Below(
            self._all(
                [
                    *as_list(schema.get("prefixItems")),
                    *as_list(items),
                    items,
                    schema.get("additionalItems"),
                ]
            ),
            self._all([schema.get("contains"), schema.get("unevaluatedItems")]),
        )

    def _all(self, parts: Iterable[JsonValue]) -> list[int]:
        return [self._index(part) for part in parts if isinstance(part, dict)]

    def _resolve(self, reference: str) -> list[Schema]:
        if not reference.startswith("#"):
            raise UnusableSchema(f"it refers outside of itself, to {reference[:100]!r}")
        if len(reference) > 1 and not reference.startswith("#/"):
            found: list[JsonValue] = [*self._anchors.get(reference[1:], [])]
        else:
            found = [locate(self._root, reference[1:])]
        if not found or not isinstance(found[0], (dict, bool)):
            raise UnusableSchema(f"it refers to {reference[:100]!r}, which is not in it")
        return [target for target in found if isinstance(target, dict)]

    def _innermost_first(self) -> list[int]:
        """Sorts the nodes so that each follows the nodes it applies to the same value."""
        # Depth-first with a stack of its own. A node that is met while it is still open applies
        # itself to the same value again, and checking would never end.
        order: list[int] = []
        entered: set[int] = set()
        left: set[int] = set()
        stack = [(index, False) for index in reversed(range(len(self._nodes)))]
        while stack:
            index, done = stack.pop()
            if done:
                left.add(index)
                order.append(index)
            elif index not in entered:
                entered.add(index)
                stack.append((index, True))
                stack.extend((inner, False) for inner in self._nodes[index].here)
            elif index not in left:
                raise UnusableSchema("it refers to itself without end")
        return order

    def _next_level(self) -> list[Burden]:
        """Returns the cost of every node for values one level deeper than the current ones."""
        as_object = [NOTHING] * len(self._nodes)
        as_array = list(as_object)
        for index in self._order:
            node = self._nodes[index]
            as_object[index] = self._apply(node, as_object, node.members)
            as_array[index] = self._apply(node, as_array, node.elements)
        return [one.either(other) for one, other in zip(as_object, as_array, strict=True)]

    def _apply(self, node: Node, level: list[Burden], below: Below) -> Burden:
        """Returns the cost of a node. Objects and arrays are counted apart: no value is both."""
        total = below.burden(self._level)
        for inner in node.here:
            total = total.then(level[inner], node.times)
        return Burden(total.checks + 1, total.patterns + node.patterns, total.height + 1)


def as_map(value: JsonValue) -> Schema:
    """Returns the value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def as_list(value: JsonValue) -> list[JsonValue]:
    """Returns the value if it is an array, else an empty one."""
    return value if isinstance(value, list) else []


def follow(value: JsonValue, path: Iterable[str | int]) -> JsonValue:
    """Returns the value at a path; None if there is none."""
    for segment in path:
        if isinstance(value, dict):
            value = value.get(str(segment))
        elif isinstance(value, list) and str(segment).isdecimal() and int(segment) < len(value):
            value = value[int(segment)]
        else:
            return None
    return value


def locate(root: JsonValue, pointer: str) -> JsonValue:
    """Returns the value at a JSON pointer, the part of a reference after `#`; None if none."""
    segments = unquote(pointer).split("/")[1:]
    return follow(root, [part.replace("~1", "/").replace("~0", "~") for part in segments])
