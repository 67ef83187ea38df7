"""The text of a question at the terminal, and the form that a tool asks the user to fill in.

A guest or a stranger wrote the texts and the arguments. Each of their lines stands behind a rule on
the left, so that none can pass for our own text. Only input that the user typed for this question
is sent.
"""

import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

from clawmode.app.console import duration, fold, fold_words
from clawmode.text import escape, one_line
from clawmode.tools.approvals import InputQuestion, Question
from clawmode.tools.tool import SEVERITIES
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

MAX_CALL_LINES, MAX_GROUP_LINES = 6, 60
"""The most lines of one call in a list of calls, and of the list, until the user asks for all."""

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
    return _choose(typed, _choices(schema))


def _choose(typed: str, choices: list[JsonValue]) -> str:
    if choices and typed not in choices:
        raise InvalidAnswer("this is none of the choices")
    return typed


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
    given = escape(json.dumps(question.input, indent=2, ensure_ascii=False), "\n")
    arguments = [part for line in given.split("\n") for part in fold(line, width - RULE)]
    shown = arguments[:max_lines]
    left_out = len(arguments) - len(shown)
    lines = [
        "",
        *_words(f"Approval needed ({question.severity}): ", question.title, width),
        *(_words("  ", question.description, width) if question.description else ()),
        *_words("  tool: ", question.tool_id, width),
        "  arguments:",
        *(f"  │ {line}" for line in shown),
        *([f"  └ {left_out} more lines: answer `show` to see them"] if left_out else ()),
        *_origin([question], width, until),
    ]
    return "".join(f"{line}\n" for line in lines), not left_out


def describe_calls(
    questions: Sequence[Question], width: int, *, everything: bool, until: str
) -> tuple[str, list[bool]]:
    """Returns the text of a question about several calls.

    Args:
        questions: The calls of one program that need approval.
        width: The columns of the terminal.
        everything: True to show all arguments of all calls.
        until: How long the answer `always` is remembered.

    Returns:
        The text, and for each call True if the text shows all of its arguments.
    """
    worst = max((each.severity for each in questions), key=SEVERITIES.index)
    calls = "1 call" if len(questions) == 1 else f"{len(questions)} calls"
    lines = ["", f"Approval needed ({worst}): {calls} of one program"]
    complete: list[bool] = []
    for number, each in enumerate(questions, 1):
        if not everything and len(lines) >= MAX_GROUP_LINES:
            more = f"{len(questions) - number + 1} more calls"
            lines.append(f"  └ {more}: answer `show` to see them")
            break
        given = escape(json.dumps(each.input, ensure_ascii=False))
        arguments = fold(given, width - RULE)
        shown = arguments if everything else arguments[:MAX_CALL_LINES]
        complete.append(len(shown) == len(arguments))
        what = " ".join(filter(None, [each.tool_id, each.title, each.description]))
        lines += _words(f"  {number}. ", what, width)
        lines += [f"  │ {line}" for line in shown]
        if not complete[-1]:
            left_out = len(arguments) - len(shown)
            lines.append(f"  └ {left_out} more lines: answer `show` to see them")
    complete += [False] * (len(questions) - len(complete))
    lines += _origin(questions, width, until)
    return "".join(f"{line}\n" for line in lines), complete


def read_choice(typed: str, count: int) -> tuple[str, list[int]]:
    """Parses an answer about several calls: a word, numbers, or a word and numbers.

    Returns:
        The word (empty if there is none), and the chosen calls, counted from 0.

    Raises:
        InvalidAnswer: A part is neither a word nor the number of a call.
    """
    first, *rest = typed.lower().replace(",", " ").split() or [""]
    if first[:1].isdigit():
        first, rest = "", [first, *rest]
    chosen: set[int] = set()
    for part in rest:
        low, _, high = part.partition("-")
        if not (low.isdecimal() and (high or low).isdecimal() and len(part) < 20):
            raise InvalidAnswer(f"{one_line(part, 40)} is not the number of a call")
        numbers = range(int(low), int(high or low) + 1)
        if not numbers or numbers[0] < 1 or numbers[-1] > count:
            raise InvalidAnswer(f"the calls have the numbers 1 to {count}")
        chosen.update(number - 1 for number in numbers)
    return first, sorted(chosen) if rest else list(range(count))


def _origin(questions: Sequence[Question], width: int, until: str) -> list[str]:
    """Returns who asks, what `always` would remember, and when the first question expires."""
    run = questions[0].run
    origin = {
        "agent": run.agent_id,
        "session": run.session_key or run.session_id,
        "sender": run.sender,
        "channel": run.channel,
    }
    asked_by = ", ".join(f"{kind} {name}" for kind, name in origin.items() if name)
    remembered = "; ".join(dict.fromkeys(each.always for each in questions))
    expires = min(each.expires for each in questions)
    at = time.strftime("%H:%M:%S", time.localtime(expires))
    return [
        *_words("  asked by: ", asked_by, width),
        *_words(f"  always would remember, until {until}: ", remembered, width),
        f"  expires in {duration(max(expires - time.time(), 0))}, at {at}; no answer is a no",
    ]


def _words(label: str, text: str, width: int) -> list[str]:
    """Returns the lines of a text that others chose, behind a label of ours."""
    first, *more = fold_words(label + one_line(text, MAX_WORDS), width - RULE)
    return [first, *(f"  ┆ {line}" for line in more)]
