"""The arguments of `CodeMode`, and those that a model writes for `exec` and `wait`."""

import contextlib
import json
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from clawmode.code_mode.config import CodeModeConfig
from clawmode.context import RunContext
from clawmode.exceptions import (
    ClawmodeError,
    ClawmodeWarning,
    ConfigurationError,
    require,
)
from clawmode.sandbox.protocol import LANGUAGES, MAX_SOURCE, Language
from clawmode.tools.approvals import Approvals
from clawmode.tools.hooks import Hooks
from clawmode.tools.policy import Policy
from clawmode.tools.tool import Tool
from clawmode.types import ErrorCode, JsonValue

if TYPE_CHECKING:
    from clawmode.mcp.settings import ServerSettings


# ---- Of a model ----


class BadArguments(ClawmodeError):
    """The arguments of `exec` or `wait` are invalid; the result fails with this code."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code: ErrorCode = code


def read_arguments(arguments: object) -> dict[str, object]:
    """Returns the arguments of a call, which are an object or its JSON text.

    Raises:
        BadArguments: They are neither.
    """
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except json.JSONDecodeError as error:
            where = f"line {error.lineno}, column {error.colno}"
            text = f"The arguments are not valid JSON: {where}: {error.msg}."
            raise BadArguments("invalid_input", text) from None
        except (ValueError, RecursionError):
            raise BadArguments(
                "invalid_input",
                "The arguments are not valid JSON: they are nested too deeply, or a number is too "
                "long.",
            ) from None
    if not isinstance(arguments, dict):
        raise BadArguments("invalid_input", "The arguments must be an object.")
    return arguments


def read_program(arguments: Mapping[str, object], default_language: str) -> tuple[str, str]:
    """Returns the code and the language of an `exec`. Some models write `command` for `code`.

    Raises:
        BadArguments: The code is missing or ambiguous, or an argument is not a string.
    """
    given: list[str] = []
    for key in ("code", "command"):
        text = arguments.get(key)
        if text is not None and not isinstance(text, str):
            raise BadArguments("invalid_input", f"`{key}` must be a string.")
        if text and text.strip():
            given.append(text)
    if not given:
        raise BadArguments("invalid_input", "`code` is missing or blank.")
    if len(set(given)) > 1:
        raise BadArguments("invalid_input", "`code` and `command` differ: give one of them.")
    language = arguments.get("language")
    if language is None:
        return given[0], default_language
    if not isinstance(language, str):
        raise BadArguments("unsupported_language", "`language` must be a string.")
    return given[0], language


def read_run_id(arguments: Mapping[str, object], *more: str) -> str:
    """Returns the run id of a `wait`.

    Args:
        arguments: The arguments of the model.
        more: Other names under which the id may be given.

    Raises:
        BadArguments: It is missing, or not a string.
    """
    names = (*more, "runId", "run_id")
    run_id = next((arguments[name] for name in names if name in arguments), None)
    if not isinstance(run_id, str):
        raise BadArguments("invalid_input", f"`{names[0]}` must be a string.")
    return run_id


def check_program(code: str, language: str, allowed: Sequence[str]) -> Language:
    """Checks the size and the language of a program. Returns the language.

    Raises:
        BadArguments: The program is empty or too large, or the language is not allowed.
    """
    given: object = code  # nothing has checked yet what a caller from Python passes
    if not isinstance(given, str):
        text = f"`code` must be a string, not {type(given).__name__}."
        raise BadArguments("invalid_input", text)
    if not code.strip():
        raise BadArguments("invalid_input", "`code` is empty.")
    if len(code.encode("utf-8", "replace")) > MAX_SOURCE:
        raise BadArguments("invalid_input", f"`code` is over {MAX_SOURCE} bytes.")
    # Neither can be a program that works, and the engine's own errors would name something else.
    if code.lstrip().startswith("```"):
        raise BadArguments("invalid_input", "Send the program itself, without code fences (```).")
    if code.lstrip().startswith("{"):
        with contextlib.suppress(ValueError, RecursionError):
            if json.loads(code):
                text = "`code` is a JSON object: send the program itself, as plain text."
                raise BadArguments("invalid_input", text)
    for known in LANGUAGES:
        if language == known and known in allowed:
            return known
    names = " or ".join(repr(name) for name in allowed)
    text = f"`language` must be {names}, not {language!r}."
    raise BadArguments("unsupported_language", text)


# ---- Of `CodeMode` ----

PARTS: dict[str, tuple[Any, str]] = {
    "policy": ((Policy, Mapping), '{"allow": [...], "deny": [...]}'),
    "hooks": (Hooks, "hooks = Hooks(); hooks.before_tool_call(function)"),
    "approvals": (Approvals, 'Approvals(ask_for=["send_mail"])'),
    "context": (RunContext, 'RunContext(run_id="r-1")'),
}
"""The types of arguments that `CodeMode` and `Agent` have in common, with an example of each."""

A_POOL = "async with Pool() as pool: ..."
A_STORE = 'SqliteStore("state")'
MCP_SERVERS = '{"files": {"command": "..."}}'


def check_argument(name: str, value: object, kind: Any, example: str) -> None:
    """Checks the type of an optional argument; None is allowed.

    Raises:
        ConfigurationError: The type is wrong; the message shows the example.
    """
    if value is not None and not isinstance(value, kind):
        raise ConfigurationError(
            f"{name}: found {type(value).__name__}, expected for example {example}",
            path=name,
            expected=example,
        )


def check_parts(**parts: object) -> None:
    """Checks the types of arguments that `PARTS` lists.

    Raises:
        ConfigurationError: A type is wrong; the message shows an example.
    """
    for name, part in parts.items():
        check_argument(name, part, *PARTS[name])


def read_config(config: object) -> CodeModeConfig:
    """Returns the configuration that was given as an object, as JSON, or not at all.

    Raises:
        ConfigurationError: The configuration is invalid.
    """
    check_argument("config", config, (CodeModeConfig, Mapping), '{"timeoutMs": 500}')
    if not isinstance(config, Mapping):
        # Defaults are valid: the first validation of a section takes 10 ms.
        return config if isinstance(config, CodeModeConfig) else CodeModeConfig.model_construct()
    made, warned = CodeModeConfig.from_json(dict(config), path="config")
    for warning in warned:
        warnings.warn(str(warning), ClawmodeWarning, stacklevel=3)
    return made


def read_tools(tools: "Iterable[Tool | Callable[..., Any]]") -> list[Tool]:
    """Returns tools that were given as tools or as plain functions."""
    if isinstance(tools, Iterable):
        tools = list(tools)
        made = [tool for tool in tools if isinstance(tool, Tool)]
        if len(made) == len(tools):
            return made
    from clawmode.tools import function  # slow to import, and not needed with `@tool`

    return function.read_tools(tools)


def read_mcp_servers(
    servers: "Mapping[str, JsonValue] | Iterable[ServerSettings]",
) -> "list[ServerSettings]":
    """Returns the settings of MCP servers that were given as `mcp_servers`.

    Raises:
        ConfigurationError: An entry cannot be used.
        MissingExtra: The extra `mcp` is not installed.
    """
    servers = servers if isinstance(servers, Mapping) else list(servers)
    if not servers:
        return []
    require("mcp", "mcp")
    if not isinstance(servers, Mapping):
        from clawmode.mcp.settings import ServerSettings

        for each in servers:
            check_argument("mcp_servers", each, ServerSettings, MCP_SERVERS)
        return servers
    from clawmode.config.mcp import read_servers

    named: Any = servers
    return read_servers(dict(named)).unwrap()
