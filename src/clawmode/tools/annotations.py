"""Annotations made digestible for pydantic: any JSON is `Any`, and a `TypedDict` one that it knows.

Pydantic goes round in circles in an alias that holds itself, as `clawmode.types.JsonValue` does.
And before Python 3.12 it takes a `TypedDict` from `typing_extensions` only, because older ones do
not remember how they were made; all that a tool needs can be found out.
"""

import sys
import types
from typing import (
    Annotated,
    Any,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import typing_extensions

from clawmode.types import JsonValue

_FORMS: Any = {Annotated: Annotated, types.UnionType: Union}
_WRAPPERS: Any = {True: Required, False: NotRequired}
_make: Any = typing_extensions.TypedDict


def resolve(
    annotations: dict[str, Any], namespace: dict[str, Any], local: dict[str, Any]
) -> dict[str, Any]:
    """The annotations with names in them looked up.

    Raises:
        NameError, AttributeError, SyntaxError: One of them cannot be.
    """
    if local.get("JsonValue", namespace.get("JsonValue", JsonValue)) == JsonValue:
        local = {**local, "JsonValue": Any}
    holder = types.SimpleNamespace(__annotations__=annotations)
    hints = get_type_hints(holder, namespace, local, include_extras=True)
    return {key: _rewrite(hint) for key, hint in hints.items()}


_JSON = get_type_hints(
    types.SimpleNamespace(__annotations__={"any": JsonValue}), {"JsonValue": Any}
)["any"]


def _rewrite(annotation: Any, inside: tuple[Any, ...] = ()) -> Any:
    """The annotation with everything in it replaced that pydantic would stumble over.

    Args:
        annotation: The annotation.
        inside: The typed dicts that it was found in. One that holds itself cannot be replaced.
    """
    if annotation == _JSON:
        return Any
    if _is_unknown_dict(annotation) and annotation not in inside:
        return _known_dict(annotation, (*inside, annotation))
    arguments = get_args(annotation)
    changed = tuple(_rewrite(argument, inside) for argument in arguments)
    if all(new is old for new, old in zip(changed, arguments, strict=True)):
        return annotation
    origin = get_origin(annotation)
    return _FORMS.get(origin, origin)[changed]


def _is_unknown_dict(annotation: Any) -> bool:
    """Whether it is a `TypedDict` of a Python that is too old."""
    if sys.version_info >= (3, 12):
        return False
    return is_typeddict(annotation) and type(annotation).__module__ == "typing"


def _known_dict(annotation: Any, inside: tuple[Any, ...]) -> Any:
    fields: dict[str, Any] = {}
    for key, hint in get_type_hints(annotation, include_extras=True).items():
        plain = get_args(hint)[0] if get_origin(hint) in (Required, NotRequired) else hint
        wrapper = _WRAPPERS[key in annotation.__required_keys__]
        fields[key] = wrapper[_rewrite(plain, inside)]
    return _make(annotation.__name__, fields)
