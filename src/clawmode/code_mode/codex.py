"""The dialect of `exec` and `wait` that Codex and models trained for it use: `dialect: "codex"`.

It is an addition of ours and off by default. `exec` is a freeform tool on the Responses wire: its
input is the source itself. `wait` takes `cell_id`, `yield_time_ms`, `max_tokens` and `terminate`.
"""

import json
import re
from collections.abc import Callable, Mapping

from clawmode.code_mode import surface
from clawmode.code_mode.arguments import BadArguments
from clawmode.code_mode.config import CodeModeConfig
from clawmode.text import clip, truncate
from clawmode.types import JsonObject, JsonValue, dataclass

CHARS_PER_TOKEN = 4
"""The usual estimate: results are cut by characters, because no tokenizer is loaded here."""

PRAGMA = re.compile(r"[ \t]*// @exec:([^\r\n]*)(?:\r?\n|$)")
"""The first line of a source may set limits: `// @exec: {"yield_time_ms": 500}`."""

EXEC_NOTE = """
- Tools of MCP servers are also `tools.mcp__<server>__<tool>(input)`. `wait` takes the `runId` of \
a waiting result as `cell_id`. A first line such as `// @exec: {"yield_time_ms": 5000, \
"max_output_tokens": 2000}` sets limits for this call."""

FREEFORM_NOTE = " Send the source as it is: no JSON, no quotes, no code fences."

WAIT_DESCRIPTION = (
    "Continue a program that `exec` or `wait` left with status `waiting`, or end it. Answers like "
    "`exec`. Output already returned is not repeated."
)
WAIT_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {
        "cell_id": {"type": "string", "description": "The `runId` of the waiting result."},
        "yield_time_ms": {
            "type": "number",
            "description": "Return after this time if the program still waits.",
        },
        "max_tokens": {"type": "number", "description": "How long the answer may be."},
        "terminate": {"type": "boolean", "description": "True ends the program."},
    },
    "required": ["cell_id"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class CallLimits:
    """Limits that a model sets for one call.

    Attributes:
        yield_ms: Milliseconds after which a program that waits is returned.
        max_tokens: The most tokens of output and value, estimated.
        terminate: True if the program is to be ended.
    """

    yield_ms: float | None = None
    max_tokens: float | None = None
    terminate: bool = False

    def cut(self, result: JsonObject) -> JsonObject:
        """Returns a result whose output and value are shortened to the limit of tokens."""
        if self.max_tokens is None:
            return result
        left, made = int(self.max_tokens * CHARS_PER_TOKEN), dict(result)
        items = made.get("output")
        output = list[JsonValue]()
        for item in items if isinstance(items, list) else []:
            assert isinstance(item, dict)
            key = "text" if "text" in item else "value"
            output.append(item | {key: _shortened(item[key], left)})
            left = max(left - _size(item[key]), 0)
        if output:
            made["output"] = output
        if made.get("value") is not None:
            made["value"] = _shortened(made["value"], left)
        return made


def _size(value: JsonValue) -> int:
    return len(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _shortened(value: JsonValue, limit: int) -> JsonValue:
    if _size(value) <= limit:
        return value
    return truncate(value, limit) if isinstance(value, str) else clip(value, limit)


def definitions_of(
    format: surface.Format,
    config: CodeModeConfig,
    describe: Callable[[int | None], str],
    max_chars: int | None,
) -> list[JsonObject]:
    """Returns the definitions of `exec` and `wait`, in the dialect of the configuration.

    Args:
        format: The provider's API, or MCP.
        config: Limits and dialect.
        describe: Returns the description of `exec`, with at most a number of characters.
        max_chars: The most characters of a description; None for no limit.
    """
    if config.dialect != "codex":
        return [
            surface.definition(format, "exec", describe(max_chars), surface.exec_schema(config)),
            surface.definition(format, "wait", surface.WAIT_DESCRIPTION, surface.WAIT_SCHEMA),
        ]
    notes = len(EXEC_NOTE + FREEFORM_NOTE)
    head, *rest = describe(None if max_chars is None else max_chars - notes).split("\n\n", 1)
    text = "\n\n".join([head + EXEC_NOTE, *rest])
    exec_tool = surface.definition(format, "exec", text, surface.exec_schema(config))
    if format == "openai-responses":
        exec_tool = freeform(text.replace(".", "." + FREEFORM_NOTE, 1))
    return [exec_tool, surface.definition(format, "wait", WAIT_DESCRIPTION, WAIT_SCHEMA)]


def freeform(description: str) -> JsonObject:
    """Returns the definition of `exec` as a custom tool of the Responses API."""
    text: JsonObject = {"type": "custom", "name": "exec", "description": description}
    return text | {"format": {"type": "text"}}


def read_source(given: object) -> tuple[dict[str, object] | None, CallLimits]:
    """Reads the input of a freeform `exec`.

    Returns:
        The arguments of `exec`, and the limits of its first line. The arguments are None if the
        input is not freeform: an object, or its JSON text as function tools get it.

    Raises:
        BadArguments: The first line sets limits that cannot be read.
    """
    if not isinstance(given, str):
        return None, CallLimits()
    if given.lstrip().startswith("{"):
        try:
            if isinstance(json.loads(given), dict):
                return None, CallLimits()
        except (ValueError, RecursionError):
            pass  # a program that begins with a block
    limits = CallLimits()
    if (pragma := PRAGMA.match(given)) is not None:
        try:
            found = json.loads(pragma[1])
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            text = 'The first line must be `// @exec: {"yield_time_ms": 500}` or plain code.'
            raise BadArguments("invalid_input", text)
        limits = CallLimits(
            _number(found, "yield_time_ms"), _number(found, "max_output_tokens", "max_tokens")
        )
    return {"code": given}, limits


def read_wait_limits(arguments: Mapping[str, object]) -> CallLimits:
    """Reads the limits of a `wait`.

    Raises:
        BadArguments: A limit has the wrong type or is negative.
    """
    terminate = arguments.get("terminate")
    if terminate is not None and not isinstance(terminate, bool):
        raise BadArguments("invalid_input", "`terminate` must be true or false.")
    return CallLimits(
        _number(arguments, "yield_time_ms"), _number(arguments, "max_tokens"), terminate is True
    )


def _number(arguments: Mapping[str, object], *names: str) -> float | None:
    for name in names:
        value = arguments.get(name)
        if value is None:
            continue
        # Python counts booleans as integers, and JSON of Python has NaN and Infinity.
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
            raise BadArguments("invalid_input", f"`{name}` must be a number that is not negative.")
        return float(value)
    return None
