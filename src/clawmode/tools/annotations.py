"""Rewrites annotations that pydantic does not support: `JsonValue` and old `TypedDict` classes.

Pydantic recurses without end in an alias that contains itself, as `clawmode.types.JsonValue` does,
so that alias becomes `Any`. Before Python 3.12, pydantic accepts a `TypedDict` only from
`typing_extensions`, because the others do not record how they were declared; they are rebuilt.
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
    """Returns annotations that pydantic supports, with the names in them resolved.

    Raises:
        NameError, AttributeError, SyntaxError: A name cannot be resolved.
    """
    # Only if the name means our alias, and not a class of the user's.
    if local.get("JsonValue", namespace.get("JsonValue", JsonValue)) == JsonValue:
        local = {**local, "JsonValue": Any}
    holder = types.SimpleNamespace(__annotations__=annotations)
    hints = get_type_hints(holder, namespace, local, include_extras=True)
    return {key: _rewrite(hint) for key, hint in hints.items()}


# `JsonValue` with its inner references resolved, as `get_type_hints` returns it for a parameter.
_JSON = get_type_hints(
    types.SimpleNamespace(__annotations__={"any": JsonValue}), {"JsonValue": Any}
)["any"]


def _rewrite(annotation: Any, inside: tuple[Any, ...] = ()) -> Any:
    """Replaces the parts of an annotation that pydantic does not support.

    Args:
        annotation: The annotation.
        inside: The typed dicts around it. One that contains itself cannot be replaced.
    """
    if annotation == _JSON:
        return Any
    is_old_dict = is_typeddict(annotation) and type(annotation).__module__ == "typing"
    if is_old_dict and sys.version_info < (3, 12) and annotation not in inside:
        return _rebuild_dict(annotation, (*inside, annotation))
    arguments = get_args(annotation)
    changed = tuple(_rewrite(argument, inside) for argument in arguments)
    if all(new is old for new, old in zip(changed, arguments, strict=True)):
        return annotation
    origin = get_origin(annotation)
    return _FORMS.get(origin, origin)[changed]


def _rebuild_dict(annotation: Any, inside: tuple[Any, ...]) -> Any:
    """Returns an equal `TypedDict` of `typing_extensions`."""
    fields: dict[str, Any] = {}
    for key, hint in get_type_hints(annotation, include_extras=True).items():
        plain = get_args(hint)[0] if get_origin(hint) in (Required, NotRequired) else hint
        wrapper = _WRAPPERS[key in annotation.__required_keys__]
        fields[key] = wrapper[_rewrite(plain, inside)]
    return _make(annotation.__name__, fields)
