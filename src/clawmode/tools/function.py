"""`@tool`: makes a `Tool` of a Python function, from its signature and its docstring.

Pydantic turns JSON input into the types of the function's annotations, and the function's result
into JSON. `signature` derives the schemas.
"""

import functools
import inspect
import sys
import types
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import field, replace
from typing import Any, Generic, ParamSpec, TypeVar, overload

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from clawmode.exceptions import InvalidTool, UnexpectedValue
from clawmode.text import shorten
from clawmode.tools.annotations import resolve
from clawmode.tools.docstrings import parse
from clawmode.tools.input_problems import MAX_PROBLEMS, MAX_TEXT, spell
from clawmode.tools.signature import (
    MISUNDERSTOOD,
    Function,
    Parameter,
    adapter_of,
    as_keyword,
    hints_of,
    is_async,
    is_context,
    is_structured,
    parameters_of,
    schema_of,
    unpeel,
)
from clawmode.tools.tool import Effect, Execute, Tool, ToolContext, ToolResult, ToolSource
from clawmode.types import JsonObject, JsonValue, dataclass

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class FunctionTool(Tool, Generic[P, R]):
    """A tool made of a function, which can still be called like the function.

    Such a call is plain Python, without policy, hooks and approvals.
    """

    function: Callable[P, R] = field(repr=False, compare=False, kw_only=True)

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
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
    `Args:` section the descriptions of the parameters. A parameter annotated with `ToolContext`
    gets the context and is not in the schema. A structured return type becomes the output schema.

    The result is a `Tool` that can be called like the function, in a unit test for example:
    `await add(1, 2)`.

    Args:
        function: The function.
        name: The tool's name, instead of the function's.
        description: The description, instead of the docstring.
        label: A short name for people.
        effect: Whether the tool only reads, or changes something.
        idempotent: True if calling the tool again with the same input does no harm.
        sequential: True if the calls of a turn with this tool are made one after the other.
        source: Where the tool comes from.
        owner: The plugin or client that the tool belongs to.

    Raises:
        InvalidTool: No tool can be made of this function; the message says what to change.
    """
    # Annotations may use names that are local to the function in which the decorator is used.
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


def read_tools(given: "Iterable[Tool | Function]") -> list[Tool]:
    """Returns the tools of a list in which plain functions stand for tools.

    Raises:
        InvalidTool: The argument is not a list, or an item is neither a tool nor a function.
    """
    if isinstance(given, Tool) or not isinstance(given, Iterable):
        kind = type(given).__name__
        raise InvalidTool(f"tools: expected a list of tools, found one {kind}: write [it]")
    found: list[Tool] = []
    for each in given:
        if not isinstance(each, Tool) and not callable(each):
            kind = type(each).__name__
            raise InvalidTool(f"tools: expected tools or functions, found {kind}: see `@tool`")
        found.append(each if isinstance(each, Tool) else tool(each))
    return found


def read_value(kind: type[R], value: JsonValue) -> R:
    """Converts a program's value to a type that pydantic knows.

    Raises:
        UnexpectedValue: The value does not fit the type, or no JSON value could.
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


@dataclass(frozen=True, slots=True)
class Plan:
    """How a function is called as a tool.

    Attributes:
        name: The name of the tool.
        description: The docstring, without its section about parameters.
        function: The function.
        positional: The parameters that cannot be passed by name.
        contexts: The parameters that get the `ToolContext`.
        hidden: All parameters that input must not set.
        adapter: Converts input into a dict of arguments.
        schema: JSON Schema of the input, an object.
        returns: The annotation of the result.
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
        """Reads the signature and the docstring of a function.

        Raises:
            InvalidTool: No tool can be made of the function.
        """
        name = name or getattr(function, "__name__", "<unnamed>")
        if name.startswith("<"):
            raise InvalidTool(f"{function!r} has no name for a tool; give it one: tool(name=...)")
        parameters = parameters_of(function, name)
        inner, preset = unpeel(function)
        hints = hints_of(inner, name, names)
        description, documented = parse(inspect.getdoc(inner))
        contexts = tuple(
            key for key in parameters if is_context(hints.get(key)) and key not in preset
        )
        hidden = frozenset({*contexts, *preset})
        shown = [
            as_keyword(parameter, hints.get(key, Any), documented.get(key))
            for key, parameter in parameters.items()
            if key not in hidden
        ]
        adapter, schema = adapter_of(shown, name)
        return cls(
            name=name,
            description=description,
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
        """Returns the JSON Schema of the result, if the result is structured."""
        if self.returns in (Any, types.NoneType, ToolResult):
            return None
        try:
            schema = schema_of(TypeAdapter(self.returns), "serialization")
        except MISUNDERSTOOD:
            return None  # `finish` checks the actual result
        return schema if is_structured(schema, schema) else None

    def execute(self) -> Execute:
        """Returns the function as the executor calls it: async if the function is."""

        async def finish_later(answer: Awaitable[object]) -> "ToolResult | JsonValue":
            return self.finish(await answer)

        def run(
            input: JsonObject, context: ToolContext
        ) -> "Awaitable[ToolResult | JsonValue] | ToolResult | JsonValue":
            answer = self.call(input, context)
            # A decorator may hide that a function is async.
            return finish_later(answer) if inspect.isawaitable(answer) else self.finish(answer)

        async def run_async(input: JsonObject, context: ToolContext) -> "ToolResult | JsonValue":
            return self.finish(await self.call(input, context))

        return functools.update_wrapper(
            run_async if is_async(self.function) else run, self.function
        )

    def call(self, input: JsonObject, context: ToolContext) -> Any:
        """Calls the function with arguments made of the input.

        Raises:
            ValueError: The input does not fit the parameters.
        """
        try:
            given = self.adapter.validate_python(input)
        except ValidationError as error:
            raise ValueError(_problems(error)) from None
        if self.hidden:
            # A function with `**kwargs` accepts any name, but input must never set these.
            given = {key: given[key] for key in given if key not in self.hidden}
            given |= dict.fromkeys(self.contexts, context)
        return self.function(*[given.pop(key) for key in self.positional], **given)

    def finish(self, answer: object) -> "ToolResult | JsonValue":
        """Converts the function's result to JSON.

        Raises:
            TypeError: The result cannot be converted.
        """
        try:
            if isinstance(answer, ToolResult):
                return replace(answer, details=_to_json(answer.details))
            return _to_json(answer)
        except ValueError as error:
            raise TypeError(
                f"tool {self.name!r} returned a value that is not JSON ({error}); return text, "
                "numbers, lists, dicts, dataclasses or pydantic models"
            ) from None


def _to_json(value: object) -> JsonValue:
    # NaN and Infinity become null, as in `JSON.stringify`.
    return to_jsonable_python(value, inf_nan_mode="null")


def _problems(error: ValidationError, root: str = "input") -> str:
    """Describes the problems of an input, without quoting its values."""
    found = error.errors(include_url=False, include_input=False, include_context=False)
    texts: list[str] = []
    for each in found:
        kind, problem = each["type"], each["msg"]
        if kind.startswith("missing"):
            problem = "is missing"
        elif kind == "unexpected_keyword_argument":
            problem = "unknown property"
        texts.append(f"{spell(each['loc'], root)}: {problem}")
    more = [f"and {len(texts) - MAX_PROBLEMS} more"] if len(texts) > MAX_PROBLEMS else []
    return "; ".join([*(shorten(text, MAX_TEXT) for text in texts[:MAX_PROBLEMS]), *more])
