"""A function's signature as pydantic reads it: parameters, input adapter and JSON Schemas."""

import functools
import inspect
import types
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeAlias, Union, get_args, get_origin

from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError
from pydantic.fields import Field, FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode

from clawmode.exceptions import InvalidTool
from clawmode.tools.annotations import resolve
from clawmode.tools.schema_cost import as_list, as_map, locate
from clawmode.tools.tool import ToolContext
from clawmode.types import JsonObject, JsonValue

Function: TypeAlias = Callable[..., Any]
Parameter = inspect.Parameter

MISUNDERSTOOD = (PydanticUserError, RecursionError, TypeError)
"""Exceptions of pydantic for a type that it does not support, that recurses, or that is no type."""


class _Generator(GenerateJsonSchema):
    """Generates schemas without warnings: a default need not be JSON, as input omits it."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 - theirs


def unpeel(function: Function) -> tuple[Function, set[str]]:
    """Returns the function inside of partials, and the parameters that these set by name."""
    preset: set[str] = set()
    while isinstance(function, functools.partial):
        preset |= function.keywords.keys()
        function = function.func
    return function, preset


def parameters_of(function: Function, name: str) -> Mapping[str, Parameter]:
    """Returns the parameters of a function by name.

    Raises:
        InvalidTool: Input, which is an object, cannot provide the parameters.
    """
    inner, _ = unpeel(function)
    if isinstance(inner, type):
        raise InvalidTool(
            f"tool {name!r}: a class is not a function; decorate a function or a method"
        )
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        raise InvalidTool(f"tool {name!r} yields; return a list instead")
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:
        raise InvalidTool(
            f"tool {name!r} has no signature; wrap it in a function of yours"
        ) from None
    for key, parameter in parameters.items():
        if parameter.kind is Parameter.VAR_POSITIONAL:
            raise InvalidTool(
                f"tool {name!r}: input has names, so nothing can reach *{key}; "
                f"take a list instead, `{key}: list[...]`"
            )
        if key in ("self", "cls") and parameter is next(iter(parameters.values())):
            raise InvalidTool(
                f"tool {name!r} is a method without its object; "
                "leave it undecorated, and make the tool of the bound method: tool(thing.method)"
            )
    return parameters


def hints_of(function: Function, name: str, names: Mapping[str, object]) -> dict[str, Any]:
    """Returns the annotations, with the names in them resolved.

    Raises:
        InvalidTool: A name cannot be resolved.
    """
    annotated = inspect.unwrap(function)
    if not hasattr(annotated, "__annotations__"):
        annotated = type(annotated).__call__
    namespace = getattr(annotated, "__globals__", {})
    try:
        return resolve(annotated.__annotations__, namespace, dict(names))
    except (NameError, AttributeError, SyntaxError) as error:
        raise InvalidTool(
            f"tool {name!r}: an annotation cannot be resolved ({error}); "
            "import what it names at run time too, not only for the type checker"
        ) from None


def is_context(annotation: object) -> bool:
    """True if an annotation is `ToolContext`, alone or in a union."""
    if get_origin(annotation) in (Annotated, Union, types.UnionType):
        return any(map(is_context, get_args(annotation)))
    return annotation is ToolContext


def is_async(function: Function) -> bool:
    """True if calling a function, or the function inside of a partial, returns a coroutine."""
    inner, _ = unpeel(function)
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(
        getattr(inner, "__call__", None)  # noqa: B004 - an object with an async `__call__`
    )


def as_keyword(parameter: Parameter, annotation: Any, documented: str | None) -> Parameter:
    """Returns a parameter as input sets it: by name, with its type and description.

    The description is that of the annotation's `Field`, a text in the annotation, or `documented`.
    """
    extras = get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()
    if not any(isinstance(extra, FieldInfo) and extra.description for extra in extras):
        description = next((extra for extra in extras if isinstance(extra, str)), documented)
        if description:
            annotation = Annotated[annotation, Field(description=description)]
    kind = max(parameter.kind, Parameter.KEYWORD_ONLY)
    return parameter.replace(kind=kind, annotation=annotation)


def adapter_of(
    parameters: list[Parameter], name: str
) -> tuple[TypeAdapter[dict[str, Any]], JsonObject]:
    """Returns the adapter that validates input for such parameters, and the input's schema."""

    def arguments(**given: object) -> dict[str, object]:
        return given

    # Pydantic reads the signature of this function and calls it, so it is made to look like the
    # real one.
    stand_in: Any = arguments
    stand_in.__signature__ = inspect.Signature(parameters)
    stand_in.__annotations__ = {each.name: each.annotation for each in parameters}
    try:
        adapter: TypeAdapter[dict[str, Any]] = TypeAdapter(stand_in)
        schema = schema_of(adapter, "validation")
    except MISUNDERSTOOD as error:
        for parameter in parameters:
            try:
                TypeAdapter(parameter.annotation).json_schema(schema_generator=_Generator)
            except MISUNDERSTOOD:
                raise InvalidTool(
                    f"tool {name!r}: no JSON can become {parameter.name!r}: "
                    f"{parameter.annotation!r}; use plain types, a dataclass, a TypedDict or a "
                    "pydantic model"
                ) from None
        raise InvalidTool(f"tool {name!r}: {error}") from None
    # Pydantic's schema says nothing about `**kwargs`.
    return adapter, {"type": "object", "properties": {}, "additionalProperties": True} | schema


def schema_of(adapter: TypeAdapter[Any], mode: JsonSchemaMode) -> JsonObject:
    """Returns the JSON Schema of a type, without titles."""
    schema = adapter.json_schema(mode=mode, schema_generator=_Generator)
    return _without_titles(schema)


NAMED = ("properties", "$defs", "patternProperties")
"""Keywords whose members are names; a member `title` is not a title."""
VERBATIM = ("default", "const", "enum", "examples")


def _without_titles(schema: JsonObject) -> JsonObject:
    """Removes the titles that pydantic generates, which only repeat the names."""
    return {
        key: {name: _strip(part) for name, part in value.items()}
        if key in NAMED and isinstance(value, dict)
        else (value if key in VERBATIM else _strip(value))
        for key, value in schema.items()
        if key != "title"
    }


def _strip(value: JsonValue) -> JsonValue:
    if isinstance(value, list):
        return [_strip(item) for item in value]
    return _without_titles(value) if isinstance(value, dict) else value


def is_structured(schema: JsonValue, root: JsonObject) -> bool:
    """True if a schema describes objects or arrays, alone or as alternatives."""
    part = as_map(schema)
    reference = part.get("$ref")
    if isinstance(reference, str):
        return is_structured(locate(root, reference[1:]), root)
    choices = [*as_list(part.get("anyOf")), *as_list(part.get("oneOf"))]
    return part.get("type") in ("object", "array") or any(
        is_structured(choice, root) for choice in choices
    )
