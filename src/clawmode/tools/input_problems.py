"""Describes the problems of an input: where they are, what is wrong, and what was expected.

The reader is a model or the program that it wrote, so paths look like JavaScript. No text grows
with the input: a value is shown by its first characters or by its size.
"""

import json
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import TypeAlias

from jsonschema_rs import ValidationError
from jsonschema_rs import ValidationErrorKind as Kind

from clawmode.text import shorten
from clawmode.tools.schema_cost import Schema, as_map, follow, locate

Path: TypeAlias = tuple[str | int, ...]

MAX_PROBLEMS = 5
MAX_TEXT = 300
MAX_SHOWN = 60
MAX_NAMES = 200
MAX_LISTED = 8


def describe(schema: Schema, errors: Sequence[ValidationError], path: Path = ()) -> list[str]:
    """Describes errors in a few short sentences.

    Args:
        schema: The schema that the value was checked against.
        errors: All errors of the value.
        path: The path of the value in the input.
    """
    texts = list(
        dict.fromkeys(shorten(_sentence(schema, error, path), MAX_TEXT) for error in errors)
    )
    if len(texts) > MAX_PROBLEMS:
        left = len(texts) - MAX_PROBLEMS + 1
        texts[MAX_PROBLEMS - 1 :] = [f"and {left} more problems"]
    return texts


def spell(path: Iterable[str | int], root: str = "input") -> str:
    """Returns a path as a program would write it, such as `input.rows[3].name`."""
    text = root
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif step.isidentifier() and step.isascii():
            text += f".{shorten(step, MAX_SHOWN)}"
        else:
            text += f"[{show(step)}]"
    return shorten(text, MAX_TEXT // 2)


def show(value: object) -> str:
    """Shows a value by its first characters, or by its size."""
    match value:
        case dict():
            return f"an object with {len(value)} properties"
        case list() | tuple():
            return f"an array of {len(value)}"
        case int() if value.bit_length() > MAX_SHOWN:
            return "a huge integer"
        case str():
            # Cut before encoding, so that a long text is never copied.
            return shorten(json.dumps(value[:MAX_SHOWN], ensure_ascii=False), MAX_SHOWN)
        case _:
            return shorten(json.dumps(value, default=repr), MAX_SHOWN)


def _sentence(schema: Schema, error: ValidationError, path: Path) -> str:
    where = spell((*path, *error.instance_path))
    return f"{where}: {_problem(schema, error, path)}"


def _problem(schema: Schema, error: ValidationError, path: Path) -> str:
    got = show(error.instance)
    match error.kind:
        case Kind.Type(types):
            return f"expected {' or '.join(types)}, got {got}"
        case Kind.Required(name):
            return f"{show(name)} is missing{_expectation(schema, error, name)}"
        case Kind.AdditionalProperties(names) | Kind.UnevaluatedProperties(names):
            return _unknown(schema, error, names)
        case Kind.FalseSchema():
            return f"expected nothing, got {got}"
        case Kind.Enum(options):
            return f"expected one of {_listed(options)}, got {got}"
        case Kind.Constant(expected):
            return f"expected {show(expected)}, got {got}"
        case Kind.AnyOf(branches) | Kind.OneOfNotValid(branches):
            return _alternatives(schema, error, branches, path)
        case Kind.OneOfMultipleValid():
            return "fits several alternatives of which exactly one is expected"
        case Kind.Pattern(pattern):
            return f"expected text that matches {shorten(pattern, MAX_SHOWN)}, got {got}"
        case Kind.BacktrackLimitExceeded() | Kind.RegexEngineFailure():
            return "could not be compared with its pattern; make it shorter"
        case _:
            if error.kind.name in BOUNDS:
                bound = BOUNDS[error.kind.name].format(show(error.kind.value))
                return f"expected {bound}, got {got}"
            return f"does not fit: {error.message}"


BOUNDS = {
    "minimum": "at least {}",
    "maximum": "at most {}",
    "exclusiveMinimum": "more than {}",
    "exclusiveMaximum": "less than {}",
    "multipleOf": "a multiple of {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "minProperties": "at least {} properties",
    "maxProperties": "at most {} properties",
}


def _expectation(schema: Schema, error: ValidationError, name: str) -> str:
    """Returns the type of a missing property, if its schema has a simple one."""
    part = as_map(follow(schema, [*error.schema_path[:-1], "properties", name]))
    reference = part.get("$ref")
    if isinstance(reference, str):
        part = as_map(locate(schema, reference[1:]))
    kind = part.get("type")
    return f", expected {shorten(kind, MAX_SHOWN)}" if isinstance(kind, str) else ""


def _unknown(schema: Schema, error: ValidationError, names: Sequence[str]) -> str:
    """Lists unknown properties, each with the most similar known one."""
    known = list(as_map(follow(schema, [*error.schema_path[:-1], "properties"])))[:MAX_NAMES]
    by_fold = {name[:MAX_SHOWN].casefold(): name for name in known}
    found: list[str] = []
    for name in names[:MAX_PROBLEMS]:
        near = get_close_matches(name[:MAX_SHOWN].casefold(), by_fold, 1)
        hint = f" (did you mean {show(by_fold[near[0]])}?)" if near else ""
        found.append(show(name[:MAX_SHOWN]) + hint)
    text = ", ".join(found)
    if known and "did you mean" not in text:
        text += f"; known are {_listed(known)}"
    return f"unknown property {text}"


def _listed(values: Sequence[object]) -> str:
    shown = [show(value) for value in values[:MAX_LISTED]]
    return ", ".join([*shown, "…"] if len(values) > MAX_LISTED else shown)


def _alternatives(
    schema: Schema, error: ValidationError, branches: list[list[ValidationError]], path: Path
) -> str:
    here = len(error.instance_path)
    types = [
        name
        for branch in branches
        for inner in branch
        if isinstance(inner.kind, Kind.Type) and len(inner.instance_path) == here
        for name in inner.kind.types
    ]
    if sum(map(len, branches)) == len(branches) and len(types) >= len(branches):
        return f"expected {' or '.join(dict.fromkeys(types))}, got {show(error.instance)}"
    nearest = min(
        (branch for branch in branches if branch), key=lambda found: _distance(found, here)
    )
    problem = _sentence(schema, nearest[0], path)
    return f"fits none of {len(branches)} alternatives; nearest: {problem}"


def _distance(branch: list[ValidationError], here: int) -> tuple[bool, bool, int, int]:
    """Returns a sort key: an alternative of a wrong type is farther than one of a wrong tag."""
    wrong_type = any(
        isinstance(error.kind, Kind.Type) and len(error.instance_path) == here for error in branch
    )
    wrong_tag = any(isinstance(error.kind, Kind.Constant | Kind.Enum) for error in branch)
    deepest = max(len(error.instance_path) for error in branch)
    return wrong_type, wrong_tag, len(branch), -deepest
