"""Internal namespaces, host side: who registered them, which runs see them, what the guest gets.

A namespace is a small domain API (`Issues.list(…)`) over tools of one plugin. Its scope is data and
markers: a marker becomes a function in the guest, and a call of it comes back as a namespace id and
a path, which `NamespaceRuntime.resolve` turns into a tool of the run and its input. Nothing here
calls a tool: that is `executor`'s business, so a namespace call is a tool call like any other.

    NamespaceError          a registration or a marker that cannot be meant
    NamespaceScopeError     the scope of this run cannot be made: the cell fails before it starts
    NamespaceCallRefused    a guest's call that leads to no tool: data for the guest
"""

import inspect
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date, time
from functools import cached_property
from typing import Any, TypeAlias

from clawmode.context import RunContext
from clawmode.exceptions import ClawmodeError, SandboxError
from clawmode.text import quote, shorten, without_surrogates
from clawmode.tools.tool import Tool
from clawmode.types import JsonObject, JsonValue

MAX_SCOPE_DEPTH = 32
MAX_SCOPE_BYTES = 256 << 10
MAX_PROMPT_CHARS = 1_000

RESERVED_WORDS = frozenset(
    "arguments await break case catch class const continue debugger default delete do else enum "
    "export extends false finally for function if implements import in instanceof interface let "
    "new null package private protected public return static super switch this throw true try "
    "typeof var void while with yield "
    "require".split()  # no word of the language, but a cell that calls it is refused
)

BUILT_IN_GLOBALS = frozenset(
    # Code mode's own
    "ALL_TOOLS API MCP console json namespaces text tools yield_control "
    "setTimeout clearTimeout setInterval clearInterval "
    # The web's
    "DOMException TextDecoder TextEncoder URL URLSearchParams atob btoa performance "
    "queueMicrotask structuredClone "
    # The language's, with those that the guest lacks: code may test for them
    "AggregateError Array ArrayBuffer AsyncDisposableStack Atomics BigInt BigInt64Array "
    "BigUint64Array Boolean DataView Date DisposableStack Error EvalError FinalizationRegistry "
    "Float16Array Float32Array Float64Array Function Infinity Int16Array Int32Array Int8Array "
    "InternalError Intl Iterator JSON Map Math NaN Number Object Promise Proxy RangeError "
    "ReferenceError Reflect RegExp Set SharedArrayBuffer String SuppressedError Symbol SyntaxError "
    "Temporal TypeError URIError Uint16Array Uint32Array Uint8Array Uint8ClampedArray WeakMap "
    "WeakRef WeakSet WebAssembly decodeURI decodeURIComponent encodeURI encodeURIComponent escape "
    "eval globalThis isFinite isNaN parseFloat parseInt undefined unescape "
    # What the global object inherits
    "__defineGetter__ __defineSetter__ __lookupGetter__ __lookupSetter__ __proto__ constructor "
    "hasOwnProperty isPrototypeOf propertyIsEnumerable toLocaleString toString valueOf".split()
)

RESERVED_PREFIX = "__openclaw"
UNSAFE_KEYS = frozenset({"", "__proto__", "constructor", "prototype"})
SEPARATORS = (".", "\0")

Path: TypeAlias = tuple[str, ...]
"""Where a member is in a scope; array indexes are decimal strings, as the guest sends them."""

InputMapper: TypeAlias = Callable[[list[JsonValue]], JsonValue]
"""Makes a tool's input of the guest's arguments.

May raise: the message reaches the guest. What is not an object is refused.
"""


class NamespaceError(ClawmodeError):
    """A namespace that cannot be registered, or a marker that cannot be called."""


class NamespaceScopeError(SandboxError):
    """A run's scope could not be made or serialized; the text names the path."""


class NamespaceCallRefused(ClawmodeError):
    """A guest's call of a namespace leads to no tool, in words that may reach the guest.

    Attributes:
        code: `invalid_input`, or `unknown_tool` if the name is wrong.
    """

    def __init__(self, message: str, code: str = "invalid_input") -> None:
        super().__init__(message)
        self.code = code


# ---- Registering ----


@dataclass(frozen=True, slots=True)
class NamespaceContext:
    """What a scope learns about the run that it is made for."""

    run: RunContext
    config: object = None
    aborted: Callable[[], bool] = lambda: False


CreateScope: TypeAlias = Callable[[NamespaceContext], dict[str, Any]]
"""Makes a namespace's members for one run: JSON values, lists, dicts, markers. May raise."""


@dataclass(frozen=True, slots=True)
class NamespaceTool:
    """A member of a scope that the guest can call. Made by `namespace_tool`."""

    tool_name: str
    input_mapper: InputMapper | None = None


def namespace_tool(tool_name: str, input_mapper: InputMapper | None = None) -> NamespaceTool:
    """Marks a member of a scope as a function that calls a tool.

    Args:
        tool_name: One of the registration's `required_tool_names`.
        input_mapper: Makes the tool's input of the list of arguments. Without one it is the first
            argument, or `{}` when omitted.

    Raises:
        NamespaceError: The mapper is async.
    """
    if inspect.iscoroutinefunction(input_mapper):
        raise NamespaceError(f"the input mapper for {tool_name!r} is async: use a plain function")
    return NamespaceTool(tool_name, input_mapper)


@dataclass(frozen=True)
class NamespaceRegistration:
    """A namespace, as the integration that owns its tools describes it.

    Attributes:
        id: Unique in the process.
        global_name: What guest code calls it; unique too.
        description: What it is for, for a model.
        required_tool_names: The tools that its functions may call. A run that lacks one of them
            does not see the namespace.
        create_scope: Makes its members for one run.
        prompt: How to use it, for a model.

    Raises:
        NamespaceError: It cannot be used as it is.
    """

    id: str
    global_name: str
    description: str
    required_tool_names: Sequence[str]
    create_scope: CreateScope = field(repr=False, compare=False)
    prompt: str = ""

    def __post_init__(self) -> None:
        for name in ("id", "description", "prompt"):
            _check_text(name, getattr(self, name))
        if not self.id.strip():
            raise NamespaceError("id is empty: give the namespace one")
        _check_global_name(self.global_name)
        # A copy: what may be called must not change after it was checked.
        names = _checked_tool_names(self.global_name, self.required_tool_names)
        object.__setattr__(self, "required_tool_names", names)
        if not callable(self.create_scope) or inspect.iscoroutinefunction(self.create_scope):
            raise NamespaceError(f"create_scope of {self.global_name!r} must be a plain function")


@dataclass(frozen=True)
class OwnedNamespace(NamespaceRegistration):
    """A registration bound to the plugin in whose name it was made."""

    plugin_id: str = field(kw_only=True)

    def backing(self, tools: Iterable[Tool]) -> dict[str, Tool] | None:
        """The required tools by name; None if one is absent or is another's."""
        owned = {
            tool.name: tool
            for tool in tools
            if tool.source == "plugin" and tool.owner == self.plugin_id
        }
        found = {name: owned[name] for name in self.required_tool_names if name in owned}
        return found if len(found) == len(set(self.required_tool_names)) else None


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise NamespaceError(f"{name} must be a string, found {type(value).__name__}")
    if without_surrogates(value) != value:
        raise NamespaceError(f"{name} is not well-formed Unicode: {value[:80]!r}")


def _check_global_name(name: object) -> None:
    # Python's identifiers are JavaScript's but for the dollar sign.
    if not isinstance(name, str) or not name.replace("$", "_").isidentifier():
        raise NamespaceError(f"global_name {name!r} is not a JavaScript identifier")
    if name in RESERVED_WORDS:
        raise NamespaceError(f"global_name {name!r} is a reserved word: choose another")
    if name in BUILT_IN_GLOBALS or name.startswith(RESERVED_PREFIX):
        raise NamespaceError(f"global_name {name!r} is a built-in global: choose another")


def _checked_tool_names(namespace: str, names: object) -> tuple[str, ...]:
    match names:
        case str() | bytes():
            pass
        case [_, *_] if all(isinstance(name, str) and name for name in names):
            return tuple(names)
    raise NamespaceError(f"required_tool_names of {namespace!r} must be a list of tool names")


class NamespaceRegistry:
    """The namespaces of a process, by id."""

    def __init__(self) -> None:
        self._by_id: dict[str, OwnedNamespace] = {}
        self.version = 0
        """Raised by every change: runs that are open look again."""

    def register_for_plugin(self, plugin_id: str, registration: NamespaceRegistration) -> None:
        """Registers a namespace in the name of the plugin that owns its tools.

        Raises:
            NamespaceError: The id or the global name is taken.
        """
        _check_text("plugin_id", plugin_id)
        if not plugin_id:
            raise NamespaceError(f"namespace {registration.id!r} needs the id of its plugin")
        for other in self._by_id.values():
            for name in ("id", "global_name"):
                if (taken := getattr(other, name)) == getattr(registration, name):
                    owner = f"plugin {other.plugin_id!r}"
                    raise NamespaceError(f"{name} {taken!r} is taken by {owner}: choose another")
        fields: dict[str, Any] = vars(registration) | {"plugin_id": plugin_id}
        self._by_id[registration.id] = OwnedNamespace(**fields)
        self.version += 1

    def unregister(self, namespace_id: str) -> None:
        """Removes one namespace, if it is there. The normal clean-up is the plugin's."""
        self._by_id.pop(namespace_id, None)
        self.version += 1

    def clear_for_plugin(self, plugin_id: str) -> None:
        """Removes what a plugin registered: it is disabled, uninstalled or rolled back."""
        for namespace in list(self._by_id.values()):
            if namespace.plugin_id == plugin_id:
                del self._by_id[namespace.id]
        self.version += 1

    def clear(self) -> None:
        """Removes all namespaces."""
        self._by_id.clear()
        self.version += 1

    def visible(self, tools: Iterable[Tool]) -> list[OwnedNamespace]:
        """The namespaces that a run with these tools sees, sorted by global name."""
        tools = list(tools)
        seen = [item for item in self._by_id.values() if item.backing(tools) is not None]
        return sorted(seen, key=lambda item: item.global_name)


default_registry = NamespaceRegistry()


def register_namespace_for_plugin(plugin_id: str, registration: NamespaceRegistration) -> None:
    """Registers a namespace in this process; see `NamespaceRegistry.register_for_plugin`."""
    default_registry.register_for_plugin(plugin_id, registration)


def unregister_namespace(namespace_id: str) -> None:
    """Removes one namespace from this process, if it is there."""
    default_registry.unregister(namespace_id)


def clear_namespaces_for_plugin(plugin_id: str) -> None:
    """Removes what a plugin registered in this process."""
    default_registry.clear_for_plugin(plugin_id)


def clear_namespaces_for_test() -> None:
    """Removes all namespaces of this process, so that no test leaks into another."""
    default_registry.clear()


# ---- One run ----


@dataclass(frozen=True, slots=True)
class _Scope:
    """A namespace as one run has it: what the guest gets, and what its functions stand for."""

    global_name: str
    node: JsonObject
    functions: dict[Path, NamespaceTool]
    tools: dict[str, Tool]


class NamespaceRuntime:
    """The namespaces of one run. Scopes are made once, when they are first needed.

    Args:
        registrations: What the registry has; those that the run cannot see are left out again.
        tools: The tools of the run.
        context: What the scopes learn about it.
    """

    def __init__(
        self,
        registrations: Iterable[OwnedNamespace],
        tools: Iterable[Tool],
        context: NamespaceContext,
    ) -> None:
        tools = list(tools)
        found = [(item, item.backing(tools)) for item in registrations]
        # Sorted, so that the same namespaces make the same prompt and the same image.
        found.sort(key=lambda pair: pair[0].global_name)
        self._visible = [(item, backing) for item, backing in found if backing is not None]
        self._context = context

    def prompt_text(self) -> str:
        """A line for each namespace, for the model: what it is and how to use it."""
        return "\n".join(_prompt_line(namespace) for namespace, _ in self._visible)

    def descriptors(self) -> list[JsonObject]:
        """What the guest's side builds the namespaces from.

        Raises:
            NamespaceScopeError: A scope cannot be made or serialized.
        """
        return [
            {"id": id_, "global": scope.global_name, "scope": scope.node}
            for id_, scope in self._scopes.items()
        ]

    def resolve(
        self, namespace_id: JsonValue, path: JsonValue, args: JsonValue
    ) -> tuple[Tool, JsonObject]:
        """The tool that a guest's call leads to, and its input.

        Every argument may be forged. A path is looked up whole and never joined, so no separator
        in a segment can make it another.

        Raises:
            NamespaceCallRefused: The call leads to no tool, or its arguments make no input.
            NamespaceScopeError: A scope cannot be made; it was not needed before.
        """
        if not isinstance(namespace_id, str) or (scope := self._scopes.get(namespace_id)) is None:
            raise NamespaceCallRefused(f"there is no namespace {_shown(namespace_id)}")
        steps = _strings(path)
        if steps is None or (function := scope.functions.get(steps)) is None:
            shown = _shown(path if steps is None else ".".join(steps))
            raise NamespaceCallRefused(f"{scope.global_name} has no function {shown}")
        called = ".".join((scope.global_name, *steps))
        if not isinstance(args, list):
            raise NamespaceCallRefused(f"{called}: the arguments are no list")
        return scope.tools[function.tool_name], _input(called, function.input_mapper, args)

    @cached_property
    def _scopes(self) -> dict[str, _Scope]:
        return {
            namespace.id: _make_scope(namespace, backing, self._context)
            for namespace, backing in self._visible
        }


def _prompt_line(namespace: NamespaceRegistration) -> str:
    # On one line: a text with line breaks could pass for another namespace's.
    words = f"{namespace.global_name}: {namespace.description} {namespace.prompt}".split()
    return shorten(" ".join(words), MAX_PROMPT_CHARS)


def _strings(path: JsonValue) -> Path | None:
    if not isinstance(path, list):
        return None
    steps = tuple(step for step in path if isinstance(step, str))
    return steps if len(steps) == len(path) else None


def _shown(value: JsonValue) -> str:
    """A forged value in an error: short, and escaped, because it may hold half a character."""
    return quote(value, 80) if isinstance(value, str) else f"[{type(value).__name__}]"


def _input(called: str, mapper: InputMapper | None, args: list[JsonValue]) -> JsonObject:
    made = _map_input(called, mapper, args) if mapper is not None else _first(args)
    if not isinstance(made, dict):
        kind = "null" if made is None else type(made).__name__
        raise NamespaceCallRefused(f"{called} makes no input object of its arguments: {kind}")
    return made


def _first(args: list[JsonValue]) -> JsonValue:
    # An explicit `undefined` is null by the time it is here, and counts as omitted.
    return {} if not args or args[0] is None else args[0]


def _map_input(called: str, mapper: InputMapper, args: list[JsonValue]) -> JsonValue:
    """What the mapper makes, as a copy: a tool that changes its input changes no scope."""
    try:
        copy: JsonValue = json.loads(json.dumps(mapper(args), allow_nan=False))
    except Exception as error:
        raise NamespaceCallRefused(f"{called} cannot use its arguments: {_told(error)}") from error
    return copy


# ---- Serializing a scope ----


def _make_scope(
    namespace: OwnedNamespace, backing: dict[str, Tool], context: NamespaceContext
) -> _Scope:
    name = namespace.global_name
    try:
        members: object = namespace.create_scope(context)
    except Exception as error:
        raise NamespaceScopeError(f"{name}: create_scope failed: {_told(error)}") from error
    if not isinstance(members, dict):
        found = type(members).__name__
        raise NamespaceScopeError(f"{name}: create_scope must return a dict, found {found}")
    serializer = _Serializer(name, namespace.required_tool_names)
    node = serializer.serialize(members)
    return _Scope(name, node, serializer.functions, backing)


@dataclass(slots=True)
class _Serializer:
    """Turns a scope into a node, and notes which paths can be called.

    A node is `{"t": "o" | "a", "v": members}`, `{"t": "v", "v": JSON}` or `{"t": "f"}`. What holds
    no function is one `v`, however large.
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
            case NamespaceTool():
                return self._function(value, path)
            case dict():
                return self._object(value, path, self._below(value, path, parents))
            case list() | tuple():
                return self._array(value, path, self._below(value, path, parents))
        if callable(value):
            raise self._error(path, "is a raw function: mark a tool with namespace_tool")
        return {"t": "v", "v": self._leaf(value, path)}

    def _function(self, marker: NamespaceTool, path: Path) -> JsonObject:
        if marker.tool_name not in self.declared:
            reason = f"{marker.tool_name!r} is not among the required_tool_names"
            raise self._error(path, f"calls an undeclared tool: {reason}")
        self.functions[path] = marker
        return {"t": "f"}

    def _object(self, members: dict[Any, Any], path: Path, parents: tuple[int, ...]) -> JsonObject:
        nodes: dict[str, JsonObject] = {}
        for key, value in members.items():
            self._check_key(key, path)
            nodes[key] = self._node(value, (*path, key), parents)
        if all(node["t"] == "v" for node in nodes.values()):
            return {"t": "v", "v": {key: node["v"] for key, node in nodes.items()}}
        return {"t": "o", "v": {**nodes}}

    def _array(self, items: Sequence[object], path: Path, parents: tuple[int, ...]) -> JsonObject:
        nodes = [self._node(item, (*path, str(index)), parents) for index, item in enumerate(items)]
        if all(node["t"] == "v" for node in nodes):
            return {"t": "v", "v": [node["v"] for node in nodes]}
        return {"t": "a", "v": [*nodes]}

    def _leaf(self, value: object, path: Path) -> JsonValue:
        leaf = _json_safe(value)
        if isinstance(leaf, str):
            self._spend(len(leaf) + 1, path)
        return leaf

    def _spend(self, count: int, path: Path) -> None:
        """Stops a scope that cannot fit: one that shares references can be small and unfold.

        Counts less than the JSON will have; `serialize` measures that.
        """
        self.bytes_left -= count
        if self.bytes_left < 0:
            raise self._too_large(path)

    def _below(self, value: object, path: Path, parents: tuple[int, ...]) -> tuple[int, ...]:
        """The containers above the members of `value`, by identity."""
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
        self._spend(len(key) + 3, path)  # with its quotes and its colon

    def _too_large(self, path: Path) -> NamespaceScopeError:
        return self._error(path, f"is over {MAX_SCOPE_BYTES} bytes of JSON: put data behind a tool")

    def _error(self, path: Path, reason: str) -> NamespaceScopeError:
        return NamespaceScopeError(f"{'.'.join((self.global_name, *path))} {reason}")


def _json_safe(value: object) -> JsonValue:
    """A value that is no container, or what stands for it where JSON has nothing."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return without_surrogates(value)
    if isinstance(value, int | float):
        return _finite(value)
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, bytes | bytearray):
        return f"[{type(value).__name__}: {len(value)}]"
    return f"[{type(value).__name__}]"


def _finite(value: float) -> float | None:
    try:
        return value if math.isfinite(value) else None
    except OverflowError:  # an integer that no JavaScript number can hold
        return None


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {without_surrogates(str(error))[:500]}"
