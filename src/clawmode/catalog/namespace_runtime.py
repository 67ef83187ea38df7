"""The namespaces of one run: scopes as data for the guest, and the guest's calls as tool calls.

A call comes back from the guest as a namespace id and a path, which `NamespaceRuntime.resolve`
turns into a tool of the run and its input. Nothing here calls a tool: the executor does, so a
namespace call is a tool call like any other.
"""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import field
from datetime import date, time
from functools import cached_property
from typing import Any

from clawmode.catalog.namespaces import (
    InputMapper,
    NamespaceCallRefused,
    NamespaceContext,
    NamespaceScopeError,
    NamespaceTool,
    OwnedNamespace,
    Path,
)
from clawmode.text import quote, shorten, without_surrogates
from clawmode.tools.tool import Tool
from clawmode.types import JsonObject, JsonValue, dataclass

MAX_SCOPE_DEPTH = 32
MAX_SCOPE_BYTES = 256 << 10
MAX_PROMPT_CHARS = 1_000

UNSAFE_KEYS = frozenset({"", "__proto__", "constructor", "prototype"})
SEPARATORS = (".", "\0")


@dataclass(frozen=True, slots=True)
class _Scope:
    """A namespace of one run: the node for the guest, and the tools of its functions."""

    global_name: str
    node: JsonObject
    functions: dict[Path, NamespaceTool]
    tools: dict[str, Tool]


class NamespaceRuntime:
    """The namespaces of one run. Scopes are built once, when they are first needed.

    Args:
        registrations: Namespaces of the registry; those that the run cannot see are ignored.
        tools: The tools of the run.
        context: Passed to `create_scope`.
    """

    def __init__(
        self,
        registrations: Iterable[OwnedNamespace],
        tools: Iterable[Tool],
        context: NamespaceContext,
    ) -> None:
        tools = list(tools)
        found = [(item, item.backing(tools)) for item in registrations]
        # Sorted, so that equal namespaces give an equal prompt and an equal image.
        found.sort(key=lambda pair: pair[0].global_name)
        self._visible = [(item, backing) for item, backing in found if backing is not None]
        self._context = context

    def prompt_text(self) -> str:
        """Returns a line for each namespace, for the model: its purpose and its use."""
        # One line each, so that no text can pass for another namespace's.
        texts = [
            f"{namespace.global_name}: {namespace.description} {namespace.prompt}"
            for namespace, _ in self._visible
        ]
        return "\n".join(shorten(" ".join(text.split()), MAX_PROMPT_CHARS) for text in texts)

    def descriptors(self) -> list[JsonObject]:
        """Returns the descriptions from which the guest's prelude builds the namespaces.

        Raises:
            NamespaceScopeError: A scope cannot be built or serialized.
        """
        return [
            {"id": id_, "global": scope.global_name, "scope": scope.node}
            for id_, scope in self._scopes.items()
        ]

    def resolve(
        self, namespace_id: JsonValue, path: JsonValue, args: JsonValue
    ) -> tuple[Tool, JsonObject]:
        """Returns the tool that a guest's call names, and its input.

        Every argument may be forged. A path is looked up as a whole and never joined, so a
        separator in a segment cannot turn it into another path.

        Raises:
            NamespaceCallRefused: The call names no tool, or its arguments are unusable.
            NamespaceScopeError: A scope cannot be built.
        """
        if not isinstance(namespace_id, str) or (scope := self._scopes.get(namespace_id)) is None:
            raise NamespaceCallRefused(f"there is no namespace {_shown(namespace_id)}")
        segments = path if isinstance(path, list) else []
        steps = tuple(step for step in segments if isinstance(step, str))
        is_path = isinstance(path, list) and len(steps) == len(path)
        if not is_path or (function := scope.functions.get(steps)) is None:
            shown = _shown(".".join(steps) if is_path else path)
            raise NamespaceCallRefused(f"{scope.global_name} has no function {shown}")
        called = ".".join((scope.global_name, *steps))
        if not isinstance(args, list):
            raise NamespaceCallRefused(f"{called}: the arguments are not a list")
        return scope.tools[function.tool_name], _input(called, function.input_mapper, args)

    @cached_property
    def _scopes(self) -> dict[str, _Scope]:
        return {
            namespace.id: _make_scope(namespace, backing, self._context)
            for namespace, backing in self._visible
        }


def _shown(value: JsonValue) -> str:
    """Quotes a forged value for an error: shortened, and escaped because of lone surrogates."""
    return quote(value, 80) if isinstance(value, str) else f"[{type(value).__name__}]"


def _input(called: str, mapper: InputMapper | None, args: list[JsonValue]) -> JsonObject:
    given: JsonValue
    if mapper is None:
        # An explicit `undefined` arrives as null, and counts as omitted.
        given = {} if not args or args[0] is None else args[0]
    else:
        try:
            # Copied, so that a tool that changes its input does not change the scope.
            given = json.loads(json.dumps(mapper(args), allow_nan=False))
        except Exception as error:
            text = f"{called} cannot use its arguments: {_message(error)}"
            raise NamespaceCallRefused(text) from error
    if not isinstance(given, dict):
        kind = "null" if given is None else type(given).__name__
        raise NamespaceCallRefused(f"{called} needs an input object, and got {kind}")
    return given


# ---- Serializing a scope ----


def _make_scope(
    namespace: OwnedNamespace, backing: dict[str, Tool], context: NamespaceContext
) -> _Scope:
    name = namespace.global_name
    try:
        members: object = namespace.create_scope(context)
    except Exception as error:
        raise NamespaceScopeError(f"{name}: create_scope failed: {_message(error)}") from error
    if not isinstance(members, dict):
        found = type(members).__name__
        raise NamespaceScopeError(f"{name}: create_scope must return a dict, found {found}")
    serializer = _Serializer(name, namespace.required_tool_names)
    node = serializer.serialize(members)
    return _Scope(name, node, serializer.functions, backing)


@dataclass(slots=True)
class _Serializer:
    """Turns a scope into a node, and collects the paths that can be called.

    A node is `{"t": "o" | "a", "v": members}`, `{"t": "v", "v": JSON}` or `{"t": "f"}`. A value
    that contains no function is a single `v`, however large.
    """

    global_name: str
    declared: Sequence[str]
    functions: dict[Path, NamespaceTool] = field(default_factory=dict[Path, NamespaceTool])
    bytes_left: int = MAX_SCOPE_BYTES

    def serialize(self, members: dict[Any, Any]) -> JsonObject:
        node = self._node(members, (), ())
        encoded = json.dumps(node, ensure_ascii=False, separators=(",", ":")).encode()
        if len(encoded) > MAX_SCOPE_BYTES:
            raise self._too_large(())
        return node

    def _node(self, value: object, path: Path, parents: tuple[int, ...]) -> JsonObject:
        self._spend(1, path)
        match value:
            case NamespaceTool(tool_name):
                if tool_name not in self.declared:
                    reason = f"{tool_name!r} is not among the required_tool_names"
                    raise self._error(path, f"calls an undeclared tool: {reason}")
                self.functions[path] = value
                return {"t": "f"}
            case dict():
                inside = self._below(value, path, parents)
                nodes: dict[str, JsonObject] = {}
                for key, member in value.items():
                    self._check_key(key, path)
                    nodes[key] = self._node(member, (*path, key), inside)
                if all(node["t"] == "v" for node in nodes.values()):
                    return {"t": "v", "v": {key: node["v"] for key, node in nodes.items()}}
                return {"t": "o", "v": {**nodes}}
            case list() | tuple():
                inside = self._below(value, path, parents)
                items = [
                    self._node(item, (*path, str(index)), inside)
                    for index, item in enumerate(value)
                ]
                if all(node["t"] == "v" for node in items):
                    return {"t": "v", "v": [node["v"] for node in items]}
                return {"t": "a", "v": [*items]}
        if callable(value):
            raise self._error(path, "is a raw function: mark a tool with namespace_tool")
        leaf = _json_safe(value)
        if isinstance(leaf, str):
            self._spend(len(leaf) + 1, path)
        return {"t": "v", "v": leaf}

    def _spend(self, count: int, path: Path) -> None:
        """Rejects a scope that is too large, before it is expanded.

        A small scope can become huge, because shared references are written out each time. This
        is a lower bound; `serialize` checks the true size.
        """
        self.bytes_left -= count
        if self.bytes_left < 0:
            raise self._too_large(path)

    def _below(self, value: object, path: Path, parents: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the ids of the containers that surround the members of `value`."""
        if id(value) in parents:
            raise self._error(path, "is a cycle: a scope may share values, not contain itself")
        if len(parents) >= MAX_SCOPE_DEPTH:
            raise self._error(path, f"is nested more than {MAX_SCOPE_DEPTH} levels deep")
        return (*parents, id(value))

    def _check_key(self, key: object, path: Path) -> None:
        if not isinstance(key, str):
            raise self._error(path, f"has the key {key!r}, which is not a string")
        if (
            key in UNSAFE_KEYS
            or any(separator in key for separator in SEPARATORS)
            or without_surrogates(key) != key
        ):
            raise self._error(path, f"has the unsafe key {key[:80]!r}")
        self._spend(len(key) + 3, path)  # with quotes and colon

    def _too_large(self, path: Path) -> NamespaceScopeError:
        return self._error(path, f"is over {MAX_SCOPE_BYTES} bytes of JSON: put data behind a tool")

    def _error(self, path: Path, reason: str) -> NamespaceScopeError:
        return NamespaceScopeError(f"{'.'.join((self.global_name, *path))} {reason}")


def _json_safe(value: object) -> JsonValue:
    """Returns a scalar as JSON, or a placeholder for a value that JSON cannot express."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return without_surrogates(value)
    if isinstance(value, int | float):
        try:
            return value if math.isfinite(value) else None
        except OverflowError:  # an integer that is too large for a JavaScript number
            return None
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, bytes | bytearray):
        return f"[{type(value).__name__}: {len(value)}]"
    return f"[{type(value).__name__}]"


def _message(error: Exception) -> str:
    return f"{type(error).__name__}: {shorten(without_surrogates(str(error)), 500)}"
