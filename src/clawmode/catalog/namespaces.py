"""Internal namespaces: their registrations, and the registry of the plugins that own them.

A namespace is a small domain API (`Issues.list(…)`) over the tools of one plugin. Its scope
consists of data and markers. A marker becomes a function in the guest; `namespace_runtime` builds
the scopes of a run and resolves the guest's calls.

    NamespaceError          an invalid registration or marker
    NamespaceScopeError     the scope of a run cannot be built: the cell fails before it starts
    NamespaceCallRefused    a guest's call names no tool: an error for the guest
"""

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from typing import Any, TypeAlias

from clawmode.context import RunContext
from clawmode.exceptions import ClawmodeError, SandboxError
from clawmode.text import without_surrogates
from clawmode.tools.tool import Tool
from clawmode.types import JsonValue, dataclass

RESERVED_WORDS = frozenset(
    "arguments await break case catch class const continue debugger default delete do else enum "
    "export extends false finally for function if implements import in instanceof interface let "
    "new null package private protected public return static super switch this throw true try "
    "typeof var void while with yield "
    "require".split()  # not a word of the language, but cells that call it are rejected
)

BUILT_IN_GLOBALS = frozenset(
    # Code mode
    "ALL_TOOLS API MCP console exit helpers image json load namespaces notify store text tools "
    "yield_control "
    "setTimeout clearTimeout setInterval clearInterval "
    # The web
    "DOMException TextDecoder TextEncoder URL URLSearchParams atob btoa performance "
    "queueMicrotask structuredClone "
    # The language, including globals that the guest lacks, because code may test for them
    "AggregateError Array ArrayBuffer AsyncDisposableStack Atomics BigInt BigInt64Array "
    "BigUint64Array Boolean DataView Date DisposableStack Error EvalError FinalizationRegistry "
    "Float16Array Float32Array Float64Array Function Infinity Int16Array Int32Array Int8Array "
    "InternalError Intl Iterator JSON Map Math NaN Number Object Promise Proxy RangeError "
    "ReferenceError Reflect RegExp Set SharedArrayBuffer String SuppressedError Symbol SyntaxError "
    "Temporal TypeError URIError Uint16Array Uint32Array Uint8Array Uint8ClampedArray WeakMap "
    "WeakRef WeakSet WebAssembly decodeURI decodeURIComponent encodeURI encodeURIComponent escape "
    "eval globalThis isFinite isNaN parseFloat parseInt undefined unescape "
    # Inherited by the global object
    "__defineGetter__ __defineSetter__ __lookupGetter__ __lookupSetter__ __proto__ constructor "
    "hasOwnProperty isPrototypeOf propertyIsEnumerable toLocaleString toString valueOf".split()
)

RESERVED_PREFIX = "__openclaw"

Path: TypeAlias = tuple[str, ...]
"""The place of a member in a scope; array indexes are decimal strings, as the guest sends them."""

InputMapper: TypeAlias = Callable[[list[JsonValue]], JsonValue]
"""Converts the guest's arguments to a tool's input.

May raise an exception, whose message reaches the guest. The result must be an object.
"""


class NamespaceError(ClawmodeError):
    """A namespace cannot be registered, or a marker cannot be called."""


class NamespaceScopeError(SandboxError):
    """The scope of a run cannot be built or serialized; the message names the path."""


class NamespaceCallRefused(ClawmodeError):
    """A guest's call of a namespace names no tool; the message may reach the guest.

    Attributes:
        code: `invalid_input`, or `unknown_tool` if the name is wrong.
    """

    def __init__(self, message: str, code: str = "invalid_input") -> None:
        super().__init__(message)
        self.code = code


# ---- Registering ----


@dataclass(frozen=True, slots=True)
class NamespaceContext:
    """The run that a scope is built for."""

    run: RunContext
    config: object = None
    aborted: Callable[[], bool] = lambda: False


CreateScope: TypeAlias = Callable[[NamespaceContext], dict[str, Any]]
"""Builds the members of a namespace for one run: JSON values, lists, dicts, markers. May raise."""


@dataclass(frozen=True, slots=True)
class NamespaceTool:
    """Marks a member of a scope that the guest can call. Made by `namespace_tool`."""

    tool_name: str
    input_mapper: InputMapper | None = None


def namespace_tool(tool_name: str, input_mapper: InputMapper | None = None) -> NamespaceTool:
    """Marks a member of a scope as a function that calls a tool.

    Args:
        tool_name: One of the registration's `required_tool_names`.
        input_mapper: Converts the list of arguments to the tool's input. By default the input is
            the first argument, or `{}` if there is none.

    Raises:
        NamespaceError: The mapper is async.
    """
    if inspect.iscoroutinefunction(input_mapper):
        raise NamespaceError(f"the input mapper for {tool_name!r} is async: use a plain function")
    return NamespaceTool(tool_name, input_mapper)


@dataclass(frozen=True)
class NamespaceRegistration:
    """The description of a namespace by the plugin that owns its tools.

    Attributes:
        id: Unique in the process.
        global_name: The global in guest code; unique too.
        description: The purpose, for a model.
        required_tool_names: The tools that its functions may call. A run that lacks one of them
            does not see the namespace.
        create_scope: Builds the members for one run.
        prompt: Instructions for a model.

    Raises:
        NamespaceError: A field is invalid.
    """

    id: str
    global_name: str
    description: str
    required_tool_names: Sequence[str]
    create_scope: CreateScope = field(repr=False, compare=False)
    prompt: str = ""

    def __post_init__(self) -> None:
        for key in ("id", "description", "prompt"):
            _check_text(key, getattr(self, key))
        if not self.id.strip():
            raise NamespaceError("id is empty: give the namespace one")
        name: object = self.global_name
        # Python's identifiers are JavaScript's except for the dollar sign.
        if not isinstance(name, str) or not name.replace("$", "_").isidentifier():
            raise NamespaceError(f"global_name {name!r} is not a JavaScript identifier")
        if name in RESERVED_WORDS:
            raise NamespaceError(f"global_name {name!r} is a reserved word: choose another")
        if name in BUILT_IN_GLOBALS or name.startswith(RESERVED_PREFIX):
            raise NamespaceError(f"global_name {name!r} is a built-in global: choose another")
        names: object = self.required_tool_names
        is_list = isinstance(names, Sequence) and not isinstance(names, str | bytes)
        if not is_list or not names or not all(isinstance(each, str) and each for each in names):
            raise NamespaceError(
                f"required_tool_names of {self.global_name!r} must be a list of tool names"
            )
        # A copy, so that the names cannot change after this check.
        object.__setattr__(self, "required_tool_names", tuple(names))
        if not callable(self.create_scope) or inspect.iscoroutinefunction(self.create_scope):
            raise NamespaceError(f"create_scope of {self.global_name!r} must be a plain function")


@dataclass(frozen=True)
class OwnedNamespace(NamespaceRegistration):
    """A registration, bound to the plugin that made it."""

    plugin_id: str = field(kw_only=True)

    def backing(self, tools: Iterable[Tool]) -> dict[str, Tool] | None:
        """Returns the required tools by name; None if the plugin lacks one of them."""
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


class NamespaceRegistry:
    """The namespaces of a process, by id."""

    def __init__(self) -> None:
        self._by_id: dict[str, OwnedNamespace] = {}
        self.version = 0
        """Incremented by every change, so that open runs notice it."""

    def register_for_plugin(self, plugin_id: str, registration: NamespaceRegistration) -> None:
        """Registers a namespace of a plugin.

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
        """Removes one namespace, if it exists. Plugins normally use `clear_for_plugin`."""
        self._by_id.pop(namespace_id, None)
        self.version += 1

    def clear_for_plugin(self, plugin_id: str) -> None:
        """Removes the namespaces of a plugin that is disabled, uninstalled or rolled back."""
        for namespace in list(self._by_id.values()):
            if namespace.plugin_id == plugin_id:
                del self._by_id[namespace.id]
        self.version += 1

    def clear(self) -> None:
        self._by_id.clear()
        self.version += 1

    def visible(self, tools: Iterable[Tool]) -> list[OwnedNamespace]:
        """Returns the namespaces that a run with these tools sees, sorted by global name."""
        tools = list(tools)
        visible = [item for item in self._by_id.values() if item.backing(tools) is not None]
        return sorted(visible, key=lambda item: item.global_name)


default_registry = NamespaceRegistry()


def register_namespace_for_plugin(plugin_id: str, registration: NamespaceRegistration) -> None:
    """Registers a namespace in this process; see `NamespaceRegistry.register_for_plugin`."""
    default_registry.register_for_plugin(plugin_id, registration)


def unregister_namespace(namespace_id: str) -> None:
    """Removes one namespace from this process, if it exists."""
    default_registry.unregister(namespace_id)


def clear_namespaces_for_plugin(plugin_id: str) -> None:
    """Removes the namespaces of a plugin from this process."""
    default_registry.clear_for_plugin(plugin_id)


def clear_namespaces_for_test() -> None:
    """Removes all namespaces of this process, so that no test leaks into another."""
    default_registry.clear()
