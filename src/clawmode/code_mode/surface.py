"""What the model sees: the descriptions and schemas of the two tools `exec` and `wait`.

Equal catalogs give equal text, byte for byte, so that providers can cache the prompt. The text
never contains words of MCP servers or clients, because they are untrusted.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

from clawmode.catalog.catalog import Catalog
from clawmode.catalog.mcp_namespace import McpNamespace
from clawmode.catalog.namespace_runtime import NamespaceRuntime
from clawmode.code_mode.config import CodeModeConfig
from clawmode.exceptions import ConfigurationError
from clawmode.sandbox.source import SHELL, TYPESCRIPT
from clawmode.tools.tool import Tool
from clawmode.types import JsonObject, JsonValue

if TYPE_CHECKING:
    # Optional SDKs: without them, type checkers see the definitions as `Any`.
    from anthropic.types import ToolParam
    from google.genai.types import FunctionDeclarationDict
    from openai.types.chat import ChatCompletionToolParam
    from openai.types.responses import FunctionToolParam

Format: TypeAlias = Literal["openai", "openai-responses", "anthropic", "google", "mcp"]

SHELLS = ("exec", "bash", "shell", "sh", "run_command", "terminal")
"""Common names of tools that run shell commands."""

WAIT_DESCRIPTION = (
    "Continue a program that `exec` or `wait` left with status `waiting`. Takes its `runId`; "
    "answers like `exec`. Output already returned is not repeated."
)

_EXEC = """\
Run a {languages} program: the body of an async function. `return` the final value (a trailing \
expression is not returned). You see only its value and output; it calls the real tools.
- `await tools.name(input)` calls a tool of the list below, `await tools.call(id, input)` any \
tool. `await tools.search(query, {{limit}})` finds tools and shows their `call`, `await \
tools.describe(id)` has a tool's schemas, `ALL_TOOLS` lists all tools.
- Start independent calls together: `await Promise.all([...])`, above all those that a person \
must approve. {pending} run at once, the others queue.
- A failed call throws an Error with a `code`: `invalid_tool_input`, `not_approved`, \
`rate_limited` (with `retryAfterMs`), `tool_failed`, `outcome_unknown` (look before you repeat \
it). Catch it if the program can go on.
- `text(value)` and `json(value)` add output. Output and value have {output} bytes in all: \
filter and sum up in the program.
- `helpers.byCursor((cursor) => tools.list({{cursor}}), {{limit}})` and `helpers.byPage((page) => \
…)` return all items of a list, `helpers.map(items, work, {{concurrency}})` works on many, \
`helpers.retry(() => …)` obeys rate limits; all need `await`.
- Variables end with the program; `store(key, value)` and `load(key)` keep JSON for later ones.
- After {seconds} seconds, or if a person must approve, the result has status `waiting` and a \
`runId`: call `wait` with it. `await yield_control()` returns what there is so far and keeps the \
variables for `wait`. A failed result lists in `calls` what was done: do not repeat it blindly.
- No imports, files, network or shell. Time zone UTC."""

_EXEC_BRIEF = """\
Run a {languages} program: the body of an async function. `return` the final value; you see only \
it and the output of `text(value)`, {output} bytes in all. It calls the real tools: `await \
tools.name(input)`, or `await tools.call(id, input)`. Find tools with `await \
tools.search(query)`, read schemas with `await tools.describe(id)`. Start independent calls \
together: `await Promise.all([...])`. A failed call throws an Error with a `code`. After \
{seconds} seconds, or if a person must approve, the status is `waiting`: call `wait` with the \
`runId`. Variables end with the program; `store(key, value)` and `load(key)` keep JSON for later \
ones. No imports, files, network or shell."""

_MCP = """\
MCP servers: {servers}. `await MCP.$search(query)` finds their tools, `await \
API.read("mcp/index.d.ts")` lists the names of all, `API.read("mcp/<server>/<tool>.d.ts")` \
declares one; `API.list("mcp")` lists files. `await MCP.<server>.<tool>(input)` takes one object; \
read `structuredContent` of the result (`isError: true`: the tool failed)."""

MAX_SERVERS = 50
DESCRIPTION_CHARS = 5_200
"""What the description takes if the operator sets no length for the index."""
LEAST_INDEX_CHARS = 2_400
"""The room for the index that long texts of namespaces cannot take away."""


def exec_description(
    catalog: Catalog,
    namespaces: NamespaceRuntime,
    mcp: McpNamespace,
    config: CodeModeConfig,
    *,
    used: Collection[str] = (),
    asks: Callable[[Tool], bool] = lambda tool: False,
    max_chars: int | None = None,
) -> str:
    """Returns the description of `exec`: how to write a program, namespaces, the index of tools.

    Args:
        catalog: The tools.
        namespaces: Their texts are in the description.
        mcp: The MCP servers. Only their names are in the description, whether they can be reached
            or not, so that a server that comes and goes does not change it.
        config: The limits that a program should know.
        used: Ids of tools that the session has used; their signatures come first.
        asks: True for tools whose calls need approval.
        max_chars: The most characters in all. The texts become shorter, then those of namespaces
            and of the index.
    """
    languages = {"javascript": "JavaScript", "typescript": "TypeScript"}
    limits = {
        "languages": " or ".join(languages[name] for name in config.languages),
        "pending": config.max_pending_tool_calls,
        "output": config.max_output_bytes,
        "seconds": f"{config.timeout_ms / 1000:g}",
    }
    full, brief = _EXEC.format(**limits), _EXEC_BRIEF.format(**limits)
    parts = [full if max_chars is None else brief]
    # The operator chooses the names of servers; names of their tools are untrusted.
    if servers := mcp.all_names():
        longest = max(map(len, servers))
        most = MAX_SERVERS if max_chars is None else max(max_chars // 8 // longest, 1)
        more = f" and {len(servers) - most} more" if len(servers) > most else ""
        parts.append(_MCP.format(servers=", ".join(servers[:most]) + more))
    prompts = namespaces.prompt_text()
    if prompts and (max_chars is None or len(prompts) < max_chars // 4):
        parts.append("Namespaces:\n" + prompts)
    taken = len("\n\n".join([*parts, "Tools:\n"]))
    room = config.index_max_chars
    if max_chars is not None:
        room = min(room, max_chars - taken)
    elif "index_max_chars" not in config.model_fields_set:
        room = min(room, max(DESCRIPTION_CHARS - taken, LEAST_INDEX_CHARS))
    if index := catalog.index_text(room, used=used, asks=asks):
        parts.append("Tools:\n" + index)
    return "\n\n".join(parts)[:max_chars]


def shell_hint(catalog: Catalog) -> str:
    """Returns advice for a model that sent a shell command instead of a program."""
    names = {tool.name: tool.id for tool in catalog.entries if tool.source != "mcp"}
    found = next((names[name] for name in SHELLS if name in names), None)
    if found is None:
        return "This run has no shell: look for a tool with `tools.search`."
    return f"To run a command, write a program that calls `tools.call({found!r}, input)`."


def advice(error: str, catalog: Catalog, config: CodeModeConfig) -> str:
    """Returns advice about an error of the sandbox that depends on the run; empty if none."""
    if error == SHELL:
        return f" {shell_hint(catalog)}"
    if not error.endswith(TYPESCRIPT):
        return ""
    if "typescript" in config.languages:
        return ' Set `language` to "typescript".'
    return " This run takes JavaScript only: leave the types out."


def exec_schema(config: CodeModeConfig) -> JsonObject:
    """Returns the schema of `exec`: flat, because some providers reject unions."""
    languages: list[JsonValue] = list(config.languages)
    return {
        "type": "object",
        "properties": {
            "code": {"type": "string", "description": "The body of an async function."},
            "language": {
                "type": "string",
                "enum": languages,
                "description": f"Default: {config.languages[0]}.",
            },
        },
        "required": ["code"],
        "additionalProperties": False,
    }


WAIT_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"runId": {"type": "string", "description": "From the waiting result."}},
    "required": ["runId"],
    "additionalProperties": False,
}


def definition(format: Format, name: str, description: str, schema: JsonObject) -> JsonObject:
    """Returns the definition of a tool in the format of a provider or of MCP."""
    match format:
        case "openai":
            function: JsonObject = {
                "name": name,
                "description": description,
                "parameters": schema,
            }
            return {"type": "function", "function": function}
        case "openai-responses":
            flat: JsonObject = {"type": "function", "name": name, "description": description}
            return flat | {"parameters": schema, "strict": False}
        case "anthropic":
            return {"name": name, "description": description, "input_schema": schema}
        case "google":
            return {"name": name, "description": description, "parameters_json_schema": schema}
        case "mcp":
            return {"name": name, "description": description, "inputSchema": schema}
        case _:
            known = "openai, openai-responses, anthropic, google, mcp"
            raise ConfigurationError(
                f"there is no format {format!r}; use one of {known}", path="format", expected=known
            )


class HasDefinitions(ABC):
    """Base class of `CodeMode` and `SyncCodeMode`, with the type of the definitions by format."""

    @overload
    def definitions(
        self, format: Literal["openai"] = "openai", *, max_chars: int | None = None
    ) -> "list[ChatCompletionToolParam]": ...

    @overload
    def definitions(
        self, format: Literal["openai-responses"], *, max_chars: int | None = None
    ) -> "list[FunctionToolParam]": ...

    @overload
    def definitions(
        self, format: Literal["anthropic"], *, max_chars: int | None = None
    ) -> "list[ToolParam]": ...

    @overload
    def definitions(
        self, format: Literal["google"], *, max_chars: int | None = None
    ) -> "list[FunctionDeclarationDict]": ...

    @overload
    def definitions(
        self, format: Literal["mcp"], *, max_chars: int | None = None
    ) -> list[JsonObject]: ...

    def definitions(self, format: Format = "openai", *, max_chars: int | None = None) -> Any:
        """Returns the definitions of the two tools, in the format of a provider or of MCP.

        Args:
            format: The provider's API, or MCP.
            max_chars: The most characters of a description, for clients that cut longer ones.
        """
        return self._define(format, max_chars)

    @abstractmethod
    def _define(self, format: Format, max_chars: int | None) -> list[JsonObject]: ...
