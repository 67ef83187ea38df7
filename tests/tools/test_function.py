"""`@tool`: schemas from signatures, arguments from JSON, JSON from what functions return."""

import dataclasses
import functools
import inspect
import json
import subprocess
import sys
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NotRequired,
    Optional,
    Required,
    TypedDict,
    assert_type,
)
from uuid import UUID

import anyio
import pytest
from inline_snapshot import snapshot
from pydantic import BaseModel, Field

from clawmode.context import RunContext
from clawmode.exceptions import InvalidTool
from clawmode.tools.docstrings import parse
from clawmode.tools.function import tool
from clawmode.tools.tool import Tool, ToolContext, ToolResult
from clawmode.tools.validation import validate
from clawmode.types import JsonObject, JsonValue

if TYPE_CHECKING:
    from fractions import Fraction

CONTEXT = ToolContext(run=RunContext(), call_id="call-1")


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Person(BaseModel):
    title: str = Field(description="Mr or Mrs")
    friends: list["Person"] = []


@dataclasses.dataclass
class Point:
    x: float
    y: float = 0


class Options(TypedDict):
    depth: int
    color: NotRequired[Color]


class Opaque:
    pass


def run(made: Tool, **input: JsonValue) -> JsonValue:
    """Calls a tool as the executor does."""
    answer = made.execute(input, CONTEXT)

    async def settle() -> "ToolResult | JsonValue":
        return await answer if inspect.isawaitable(answer) else answer

    result = anyio.run(settle)
    assert not isinstance(result, ToolResult)
    json.dumps(result, allow_nan=False)
    return result


def properties(made: Tool) -> JsonObject:
    found = made.parameters["properties"]
    assert isinstance(found, dict)
    return found


# ---- The face ----


def test_a_function_becomes_a_tool() -> None:
    @tool
    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    assert isinstance(add, Tool)
    assert (add.name, add.description, add.id) == ("add", "Add two numbers.", "openclaw:core:add")
    assert add.parameters == snapshot(
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "additionalProperties": False,
            "required": ["a", "b"],
        }
    )
    assert add.output_schema is None
    assert run(add, a=1, b=2) == 3


def test_everything_else_about_a_tool_can_be_said() -> None:
    @tool(
        name="order.cancel",
        description="Cancels.",
        label="Cancel order",
        effect="write",
        idempotent=True,
        source="plugin",
        owner="shop",
    )
    def cancel(id: str) -> None:
        """Not this."""

    expected = Tool(
        "order.cancel",
        "Cancels.",
        cancel.parameters,
        cancel.execute,
        label="Cancel order",
        effect="write",
        idempotent=True,
        source="plugin",
        owner="shop",
    )
    for member in dataclasses.fields(Tool):
        assert getattr(cancel, member.name) == getattr(expected, member.name)


def test_async_functions_and_others_can_be_told_apart() -> None:
    @tool
    async def slow() -> None: ...

    @tool
    def quick() -> None: ...

    assert inspect.iscoroutinefunction(slow.execute)
    assert not inspect.iscoroutinefunction(quick.execute)


@pytest.mark.covers("N-26")
def test_a_tool_is_called_like_its_function() -> None:
    @tool
    async def add(a: int, b: int) -> int:
        return a + b

    @tool(effect="read")
    def greet(name: str, *, context: ToolContext | None = None) -> str:
        return f"hello {name} {context}"

    assert anyio.run(add, 1, 2) == 3
    assert greet("ann", context=None) == "hello ann None"
    renamed = dataclasses.replace(greet, name="welcome")
    assert renamed("bob") == "hello bob None"
    with pytest.raises(TypeError, match="positional"):
        greet("ann", "bob")  # pyrefly: ignore[bad-argument-count] - the type checker knows


@pytest.mark.covers("N-26")
def test_the_types_of_the_function_are_kept() -> None:
    @tool
    async def add(a: int, b: int) -> int:
        return a + b

    @tool(name="half")
    def halve(n: int) -> float:
        return n / 2

    async def main() -> None:
        assert_type(await add(1, b=2), int)

    anyio.run(main)
    assert_type(halve(3), float)


def test_the_function_itself_stays_within_reach() -> None:
    def double(x: int) -> int:
        return 2 * x

    execute: Any = tool(double).execute
    assert execute.__wrapped__ is double
    assert execute.__name__ == "double"


# ---- Descriptions ----


def test_the_docstring_describes_the_tool_and_its_parameters() -> None:
    @tool
    def find(query: str, limit: int = 10, deep: Annotated[bool, "Look inside."] = False) -> None:
        """Find documents.

        Looks everywhere.

        Args:
            query: What to look for; this goes
                on: and on.
            limit (int): At most so many.
            deep: Not this.

        Returns:
            Nothing.
        """

    assert find.description == snapshot(
        """\
Find documents.

Looks everywhere.

Returns:
    Nothing.\
"""
    )
    assert properties(find) == snapshot(
        {
            "query": {
                "description": "What to look for; this goes on: and on.",
                "type": "string",
            },
            "limit": {
                "default": 10,
                "description": "At most so many.",
                "type": "integer",
            },
            "deep": {"default": False, "description": "Look inside.", "type": "boolean"},
        }
    )


def test_fields_are_described_and_bounded_by_their_annotations() -> None:
    @tool
    def zoom(level: Annotated[int, Field(ge=1, le=9, description="How far.")] = 3) -> None:
        """Zoom.

        Args:
            level: Not this.
        """

    assert properties(zoom) == {
        "level": {
            "default": 3,
            "description": "How far.",
            "maximum": 9,
            "minimum": 1,
            "type": "integer",
        }
    }


@pytest.mark.parametrize(
    ("docstring", "text", "parameters"),
    [
        (None, "", {}),
        ("Just this.", "Just this.", {}),
        ("Do.\n\nArgs:\n    x: One.\n    **more: Rest.", "Do.", {"x": "One.", "more": "Rest."}),
        (
            "Do.\n\nArgs:\n  x: One.\n\n  y: Two.\n\nMore.",
            "Do.\n\nMore.",
            {"x": "One.", "y": "Two."},
        ),
        # A section that cannot be parsed stays where a model can read it.
        ("Do.\n\nArgs:\n    No names.\n", "Do.\n\nArgs:\n    No names.", {}),
        ("Do.\n\nArgs:", "Do.\n\nArgs:", {}),
        (
            "Do.\n\nArgs:\n    x (int, optional): 1: 2.\n\nNote:\n    Never.\n\nRaises:\n    Often",
            "Do.\n\nNote:\n    Never.\n\nRaises:\n    Often",
            {"x": "1: 2."},
        ),
        ("Args are fine here.", "Args are fine here.", {}),
        (
            "Do.\n\n:param x: One\n    line.\n:param int y: Two.\n:type x: int\n:returns: It.",
            "Do.\n\n:returns: It.",
            {"x": "One line.", "y": "Two."},
        ),
        ("Do.\n\n@param x: One.\n@return: It.", "Do.\n\n@return: It.", {"x": "One."}),
        (
            inspect.cleandoc(
                """Do.

                Parameters
                ----------
                x : int, default 3
                    One
                    line.

                    Another.
                y, z : str
                    Two.

                Returns
                -------
                int
                    It.
                """
            ),
            "Do.\n\nReturns\n-------\nint\n    It.",
            {"x": "One line. Another.", "y": "Two.", "z": "Two."},
        ),
    ],
)
def test_docstrings_of_all_common_styles_are_split_into_description_and_parameters(
    docstring: str | None, text: str, parameters: dict[str, str]
) -> None:
    assert parse(docstring) == (text, parameters)


# ---- Types in ----


def test_json_becomes_what_the_annotations_promise() -> None:
    seen: dict[str, object] = {}

    @tool
    def take(
        person: Person,
        point: Point,
        options: Options,
        color: Color,
        mode: Literal["a", "b"],
        when: datetime,
        day: date,
        id: UUID,
        price: Decimal,
        tags: set[str],
        pair: tuple[int, str],
        table: dict[str, list[int]],
        either: int | str,
        maybe: Optional[Point] = None,  # noqa: UP045 - people write it
        anything: JsonValue = None,
    ) -> None:
        seen.update(locals())

    input: JsonObject = {
        "person": {"title": "Mr", "friends": [{"title": "Mrs"}]},
        "point": {"x": 1},
        "options": {"depth": 2, "color": "red"},
        "color": "blue",
        "mode": "a",
        "when": "2024-01-02T03:04:05",
        "day": "2024-01-02",
        "id": "6f9619ff-8b86-d011-b42d-00c04fc964ff",
        "price": "1.50",
        "tags": ["x", "y"],
        "pair": [1, "x"],
        "table": {"a": [1]},
        "either": "x",
        "anything": {"deep": [None]},
    }
    assert validate(take, input) == []
    run(take, **input)
    assert {key: value for key, value in seen.items() if key != "seen"} == {
        "person": Person(title="Mr", friends=[Person(title="Mrs")]),
        "point": Point(1),
        "options": {"depth": 2, "color": Color.RED},
        "color": Color.BLUE,
        "mode": "a",
        "when": datetime(2024, 1, 2, 3, 4, 5),
        "day": date(2024, 1, 2),
        "id": UUID("6f9619ff-8b86-d011-b42d-00c04fc964ff"),
        "price": Decimal("1.50"),
        "tags": {"x", "y"},
        "pair": (1, "x"),
        "table": {"a": [1]},
        "either": "x",
        "maybe": None,
        "anything": {"deep": [None]},
    }


def test_schemas_have_definitions_and_no_titles_but_keep_properties_of_that_name() -> None:
    @tool
    def greet(
        person: Person, title: str = "title", more: "dict[str, JsonValue] | None" = None
    ) -> None: ...

    assert greet.parameters == snapshot(
        {
            "type": "object",
            "properties": {
                "person": {"$ref": "#/$defs/Person"},
                "title": {"default": "title", "type": "string"},
                "more": {
                    "anyOf": [{"additionalProperties": True, "type": "object"}, {"type": "null"}],
                    "default": None,
                },
            },
            "additionalProperties": False,
            "$defs": {
                "Person": {
                    "properties": {
                        "title": {"description": "Mr or Mrs", "type": "string"},
                        "friends": {
                            "default": [],
                            "items": {"$ref": "#/$defs/Person"},
                            "type": "array",
                        },
                    },
                    "required": ["title"],
                    "type": "object",
                }
            },
            "required": ["person"],
        }
    )


def test_json_values_may_be_called_otherwise_and_other_things_json_values() -> None:
    other = JsonValue

    def first(x: "dict[str, JsonValue]") -> None: ...

    first.__annotations__["x"] = dict[str, other]
    first.__globals__.pop("JsonValue")
    try:
        assert properties(tool(first)) == {"x": {"additionalProperties": True, "type": "object"}}
    finally:
        first.__globals__["JsonValue"] = other

    def second() -> None:
        class JsonValue(BaseModel):
            mine: int

        @tool
        def take(x: "JsonValue") -> None: ...

        assert properties(take) == {"x": {"$ref": "#/$defs/JsonValue"}}

    second()


def test_names_that_pydantic_keeps_for_itself_are_fine() -> None:
    @tool
    def odd(self_: int, copy: int, json: int, model_config: int, _private: int, schema: int) -> int:
        return self_ + copy + json + model_config + _private + schema

    assert list(properties(odd)) == ["self_", "copy", "json", "model_config", "_private", "schema"]
    assert run(odd, self_=1, copy=1, json=1, model_config=1, _private=1, schema=1) == 6


def test_a_parameter_without_annotation_takes_anything() -> None:
    @tool
    def echo(value, other=2):  # pyrefly: ignore[unannotated-parameter, unannotated-return]
        return [value, other]

    assert properties(echo) == {"value": {}, "other": {"default": 2}}
    assert run(echo, value={"a": 1}) == [{"a": 1}, 2]


def test_positional_parameters_are_given_by_name_too() -> None:
    @tool
    def minus(a: int, context: ToolContext, b: int = 1, /, *, c: int = 0) -> int:
        assert context is CONTEXT
        return a - b - c

    assert list(properties(minus)) == ["a", "b", "c"]
    assert run(minus, a=5) == 4
    assert run(minus, c=1, b=2, a=5) == 2


def test_more_properties_are_taken_only_if_the_function_takes_them() -> None:
    @tool
    def strict(a: int) -> int:
        return a

    @tool
    def lax(a: int, **rest: object) -> object:
        return {"a": a, **rest}

    @tool
    def typed(**rest: int) -> int:
        return sum(rest.values())

    assert strict.parameters["additionalProperties"] is False
    with pytest.raises(ValueError, match="unknown property"):
        run(strict, a=1, b=2)
    assert lax.parameters["additionalProperties"] is True
    assert run(lax, a=1, b=[2]) == {"a": 1, "b": [2]}
    assert typed.parameters["additionalProperties"] == {"type": "integer"}
    assert run(typed, x=1, y=2) == 3


def test_a_default_that_is_not_json_is_the_functions_own() -> None:
    nothing = object()

    @tool
    def sleep(length: timedelta = timedelta(seconds=1), mark: object = nothing) -> bool:
        return mark is nothing

    assert properties(sleep)["mark"] == {}
    assert "required" not in sleep.parameters
    assert run(sleep) is True


def test_mutable_defaults_are_not_shared_between_calls() -> None:
    @tool
    def collect(item: int, into: list[int] = []) -> list[int]:  # noqa: B006 - that is the point
        into.append(item)
        return into

    assert run(collect, item=1) == [1]
    assert run(collect, item=2) == [2]


def test_input_that_does_not_fit_is_named_and_not_shown() -> None:
    @tool
    def take(points: list[Point], name: str) -> None: ...

    with pytest.raises(ValueError, match="missing") as caught:
        run(take, points=[{"x": "sensitive"}, {}])
    assert str(caught.value) == snapshot(
        "input.points[0].x: Input should be a valid number, unable to parse string as a number; "
        "input.points[1].x: is missing; input.name: is missing"
    )
    with pytest.raises(ValueError, match="and 6 more"):
        run(take, points=[{}] * 10)


class Partial(TypedDict, total=False):
    needed: Required[int]
    other: Annotated[list[Options], Field(description="Several.")]


class Endless(TypedDict):
    more: "list[Endless]"


def test_typed_dicts_work_wherever_they_stand() -> None:
    @tool
    def take(
        a: Partial, b: list[Options] | None = None, c: Annotated[Options | int, "C."] = 1
    ) -> dict[str, Partial]:
        return {"a": a}

    assert take.output_schema is not None
    a: JsonObject = {"needed": 1, "other": [{"depth": "3"}]}
    assert run(take, a=a, b=[{"depth": 1}]) == {"a": {"needed": 1, "other": [{"depth": 3}]}}
    assert run(take, a={"needed": 1}, c={"depth": 1}) == {"a": {"needed": 1}}
    with pytest.raises(ValueError, match=r"input\.a\.needed: is missing"):
        run(take, a={})


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="pydantic knows them")
def test_a_typed_dict_that_holds_itself_is_refused() -> None:
    with pytest.raises(TypeError, match="'x'"):

        @tool
        def take(x: Endless) -> None: ...


# ---- The context ----


def test_the_context_is_given_and_not_asked_for() -> None:
    @tool
    async def whoami(greeting: str, ctx: ToolContext) -> str:
        return f"{greeting} {ctx.call_id}"

    @tool
    def optional(ctx: ToolContext | None = None, **rest: str) -> str:
        return "none" if ctx is None else ctx.call_id

    assert list(properties(whoami)) == ["greeting"]
    assert run(whoami, greeting="hi") == "hi call-1"
    assert properties(optional) == {}
    assert run(optional) == "call-1"


def test_input_cannot_forge_the_context_or_what_a_partial_has_set() -> None:
    def query(ctx: ToolContext, account: Opaque, text: str, **rest: object) -> JsonValue:
        assert ctx is CONTEXT
        assert isinstance(account, Opaque)
        return [text, *rest]

    made = tool(name="query")(functools.partial(query, account=Opaque()))
    assert list(properties(made)) == ["text"]
    assert run(made, text="x", ctx="forged", account="forged", more=1) == ["x", "more"]


# ---- What can be made a tool ----


class Shop:
    def price(self, item: str, count: int = 1) -> str:
        """Tell the price."""
        return f"{count} {item}"

    @staticmethod
    def hours() -> str:
        return "9 to 5"

    async def __call__(self, item: str) -> str:
        return item


def test_methods_objects_and_partials_become_tools() -> None:
    shop = Shop()
    price = tool(shop.price)
    assert (price.name, price.description) == ("price", "Tell the price.")
    assert run(price, item="pear") == "1 pear"
    assert run(tool(Shop.hours)) == "9 to 5"
    called = tool(name="shop")(shop)
    assert inspect.iscoroutinefunction(called.execute)
    assert run(called, item="pear") == "pear"
    bulk = tool(name="bulk")(functools.partial(shop.price, count=9))
    assert bulk.description == "Tell the price."
    assert run(bulk, item="pear") == "9 pear"


def test_an_async_function_behind_a_decorator_is_awaited() -> None:
    async def inner(x: int) -> list[int]:
        return [x]

    @functools.wraps(inner)
    def outer(*args: Any, **kwargs: Any) -> Any:
        return inner(*args, **kwargs)

    made = tool(outer)
    assert properties(made) == {"x": {"type": "integer"}}
    assert run(made, x="3") == [3]


def test_annotations_may_be_text_and_name_what_is_local() -> None:
    class Local(BaseModel):
        x: int

    @tool
    def take(local: "Local") -> "list[Local]":
        return [local]

    assert run(take, local={"x": 1}) == [{"x": 1}]
    assert take.output_schema is not None


def takes_stars(*numbers: int) -> None: ...


def takes_opaque(thing: Opaque) -> None: ...


def takes_function(then: Callable[[int], int]) -> None: ...


def takes_missing(x: "Fraction") -> None: ...


def takes_typo(x: "datetime.Nothing") -> None: ...  # pyrefly: ignore[missing-attribute]


def yields() -> Any:
    yield 1


async def yields_later() -> Any:
    yield 1


@pytest.mark.parametrize(
    ("function", "name", "advice"),
    [
        (takes_stars, "'takes_stars'", "list"),
        (takes_opaque, "'thing'", "dataclass"),
        (takes_function, "'then'", "dataclass"),
        (takes_missing, "'Fraction'", "import"),
        (takes_typo, "'Nothing'", "import"),
        (yields, "'yields'", "list"),
        (yields_later, "'yields_later'", "list"),
        (Shop.price, "'price'", "bound method"),
        (Shop, "'Shop'", "function"),
        (min, "'min'", "wrap"),
        (lambda x: x, "lambda", "name="),
        (functools.partial(takes_opaque), "partial", "name="),
    ],
)
def test_what_cannot_become_a_tool_says_what_to_do(
    function: Callable[..., object], name: str, advice: str
) -> None:
    with pytest.raises(InvalidTool) as caught:
        tool(function)
    assert name in str(caught.value)
    assert advice in str(caught.value)


# ---- What comes out ----


def test_what_a_function_returns_becomes_json() -> None:
    answers: dict[str, tuple[object, JsonValue]] = {
        "model": (Person(title="Mr"), {"title": "Mr", "friends": []}),
        "dataclass": ([Point(1, 2)], [{"x": 1, "y": 2}]),
        "enum": ({Color.RED: Color.BLUE}, {"red": "blue"}),
        "dates": ([date(2024, 1, 2), timedelta(seconds=1)], ["2024-01-02", "PT1S"]),
        "set": ({1}, [1]),
        "decimal": (Decimal("1.50"), "1.50"),
        "keys": ({1: None}, {"1": None}),
        "not a number": ([float("nan"), float("inf")], [None, None]),
        "nothing": (None, None),
        "text": ("x", "x"),
    }

    @tool
    def answer(which: str) -> object:
        return answers[which][0]

    for which, (_, expected) in answers.items():
        assert run(answer, which=which) == expected, which


def test_a_tool_result_stays_one_and_its_details_become_json() -> None:
    @tool
    async def answer() -> ToolResult:
        details: Any = Point(1, 2)
        return ToolResult(text="here", details=details)

    assert answer.output_schema is None
    awaitable = answer.execute({}, CONTEXT)
    assert inspect.isawaitable(awaitable)

    async def settle() -> object:
        return await awaitable

    assert anyio.run(settle) == ToolResult(text="here", details={"x": 1.0, "y": 2.0})


def cyclic() -> object:
    loop: list[object] = []
    loop.append(loop)
    return loop


@pytest.mark.parametrize("make", [Opaque, lambda: {"x": Opaque()}, lambda: b"\xff", cyclic])
def test_what_is_not_json_is_an_error_that_names_the_tool(make: Callable[[], object]) -> None:
    @tool
    def answer() -> object:
        return make()

    with pytest.raises(TypeError, match="tool 'answer' returned a value that is not JSON"):
        run(answer)


@pytest.mark.parametrize(
    "annotation",
    [
        Person,
        Point,
        Options,
        list[Point],
        dict[str, Person],
        Person | None,
        list[str],
        dict[str, Any],
    ],
)
def test_a_structured_return_type_becomes_the_output_schema(annotation: object) -> None:
    def answer() -> object: ...

    answer.__annotations__["return"] = annotation
    schema = tool(answer).output_schema
    assert schema is not None
    assert '"title": "' not in json.dumps(schema)


@pytest.mark.parametrize(
    "annotation",
    [
        str,
        int,
        None,
        Any,
        object,
        Color,
        int | str,
        ToolResult,
        Opaque,
        JsonValue,
        Callable[[], int],
    ],
)
def test_other_return_types_say_nothing(annotation: object) -> None:
    def answer() -> object: ...

    answer.__annotations__["return"] = annotation
    assert tool(answer).output_schema is None


def test_names_in_the_output_are_those_of_its_schema() -> None:
    class Answer(BaseModel):
        user_id: int = Field(alias="userId")

    @tool
    def answer() -> Answer:
        return Answer(userId=1)

    assert answer.output_schema is not None
    assert list(properties(dataclasses.replace(answer, parameters=answer.output_schema))) == [
        "userId"
    ]
    assert run(answer) == {"userId": 1}


# ---- Import ----


def test_the_package_does_not_load_pydantic() -> None:
    program = "import sys, clawmode, clawmode.tools.tool; print('pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=20)
    assert done.stdout == b"False\n", done.stderr


@pytest.mark.covers("N-7", "B-18")
@pytest.mark.parametrize("options", [{"effect": "raed"}, {"source": "pluggin"}])
def test_an_unknown_effect_or_source_is_refused_with_the_known_ones(options: Any) -> None:
    with pytest.raises(InvalidTool, match=r"tool 'greet': .*('read'|'plugin')"):

        @tool(**options)
        def greet() -> str:
            return "hello"
