"""What every folder and both sides of the wall share: JSON types, error codes, and `dataclass`.

This module imports nothing but the standard library.
"""

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import MISSING, FrozenInstanceError, fields
from functools import cache
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias, TypeVar, get_args

T = TypeVar("T")

JsonValue: TypeAlias = "str | int | float | bool | list[JsonValue] | dict[str, JsonValue] | None"
"""A parsed JSON value, as it crosses the bridge between guest and host."""

JsonObject: TypeAlias = dict[str, JsonValue]

JsonText: TypeAlias = bytes
"""UTF-8 JSON that has not been parsed. The sandbox passes such text on without reading it."""

ErrorCode: TypeAlias = Literal[
    "runtime_unavailable",
    "invalid_config",
    "invalid_input",
    "unsupported_language",
    "typescript_transform_failed",
    "module_access_denied",
    "timeout",
    "memory_limit_exceeded",
    "output_limit_exceeded",
    "snapshot_limit_exceeded",
    "snapshot_expired",
    "snapshot_restore_failed",
    "too_many_pending_tool_calls",
    "nested_tool_failed",
    "aborted",
    "internal_error",
]

ERROR_CODES: tuple[ErrorCode, ...] = get_args(ErrorCode)

CallState: TypeAlias = Literal[
    "queued", "running", "approval", "completed", "failed", "cancelled", "unknown", "not_started"
]
"""The state of a nested call. A call in one of the first three states has no reply yet."""

CALL_STATES: tuple[CallState, ...] = get_args(CallState)
OPEN_STATES: tuple[CallState, ...] = ("queued", "running", "approval")


def copy_json(value: Any) -> Any:
    """Returns a deep copy of a JSON value, several times as fast as `copy.deepcopy`."""
    if isinstance(value, dict):
        return {key: copy_json(item) for key, item in value.items()}
    return [copy_json(item) for item in value] if isinstance(value, list) else value


def children(value: JsonValue) -> Iterable[JsonValue]:
    """Returns the members of an object or the items of a list, to walk a value level by level."""
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def change_texts(value: T, change: Callable[[str], str]) -> T:
    """Returns a JSON value with all of its texts changed, keys included."""
    made: Any = value
    if isinstance(value, str):
        made = change(value)
    elif isinstance(value, dict):
        made = {change(key): change_texts(item, change) for key, item in value.items()}
    elif isinstance(value, list):
        made = [change_texts(item, change) for item in value]
    return made


def refuse_constant(name: str) -> NoReturn:
    """Rejects `NaN` and `Infinity`, which Python's `json` accepts: a `parse_constant`."""
    raise ValueError(f"{name} is not a JSON number")


# ---- Dataclasses ----

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls: type | None = None, /, **options: bool) -> Any:
        """Makes a dataclass like that of the standard library, which costs little at import.

        The standard library compiles six methods of each class when its module is imported: 0.5 ms
        per class, and a command imports two hundred classes, of which it uses a few dozen. This
        decorator only collects the fields, in 0.05 ms. All classes share the methods that compare,
        print and freeze; `__init__` is compiled when it is looked up for the first time.

        The options `order` and `unsafe_hash` are not supported.
        """
        return _made(cls, **options) if cls is not None else lambda cls: _made(cls, **options)


def _made(cls: Any, *, eq: bool = True, frozen: bool = False, **options: bool) -> type:
    # Without a docstring the standard library would derive one from the signature.
    cls.__doc__ = cls.__doc__ or cls.__name__
    made: Any = dataclasses.dataclass(init=False, repr=False, eq=False, **options)(cls)
    methods: dict[str, object] = {"__init__": _Init(made, frozen), "__repr__": _repr}
    if eq:
        methods |= {"__eq__": _eq, "__hash__": _hash if frozen else None}
    if frozen:
        methods |= {"__setattr__": _refuse_to_set, "__delattr__": _refuse_to_delete}
    if frozen and options.get("slots"):
        # By default, a copy would be filled by `__setattr__`.
        methods |= {"__getstate__": _get_state, "__setstate__": _set_state}
    own = vars(made)
    for name in [name for name in methods if own.get(name) is None]:
        setattr(made, name, methods[name])
    return made


class _Unset:
    """The default of a parameter whose field has a factory."""

    def __repr__(self) -> str:
        return "<factory>"


class _Init:
    """Stands for `__init__` of a dataclass until somebody looks `__init__` up."""

    __slots__ = ("cls", "frozen")

    def __init__(self, cls: Any, frozen: bool) -> None:
        self.cls, self.frozen = cls, frozen

    def __get__(self, instance: object, owner: type | None = None) -> Callable[..., None]:
        cls = self.cls
        known: dict[str, Any] = {"set_field": object.__setattr__, "UNSET": _Unset()}
        positional, named = ["self"], ["*"]
        lines: list[str] = []
        for field in fields(cls):
            name, default, value = field.name, "", field.name
            if field.default is not MISSING:
                known[f"_{name}"], default = field.default, f"=_{name}"
            elif field.default_factory is not MISSING:
                known[f"_{name}"], default = field.default_factory, "=UNSET"
                value = f"_{name}() if {name} is UNSET else {name}"
            if field.init:
                (named if field.kw_only else positional).append(name + default)
            elif not default:
                continue  # `__post_init__` sets the field
            else:
                value = f"_{name}" if field.default is not MISSING else f"_{name}()"
            # A frozen object rejects the assignment.
            lines.append(
                f"set_field(self, {name!r}, {value})" if self.frozen else f"self.{name} = {value}"
            )
        if hasattr(cls, "__post_init__"):
            lines.append("self.__post_init__()")
        given = ", ".join(positional + named if len(named) > 1 else positional)
        text = f"def __init__({given}):\n " + "\n ".join(lines or ["pass"])
        exec(text, known)  # noqa: S102 - as the standard library does, from names of fields only
        init = known["__init__"]
        init.__module__, init.__qualname__ = cls.__module__, f"{cls.__qualname__}.__init__"
        init.__annotations__ = {it.name: it.type for it in fields(cls) if it.init}
        init.__annotations__["return"] = None
        cls.__init__ = init
        return init.__get__(instance, owner)


@cache
def _values(cls: Any, purpose: str) -> Callable[[object], object]:
    """Returns a function that reads the fields of an object that count for a purpose."""
    names = [
        field.name
        for field in fields(cls)
        if (field.compare if purpose == "compare" or field.hash is None else field.hash)
    ]
    read = attrgetter(*names) if names else lambda _: ()
    return read if len(names) != 1 else lambda it: (read(it),)


def _eq(self: object, other: object) -> bool:
    if other.__class__ is not self.__class__:
        return NotImplemented
    read = _values(type(self), "compare")
    return read(self) == read(other)


def _hash(self: object) -> int:
    return hash(_values(type(self), "hash")(self))


@recursive_repr()
def _repr(self: Any) -> str:
    shown = (f"{it.name}={getattr(self, it.name)!r}" for it in fields(self) if it.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _refuse_to_set(self: Any, name: str, value: object) -> None:
    _check_frozen(self, name, "assign to")
    object.__setattr__(self, name, value)


def _refuse_to_delete(self: Any, name: str) -> None:
    _check_frozen(self, name, "delete")
    object.__delattr__(self, name)


def _check_frozen(self: Any, name: str, what: str) -> None:
    # A subclass that is no dataclass may have more attributes, and they are not frozen.
    if "__dataclass_fields__" in vars(type(self)) or name in self.__dataclass_fields__:
        raise FrozenInstanceError(f"cannot {what} field {name!r}")


def _get_state(self: Any) -> list[object]:
    return [getattr(self, field.name) for field in fields(self)]


def _set_state(self: Any, state: list[object]) -> None:
    for field, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)
