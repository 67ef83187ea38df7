"""A form at the terminal: what a tool, or the server behind it, wants a person to tell it.

The words are a stranger's. They stand behind a rule, and nothing is sent that the person did not
type for this question.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from clawmode.app.console import fold
from clawmode.text import escape, one_line
from clawmode.tools.approvals import InputQuestion
from clawmode.types import JsonObject, JsonValue

AskLine: TypeAlias = Callable[[str], Awaitable[str | None]]
"""Shows a prompt and reads a line; None at the end of input."""

MAX_FIELDS = 50
MAX_CHOICES = 50
MAX_LABEL = 200
MAX_LINES = 40
TRUE, FALSE = ("y", "yes", "true"), ("n", "no", "false")


class NotThat(ValueError):
    """What was typed does not fit; the text says what does."""


def introduce(question: InputQuestion, width: int) -> str:
    """Who asks, and what for."""
    lines = [
        part
        for line in escape(question.request.message, "\n").split("\n")
        for part in fold(line, width)
    ]
    more = [f"  └ {len(lines) - MAX_LINES} more lines"] if len(lines) > MAX_LINES else []
    asker = one_line(question.tool_id, MAX_LABEL)
    head = ["", f"Asked by {asker}, which runs for this program:"]
    shown = [f"  │ {line}" for line in lines[:MAX_LINES]]
    if question.request.url is not None:
        # All of it: what is cut off may be where it really leads.
        address = [f"  │ {part}" for part in fold(escape(question.request.url), width)]
        more += ["  It wants you to open this address:", *address]
    return "".join(f"{line}\n" for line in (*head, *shown, *more))


async def fill_in(
    question: InputQuestion, ask: AskLine, say: Callable[[str], None]
) -> JsonObject | None:
    """Asks for each field. None: the person does not want to tell.

    Args:
        question: With a flat schema, or an address.
        ask: Reads a line.
        say: Shows a line.
    """
    if question.request.url is not None:
        done = await ask("done, or decline? ")
        return {} if (done or "").lower() == "done" else None
    fields = _fields(question.request.schema)
    wish = await ask("fill it in, or decline? [fill/decline] ") or ""
    if wish.lower() not in ("fill", "f", *TRUE):
        return None
    filled: JsonObject = {}
    for name, schema, required in fields:
        while True:
            typed = await ask(_prompt(name, schema, required))
            if typed is None:
                return None
            if not typed:
                if "default" in schema:
                    filled[name] = schema["default"]
                if "default" in schema or not required:
                    break
                continue
            try:
                filled[name] = _read(typed, schema)
                break
            except NotThat as error:
                say(f"  {error}\n")
    return filled


def _fields(schema: JsonObject | None) -> list[tuple[str, dict[str, Any], bool]]:
    properties = (schema or {}).get("properties")
    required = (schema or {}).get("required")
    needed = required if isinstance(required, list) else []
    found = properties if isinstance(properties, dict) else {}
    return [
        (name, each, name in needed)
        for name, each in list(found.items())[:MAX_FIELDS]
        if isinstance(each, dict)
    ]


def _prompt(name: str, schema: Mapping[str, Any], required: bool) -> str:
    label = str(schema.get("title") or name)
    about = schema.get("description")
    words = [f"{label}: {about}" if about else label]
    if choices := _choices(schema):
        words.append("one of " + ", ".join(map(str, choices[:MAX_CHOICES])))
    elif schema.get("type") in ("boolean", "number", "integer"):
        words.append(str(schema["type"]))
    if "default" in schema:
        words.append(f"default {schema['default']}")
    elif not required:
        words.append("may be left empty")
    return f"  {one_line('; '.join(words), 2 * MAX_LABEL)} > "


def _choices(schema: Mapping[str, Any]) -> list[JsonValue]:
    items = schema.get("items")
    where = items if schema.get("type") == "array" and isinstance(items, Mapping) else schema
    named = where.get("oneOf") or where.get("anyOf")
    if isinstance(named, list):
        return [each["const"] for each in named if isinstance(each, dict) and "const" in each]
    choices = where.get("enum")
    return choices if isinstance(choices, list) else []


def _read(typed: str, schema: Mapping[str, Any]) -> JsonValue:
    """The value of what was typed.

    Raises:
        NotThat: It is none.
    """
    if schema.get("type") == "array":
        return [_choose(part.strip(), _choices(schema)) for part in typed.split(",")]
    if schema.get("type") == "boolean":
        if typed.lower() in (*TRUE, *FALSE):
            return typed.lower() in TRUE
        raise NotThat("yes or no")
    if schema.get("type") in ("integer", "number"):
        return _number(typed, schema)
    return _choose(typed, _choices(schema))


def _choose(typed: str, choices: list[JsonValue]) -> str:
    if choices and typed not in choices:
        raise NotThat("it is none of the choices")
    return typed


def _number(typed: str, schema: Mapping[str, Any]) -> JsonValue:
    try:
        value = int(typed) if schema["type"] == "integer" else float(typed)
    except ValueError:
        raise NotThat(f"it is no {schema['type']}") from None
    least, most = schema.get("minimum"), schema.get("maximum")
    if isinstance(least, int | float) and value < least:
        raise NotThat(f"it is less than {least}")
    if isinstance(most, int | float) and value > most:
        raise NotThat(f"it is more than {most}")
    return value
