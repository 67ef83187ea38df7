"""The text of a question at the terminal, and the form that a tool asks the user to fill in.

A guest or a stranger wrote the texts and the arguments. Each of their lines stands behind a rule on
the left, so that none can pass for our own text. Only input that the user typed for this question
is sent.
"""

import json
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from clawmode.app.console import duration, fold, fold_words
from clawmode.text import escape, one_line
from clawmode.tools.approvals import InputQuestion, Question
from clawmode.types import JsonObject, JsonValue

AskLine: TypeAlias = Callable[[str], Awaitable[str | None]]
"""Shows a prompt and reads a line; None at the end of input."""

MAX_FIELDS = 50
MAX_CHOICES = 50
MAX_LABEL = 200
MAX_LINES = 40
"""The most lines of a message, or of arguments until the user asks for all of them."""

RULE = 6
"""The columns of the rule on the left, with some to spare."""

MAX_WORDS = 300
TRUE, FALSE = ("y", "yes", "true"), ("n", "no", "false")


class InvalidAnswer(ValueError):
    """The typed text does not fit the field; the message says why."""


# ---- Forms ----


def introduce(question: InputQuestion, width: int) -> str:
    """Returns the head of a form: which tool asks, and its message."""
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
        # Not shortened: the part that is cut off could decide where the address leads.
        address = [f"  │ {part}" for part in fold(escape(question.request.url), width)]
        more += ["  It wants you to open this address:", *address]
    return "".join(f"{line}\n" for line in (*head, *shown, *more))


async def fill_in(
    question: InputQuestion, ask: AskLine, say: Callable[[str], None]
) -> JsonObject | None:
    """Asks for each field of a form.

    Args:
        question: A question with a flat schema, or with an address to open.
        ask: Reads a line.
        say: Shows a line.

    Returns:
        The values by field; None if the user declines.
    """
    if question.request.url is not None:
        done = await ask("done, or decline? ")
        return {} if (done or "").lower() == "done" else None
    fields = _fields(question.request.schema)
    choice = await ask("fill it in, or decline? [fill/decline] ") or ""
    if choice.lower() not in ("fill", "f", *TRUE):
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
                filled[name] = _parse(typed, schema)
                break
            except InvalidAnswer as error:
                say(f"  {error}\n")
    return filled


def _fields(schema: JsonObject | None) -> list[tuple[str, dict[str, Any], bool]]:
    """Returns name, schema and necessity of each field; a server may send any shape."""
    properties = (schema or {}).get("properties")
    required = (schema or {}).get("required")
    needed = required if isinstance(required, list) else []
    found = properties if isinstance(properties, dict) else {}
    return [
        (name, field, name in needed)
        for name, field in list(found.items())[:MAX_FIELDS]
        if isinstance(field, dict)
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
        words.append("optional")
    return f"  {one_line('; '.join(words), 2 * MAX_LABEL)} > "


def _choices(schema: Mapping[str, Any]) -> list[JsonValue]:
    items = schema.get("items")
    where = items if schema.get("type") == "array" and isinstance(items, Mapping) else schema
    named = where.get("oneOf") or where.get("anyOf")
    if isinstance(named, list):
        return [item["const"] for item in named if isinstance(item, dict) and "const" in item]
    choices = where.get("enum")
    return choices if isinstance(choices, list) else []


def _parse(typed: str, schema: Mapping[str, Any]) -> JsonValue:
    """Parses the typed text as a value of the schema.

    Raises:
        InvalidAnswer: The text does not fit the schema.
    """
    if schema.get("type") == "array":
        return [_choose(part.strip(), _choices(schema)) for part in typed.split(",")]
    if schema.get("type") == "boolean":
        if typed.lower() in (*TRUE, *FALSE):
            return typed.lower() in TRUE
        raise InvalidAnswer("please answer yes or no")
    if schema.get("type") in ("integer", "number"):
        return _parse_number(typed, schema)
    return _choose(typed, _choices(schema))


def _choose(typed: str, choices: list[JsonValue]) -> str:
    if choices and typed not in choices:
        raise InvalidAnswer("this is none of the choices")
    return typed


def _parse_number(typed: str, schema: Mapping[str, Any]) -> JsonValue:
    try:
        value = int(typed) if schema["type"] == "integer" else float(typed)
    except ValueError:
        kind = "an integer" if schema["type"] == "integer" else "a number"
        raise InvalidAnswer(f"this is not {kind}") from None
    least, most = schema.get("minimum"), schema.get("maximum")
    if isinstance(least, int | float) and value < least:
        raise InvalidAnswer(f"the value must be at least {least}")
    if isinstance(most, int | float) and value > most:
        raise InvalidAnswer(f"the value must be at most {most}")
    return value


# ---- The question whether a call may run ----


def describe(
    question: Question,
    width: int,
    max_lines: int | None = MAX_LINES,
    until: str = "this command ends",
) -> tuple[str, bool]:
    """Returns the text of a question, and True if the text shows all arguments.

    Args:
        question: The call that needs approval.
        width: The columns of the terminal.
        max_lines: The most lines of arguments; None for all of them.
        until: How long the answer `always` is remembered.
    """
    run = question.run
    origin = {
        "agent": run.agent_id,
        "session": run.session_key or run.session_id,
        "sender": run.sender,
        "channel": run.channel,
    }
    asked_by = ", ".join(f"{kind} {name}" for kind, name in origin.items() if name)
    given = escape(json.dumps(question.input, indent=2, ensure_ascii=False), "\n")
    arguments = [part for line in given.split("\n") for part in fold(line, width - RULE)]
    shown = arguments[:max_lines]
    left_out = len(arguments) - len(shown)
    at = time.strftime("%H:%M:%S", time.localtime(question.expires))
    left = duration(max(question.expires - time.time(), 0))
    lines = [
        "",
        *_words(f"Approval needed ({question.severity}): ", question.title, width),
        *(_words("  ", question.description, width) if question.description else ()),
        *_words("  tool: ", question.tool_id, width),
        "  arguments:",
        *(f"  │ {line}" for line in shown),
        *([f"  └ {left_out} more lines: answer `show` to see them"] if left_out else ()),
        *_words("  asked by: ", asked_by, width),
        *_words(f"  always would remember, until {until}: ", question.always, width),
        f"  expires in {left}, at {at}; no answer is a no",
    ]
    return "".join(f"{line}\n" for line in lines), not left_out


def _words(label: str, text: str, width: int) -> list[str]:
    """Returns the lines of a text that others chose, behind a label of ours."""
    first, *more = fold_words(label + one_line(text, MAX_WORDS), width - RULE)
    return [first, *(f"  ┆ {line}" for line in more)]
