"""`types.dataclass` behaves like the decorator of the standard library that it replaces."""

import copy
import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field
from typing import Any

import pytest

from clawmode import types


def make(dataclass: Any, **options: bool) -> Any:
    """Makes a class with every kind of field."""

    @dataclass(**options)
    class Point:
        """A point."""

        x: int
        y: int = field(repr=False)
        name: str = "origin"
        tags: list[str] = field(default_factory=list, compare=False)
        size: int = field(default=1, kw_only=True)
        seen: bool = field(default=False, init=False)
        total: int = field(init=False, hash=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "total", self.x + self.y)

    return Point


KINDS: list[dict[str, bool]] = [
    {"frozen": True, "slots": True},
    {"frozen": True},
    {"slots": True},
    {"slots": True, "eq": False},
    {"slots": True, "kw_only": True, "frozen": True},
    {},
]


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_a_class_is_used_like_one_of_the_standard_library(options: dict[str, bool]) -> None:
    ours, theirs = make(types.dataclass, **options), make(dataclasses.dataclass, **options)

    def outcome(attempt: Callable[[], object]) -> object:
        try:
            return attempt()
        except (TypeError, AttributeError) as error:
            return type(error), str(error)

    def facts(cls: Any) -> list[object]:
        one, same, other = cls(x=1, y=2), cls(x=1, y=2, tags=["a"]), cls(x=1, y=3, size=2)
        return [
            *(repr(it) for it in (one, same, other)),
            (one == same, one != same, one == other, one == 1),
            outcome(lambda: hash(one) == hash(same)),
            outcome(lambda: len({one, same, other})),
            dataclasses.asdict(other),
            repr(dataclasses.replace(one, name="new")),
            (cls.__match_args__, cls.__doc__, hasattr(one, "__dict__")),
            one.tags is same.tags,
            (repr(copy.copy(same)), repr(copy.deepcopy(same))),
            str(inspect.signature(cls)),
            outcome(lambda: setattr(one, "x", 5)),
            outcome(lambda: delattr(other, "name")),
            outcome(lambda: setattr(one, "unknown", 5)) is None,
            repr(one),
            outcome(cls),
            outcome(lambda: cls(1, 2, "n", [], 3)),
            outcome(lambda: cls(x=1, y=2, wrong=3)),
        ]

    assert facts(ours) == facts(theirs)


def test_a_class_keeps_the_methods_that_it_defines() -> None:
    @types.dataclass(frozen=True, slots=True)
    class Odd:
        number: int

        def __eq__(self, other: object) -> bool:
            return True

        def __repr__(self) -> str:
            return "odd"

    assert Odd(1) == Odd(2)
    assert repr(Odd(1)) == "odd"


def test_a_subclass_has_the_fields_of_both_and_may_add_attributes() -> None:
    @types.dataclass(frozen=True)
    class Base:
        one: int

    @types.dataclass(frozen=True)
    class More(Base):
        two: int = 2

    class Plain(More):
        def __init__(self) -> None:
            super().__init__(5)
            self.extra = 1

    assert repr(More(1)).endswith("More(one=1, two=2)")
    assert More(1) != Base(1)
    assert (Plain().one, Plain().extra) == (5, 1)
    with pytest.raises(FrozenInstanceError):
        Plain().one = 3  # type: ignore[misc]


def test_the_init_is_compiled_when_it_is_first_used() -> None:
    cls = make(types.dataclass, slots=True)

    assert not inspect.isfunction(vars(cls)["__init__"])
    cls(1, 2)
    assert inspect.isfunction(vars(cls)["__init__"])
