"""`@tool`: makes a `Tool` of a Python function, from its signature and its docstring.

The one module that knows pydantic: it derives the schema, turns JSON into what the function's
annotations promise, and what the function returns into JSON.
"""

import functools
import inspect
import sys
import types
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import (
    Annotated,
    Any,
    Generic,
    ParamSpec,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    overload,
)

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic.fields import Field, FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode
from pydantic_core import to_jsonable_python

from clawmode.exceptions import InvalidTool, UnexpectedValue
from clawmode.text import shorten
from clawmode.tools.annotations import resolve
from clawmode.tools.docstrings import parse
from clawmode.tools.input_problems import MAX_PROBLEMS, MAX_TEXT, spell
from clawmode.tools.schema_cost import as_list, as_map, locate
from clawmode.tools.tool import Effect, Execute, Tool, ToolContext, ToolResult, ToolSource
from clawmode.types import JsonObject, JsonValue

Function: TypeAlias = Callable[..., Any]
P = ParamSpec("P")
R = TypeVar("R")
Parameter = inspect.Parameter

MISUNDERSTOOD = (PydanticUserError, RecursionError, TypeError)
"""What pydantic raises at a type: it has no idea, an alias that holds itself, no type at all."""


@dataclass(frozen=True, slots=True)
class FunctionTool(Tool, Generic[P, R]):
    """A tool made of a function, which can still be called as the function itself.

    Such a call is plain Python: no policy, no hook and no approval stands in between.

    Attributes:
        function: The function.
    """

    function: Callable[P, R] = field(repr=False, compare=False, kw_only=True)

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls the function."""
        return self.function(*args, **kwargs)


@overload
def tool(function: Callable[P, R], /) -> FunctionTool[P, R]: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    label: str | None = None,
    effect: Effect | None = None,
    idempotent: bool = False,
    sequential: bool = False,
    source: ToolSource = "openclaw",
    owner: str = "",
) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...


def tool(
    function: Callable[P, R] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    label: str | None = None,
    effect: Effect | None = None,
    idempotent: bool = False,
    sequential: bool = False,
    source: ToolSource = "openclaw",
    owner: str = "",
) -> FunctionTool[P, R] | Callable[[Callable[P, R]], FunctionTool[P, R]]:
    """Makes a tool of a function, async or not; used as `@tool` or `@tool(...)`.

    The parameters' annotations become the input schema, the docstring the description, and its
    `Args:` section the descriptions of the parameters. A parameter annotated with `ToolContext` is
    given the context and is not in the schema. A structured return type becomes the output schema.

    The result is a `Tool` that can be called like the function, in a unit test for example:
    `await add(1, 2)`.

    Args:
        function: The function.
        name: Called this instead of the function's name.
        description: Said instead of the docstring.
        label: A short name for people.
        effect: Whether it only reads, or changes something.
        idempotent: Calling it again with the same input does no harm.
        sequential: A model that calls it beside others has all of them made one after the other.
        source: Where it comes from.
        owner: The plugin or client that it belongs to.

    Raises:
        InvalidTool: No tool can be made of this function; the message says what to change.
    """
    # Names that annotations use may be local to where the decorator stands.
    names = sys._getframe(1).f_locals

    def make(function: Callable[P, R]) -> FunctionTool[P, R]:
        plan = Plan.of(function, names, name)
        return FunctionTool(
            plan.name,
            plan.description if description is None else description,
            plan.schema,
            plan.execute(),
            label=label,
            output_schema=plan.output_schema(),
            idempotent=idempotent,
            effect=effect,
            sequential=sequential,
            source=source,
            owner=owner,
            function=function,
        )

    return make if function is None else make(function)


def read_tools(given: "Iterable[Tool | Function]", path: str = "tools") -> list[Tool]:
    """Tools as users list them: a plain function is taken as if it had `@tool`.

    Raises:
        InvalidTool: It is no list, or something in it is neither a tool nor a function.
    """
    if isinstance(given, Tool) or not isinstance(given, Iterable):
        kind = type(given).__name__
        raise InvalidTool(f"{path}: expected a list of tools, found one {kind}: write [it]")
    found: list[Tool] = []
    for each in given:
        if not isinstance(each, Tool) and not callable(each):
            kind = type(each).__name__
            raise InvalidTool(f"{path}: expected tools or functions, found {kind}: see `@tool`")
        found.append(each if isinstance(each, Tool) else tool(each))
    return found


def read_value(kind: type[R], value: JsonValue) -> R:
    """A program's value as a type that pydantic knows.

    Raises:
        UnexpectedValue: The value does not fit, or no JSON can become such a type.
    """
    try:
        known: Any = resolve({"value": kind}, {}, {})["value"]
        made: R = TypeAdapter(known).validate_python(value)
    except (NameError, SyntaxError) as error:
        raise UnexpectedValue(f"a name in {kind!r} cannot be resolved: {error}") from None
    except ValidationError as error:
        raise UnexpectedValue(_problems(error, "value")) from None
    except MISUNDERSTOOD as error:
        raise UnexpectedValue(f"no JSON can become {kind!r}: {error}") from None
    return made


class _Generator(GenerateJsonSchema):
    """A default that is not JSON is the function's own business, and not worth a warning."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 - theirs


@dataclass(frozen=True, slots=True)
class Plan:
    """A function, read.

    Attributes:
        name: What the tool is called.
        description: What its docstring says.
        function: The function.
        positional: The parameters that cannot be given by name.
        contexts: The parameters that get the `ToolContext`.
        hidden: All parameters that input must not set.
        adapter: Turns input into a dict of arguments.
        schema: JSON Schema of the input, an object.
        returns: The annotation of what it returns.
    """

    name: str
    description: str
    function: Function
    positional: tuple[str, ...]
    contexts: tuple[str, ...]
    hidden: frozenset[str]
    adapter: TypeAdapter[dict[str, Any]]
    schema: JsonObject
    returns: Any

    @classmethod
    def of(cls, function: Function, names: Mapping[str, object], name: str | None) -> "Plan":
        """Reads a function.

        Raises:
            InvalidTool: No tool can be made of it.
        """
        name = name or _name_of(function)
        parameters = _parameters_of(function, name)
        inner, preset = _unpeel(function)
        hints = _hints_of(inner, name, names)
        documented = parse(inspect.getdoc(inner))
        contexts = tuple(
            key for key in parameters if _is_context(hints.get(key)) and key not in preset
        )
        hidden = frozenset({*contexts, *preset})
        shown = [
            _by_name(parameter, hints.get(key, Any), documented.parameters.get(key))
            for key, parameter in parameters.items()
            if key not in hidden
        ]
        adapter, schema = _adapter_of(shown, name)
        return cls(
            name=name,
            description=documented.text,
            function=function,
            positional=tuple(
                key for key in parameters if parameters[key].kind is Parameter.POSITIONAL_ONLY
            ),
            contexts=contexts,
            hidden=hidden,
            adapter=adapter,
            schema=schema,
            returns=hints.get("return", Any),
        )

    def output_schema(self) -> JsonObject | None:
        """JSON Schema of what it returns, if that has a structure to tell."""
        if self.returns in (Any, types.NoneType, ToolResult):
            return None
        try:
            schema = _schema_of(TypeAdapter(self.returns), "serialization")
        except MISUNDERSTOOD:
            return None  # whatever it is, `finish` will see
        return schema if _is_structured(schema, schema) else None

    def execute(self) -> Execute:
        """The function as a tool is called: async if it is, so that its caller can tell."""

        async def finish_later(answer: Awaitable[object]) -> "ToolResult | JsonValue":
            return self.finish(await answer)

        def run(
            input: JsonObject, context: ToolContext
        ) -> "Awaitable[ToolResult | JsonValue] | ToolResult | JsonValue":
            answer = self.call(input, context)
            # An async function that a decorator hides.
            return finish_later(answer) if inspect.isawaitable(answer) else self.finish(answer)

        async def run_async(input: JsonObject, context: ToolContext) -> "ToolResult | JsonValue":
            return await finish_later(self.call(input, context))

        return functools.update_wrapper(
            run_async if _is_async(self.function) else run, self.function
        )

    def call(self, input: JsonObject, context: ToolContext) -> Any:
        """Calls the function with what the input means.

        Raises:
            ValueError: The input does not fit the parameters.
        """
        try:
            given = self.adapter.validate_python(input)
        except ValidationError as error:
            raise ValueError(_problems(error)) from None
        # With `**kwargs` everything else may be set, these may not.
        given = {key: given[key] for key in given if key not in self.hidden}
        given |= dict.fromkeys(self.contexts, context)
        return self.function(*[given.pop(key) for key in self.positional], **given)

    def finish(self, answer: object) -> "ToolResult | JsonValue":
        """What the function returned, as JSON.

        Raises:
            TypeError: It is not JSON, and cannot be made so.
        """
        try:
            if isinstance(answer, ToolResult):
                return replace(answer, details=_to_json(answer.details))
            return _to_json(answer)
        except ValueError as error:
            raise TypeError(
                f"tool {self.name!r} returned what is not JSON ({error}); return text, numbers, "
                "lists, dicts, dataclasses or pydantic models"
            ) from None


def _name_of(function: Function) -> str:
    name = getattr(function, "__name__", "<unnamed>")
    if name.startswith("<"):
        raise InvalidTool(f"{function!r} has no name for a tool; give it one: tool(name=...)")
    return name


def _unpeel(function: Function) -> tuple[Function, set[str]]:
    """The function inside of partials, and the parameters that they have set by name."""
    preset: set[str] = set()
    while isinstance(function, functools.partial):
        preset |= function.keywords.keys()
        function = function.func
    return function, preset


def _parameters_of(function: Function, name: str) -> Mapping[str, Parameter]:
    inner, _ = _unpeel(function)
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


def _hints_of(function: Function, name: str, names: Mapping[str, object]) -> dict[str, Any]:
    """The annotations, with names in them resolved."""
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


def _is_context(annotation: object) -> bool:
    if get_origin(annotation) in (Annotated, Union, types.UnionType):
        return any(map(_is_context, get_args(annotation)))
    return annotation is ToolContext


def _is_async(function: Function) -> bool:
    inner, _ = _unpeel(function)
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(
        getattr(inner, "__call__", None)  # noqa: B004 - an object whose method it is
    )


def _by_name(parameter: Parameter, annotation: Any, documented: str | None) -> Parameter:
    """The parameter as input gives it: by name, typed and described."""
    kind = max(parameter.kind, Parameter.KEYWORD_ONLY)
    return parameter.replace(kind=kind, annotation=_describe(annotation, documented))


def _describe(annotation: Any, documented: str | None) -> Any:
    """The annotation with a description: its own field's, a bare text in it, or the docstring's."""
    extras = get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()
    if any(isinstance(extra, FieldInfo) and extra.description for extra in extras):
        return annotation
    texts = [extra for extra in extras if isinstance(extra, str)]
    description = texts[0] if texts else documented
    return Annotated[annotation, Field(description=description)] if description else annotation


def _adapter_of(
    parameters: list[Parameter], name: str
) -> tuple[TypeAdapter[dict[str, Any]], JsonObject]:
    """What checks input for a function with such parameters, given by name, and its schema."""

    def arguments(**given: object) -> dict[str, object]:
        return given

    # Pydantic reads a function here, and calls it: it is made to look like the real one.
    stand_in: Any = arguments
    stand_in.__signature__ = inspect.Signature(parameters)
    stand_in.__annotations__ = {each.name: each.annotation for each in parameters}
    try:
        adapter: TypeAdapter[dict[str, Any]] = TypeAdapter(stand_in)
        schema = _schema_of(adapter, "validation")
    except MISUNDERSTOOD as error:
        raise InvalidTool(f"tool {name!r}: {_culprit(parameters, error)}") from None
    # Nothing is said about what `**kwargs` may take.
    return adapter, {"type": "object", "properties": {}, "additionalProperties": True} | schema


def _culprit(parameters: list[Parameter], error: Exception) -> str:
    """Which parameter pydantic did not understand, and what to do."""
    for parameter in parameters:
        try:
            TypeAdapter(parameter.annotation).json_schema(schema_generator=_Generator)
        except MISUNDERSTOOD:
            return (
                f"no JSON can become {parameter.name!r}: {parameter.annotation!r}; use plain "
                "types, a dataclass, a TypedDict or a pydantic model"
            )
    return str(error)


def _schema_of(adapter: TypeAdapter[Any], mode: JsonSchemaMode) -> JsonObject:
    schema = adapter.json_schema(mode=mode, schema_generator=_Generator)
    return _without_titles(schema)


NAMED = ("properties", "$defs", "patternProperties")
"""Keywords whose members are names, of which `title` may be one."""
VERBATIM = ("default", "const", "enum", "examples")


def _without_titles(schema: JsonObject) -> JsonObject:
    """The schema without the titles that pydantic makes of names: they only say them again."""
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


def _is_structured(schema: JsonValue, root: JsonObject) -> bool:
    """Whether it describes objects or arrays, alone or among others."""
    part = as_map(schema)
    reference = part.get("$ref")
    if isinstance(reference, str):
        return _is_structured(locate(root, reference[1:]), root)
    choices = [*as_list(part.get("anyOf")), *as_list(part.get("oneOf"))]
    return part.get("type") in ("object", "array") or any(
        _is_structured(choice, root) for choice in choices
    )


def _to_json(value: object) -> JsonValue:
    # What is not a number is null, as `JSON.stringify` has it.
    return to_jsonable_python(value, inf_nan_mode="null")


def _problems(error: ValidationError, root: str = "input") -> str:
    """What is wrong with an input, without showing it."""
    found = error.errors(include_url=False, include_input=False, include_context=False)
    texts = [f"{spell(each['loc'], root)}: {_words(each['type'], each['msg'])}" for each in found]
    more = [f"and {len(texts) - MAX_PROBLEMS} more"] if len(texts) > MAX_PROBLEMS else []
    return "; ".join([*(shorten(text, MAX_TEXT) for text in texts[:MAX_PROBLEMS]), *more])


def _words(kind: str, message: str) -> str:
    if kind.startswith("missing"):
        return "is missing"
    return "unknown property" if kind == "unexpected_keyword_argument" else message
